//! How long memory has stalled the process: room was wanted and not made, while hardly any work was done.

use ebb_sys::paging::Time;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the process is stalled before it is ended.
pub const GIVE_UP: Duration = Duration::from_secs(10);

/// So much work ends a stall: a MiB in ten seconds is no progress.
const PROGRESS: u64 = 256;

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
            *counted = Counted {
                began: work,
                ..Counted::default()
            };
        }
        if std::mem::replace(&mut counted.work, work) != work {
            counted.lasted.idle = Duration::ZERO;
        }
        // A stall long ago is over, however little was done since.
        if counted.until.is_some_and(|until| from > until + GIVE_UP) {
            counted.lasted = Stalled::default();
        }
        let from = counted.until.map_or(from, |until| until.max(from));
        let more = to.saturating_sub(from);
        let looks = |idle: Duration| idle.as_millis() / CHECK_EVERY.as_millis();
        let seen = looks(counted.lasted.idle);
        counted.lasted.in_all += more;
        counted.lasted.idle += more;
        counted.lasted.check_due = looks(counted.lasted.idle) != seen;
        counted.until = Some(from.max(to));
        counted.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_several_threads_wait_counts_once() {
        let stall = MemoryStall::default();
        let start = Time::from_secs(1000);
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| stall.lasted(at(from), at(to), work).in_all.as_secs();
        assert_eq!(lasted(0, 2, 0), 2);
        assert_eq!(lasted(1, 3, 0), 3);
        // Within what is counted, and long after.
        assert_eq!(lasted(1, 2, 1), 3);
        assert_eq!(lasted(10, 14, 2), 7);
        assert_eq!(lasted(9, 15, PROGRESS - 1), 8);
        assert_eq!(lasted(100, 104, PROGRESS - 1), 4, "long after");
    }

    #[test]
    fn work_ends_a_stall() {
        let stall = MemoryStall::default();
        let start = Time::from_secs(1000);
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| {
            let lasted = stall.lasted(at(from), at(to), work);
            (lasted.in_all.as_secs(), lasted.idle.as_secs())
        };
        lasted(0, 1, 1000);
        assert_eq!(lasted(1, 9, 1000), (9, 9));
        assert_eq!(lasted(9, 10, 999 + PROGRESS), (10, 1));
        assert_eq!(lasted(10, 11, 1000 + PROGRESS), (1, 1));
        assert_eq!(lasted(20, 21, 1001 + PROGRESS), (2, 1));
        assert_eq!(lasted(21, 23, 1001 + PROGRESS), (4, 3));
        let looks = |from, to| {
            let at = |ms| start + Duration::from_secs(23) + Duration::from_millis(ms);
            stall.lasted(at(from), at(to), 1001 + PROGRESS).check_due
        };
        assert_eq!(
            [looks(0, 1500), looks(1500, 2990), looks(2990, 3010)],
            [false, false, true]
        );
    }
}
