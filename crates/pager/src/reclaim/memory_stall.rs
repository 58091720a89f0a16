//! How long memory has stalled the process: room was wanted and not made, while hardly any work was done.
//!
//! Work ends a stall. Where it comes in a burst now and then, as some room turns up somewhere, each burst would do
//! that, and the program would stand still for most of the time for ever. So *dead* time adds up: time that is
//! stalled after a moment without any work. Other time takes as much of it back. A program that is dead for more
//! than half of the time is out of memory, however much it does between. One that waits for slow transfers is not.

use ebb_sys::paging::Time;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the process is stalled before it is ended.
pub const GIVE_UP: Duration = Duration::from_secs(10);

/// How long it may be dead, beyond the time that it was not.
const DEAD: Duration = Duration::from_secs(60);

/// A stall without any work for so long is dead time.
const MOMENT: Duration = Duration::from_secs(1);

/// So much work ends a stall: a MiB in ten seconds is no progress.
const PROGRESS: u64 = 256;

/// The longest that one look for room counts. It takes a few milliseconds; what takes longer is a transfer, or a program
/// that was stopped. As long may pass until the next look: a longer pause counts against the stall.
const ROUND: Duration = Duration::from_millis(100);

/// How often it is seen, while no work is done at all, whether what cannot be swapped out is more than the
/// budget.
const CHECK_EVERY: Duration = Duration::from_secs(3);

/// How long room has been wanted and not made, by whichever threads, since work was last done as it should
/// be.
#[derive(Default)]
pub struct MemoryStall(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    lasted: Stalled,
    /// The moment up to which times are counted.
    until: Option<Time>,
    /// The dead time, less other time.
    dead: Duration,
    /// The work done when it began, and up to then.
    began: u64,
    work: u64,
}

/// How long there has been no room: the union of the times.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stalled {
    /// The time with less work than there should be.
    pub in_all: Duration,
    /// The time with none at all.
    idle: Duration,
    /// Flag: that has become longer than [`CHECK_EVERY`], or twice as long, and so on, since the last look.
    pub check_due: bool,
    /// Flag: it has been so for too long.
    pub is_over: bool,
}

impl MemoryStall {
    /// Time without any work is time with too little.
    pub fn check(&self) {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(counted.lasted.idle <= counted.lasted.in_all);
    }

