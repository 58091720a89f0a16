//! How soon evicted pages come back: what the age of resident pages is worth.
//!
//! User space sees no accessed bit, so a page that is used all the time looks as old as one that is not. Those that
//! left tell them apart. Where most come back, the others will be used as soon as these were.
//!
//! The pages that leave in one epoch are watched, a *cohort* at a time:
//!
//! ```text
//! half of it is back                     =>  return time = the time since it left, in the mean, or three quarters
//!                                            of what it was, if that is more
//! not within LONGEST epochs              =>  there is none: most stay out
//! not learned again for BELIEVED times   =>  there is none known: resident pages may be idle by now, and some leave
//! as long                                    for a trial
//! ```
//! Not here: what others make of it (`ebb_tree::idle_time`).

use crate::map::page_map::UNIT;

/// Fewer pages say nothing.
const LEAST: u32 = 2 * UNIT as u32;
/// Epochs after which a cohort is given up, as many as evict eight times what is resident.
const LONGEST: u8 = 64;

/// How long what was learned is believed, in times of it.
const BELIEVED: u64 = 64;

/// See the module. Times are the keeper's milliseconds, which may wrap.
pub struct ReturnTime {
    /// The time that was learned last, 0: there is none; and the moment of that.
    learned_ms: u32,
    learned_at_ms: u32,
    /// The epoch in which the cohort leaves; `None`: it will be the next.
    cohort: Option<u8>,
    /// Pages that left, and the pages that are back.
    left: u32,
    returned: u32,
    /// The moment when the first left, and the sum of how much later each other did.
    began_ms: u32,
    later_ms: u64,
}

impl ReturnTime {
    /// Nothing has left.
    pub const fn new() -> Self {
        Self {
            learned_ms: 0,
            learned_at_ms: 0,
            cohort: None,
            left: 0,
            returned: 0,
            began_ms: 0,
            later_ms: 0,
        }
    }

    /// Another epoch begins.
    pub fn begin(&mut self, epoch: u8) {
        match self.cohort {
            Some(of) if self.left >= LEAST && epoch.wrapping_sub(of) < LONGEST => return,
            Some(_) if self.left >= LEAST => self.learned_ms = 0,
            _ => {}
        }
        self.cohort = Some(epoch);
        (self.left, self.returned, self.later_ms) = (0, 0, 0);
    }

    /// `pages` pages leave in this epoch.
    pub fn evicted(&mut self, epoch: u8, pages: u32, now_ms: u32) {
        if self.cohort == Some(epoch) {
            if self.left == 0 {
                self.began_ms = now_ms;
            }
            self.left = self.left.saturating_add(pages);
            self.later_ms += u64::from(now_ms.wrapping_sub(self.began_ms)) * u64::from(pages);
        }
    }

    /// A page is back that left in this epoch.
    pub fn returned(&mut self, epoch: u8, now_ms: u32) {
        if self.cohort != Some(epoch) {
            return;
        }
        self.returned = self.returned.saturating_add(1);
        if self.left >= LEAST && self.returned >= self.left.div_ceil(2) {
            let mean = (self.later_ms / u64::from(self.left)) as u32;
            let took = now_ms
                .wrapping_sub(self.began_ms)
                .saturating_sub(mean)
                .max(1);
            self.learned_ms = took.max(self.learned_ms / 4 * 3);
            self.learned_at_ms = now_ms;
            self.cohort = None;
        }
    }

    /// See the module; at least 1.
    pub fn get_ms(&self, now_ms: u32) -> Option<u32> {
        let since = u64::from(now_ms.wrapping_sub(self.learned_at_ms));
        (since < BELIEVED * u64::from(self.learned_ms)).then_some(self.learned_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In each epoch of 10 ms 100 pages leave, and so many of those that left three epochs ago come back.
    fn run(time: &mut ReturnTime, epochs: std::ops::Range<u8>, come_back: usize) -> Option<u32> {
        let at = |epoch| (u32::MAX - 500).wrapping_add(10 * u32::from(epoch));
        let end = at(epochs.end);
        for epoch in epochs {
            let now = at(epoch);
            time.begin(epoch);
            (0..come_back).for_each(|_| time.returned(epoch.wrapping_sub(3), now));
            time.evicted(epoch, 100, now);
        }
        time.get_ms(end)
    }

    #[test]
    fn pages_that_come_back_tell_when_and_those_that_stay_out_tell_nothing() {
        for (come_back, expected) in [(100, Some(30)), (50, Some(30)), (49, None), (0, None)] {
            let mut time = ReturnTime::new();
            let known = run(&mut time, 0..100, come_back);
            assert_eq!(known, expected, "{come_back}");
        }
    }

    #[test]
    fn what_was_learned_is_forgotten_when_others_stay_out() {
        let mut time = ReturnTime::new();
        run(&mut time, 0..50, 100);
        assert_eq!(run(&mut time, 50..40 + LONGEST, 0), Some(30));
        assert_eq!(run(&mut time, 40 + LONGEST..60 + LONGEST, 0), None);
    }

    #[test]
    fn a_few_pages_that_come_back_at_once_tell_it_for_a_while() {
        let mut time = ReturnTime::new();
        time.begin(0);
        time.evicted(0, LEAST, 1000);
        (0..LEAST / 2).for_each(|_| time.returned(0, 1005));
        assert_eq!(time.get_ms(1_100), Some(5));
        assert_eq!(time.get_ms(2_000), None, "much may have changed");
    }

    /// Pages of a cohort come back before the last of it has left: the memory lacks little of what is used.
    #[test]
    fn a_cohort_that_takes_long_to_leave_is_dated_by_its_middle() {
        let mut time = ReturnTime::new();
        time.begin(0);
        // Each comes back 10 ms after it left.
        for now in 0..40 {
            time.evicted(0, 4, now);
            (0..if now < 10 { 0 } else { 4 }).for_each(|_| time.returned(0, now));
        }
        let known = time.get_ms(40);
        assert!(known.is_some_and(|ms| (8..=12).contains(&ms)), "{known:?}");
    }
}
