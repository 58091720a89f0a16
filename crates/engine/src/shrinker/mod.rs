//! The shrinker's judgement: when to move pages from the pool to devices, from which group,
//! and when to stand back. It moves nothing itself.
//!
//! It starts one percent above the accept threshold and works down to the threshold, so that room is
//! made before it is needed. While others wait for the devices it stands back: a batch begins only if
//! nobody has used them for as long as a few batches take. So its cost to others is a bounded share of
//! their time, whatever the device. How long batches take it learns from its first, which waits for
//! nobody: that costs the others one batch, once. A guess instead, such as [`MAX_QUIET_NS`], could not
//! be corrected in an idle process of a tree that loads all the time: that process would never write its
//! first batch. When the pool is nearly at its limit it stands back for nobody: the devices bound the
//! speed then, and their idle time is lost to all.
//!
//! Groups take turns in the order in which they were made. The cursor is a number, not a reference: a
//! group that ends under it changes nothing. No two groups share one, not even where a new group has the
//! name of one that ended. A group without old pages is passed over. Pages of another group that came
//! twice as long ago are those that nobody has wanted for longer; without this rule a small group that
//! works would lose its pages as fast as a large idle one. It has its turn once those are gone: age is
//! counted in pages stored, so it becomes as old as they are. Groups without pooled pages, and those
//! that may not write, are passed over and are no failure. A turn that moved nothing is one; after
//! [`MAX_FAILURES`] of them in a row it rests for [`REST_NS`].

/// Turns in a row without success before it rests.
pub const MAX_FAILURES: u32 = 16;
/// How long it rests, in ns.
pub const REST_NS: u64 = 500_000_000;
/// It stands back until nobody has used the devices for this many times what a batch takes.
pub const QUIET_BATCHES: u64 = 2;
/// The longest it stands back after a use, in ns; what the kernel's sixth patch always waits.
pub const MAX_QUIET_NS: u64 = 500_000_000;

/// How much there is to do, from least to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// The pool is below its threshold.
    None,
    /// Room is to be made, without disturbing others.
    Background,
    /// Stores are about to be refused.
    Urgent,
}

/// From how many bytes on a pool of `max` is nearly at its limit: three quarters of the way from
/// the threshold.
pub const fn urgent(max: u64, accept_percent: u8) -> u64 {
    // Any limit: that of a tree is a shared word.
    let threshold = (max / 100) as u128 * accept_percent as u128;
    ((threshold + 3 * max as u128) / 4) as u64
}

/// See the module. All zeros at first.
#[derive(Default, Debug)]
pub struct Shrinker {
    running: bool,
    /// The group that had the last turn; they are numbered from 1 on.
    cursor: u64,
    failures: u32,
    rest_until_ns: u64,
    /// The time that a batch takes, smoothed; 0 before the first.
    batch_ns: u64,
}

/// A group that can have the next turn.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<G> {
    /// The place in the order of turns.
    pub number: u64,
    /// The age of its oldest pages.
    pub age: u64,
    /// The group.
    pub group: G,
}

impl Shrinker {
    /// How much there is to do, with `bytes` in a pool of `max`.
    pub fn need(&mut self, bytes: u64, max: u64, accept_percent: u8) -> Need {
        let percent = |p: u64| max / 100 * p;
        let accept = u64::from(accept_percent);
        if bytes >= percent(accept + 1) {
            self.running = true;
        } else if bytes <= percent(accept) {
            self.running = false;
        }
        if !self.running {
            Need::None
        } else if bytes >= urgent(max, accept_percent) {
            Need::Urgent
        } else {
            Need::Background
        }
    }

    /// Whether a batch may begin now, with the last load from a device and the last refused
    /// store at these times (0: never).
    pub fn may_write(
        &self,
        need: Need,
        now_ns: u64,
        last_load_ns: u64,
        last_refused_ns: u64,
    ) -> bool {
        let quiet_for = (self.batch_ns * QUIET_BATCHES).min(MAX_QUIET_NS);
        let quiet = |last_ns: u64| last_ns == 0 || now_ns.saturating_sub(last_ns) >= quiet_for;
        now_ns >= self.rest_until_ns
            && match need {
                Need::None => false,
                Need::Urgent => true,
                Need::Background => quiet(last_refused_ns) && quiet(last_load_ns),
            }
    }

