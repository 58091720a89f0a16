//! LIRS: pages are told apart by the number of other pages between their last two touches (the inter-reference
//! recency), not by the time since the last one. So loops and scans do not empty memory.
//!
//! Most of memory is for LIR pages, whose number is low. They do not go. The rest is for resident HIR pages, in a
//! queue: the first one goes. A stack has the pages by their last touch, down to the LIR page at its bottom,
//! and among them HIR pages that are away. A HIR page that is touched while it is on the stack has a lower
//! number than the LIR page at the bottom: they change parts. At the start pages are LIR as long as there is
//! room for such. Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to
//! improve buffer cache performance", SIGMETRICS 2002.
//!
//! The paper does not bound the pages that are away; here they are at most [`AWAY`] times the capacity, and those
//! deepest in the stack are forgotten. The queue's share does not adapt. The rule needs the order of all touches.

use super::Policy;
use super::list::List;

/// Pages on the stack that are away, at most, as a multiple of the capacity.
const AWAY: usize = 3;

/// A page is LIR if it is on the stack alone.
pub(super) struct Lirs {
    /// Pages by last touch: LIR ones, and HIR ones touched since the LIR page at the bottom, the first.
    stack: List,
    /// Resident HIR pages, the next to go first.
    queue: List,
    /// HIR pages of the stack that are away, the deepest first.
    away: List,
    /// Number of LIR pages.
    low: usize,
    /// LIR pages, at most.
    low_capacity: usize,
    capacity: usize,
}

impl Lirs {
    /// The queue is one part in `parts` of memory, and has at least two pages.
    pub fn new(pages: usize, capacity: usize, parts: usize) -> Self {
        let queue = (capacity / parts).max(2);
        Self {
            stack: List::new(pages),
            queue: List::new(pages),
            away: List::new(pages),
            low: 0,
            low_capacity: capacity.saturating_sub(queue),
            capacity,
        }
    }

    fn is_low(&self, page: u32) -> bool {
        self.stack.contains(page) && !self.queue.contains(page) && !self.away.contains(page)
    }

    /// HIR pages leave the stack's bottom.
    fn prune(&mut self) {
        while let Some(page) = self.stack.first().filter(|page| !self.is_low(*page)) {
            self.stack.remove(page);
            self.away.remove(page);
        }
    }

    /// A HIR page on neither queue nor list of those away becomes LIR. If these are too many then, the one at the
    /// bottom becomes HIR.
    fn promote(&mut self, page: u32) {
        self.stack.renew(page);
        self.low += 1;
        if self.low > self.low_capacity {
            let bottom = self.stack.pop().expect("a LIR page");
            self.queue.push(bottom);
            self.low -= 1;
        }
    }

    /// The first page of the queue goes. The stack keeps it in mind.
    fn evict(&mut self) {
        let page = self
            .queue
            .pop()
            .expect("LIR pages alone do not fill memory");
        if !self.stack.contains(page) {
            return;
        }
        self.away.push(page);
        if self.away.len() > AWAY * self.capacity {
            let deepest = self.away.pop().expect("many are away");
            self.stack.remove(deepest);
        }
    }

    /// A page that is not in memory comes.
    fn fault(&mut self, page: u32) {
        let was_on_stack = self.away.remove(page);
        if self.low + self.queue.len() == self.capacity {
            self.evict();
        }
        if was_on_stack || self.low < self.low_capacity {
            self.promote(page);
        } else {
            self.stack.push(page);
            self.queue.push(page);
        }
    }
}

impl Policy for Lirs {
    fn touch(&mut self, page: u32) -> bool {
        let resident_high = self.queue.contains(page);
        let is_fault = !resident_high && !self.is_low(page);
        if is_fault {
            self.fault(page);
        } else if resident_high && self.stack.contains(page) {
            self.queue.remove(page);
            self.promote(page);
        } else {
            self.stack.renew(page);
            if resident_high {
                self.queue.renew(page);
            }
        }
        self.prune();
        is_fault
    }

    fn check(&self) {
        for list in [&self.stack, &self.queue, &self.away] {
            list.check();
        }
        let low = self.stack.iter().filter(|page| self.is_low(*page)).count();
        assert_eq!(low, self.low);
        assert!(self.low <= self.low_capacity);
        assert!(self.low + self.queue.len() <= self.capacity);
        assert!(self.away.len() <= AWAY * self.capacity);
        assert!(self.stack.first().is_none_or(|page| self.is_low(page)));
        assert!(self.away.iter().all(|page| !self.queue.contains(page)));
        // Each page away is on the stack, and in the same order there.
        let on_stack = self.stack.iter().filter(|page| self.away.contains(*page));
        assert!(on_stack.eq(self.away.iter()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn a_loop_keeps_most_of_its_pages() {
        let mut policy = Lirs::new(101, 100, 100);
        let all: Vec<u32> = (0..101).collect();
        assert_eq!(faults(&mut policy, &all), 101);
        // 98 pages are LIR; the other three take turns in two places.
        assert_eq!(faults(&mut policy, &all.repeat(10)), 30);
    }

    #[test]
    fn pages_change_parts_as_in_the_paper() {
        let mut policy = Lirs::new(10, 4, 2);
        assert_eq!(faults(&mut policy, &[0, 1, 2, 3, 4]), 5);
        // Pages 0 and 1 are LIR, and 2 is away, on the stack.
        assert!(policy.stack.iter().eq([0, 1, 2, 3, 4]));
        assert!(policy.queue.iter().eq([3, 4]) && policy.away.iter().eq([2]));
        // It returns soon: 0, touched longest ago, is HIR in its place.
        assert!(policy.touch(2));
        assert!(policy.stack.iter().eq([1, 3, 4, 2]));
        assert!(policy.queue.iter().eq([4, 0]) && policy.away.iter().eq([3]));
        // A touch in the queue and on the stack: 4 is LIR, 1 is not, and what is below 2 leaves the stack.
        assert!(!policy.touch(4));
        assert!(policy.stack.iter().eq([2, 4]));
        assert!(policy.queue.iter().eq([0, 1]) && policy.away.is_empty());
        // A touch in the queue alone: 0 stays HIR.
        assert!(!policy.touch(0));
        assert!(policy.stack.iter().eq([2, 4, 0]) && policy.queue.iter().eq([1, 0]));
    }

    #[test]
    fn pages_away_are_bounded() {
        let mut policy = Lirs::new(1000, 10, 10);
        let scan: Vec<u32> = (0..1000).collect();
        assert_eq!(faults(&mut policy, &scan), 1000);
        assert_eq!(policy.away.len(), AWAY * 10);
        assert_eq!(policy.stack.len(), (AWAY + 1) * 10);
    }
}
