//! The kernel's pressure stall words (PSI) of a process. `some` is the time in which at least one of its threads waited
//! for a page. `full` is the part of it in which no other thread ran.
//!
//! **some.** A word of the process's own has the faults that were read and not yet served, and when the first of them
//! was read. Where the last one is served, before its thread is woken, the time since then is added to `some`. So
//! waits that overlap count once. A fault costs two changes of that word and one addition, and no system call. The
//! keeper adds what a long wait has come to so far. A wait begins when its fault is read, as in the latencies; or
//! before the service thread's work for room, if the fault is there right after that.
//!
//! **full.** The keeper reads the processor time of the program's threads, 20 ms apart while there are faults. The
//! time that ran in such a window filled first the time in which nobody waited, on one processor. The rest ran beside
//! waits, and `full` is `some` without it:
//! ```text
//! beside = max(0, ran - (window - some))        full = max(0, some - beside)
//! ```
//! That is exact for a process of one thread, where `full` is `some`. Where several threads run at once while nobody
//! waits, it says too little. The window in which a process ends is not counted.
//!
//! Not here: the figures of a tree, which the supervisor finds from those of its processes (`supervisor/pressure.rs`).

use ebb_sys::paging::Time;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Bits of the word that count faults; above them is a time, in units that leave 200 days before it wraps.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const UNIT_BITS: u32 = 6;

/// Faults that wait, and since when.
#[derive(Default)]
pub struct Pressure(AtomicU64);

/// A time as it stands in the word, in place.
fn stamp(at: Time) -> u64 {
    (at.as_nanos() as u64 >> UNIT_BITS) << COUNT_BITS
}

/// From the word's time to a later one; none if it is not later.
fn elapsed(word: u64, at: u64) -> Duration {
    let units = (at & !COUNT).wrapping_sub(word & !COUNT) >> COUNT_BITS;
    let passed = units < 1 << (u64::BITS - COUNT_BITS - 1);
    Duration::from_nanos(if passed { units << UNIT_BITS } else { 0 })
}

impl Pressure {
    /// Counts faults that were read.
    pub fn begin(&self, faults: usize, at: Time) {
        let more = |word: u64| match word & COUNT {
            0 => stamp(at) | faults as u64,
            _ => word + faults as u64,
        };
        let _ = self.0.fetch_update(SeqCst, SeqCst, |word| Some(more(word)));
    }

    /// One of them is served, and its thread about to be woken. The time to be counted, once none waits any more.
    pub fn end(&self, at: Time) -> Duration {
        let less = |word: u64| (word & COUNT > 0).then(|| word - 1);
        match self.0.fetch_update(SeqCst, SeqCst, less) {
            Ok(word) if word & COUNT == 1 => elapsed(word, stamp(at)),
            _ => Duration::ZERO,
        }
    }

    /// The time to be counted of a wait that goes on; from now on it counts anew.
    pub fn split(&self, at: Time) -> Duration {
        let anew = |word: u64| (word & COUNT > 0).then(|| stamp(at) | word & COUNT);
        let split = self.0.fetch_update(SeqCst, SeqCst, anew);
        split.map_or(Duration::ZERO, |word| elapsed(word, stamp(at)))
    }

    /// Whether a fault waits.
    pub fn waits(&self) -> bool {
        self.0.load(SeqCst) & COUNT > 0
    }

    /// In a forked child: the faults are of the parent's threads.
    pub fn reset_in_child(&self) {
        self.0.store(0, SeqCst);
    }
}

/// The keeper's window, of which it finds `full`.
#[derive(Default)]
pub struct PressureWindow {
    /// The figures at its beginning: the time, `some`, and the processor time of the program.
    began: Option<(Time, u64, Duration)>,
}

impl PressureWindow {
    /// A window ends and the next begins: nanoseconds to add to `full`. `some` is in nanoseconds.
    pub fn turn(&mut self, now: Time, some: u64, ran: Option<Duration>) -> u64 {
        let ends = ran.map(|ran| (now, some, ran));
        let began = std::mem::replace(&mut self.began, ends);
        let (Some((began, some_then, ran_then)), Some(ran)) = (began, ran) else {
            return 0;
        };
        let waited = Duration::from_nanos(some.saturating_sub(some_then));
        let free = (now.saturating_sub(began)).saturating_sub(waited);
        let beside = ran.saturating_sub(ran_then).saturating_sub(free);
        waited.saturating_sub(beside).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(us: u64) -> Time {
        Time::from_micros(us * 64)
    }

    #[test]
    fn waits_that_overlap_count_once() {
        let pressure = Pressure::default();
        pressure.begin(1, us(10));
        pressure.begin(2, us(12));
        assert_eq!(pressure.end(us(13)), Duration::ZERO);
        assert_eq!(pressure.split(us(14)), us(4));
        assert_eq!(pressure.end(us(15)), Duration::ZERO);
        assert_eq!(pressure.end(us(18)), us(4));
        // Nobody waits: a wait that was not begun is none.
        assert_eq!(pressure.end(us(20)), Duration::ZERO);
        assert_eq!(pressure.split(us(21)), Duration::ZERO);
        pressure.begin(1, us(30));
        assert_eq!(pressure.end(us(29)), Duration::ZERO, "a clock behind");
    }

    proptest! {
        /// Against the union of intervals, moment by moment.
        #[test]
        fn some_is_the_union_of_the_waits(waits in proptest::collection::vec((0u64..200, 1u64..40), 1..40)) {
            let mut events: Vec<(u64, bool)> = Vec::new();
            for &(from, long) in &waits {
                events.extend([(from, false), (from + long, true)]);
            }
            // Begins of a moment come before its ends.
            events.sort_unstable();
            let pressure = Pressure::default();
            let mut some = Duration::ZERO;
            for (at, ends) in events {
                match ends {
                    false => pressure.begin(1, us(at)),
                    true => some += pressure.end(us(at)),
                }
            }
            let waiting = |at: &u64| waits.iter().any(|(from, long)| (*from..from + long).contains(at));
            prop_assert_eq!(some, us((0..300).filter(waiting).count() as u64));
        }
    }

    #[test]
    fn full_is_what_nobody_ran_beside() {
        let ms = Duration::from_millis;
        // Of a window of 20 ms.
        let full = |some: u64, ran: u64| {
            let mut window = PressureWindow::default();
            assert_eq!(window.turn(ms(100), 5_000_000, Some(ms(7))), 0);
            let full = window.turn(ms(120), 5_000_000 + some * 1_000_000, Some(ms(7 + ran)));
            full / 1_000_000
        };
        assert_eq!(full(12, 8), 12, "one thread");
        assert_eq!(full(12, 0), 12, "nobody runs");
        assert_eq!(full(20, 20), 0, "another always runs");
        assert_eq!(full(12, 13), 7, "another runs now and then");
        assert_eq!(full(12, 40), 0, "two others run");
        let mut window = PressureWindow::default();
        assert_eq!(window.turn(ms(0), 0, Some(ms(0))), 0);
        assert_eq!(window.turn(ms(20), 9, None), 0, "nobody says what ran");
        assert_eq!(
            window.turn(ms(40), 18, Some(ms(1))),
            0,
            "nor what had run before"
        );
    }
}
