//! How much of its memory a tree touches within 1, 10 and 60 intervals, by its accessed bits.
//!
//! They are cleared once and read at the end of each window, so a page of a long window is one of a short window, too.
//! Processes that cannot be read, as those of another user, are left out.

use ebb_sys::proc::{Process, Touched};
use std::time::{Duration, Instant};

/// Windows, in intervals.
const WINDOWS: [u32; 3] = [1, 10, 60];

/// Memory that was touched.
#[derive(Clone, Default, Debug)]
pub struct Touches {
    /// Windows, and the most bytes that were touched within one.
    windows: Vec<(Duration, u64)>,
}

impl Touches {
    /// Windows that have ended at least once, and the most bytes that were touched within one.
    pub fn windows(&self) -> &[(Duration, u64)] {
        &self.windows
    }

    fn add(&mut self, window: Duration, bytes: u64) {
        let at = self.windows.partition_point(|(known, _)| *known < window);
        match self.windows.get_mut(at) {
            Some((known, most)) if *known == window => *most = bytes.max(*most),
            _ => self.windows.insert(at, (window, bytes)),
        }
    }
}

/// See the module.
pub struct Watch {
    interval: Duration,
    /// The time when the bits were cleared.
    since: Option<Instant>,
    /// Windows that have ended since.
    ended: usize,
    touches: Touches,
}

impl Watch {
    /// Nothing is cleared yet.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            since: None,
            ended: 0,
            touches: Touches::default(),
        }
    }

    /// From here on once more; what is known stays.
    pub fn again(&mut self) {
        (self.since, self.ended) = (None, 0);
    }

    /// The time until the next look; none once the last window has ended.
    pub fn due_in(&self) -> Option<Duration> {
        let window = self.interval * *WINDOWS.get(self.ended)?;
        Some(match self.since {
            Some(since) => window.saturating_sub(since.elapsed()),
            None => Duration::ZERO,
        })
    }

    /// Looks at the processes, if it is time; whether there is news.
    pub fn look(&mut self, pids: &[u32]) -> bool {
        if self.due_in() != Some(Duration::ZERO) {
            return false;
        }
        let processes: Vec<Process> = pids
            .iter()
            .filter_map(|pid| Process::open(*pid).ok())
            .collect();
        if self.since.is_none() {
            if processes.is_empty() {
                return false;
            }
            // One that refuses is refused when it is read, too.
            for process in &processes {
                let _ = process.forget_touches();
            }
            self.since = Some(Instant::now());
            return false;
        }
        let window = self.interval * WINDOWS[self.ended];
        self.ended += 1;
        let all: Vec<Touched> = processes.iter().filter_map(|p| p.touched().ok()).collect();
        if all.is_empty() {
            return false;
        }
        self.touches
            .add(window, all.iter().map(|one| one.touched).sum());
        true
    }

    /// Touches so far.
    pub fn touches(&self) -> &Touches {
        &self.touches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_one_after_the_other_and_keep_the_most() {
        let mut watch = Watch::new(Duration::from_millis(2));
        let us = [std::process::id()];
        for _ in 0..2 {
            while let Some(wait) = watch.due_in() {
                std::thread::sleep(wait);
                watch.look(&us);
            }
            watch.again();
        }
        let windows: Vec<_> = watch.touches().windows().to_vec();
        let times: Vec<_> = windows.iter().map(|(time, _)| time.as_millis()).collect();
        assert_eq!(times, [2, 20, 120]);
        assert!(windows.iter().all(|(_, bytes)| *bytes > 0), "{windows:?}");
        let mut touches = Touches::default();
        touches.add(Duration::from_secs(1), 7);
        touches.add(Duration::from_secs(1), 5);
        assert_eq!(touches.windows(), [(Duration::from_secs(1), 7)]);
    }

    #[test]
    fn a_watch_begins_with_the_first_process() {
        let mut watch = Watch::new(Duration::from_millis(1));
        assert!(!watch.look(&[u32::MAX]));
        assert_eq!(watch.due_in(), Some(Duration::ZERO));
        assert!(!watch.look(&[std::process::id()]), "cleared");
        std::thread::sleep(Duration::from_millis(2));
        assert!(watch.look(&[u32::MAX, std::process::id()]));
        // All have ended meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!watch.look(&[u32::MAX]));
        assert_eq!(watch.touches().windows().len(), 1);
    }
}
