//! When pages came into the pool. The engine knows their order alone, as it reads no clock: here it is
//! noted now and then how many clusters of pages had come, so that a place in that order can be dated.
//!
//! ```text
//! samples: (came, ms), both rising
//! a cluster that came as the n-th: at the first sample with came >= n, or later than all of them
//! ```
//! When there are too many every second one is forgotten, and they are taken half as often: how old pages
//! are is known to some percent, for as long as the process lives.

use arrayvec::ArrayVec;

/// Samples kept.
const SAMPLES: usize = 64;
/// Between two, at first, in ms.
const EACH_MS: u32 = 10;

/// See the module. Times are milliseconds that may wrap.
pub struct Dates {
    samples: ArrayVec<(u64, u32), SAMPLES>,
    each_ms: u32,
}

impl Dates {
    /// Nothing has come yet.
    pub const fn new() -> Self {
        Self {
            samples: ArrayVec::new_const(),
            each_ms: EACH_MS,
        }
    }

    /// `came` clusters have come by now.
    pub fn note(&mut self, came: u64, now_ms: u32) {
        if let Some(&(before, since)) = self.samples.last()
            && (before == came || now_ms.wrapping_sub(since) < self.each_ms)
        {
            return;
        }
        if self.samples.is_full() {
            let mut odd = false;
            self.samples.retain(|_| {
                odd = !odd;
                !odd
            });
            self.each_ms *= 2;
        }
        self.samples.push((came, now_ms));
    }

    /// When the `n`-th came, at the latest.
    pub fn of(&self, n: u64, now_ms: u32) -> u32 {
        let at = self.samples.partition_point(|&(came, _)| came < n);
        self.samples.get(at).map_or(now_ms, |&(_, ms)| ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a clock that wraps, at rates that change by a factor of a hundred.
    #[test]
    fn what_came_is_dated_to_some_percent_and_never_too_early() {
        let mut dates = Dates::new();
        let start = u32::MAX - 5000;
        let mut came: Vec<u32> = Vec::new();
        for ms in 0..200_000u32 {
            let rate = if ms / 30_000 % 2 == 0 { 1 } else { 100 };
            if ms % rate == 0 {
                came.push(ms);
            }
            dates.note(came.len() as u64, start.wrapping_add(ms));
        }
        let now = start.wrapping_add(200_000);
        for (n, &ms) in (1..).zip(&came) {
            let date = dates.of(n, now).wrapping_sub(start);
            assert!((ms..=ms + 200_000 / 16).contains(&date), "{n}: {ms} {date}");
        }
        assert_eq!(dates.of(came.len() as u64 + 1, now), now);
    }
}
