//! Generations, after the idea of the kernel's multi-generational LRU (MGLRU): pages of about one age are
//! together, and touches are looked for in all pages at once, seldom.
//!
//! There are [`GENERATIONS`] of them. A page comes to the youngest, and pages go from the oldest. When the oldest
//! is empty, all generations age by one, and a new one begins. Pages that were touched since the last time
//! come to the new one. A page of the oldest whose touch is only seen when it should go comes to the youngest,
//! too.
//!
//! Source: `mm/vmscan.c` and `Documentation/mm/multigen_lru.rst` of Linux. The kernel's number of generations
//! varies from two to four. Tiers, the feedback from refaults, and filters of page tables are not modelled.

use super::Policy;
use super::list::List;

/// Number of generations.
const GENERATIONS: usize = 4;

pub(super) struct Generations {
    /// Ring of generations, each with the page that came first in front.
    lists: [List; GENERATIONS],
    /// Place of the oldest generation in the ring; the youngest is before it.
    oldest: usize,
    /// Generation of each page in memory, by its place in the ring.
    place: Vec<Option<u8>>,
    /// Bits: the page was touched since it came to its generation or all aged.
    touched: Vec<bool>,
    /// Number of pages in memory.
    used: usize,
    capacity: usize,
}

impl Generations {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            lists: std::array::from_fn(|_| List::new(pages)),
            oldest: 0,
            place: vec![None; pages],
            touched: vec![false; pages],
            used: 0,
            capacity,
        }
    }

    /// The page, on no list now, comes to the youngest generation.
    fn join(&mut self, page: u32) {
        let youngest = (self.oldest + GENERATIONS - 1) % GENERATIONS;
        self.lists[youngest].push(page);
        self.place[page as usize] = Some(youngest as u8);
    }

    /// All generations age by one, as the oldest is empty: its place is the youngest's now. Touched pages come there.
    fn age(&mut self) {
        self.oldest = (self.oldest + 1) % GENERATIONS;
        for step in 0..GENERATIONS - 1 {
            let place = (self.oldest + step) % GENERATIONS;
            let mut at = self.lists[place].first();
            while let Some(page) = at {
                at = self.lists[place].after(page);
                if std::mem::take(&mut self.touched[page as usize]) {
                    self.lists[place].remove(page);
                    self.join(page);
                }
            }
        }
    }

    /// A page goes.
    fn evict(&mut self) {
        loop {
            let Some(page) = self.lists[self.oldest].pop() else {
                self.age();
                continue;
            };
            if !std::mem::take(&mut self.touched[page as usize]) {
                self.place[page as usize] = None;
                self.used -= 1;
                return;
            }
            self.join(page);
        }
    }
}

impl Policy for Generations {
    fn touch(&mut self, page: u32) -> bool {
        if self.place[page as usize].is_some() {
            self.touched[page as usize] = true;
            return false;
        }
        if self.used == self.capacity {
            self.evict();
        }
        self.join(page);
        self.used += 1;
        true
    }

    fn check(&self) {
        self.lists.iter().for_each(List::check);
        let listed: usize = self.lists.iter().map(List::len).sum();
        assert_eq!(listed, self.used);
        assert!(self.used <= self.capacity);
        for (page, place) in (0..).zip(&self.place) {
            for (at, list) in self.lists.iter().enumerate() {
                assert_eq!(list.contains(page), *place == Some(at as u8), "page {page}");
            }
            assert!(
                place.is_some() || !self.touched[page as usize],
                "page {page}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn pages_go_from_the_oldest_and_touched_ones_are_young_again() {
        let mut policy = Generations::new(10, 4);
        assert_eq!(faults(&mut policy, &[0, 1, 2, 3, 0, 2, 4]), 5);
        // Page 1 went. Page 3 is in the oldest generation; 0 and 2 are one younger, and 4 is in the youngest.
        assert!(policy.lists[policy.oldest].iter().eq([3]));
        let next = (policy.oldest + 1) % GENERATIONS;
        assert!(policy.lists[next].iter().eq([0, 2]));
        assert_eq!(faults(&mut policy, &[5, 6, 2, 4, 5]), 2);
        assert!(policy.touch(0));
    }

    #[test]
    fn a_touch_that_is_seen_late_counts() {
        let mut policy = Generations::new(10, 4);
        assert_eq!(faults(&mut policy, &[0, 1, 2, 3, 4]), 5);
        assert!(policy.lists[policy.oldest].iter().eq([1, 2, 3]));
        assert_eq!(faults(&mut policy, &[1, 5, 1]), 1);
        assert!(policy.touch(2));
    }
}
