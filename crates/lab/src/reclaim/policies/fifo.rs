//! First in, first out: the page that goes is the one that has been in memory for longest.
//!
//! The rule needs no touches but the faults. It has Belady's anomaly: more memory can mean more faults. Belady,
//! Nelson and Shedler, "An anomaly in space-time characteristics of certain programs running in a paging
//! machine", CACM 12(6), 1969.
//!
//! A page that is in constant use goes like any other.

use super::Policy;
use super::list::List;

pub(super) struct Fifo {
    /// Pages in memory, the oldest first.
    memory: List,
    capacity: usize,
}

impl Fifo {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            memory: List::new(pages),
            capacity,
        }
    }
}

impl Policy for Fifo {
    fn touch(&mut self, page: u32) -> bool {
        if self.memory.contains(page) {
            return false;
        }
        if self.memory.len() == self.capacity {
            self.memory.pop();
        }
        self.memory.push(page);
        true
    }

    fn check(&self) {
        self.memory.check();
        assert!(self.memory.len() <= self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::faults;

    #[test]
    fn more_memory_can_have_more_faults() {
        let touches = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(faults(&mut Fifo::new(6, 3), &touches), 9);
        assert_eq!(faults(&mut Fifo::new(6, 4), &touches), 10);
    }
}
