//! Two lists, as the kernel has them without MGLRU: pages on trial are on the inactive list, pages in use on the
//! active one.
//!
//! A page comes to the inactive list. At the end of that list a page that was touched is activated, any other
//! goes. As long as the inactive list is the shorter one, the active list's oldest pages come back to it. A page
//! that went leaves behind when it did, on a clock of evictions and activations. If no more than a memory's
//! worth of them passed until the page's return, the page is activated at once.
//!
//! Source: `mm/vmscan.c` and `mm/workingset.c` of Linux. For anonymous pages the kernel compares the distance
//! with active ones and files, not with all memory. It lets the active list be the longer one where memory is
//! large, and knows cgroups and writeback. Pages go one by one here, and in batches there.

use super::Policy;
use super::list::List;

pub(super) struct TwoLists {
    /// Pages on trial, the oldest first.
    inactive: List,
    /// Pages in use, the oldest first.
    active: List,
    /// Bits: the page was touched since it came or changed lists.
    touched: Vec<bool>,
    /// Number of evictions and activations so far.
    clock: u64,
    /// Time of each page's last eviction, by that clock.
    gone_at: Vec<Option<u64>>,
    capacity: usize,
}

impl TwoLists {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            inactive: List::new(pages),
            active: List::new(pages),
            touched: vec![false; pages],
            clock: 0,
            gone_at: vec![None; pages],
            capacity,
        }
    }

    /// The page becomes one in use.
    fn activate(&mut self, page: u32) {
        self.active.push(page);
        self.clock += 1;
    }

    /// The inactive list is no shorter than the active one afterwards.
    fn balance(&mut self) {
        while self.inactive.len() < self.active.len() {
            let page = self.active.pop().expect("the longer list");
            self.touched[page as usize] = false;
            self.inactive.push(page);
        }
    }

    /// A page goes.
    fn evict(&mut self) {
        loop {
            self.balance();
            let page = self.inactive.pop().expect("memory is full");
            if !std::mem::take(&mut self.touched[page as usize]) {
                self.clock += 1;
                self.gone_at[page as usize] = Some(self.clock);
                return;
            }
            self.activate(page);
        }
    }
}

impl Policy for TwoLists {
    fn touch(&mut self, page: u32) -> bool {
        if self.inactive.contains(page) || self.active.contains(page) {
            self.touched[page as usize] = true;
            return false;
        }
        let gone_at = self.gone_at[page as usize];
        let soon = gone_at.is_some_and(|then| self.clock - then <= self.capacity as u64);
        if self.inactive.len() + self.active.len() == self.capacity {
            self.evict();
        }
        if soon {
            self.activate(page);
        } else {
            self.inactive.push(page);
        }
        true
    }

    fn check(&self) {
        self.inactive.check();
        self.active.check();
        assert!(self.inactive.len() + self.active.len() <= self.capacity);
        assert!(self.inactive.iter().all(|page| !self.active.contains(page)));
        for (page, touched) in (0..).zip(&self.touched) {
            let in_memory = self.inactive.contains(page) || self.active.contains(page);
            assert!(!touched || in_memory, "page {page} is touched and away");
        }
        assert!(self.gone_at.iter().all(|then| *then <= Some(self.clock)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn a_page_that_returns_soon_outlives_a_scan() {
        let mut policy = TwoLists::new(100, 4);
        assert_eq!(faults(&mut policy, &[0, 1, 2, 3, 4, 0]), 6);
        assert!(policy.active.iter().eq([0]));
        let scan: Vec<u32> = (10..100).collect();
        assert_eq!(faults(&mut policy, &scan), scan.len());
        assert!(!policy.touch(0));
        // Page 1 went long ago: it is on trial again.
        assert!(policy.touch(1));
        assert!(policy.inactive.contains(1));
    }

    #[test]
    fn a_touched_page_is_activated_and_comes_back_as_others_are() {
        let mut policy = TwoLists::new(10, 2);
        assert_eq!(faults(&mut policy, &[0, 1, 0, 2]), 3);
        assert!(policy.active.iter().eq([0]));
        // Page 1 returns soon, in place of 2. Both are in use then, until one has to go: 0, which was so first.
        assert!(policy.touch(1));
        assert!(policy.active.iter().eq([0, 1]));
        assert!(policy.touch(3));
        assert!(policy.active.iter().eq([1]) && policy.inactive.iter().eq([3]));
    }
}
