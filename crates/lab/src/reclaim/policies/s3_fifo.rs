//! S3-FIFO: three queues, first in, first out, of which a small one keeps pages of one use away from the main one.
//!
//! A page comes to the small queue, a tenth of memory. At its end a page that was touched more than once comes to
//! the main queue. Any other goes, and its number comes to a queue of ghosts. That is as long as the main one. A page
//! that is among the ghosts comes to the main queue at once. At that one's end a page goes round again for each
//! touch, up to three. Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction", SOSP
//! 2023.
//!
//! The sizes are the paper's and do not adapt. A ghost leaves when it returns or when its queue is full.

use super::Policy;
use super::list::List;

/// Touches that are counted of a page.
const MOST_TOUCHES: u8 = 3;

pub(super) struct S3Fifo {
    /// Pages in memory that are new.
    small: List,
    /// Pages in memory that have proved their use.
    main: List,
    /// Pages that went from the small queue.
    ghosts: List,
    /// Touches of each page since it came to its queue, less its rounds in the main one.
    touches: Vec<u8>,
    /// Length from which on the small queue gives way.
    small_capacity: usize,
    capacity: usize,
}

impl S3Fifo {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            small: List::new(pages),
            main: List::new(pages),
            ghosts: List::new(pages),
            touches: vec![0; pages],
            small_capacity: (capacity / 10).max(1),
            capacity,
        }
    }

    fn is_full(&self) -> bool {
        self.small.len() + self.main.len() == self.capacity
    }

    /// A page leaves the small queue: it goes, or comes to the main queue.
    fn shift_small(&mut self) {
        let page = self.small.pop().expect("the small queue is in turn");
        if std::mem::take(&mut self.touches[page as usize]) > 1 {
            self.main.push(page);
            return;
        }
        self.ghosts.push(page);
        if self.ghosts.len() > self.capacity - self.small_capacity {
            self.ghosts.pop();
        }
    }

    /// The first page of the main queue goes, or goes round again.
    fn shift_main(&mut self) {
        let page = self.main.pop().expect("the main queue is in turn");
        let touches = &mut self.touches[page as usize];
        if *touches > 0 {
            *touches -= 1;
            self.main.push(page);
        }
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, page: u32) -> bool {
        if self.small.contains(page) || self.main.contains(page) {
            let touches = &mut self.touches[page as usize];
            *touches = MOST_TOUCHES.min(*touches + 1);
            return false;
        }
        let was_ghost = self.ghosts.remove(page);
        while self.is_full() {
            if self.small.len() >= self.small_capacity || self.main.is_empty() {
                self.shift_small();
            } else {
                self.shift_main();
            }
        }
        if was_ghost {
            self.main.push(page);
        } else {
            self.small.push(page);
        }
        true
    }

    fn check(&self) {
        for list in [&self.small, &self.main, &self.ghosts] {
            list.check();
        }
        assert!(self.small.len() + self.main.len() <= self.capacity);
        assert!(self.ghosts.len() <= self.capacity - self.small_capacity);
        for (page, touches) in (0..).zip(&self.touches) {
            let lists = [&self.small, &self.main, &self.ghosts].map(|list| list.contains(page));
            let [small, main, _] = lists;
            let on = lists.iter().filter(|on| **on).count();
            assert!(on <= 1, "page {page} is on {on} lists");
            assert!(*touches == 0 || small || main, "page {page} is away");
            assert!(*touches <= MOST_TOUCHES, "page {page}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn a_scan_takes_the_place_of_one_page() {
        let mut policy = S3Fifo::new(200, 10);
        let used: Vec<u32> = (0..10).collect();
        assert_eq!(faults(&mut policy, &used.repeat(3)), 10);
        let scan: Vec<u32> = (100..200).collect();
        assert_eq!(faults(&mut policy, &scan), 100);
        assert_eq!(faults(&mut policy, &used[1..]), 0);
    }

    #[test]
    fn a_ghost_returns_to_the_main_queue() {
        let mut policy = S3Fifo::new(20, 4);
        // One touch after the fault is not enough.
        assert_eq!(faults(&mut policy, &[0, 0, 1, 2, 3, 4]), 5);
        assert!(policy.ghosts.iter().eq([0]));
        assert!(policy.touch(0));
        assert!(policy.main.iter().eq([0]) && policy.ghosts.iter().eq([1]));
    }

    #[test]
    fn a_page_goes_round_for_each_of_three_touches() {
        let mut policy = S3Fifo::new(20, 2);
        policy.main.push(0);
        policy.main.push(1);
        assert_eq!(faults(&mut policy, &[0, 0, 0, 0, 0, 1]), 0);
        policy.shift_main();
        policy.shift_main();
        policy.shift_main();
        assert_eq!(policy.touches[..2], [1, 0]);
        policy.shift_main();
        assert!(policy.main.iter().eq([0]));
    }
}
