//! Least recently used: the page that goes is the one whose last touch is the longest ago.
//!
//! More memory never means more faults. Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
//! hierarchies", IBM Systems Journal 9(2), 1970.
//!
//! The rule needs the order of all touches, which hardware does not tell. A loop over one page more than fit
//! faults at each touch.

use super::Policy;
use super::list::List;

pub(super) struct Lru {
    /// Pages in memory, the one whose touch is the longest ago first.
    memory: List,
    capacity: usize,
}

impl Lru {
    pub fn new(pages: usize, capacity: usize) -> Self {
        Self {
            memory: List::new(pages),
            capacity,
        }
    }
}

impl Policy for Lru {
    fn touch(&mut self, page: u32) -> bool {
        let was = self.memory.renew(page);
        if self.memory.len() > self.capacity {
            self.memory.pop();
        }
        !was
    }

    fn check(&self) {
        self.memory.check();
        assert!(self.memory.len() <= self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::policies::tests::{faults, random_touches};

    #[test]
    fn it_does_as_a_row_of_pages_does() {
        for (seed, capacity) in [1, 2, 3, 10, 39].into_iter().enumerate() {
            let mut policy = Lru::new(40, capacity);
            let mut row: Vec<u32> = Vec::new();
            for page in random_touches(seed as u64, 40, 2000) {
                let place = row.iter().position(|other| *other == page);
                place.map(|place| row.remove(place));
                row.push(page);
                if row.len() > capacity {
                    row.remove(0);
                }
                assert_eq!(policy.touch(page), place.is_none());
                assert!(policy.memory.iter().eq(row.iter().copied()));
            }
        }
    }

    #[test]
    fn more_memory_has_fewer_faults_where_fifo_has_more() {
        let touches = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        assert_eq!(faults(&mut Lru::new(6, 3), &touches), 10);
        assert_eq!(faults(&mut Lru::new(6, 4), &touches), 8);
    }
}
