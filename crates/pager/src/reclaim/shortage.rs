//! How long room has been wanted in vain, while hardly any work was done.

use ebb_sys::paging::Time;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the process is short of room before it is ended.
pub const GIVE_UP: Duration = Duration::from_secs(10);

/// So much work ends a shortage: a MiB in ten seconds is no progress.
const FED: u64 = 256;

/// How often it is seen, while no work is done at all, whether what cannot be swapped out is more than the
/// budget.
const HOPELESS: Duration = Duration::from_secs(3);

/// How long room has been wanted in vain, by whichever threads, since work was last done as it should
/// be.
#[derive(Default)]
pub struct Shortage(Mutex<Wanted>);

#[derive(Default)]
struct Wanted {
    lasted: Lasted,
    /// Up to where times are counted.
    until: Option<Time>,
    /// The work done when it began, and up to then.
    began: u64,
    work: u64,
}

/// How long there has been no room: the union of the times.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lasted {
    /// With less work than there should be.
    pub in_all: Duration,
    /// With none at all.
    idle: Duration,
    /// That has become longer than [`HOPELESS`], or twice as long, and so on, since the last look.
    pub looks: bool,
}

impl Shortage {
    /// Room was wanted in vain from `from` to `to`, and so much `work` has been done so far. How long it has
    /// been so.
    pub fn lasted(&self, from: Time, to: Time, work: u64) -> Lasted {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if work - wanted.began.min(work) >= FED {
            *wanted = Wanted {
                began: work,
                ..Wanted::default()
            };
        }
        if std::mem::replace(&mut wanted.work, work) != work {
            wanted.lasted.idle = Duration::ZERO;
        }
        // A shortage long ago is over, however little was done since.
        if wanted.until.is_some_and(|until| from > until + GIVE_UP) {
            wanted.lasted = Lasted::default();
        }
        let from = wanted.until.map_or(from, |until| until.max(from));
        let more = to.saturating_sub(from);
        let looks = |idle: Duration| idle.as_millis() / HOPELESS.as_millis();
        let seen = looks(wanted.lasted.idle);
        wanted.lasted.in_all += more;
        wanted.lasted.idle += more;
        wanted.lasted.looks = looks(wanted.lasted.idle) != seen;
        wanted.until = Some(from.max(to));
        wanted.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_wait_counts_once() {
        let shortage = Shortage::default();
        let start = Time::from_secs(1000);
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| shortage.lasted(at(from), at(to), work).in_all.as_secs();
        assert_eq!(lasted(0, 2, 0), 2);
        assert_eq!(lasted(1, 3, 0), 3);
        // Within what is counted, and long after.
        assert_eq!(lasted(1, 2, 1), 3);
        assert_eq!(lasted(10, 14, 2), 7);
        assert_eq!(lasted(9, 15, FED - 1), 8);
        assert_eq!(lasted(100, 104, FED - 1), 4, "long after");
    }

    #[test]
    fn work_ends_a_shortage() {
        let shortage = Shortage::default();
        let start = Time::from_secs(1000);
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| {
            let lasted = shortage.lasted(at(from), at(to), work);
            (lasted.in_all.as_secs(), lasted.idle.as_secs())
        };
        lasted(0, 1, 1000);
        assert_eq!(lasted(1, 9, 1000), (9, 9));
        assert_eq!(lasted(9, 10, 999 + FED), (10, 1));
        assert_eq!(lasted(10, 11, 1000 + FED), (1, 1));
        assert_eq!(lasted(20, 21, 1001 + FED), (2, 1));
        assert_eq!(lasted(21, 23, 1001 + FED), (4, 3));
        let looks = |from, to| {
            let at = |ms| start + Duration::from_secs(23) + Duration::from_millis(ms);
            shortage.lasted(at(from), at(to), 1001 + FED).looks
        };
        assert_eq!(
            [looks(0, 1500), looks(1500, 2990), looks(2990, 3010)],
            [false, false, true]
        );
    }
}