    /// Room was wanted and not made from `from` to `to`, and so much `work` has been done so far. How long it has
    /// been so.
    pub fn lasted(&self, from: Time, to: Time, work: u64) -> Stalled {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if work - counted.began.min(work) >= PROGRESS {
            counted.lasted = Stalled::default();
            counted.began = work;
        }
        if std::mem::replace(&mut counted.work, work) != work {
            counted.lasted.idle = Duration::ZERO;
        }
        // Who wants room now and then, and gets it, is not stalled, however little is done.
        let until = counted.until.unwrap_or(from);
        let apart = from.saturating_sub(until);
        let pause = apart.saturating_sub(ROUND);
        counted.lasted.in_all = counted.lasted.in_all.saturating_sub(pause);
        counted.lasted.idle = counted.lasted.idle.saturating_sub(pause);
        let from = until.max(from);
        let more = to.saturating_sub(from).min(ROUND);
        let looks = |idle: Duration| idle.as_millis() / CHECK_EVERY.as_millis();
        let seen = looks(counted.lasted.idle);
        counted.lasted.in_all += more;
        counted.lasted.idle += more;
        counted.lasted.check_due = looks(counted.lasted.idle) != seen;
        let passed = to.saturating_sub(from);
        let (dead, other) = match counted.lasted.idle > MOMENT {
            true => (more, pause + passed - more),
            false => (Duration::ZERO, apart + passed),
        };
        counted.dead = (counted.dead + dead).saturating_sub(other);
        counted.lasted.is_over = counted.lasted.in_all > GIVE_UP || counted.dead > DEAD;
        counted.until = Some(from.max(to));
        counted.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of a test, in milliseconds.
    fn at(ms: u64) -> Time {
        Time::from_secs(1000) + Duration::from_millis(ms)
    }

    #[test]
    fn time_that_several_threads_wait_counts_once() {
        let stall = MemoryStall::default();
        let lasted = |from, to, work| stall.lasted(at(from), at(to), work).in_all.as_millis();
        assert_eq!(lasted(0, 20, 0), 20);
        assert_eq!(lasted(10, 30, 0), 30);
        // Within what is counted, and a little later.
        assert_eq!(lasted(10, 20, 1), 30);
        assert_eq!(lasted(100, 140, 2), 70);
        assert_eq!(lasted(90, 150, PROGRESS - 1), 80);
    }

    #[test]
    fn a_transfer_or_a_stop_is_no_stall() {
        let stall = MemoryStall::default();
        let lasted = |from, to| stall.lasted(at(from), at(to), 0).in_all.as_millis();
        assert_eq!(lasted(0, 60_000), 100);
        assert_eq!(lasted(60_000, 60_002), 102);
    }

    /// A process that wakes every second, and waits for room each time.
    #[test]
    fn room_that_is_wanted_now_and_then_is_no_stall() {
        let stall = MemoryStall::default();
        for second in 0..1000 {
            let lasted = stall.lasted(at(second * 1000), at(second * 1000 + 50), 0);
            assert!(lasted.in_all <= Duration::from_millis(50), "{lasted:?}");
            stall.check();
        }
    }

    /// Ten looks a second while nothing is done, for so many seconds, then so many pages at once, over and over: the
    /// second in which it is over.
    fn over_with_bursts(stalled: u64, pages: u64, other: u64) -> Option<u64> {
        let stall = MemoryStall::default();
        let (mut ms, mut work) = (0, 0);
        while ms < 600_000 {
            for _ in 0..stalled * 10 {
                let lasted = stall.lasted(at(ms), at(ms + 90), work);
                stall.check();
                if lasted.is_over {
                    return Some(ms / 1000);
                }
                ms += 100;
            }
            for _ in 0..10 {
                work += pages / 10;
                stall.lasted(at(ms), at(ms + 1), work);
                ms += other * 100;
            }
        }
        None
    }

    /// As where a little room turns up every few seconds, on a disk that is full.
    #[test]
    fn bursts_of_work_do_not_put_the_end_off_for_ever() {
        let over = over_with_bursts(8, 3000, 1).expect("it is dead for most of the time");
        assert!((60..500).contains(&over), "{over}");
        assert_eq!(over_with_bursts(4, 3000, 4), None, "half of the time");
        assert_eq!(over_with_bursts(60, 0, 1), Some(11), "without any");
    }

    /// A page a second, each of which waits for a write that takes as long.
    #[test]
    fn a_slow_device_is_not_dead() {
        let stall = MemoryStall::default();
        for second in 0..80 {
            let (from, to) = (at(second * 1000), at(second * 1000 + 990));
            assert!(!stall.lasted(from, to, second).is_over, "{second}");
            assert_eq!(stall.0.lock().unwrap().dead, Duration::ZERO);
        }
    }

    #[test]
    fn work_ends_a_stall() {
        let stall = MemoryStall::default();
        // Looks of 10 ms, one after the other.
        let lasted = |from: u64, to: u64, work| {
            let mut lasted = Stalled::default();
            for ms in (from..to).step_by(10) {
                lasted = stall.lasted(at(ms), at(ms + 10), work);
            }
            (lasted.in_all.as_millis(), lasted.idle.as_millis())
        };
        lasted(0, 1000, 1000);
        assert_eq!(lasted(1000, 9000, 1000), (9000, 9000));
        assert_eq!(lasted(9000, 10_000, 999 + PROGRESS), (10_000, 1000));
        assert_eq!(lasted(10_000, 11_000, 1000 + PROGRESS), (1000, 1000));
        assert_eq!(lasted(11_000, 12_000, 1001 + PROGRESS), (2000, 1000));
        assert_eq!(lasted(12_000, 14_000, 1001 + PROGRESS), (4000, 3000));
        let looks = |from, to| {
            let from = 14_000 + from;
            stall
                .lasted(at(from), at(14_000 + to), 1001 + PROGRESS)
                .check_due
        };
        let due: Vec<u64> = (0..310).filter(|n| looks(n * 10, n * 10 + 10)).collect();
        assert_eq!(due, [299]);
    }
}