    /// The next in turn of those that have something to write.
    pub fn next_group<G>(&mut self, candidates: impl Iterator<Item = Candidate<G>>) -> Option<G> {
        let candidates: Vec<_> = candidates.collect();
        let oldest = candidates.iter().map(|c| c.age).max()?;
        let old = candidates.into_iter().filter(|c| 2 * c.age >= oldest);
        let next = old.min_by_key(|c| (c.number <= self.cursor, c.number))?;
        self.cursor = next.number;
        Some(next.group)
    }

    /// A turn moved pages and took this long.
    pub fn succeeded(&mut self, took_ns: u64) {
        self.failures = 0;
        self.batch_ns = if self.batch_ns == 0 {
            took_ns
        } else {
            (self.batch_ns * 7 + took_ns) / 8
        };
    }

    /// A turn moved nothing.
    pub fn failed(&mut self, now_ns: u64) {
        self.failures += 1;
        if self.failures >= MAX_FAILURES {
            self.failures = 0;
            self.rest_until_ns = now_ns + REST_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_from_above_the_threshold_down_to_it() {
        let mut s = Shrinker::default();
        assert_eq!(s.need(5000, 10000, 50), Need::None);
        assert_eq!(s.need(5099, 10000, 50), Need::None);
        assert_eq!(s.need(5100, 10000, 50), Need::Background);
        assert_eq!(s.need(5001, 10000, 50), Need::Background);
        assert_eq!(s.need(8750, 10000, 50), Need::Urgent);
        assert_eq!(s.need(5000, 10000, 50), Need::None);
        assert_eq!(s.need(5099, 10000, 50), Need::None);
    }

    #[test]
    fn every_group_gets_its_turn_whoever_ends() {
        let mut s = Shrinker::default();
        let of_one_age = |&number: &u64| Candidate {
            number,
            age: 3,
            group: number,
        };
        let mut turn = |numbers: &[u64]| s.next_group(numbers.iter().map(of_one_age));
        assert_eq!(turn(&[7, 3, 5]), Some(3));
        assert_eq!(turn(&[7, 3, 5]), Some(5));
        // The group under the cursor ends; a new one appears before it.
        assert_eq!(turn(&[7, 3, 1]), Some(7));
        assert_eq!(turn(&[7, 3, 1]), Some(1));
        assert_eq!(turn(&[]), None);
        assert_eq!(turn(&[2]), Some(2));
        assert_eq!(turn(&[2]), Some(2));
    }

    #[test]
    fn a_group_of_young_pages_is_passed_over_until_they_are_old() {
        let mut s = Shrinker::default();
        let mut turn = |ages: [u64; 3]| {
            let candidates = (1..).zip(ages).map(|(number, age)| Candidate {
                number,
                age,
                group: number,
            });
            s.next_group(candidates).expect("there are some")
        };
        assert_eq!([turn([9, 4, 5]), turn([9, 4, 5])], [1, 3]);
        assert_eq!([turn([9, 4, 5]), turn([8, 4, 5])], [1, 2]);
        assert_eq!(turn([8, 4, 3]), 1);
    }

    /// One that has written nothing yet writes once, and then knows for how long to stand back.
    #[test]
    fn the_first_batch_waits_for_nobody() {
        let mut s = Shrinker::default();
        let now = 10_000_000;
        assert!(s.may_write(Need::Background, now, now, now));
        s.succeeded(3_000_000);
        assert!(!s.may_write(Need::Background, now + 5_999_999, now, 0));
        assert!(s.may_write(Need::Background, now + 6_000_000, now, 0));
    }

    #[test]
    fn stands_back_in_proportion_and_rests_after_failures() {
        let mut s = Shrinker::default();
        s.succeeded(1_000_000);
        let (soon, later) = (10_000_000, 11_000_000);
        assert!(!s.may_write(Need::Background, soon, 9_000_000, 0));
        assert!(!s.may_write(Need::Background, soon, 0, 9_000_000));
        assert!(s.may_write(Need::Background, later, 9_000_000, 9_000_000));
        assert!(s.may_write(Need::Urgent, soon, 9_000_000, 0));
        assert!(s.may_write(Need::Urgent, soon, 9_000_000, 9_000_000));
        for _ in 0..MAX_FAILURES {
            assert!(s.may_write(Need::Urgent, 0, 0, 0));
            s.failed(0);
        }
        assert!(!s.may_write(Need::Urgent, REST_NS - 1, 0, 0));
        assert!(s.may_write(Need::Urgent, REST_NS, 0, 0));
    }
}
