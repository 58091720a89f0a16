//! Second chance, or clock: first in, first out, but a page that was touched goes round once more.
//!
//! A touch sets the page's bit. When memory is full, the hand takes pages in turn: one whose bit is set loses the
//! bit and stays, the first one without it goes. Corbató, "A paging experiment with the Multics system", 1968.
//!
//! The fault itself sets no bit: a page that is touched once has one round. A bit tells one touch from none, not
//! from many.

use super::Policy;
use super::list::List;

pub(super) struct SecondChance {
    /// Pages in memory. The hand is at the first.
    memory: List,
    /// Bits: the page was touched since it came or the hand was there.
    touched: Vec<bool>,
    capacity: usize,
}

impl SecondChance {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            memory: List::new(pages),
            touched: vec![false; pages],
            capacity,
        }
    }

    /// A page goes.
    fn evict(&mut self) {
        while let Some(page) = self.memory.pop() {
            if !std::mem::take(&mut self.touched[page as usize]) {
                return;
            }
            self.memory.push(page);
        }
    }
}

impl Policy for SecondChance {
    fn touch(&mut self, page: u32) -> bool {
        if self.memory.contains(page) {
            self.touched[page as usize] = true;
            return false;
        }
        if self.memory.len() == self.capacity {
            self.evict();
        }
        self.memory.push(page);
        true
    }

    fn check(&self) {
        self.memory.check();
        assert!(self.memory.len() <= self.capacity);
        let mut pages = (0..).zip(&self.touched);
        assert!(pages.all(|(page, touched)| !touched || self.memory.contains(page)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn a_touched_page_stays_for_one_more_round() {
        let mut policy = SecondChance::new(6, 2);
        assert_eq!(faults(&mut policy, &[0, 1, 0, 2]), 3);
        // Page 0 was spared, and page 1 went. The bit is gone: now 0 goes, and not 2, whose bit is set.
        assert!(policy.memory.iter().eq([0, 2]));
        assert_eq!(faults(&mut policy, &[2, 3, 2, 0]), 2);
    }
}
