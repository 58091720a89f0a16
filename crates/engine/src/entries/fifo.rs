//! A queue of clusters that can give up a member from its middle.
//!
//! Each push gets a stamp, greater than all before, so the queue stays sorted and a member is found by
//! binary search. Queues whose stamps are of one sequence can be compared by age. A member that is taken
//! out leaves a tombstone. Tombstones are swept when they outnumber the members, so a step costs O(log
//! n) amortised, and the memory is at most twice that of the members.

use std::collections::VecDeque;
use std::num::NonZeroU64;

/// Bits of a member's number; the rest of a `u64` is the stamp: 2^43 pushes.
const ITEM_BITS: u32 = 21;
const ITEM_MASK: u64 = (1 << ITEM_BITS) - 1;
const TOMB: u64 = ITEM_MASK;

/// One in so many members is young.
const YOUNG_SHARE: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Fifo {
    // sorted; len = items - tombs
    items: VecDeque<u64>,
    tombs: usize,
    /// The greatest stamp so far; 0: none.
    last: u64,
}

/// Where a member stands in its queue; the member keeps it to be able to leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(NonZeroU64);

impl Stamp {
    /// The stamp after `count` others of its sequence.
    pub const fn after(count: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(count))
    }
    /// How many of its sequence there were with it.
    pub const fn number(self) -> u64 {
        self.0.get()
    }
    const fn packed(self, item: u32) -> u64 {
        self.number() << ITEM_BITS | item as u64
    }
    const fn unpacked(packed: u64) -> Self {
        Self::after((packed >> ITEM_BITS) - 1)
    }
}

impl Fifo {
    /// Adds `item` as the youngest.
    pub fn push(&mut self, item: u32) -> Stamp {
        self.push_stamped(item, Stamp::after(self.last))
    }

    /// The same with a stamp from elsewhere, greater than all before.
    pub fn push_stamped(&mut self, item: u32, stamp: Stamp) -> Stamp {
        debug_assert!(stamp.number() > self.last);
        self.last = stamp.number();
        self.items.push_back(stamp.packed(item));
        stamp
    }

    /// Adds `item` where a stamp belongs that no member has: one that was popped, or from elsewhere.
    pub fn put_back(&mut self, item: u32, stamp: Stamp) {
        let at = self.position(stamp);
        self.items.insert(at, stamp.packed(item));
        self.last = self.last.max(stamp.number());
    }

    /// How many stand before a stamp, tombstones with them.
    fn position(&self, stamp: Stamp) -> usize {
        self.items
            .partition_point(|&packed| Stamp::unpacked(packed) < stamp)
    }

    /// The stamp of the oldest.
    pub fn oldest(&self) -> Option<Stamp> {
        self.next_from(0).map(|(_, stamp)| stamp)
    }

    /// The oldest member whose stamp's number is this or greater. It stays.
    pub fn next_from(&self, number: u64) -> Option<(u32, Stamp)> {
        let at = number.checked_sub(1).map(Stamp::after);
        let mut items = self.items.range(at.map_or(0, |at| self.position(at))..);
        let found = items.find(|&packed| packed & ITEM_MASK != TOMB);
        found.map(|&packed| ((packed & ITEM_MASK) as u32, Stamp::unpacked(packed)))
    }

    /// Takes the oldest, with the stamp it had.
    pub fn pop(&mut self) -> Option<(u32, Stamp)> {
        let mut found = None;
        while let Some(packed) = self.items.pop_front() {
            if packed & ITEM_MASK != TOMB {
                found = Some(((packed & ITEM_MASK) as u32, Stamp::unpacked(packed)));
                break;
            }
            self.tombs -= 1;
        }
        self.sweep();
        found
    }

    /// Takes a member out, unless somebody has just popped it. Tombstones may have its stamp, of when it was
    /// taken out before.
    pub fn remove(&mut self, stamp: Stamp) {
        let at = self.position(stamp);
        let is_there = |packed: u64| Stamp::unpacked(packed) == stamp && packed & ITEM_MASK != TOMB;
        match self.items.get_mut(at) {
            Some(packed) if is_there(*packed) => *packed |= TOMB,
            _ => return,
        }
        self.tombs += 1;
        self.sweep();
    }

    fn sweep(&mut self) {
        if self.tombs * 2 > self.items.len() {
            self.items.retain(|&packed| packed & ITEM_MASK != TOMB);
            self.tombs = 0;
        }
    }

    /// Whether a member is not among the youngest: one in [`YOUNG_SHARE`], at least one. Tombstones count.
    pub fn is_old(&self, stamp: Stamp) -> bool {
        let from_here = self.items.len() - self.position(stamp);
        from_here > self.items.len().div_ceil(YOUNG_SHARE)
    }

    /// Members.
    pub fn len(&self) -> usize {
        self.items.len() - self.tombs
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<u64>()
    }

    /// Members, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.items
            .iter()
            .map(|&packed| packed & ITEM_MASK)
            .filter(|&item| item != TOMB)
            .map(|item| item as u32)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_youngest_quarter_is_not_old() {
        for (members, old) in [(1, 0), (2, 1), (4, 3), (5, 3), (8, 6), (100, 75)] {
            let mut fifo = Fifo::default();
            let stamps: Vec<Stamp> = (0..members).map(|item| fifo.push(item)).collect();
            let is_old: Vec<bool> = stamps.iter().map(|stamp| fifo.is_old(*stamp)).collect();
            let expected = (0..members).map(|item| item < old);
            assert!(is_old.into_iter().eq(expected), "{members}");
        }
    }

    proptest! {
        #[test]
        fn like_a_vector(steps in prop::collection::vec(0u8..8, 1..300)) {
            let mut fifo = Fifo::default();
            let mut model: Vec<u32> = Vec::new();
            let mut stamps = HashMap::new();
            for (i, step) in steps.iter().enumerate() {
                match step {
                    0..4 => {
                        stamps.insert(i as u32, fifo.push(i as u32));
                        model.push(i as u32);
                    }
                    4 => if let Some((item, stamp)) = fifo.pop() {
                        fifo.put_back(item, stamp);
                        prop_assert_eq!(fifo.oldest(), Some(stamp));
                    }
                    // From the middle and back, and out again: a tombstone with its stamp stays. A
                    // member that is gone is not taken out again.
                    6 if !model.is_empty() => {
                        let at = i * 5 % model.len();
                        let stamp = stamps[&model[at]];
                        fifo.remove(stamp);
                        fifo.remove(stamp);
                        if i % 2 == 0 {
                            fifo.put_back(model[at], stamp);
                        } else {
                            model.remove(at);
                        }
                    }
                    5 => prop_assert_eq!(fifo.pop().map(|(item, _)| item), (!model.is_empty()).then(|| model.remove(0))),
                    _ if !model.is_empty() => {
                        let item = model.remove(i * 7 % model.len());
                        fifo.remove(stamps[&item]);
                    }
                    _ => {}
                }
                prop_assert_eq!(fifo.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(fifo.len(), model.len());
                prop_assert!(fifo.items.len() <= 2 * model.len() + 1);
                let tombs = fifo.items.iter().filter(|&&packed| packed & ITEM_MASK == TOMB);
                prop_assert_eq!(tombs.count(), fifo.tombs);
            }
        }
    }
}
