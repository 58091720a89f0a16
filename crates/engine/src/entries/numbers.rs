//! Numbers of clusters: which are free, and who gives them out.
//!
//! Neighbours in the directory share cache lines, and each is written whenever its cluster is locked. So
//! a processor takes numbers a range at a time, and those of its clusters that ran empty come back to
//! it, whoever freed their last entry. Surplus numbers go to all, a cache line of the directory at a
//! time: until numbers are short, a line belongs to one processor.

use crate::locks::{LockRank, Ordered, lock};
use std::ops::Range;

/// Numbers that a processor takes at a time: a few lines.
const RANGE: u32 = if cfg!(loom) { 4 } else { 16 };
/// Numbers whose places in the directory share a cache line.
pub(super) const LINE: u32 = if cfg!(loom) { 2 } else { 4 };
/// Free numbers that a processor keeps when it gives some to all.
const KEPT: usize = 4 * RANGE as usize;

/// See the module.
pub(super) struct Numbers {
    all: Range<u32>,
    cpus: Box<[Own]>,
    shared: Ordered<Shared, { LockRank::Leaf as usize }>,
}

/// A processor's numbers, on a line of its own.
#[repr(align(64))]
struct Own(Ordered<Free, { LockRank::Leaf as usize }>);

/// Numbers that are free; the next is the last.
struct Free {
    numbers: Vec<u32>,
    /// The count of numbers from which on some are given to all.
    most: usize,
}

struct Shared {
    unused_from: u32,
    /// Whole lines.
    given: Vec<u32>,
}

impl Numbers {
    /// Those below `end`, for so many processors.
    pub fn new(cpus: usize, end: u32) -> Self {
        let own = |_| {
            Own(Ordered::new(Free {
                numbers: Vec::new(),
                most: 2 * KEPT,
            }))
        };
        Self {
            all: 0..end,
            cpus: (0..cpus).map(own).collect(),
            shared: Ordered::new(Shared {
                unused_from: 0,
                given: Vec::new(),
            }),
        }
    }

    /// A number for a cluster of this processor's; none if all are in use.
    pub fn take(&self, cpu: usize) -> Option<u32> {
        let own = |cpu: usize| &self.cpus[cpu % self.cpus.len()].0;
        if let Some(number) = lock(own(cpu)).numbers.pop() {
            return Some(number);
        }
        let more = lock(&self.shared).more(self.all.end);
        let mut mine = lock(own(cpu));
        mine.numbers.extend(more);
        if let Some(number) = mine.numbers.pop() {
            return Some(number);
        }
        drop(mine);
        (1..self.cpus.len()).find_map(|i| lock(own(cpu + i)).numbers.pop())
    }

    /// The cluster of this number, which that processor made, ran empty.
    pub fn put(&self, cpu: usize, number: u32) {
        let mut own = lock(&self.cpus[cpu].0);
        own.numbers.push(number);
        if own.numbers.len() < own.most {
            return;
        }
        let given = own.give();
        drop(own);
        lock(&self.shared).given.extend(given);
    }

    /// No number from this one on was ever given out.
    pub fn end(&self) -> u32 {
        lock(&self.shared).unused_from
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let own = |own: &Own| lock(&own.0).numbers.capacity();
        let listed = self.cpus.iter().map(own).sum::<usize>() + lock(&self.shared).given.capacity();
        listed * size_of::<u32>() + size_of_val(&*self.cpus)
    }
}

impl Free {
    /// Whole lines, the highest, so that [`KEPT`] numbers stay, or more where lines are not whole.
    fn give(&mut self) -> Vec<u32> {
        self.numbers.sort_unstable_by(|a, b| b.cmp(a));
        let mut given = Vec::new();
        let mut kept = Vec::new();
        let excess = self.numbers.len() - KEPT;
        for line in self.numbers.chunk_by(|a, b| a / LINE == b / LINE) {
            let whole = line.len() == LINE as usize;
            let list = if whole && given.len() < excess {
                &mut given
            } else {
                &mut kept
            };
            list.extend_from_slice(line);
        }
        self.most = 2 * kept.len().max(KEPT);
        self.numbers = kept;
        given
    }
}

impl Shared {
    /// A range's worth, in falling order.
    fn more(&mut self, end: u32) -> Vec<u32> {
        if !self.given.is_empty() {
            let at = self.given.len().saturating_sub(RANGE as usize);
            return self.given.split_off(at);
        }
        let from = self.unused_from;
        self.unused_from = (from + RANGE).min(end);
        (from..self.unused_from).rev().collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CPUS: usize = 3;

    fn drain(numbers: &Numbers, cpu: usize, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| numbers.take(cpu)).collect()
    }

    proptest! {
        /// A number is one cluster's at a time, and a line of them one processor's.
        #[test]
        fn a_line_is_one_processors(
            steps in prop::collection::vec((0..CPUS, prop_oneof![1usize..20, 100usize..400], any::<usize>()), 1..60),
        ) {
            let numbers = Numbers::new(CPUS, 1 << 16);
            let mut used: BTreeMap<u32, usize> = BTreeMap::new();
            for (cpu, count, which) in steps {
                if which % 2 == 0 {
                    for number in drain(&numbers, cpu, count) {
                        prop_assert_eq!(used.insert(number, cpu), None);
                    }
                } else {
                    // Some of one processor's, scattered.
                    let mine: Vec<u32> = used.iter().filter(|u| *u.1 == cpu).map(|u| *u.0).collect();
                    for number in mine.into_iter().skip(which % 7).step_by(1 + which % 3).take(count) {
                        used.remove(&number);
                        numbers.put(cpu, number);
                    }
                }
                let of_lines = used.iter().map(|(number, cpu)| (number / LINE, cpu));
                let lines: BTreeMap<_, _> = of_lines.clone().collect();
                prop_assert!(of_lines.into_iter().all(|(line, cpu)| lines[&line] == cpu));
            }
        }
    }

    /// Numbers that one processor returns are used by others before new ones, the lowest first.
    #[test]
    fn surplus_numbers_of_one_processor_go_to_others() {
        let numbers = Numbers::new(2, 1 << 16);
        let mine = drain(&numbers, 0, 1000);
        assert!(mine.is_sorted());
        let end = numbers.end();
        mine.into_iter().for_each(|number| numbers.put(0, number));
        let others = drain(&numbers, 1, 1000 - 2 * KEPT);
        assert_eq!(numbers.end(), end);
        assert!(others.iter().all(|&number| number >= KEPT as u32));
    }

    #[test]
    fn all_are_given_out_before_there_is_none() {
        let numbers = Numbers::new(3, 103);
        let mut all = drain(&numbers, 0, 50);
        all.iter().for_each(|&number| numbers.put(0, number));
        all = drain(&numbers, 1, 1000);
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        assert_eq!([0, 1, 2].map(|cpu| numbers.take(cpu)), [None; 3]);
    }
}
