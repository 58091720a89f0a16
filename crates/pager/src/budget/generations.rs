//! Which pages of the pool go to devices first where forked relatives share it.
//!
//! Pages that were in the pool at a fork are in the pools of all relatives, by copy-on-write. Writing one to a device
//! frees nothing, and each relative does it. So every fork begins a new *generation*, a group of the engine's with an
//! order of its own, for what is stored from then on. While relatives live the youngest generation is written back
//! first, and the others when it holds nothing. Without relatives the oldest goes first, as if there were one order
//! for all.
//!
//! After [`COUNT`] forks with stores in between the generations begin again, each with what is left
//! of an old one: those pages are taken for young.

use ebb_engine::swap::Swap;
use ebb_engine::{EntryId, GroupId};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

const COUNT: u16 = 8;

/// The generations of one swap space.
pub struct Generations {
    /// The one that is stored into.
    youngest: AtomicU16,
    /// The number of generations begun, up to [`COUNT`].
    begun: AtomicU16,
}

impl Generations {
    /// The first.
    pub const fn new() -> Self {
        Self {
            youngest: AtomicU16::new(0),
            begun: AtomicU16::new(1),
        }
    }

    /// The youngest has begun, and no more begin than there are. Under the lock of the state, as forks are.
    pub fn check(&self) {
        let begun = self.begun.load(Relaxed);
        assert!(self.youngest().0 < begun && begun <= COUNT);
    }

    /// Where pages are stored now.
    pub fn youngest(&self) -> GroupId {
        GroupId(self.youngest.load(Relaxed))
    }

    /// There was a fork, in the parent and in the child: what is in the pool is shared from now on.
    pub fn begin(&self, swap: &Swap) {
        let youngest = self.youngest();
        if swap.group_pool_bytes(youngest) > 0 {
            let next = (youngest.0 + 1) % COUNT;
            // Pages may be stored before the setting is looked at again.
            swap.set_group_writeback(GroupId(next), swap.group_writeback(youngest));
            self.youngest.store(next, Relaxed);
            self.begun.fetch_max(next + 1, Relaxed);
        }
    }

    /// Whether an entry of the pool is of an older generation. Freed, it gives nothing back while its neighbours are
    /// used, as its room is not filled again.
    pub fn inherits(&self, swap: &Swap, entry: EntryId) -> bool {
        swap.group_of(entry)
            .is_some_and(|group| group != self.youngest())
    }

    /// Bytes of the pool that are shared, about: those of all generations but the youngest.
    pub fn inherited(&self, swap: &Swap) -> u64 {
        let (youngest, begun) = (self.youngest().0, self.begun.load(Relaxed));
        let others = (0..begun).filter(|&group| group != youngest);
        others
            .map(|group| swap.group_pool_bytes(GroupId(group)))
            .sum()
    }

    /// Says which generation is written back first, and for all of them whether any may be.
    pub fn choose(&self, swap: &Swap, writeback: bool, relatives: bool) {
        let (youngest, begun) = (self.youngest().0, self.begun.load(Relaxed));
        let holds = |group: u16| swap.group_pool_bytes(GroupId(group)) > 0;
        let first = first(youngest, begun, relatives, holds);
        swap.write_back_first(GroupId(first));
        for group in 0..begun {
            // No limit of its own: nothing to refuse.
            swap.set_group_writeback(GroupId(group), writeback);
        }
    }
}

/// The generation that is written back first; the youngest, if none holds anything.
fn first(youngest: u16, begun: u16, relatives: bool, holds: impl Fn(u16) -> bool) -> u16 {
    if relatives && holds(youngest) {
        return youngest;
    }
    let mut oldest_first = (1..=begun).map(|i| (youngest + i) % begun);
    oldest_first.find(|&group| holds(group)).unwrap_or(youngest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::machine::Machine;
    use ebb_engine::{Cpu, PAGE_SIZE};

    /// The first stores after a fork may find the pool full.
    #[test]
    fn a_new_generation_may_be_written_where_the_last_may() {
        let machine = Machine::new(1024);
        let (swap, generations) = (machine.process.swap, Generations::new());
        // Of a page that is not the same everywhere.
        let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 100) as u8);
        for may in [false, true, false] {
            generations.choose(swap, may, true);
            let youngest = generations.youngest();
            swap.store(Cpu(0), youngest, &[&page]).expect("room");
            generations.begin(swap);
            assert_ne!(generations.youngest(), youngest);
            assert_eq!(swap.group_writeback(generations.youngest()), may);
        }
    }

    #[test]
    fn the_youngest_goes_first_among_relatives_and_the_oldest_without() {
        let all = |_| true;
        assert_eq!(first(2, 5, true, all), 2);
        assert_eq!(first(2, 5, false, all), 3);
        assert_eq!(first(4, 5, false, all), 0);
        let some = |group| group == 1 || group == 4;
        assert_eq!(
            first(2, 5, true, some),
            4,
            "it came before the second round"
        );
        assert_eq!(first(2, 5, false, some), 4);
        assert_eq!(first(4, 5, false, some), 1);
        assert_eq!(first(0, 1, true, |_| false), 0);
    }
}
