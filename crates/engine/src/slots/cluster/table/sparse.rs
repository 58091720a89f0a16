//! The used slots of a cluster that has few: each beside its position, in five bytes, in their order.
//! Nothing else; what a larger form counts, this one finds out.

use super::SlotOwner;
use crate::slots::cluster::bitmap::Bitmap;
use crate::types::{CLUSTER_SLOTS, EntryId};

/// A position, and the owner of the slot there: the highest bits first.
#[derive(Clone, Copy)]
struct Item([u8; Sparse::BYTES]);

const _: () = {
    assert!(CLUSTER_SLOTS.ilog2() + SlotOwner::BITS == 8 * Sparse::BYTES as u32);
};

impl Item {
    fn new(at: usize, owner: SlotOwner) -> Self {
        let bits = (at as u64) << SlotOwner::BITS | u64::from(owner.narrow());
        let [_, _, _, bytes @ ..] = bits.to_be_bytes();
        Self(bytes)
    }

    fn bits(self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_be_bytes([0, 0, 0, a, b, c, d, e])
    }

    fn at(self) -> usize {
        (self.bits() >> SlotOwner::BITS) as usize
    }

    fn owner(self) -> SlotOwner {
        SlotOwner::widened(self.bits() as u32 & ((1 << SlotOwner::BITS) - 1))
    }
}

/// Used slots, each with its owner, by rising positions.
pub(in crate::slots) struct Sparse(Vec<Item>);

impl Sparse {
    /// A slot takes so many.
    pub const BYTES: usize = 5;

    /// Of slots in their order, `count` of them.
    pub fn new(count: usize, owners: impl Iterator<Item = (usize, SlotOwner)>) -> Self {
        let mut items = Vec::with_capacity(count);
        items.extend(owners.map(|(at, owner)| Item::new(at, owner)));
        debug_assert!(items.is_sorted_by_key(|item| item.at()));
        Self(items)
    }

    pub const fn bytes(&self) -> usize {
        self.0.capacity() * Self::BYTES
    }

    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Where the item of a slot is, or would be.
    fn find(&self, at: usize) -> Result<usize, usize> {
        self.0.binary_search_by_key(&at, |item| item.at())
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub fn used(&self) -> Bitmap {
        let mut used = Bitmap::EMPTY;
        self.0.iter().for_each(|item| used.set(item.at(), true));
        used
    }

    pub fn count(&self, is: fn(SlotOwner) -> bool) -> u16 {
        self.0.iter().filter(|item| is(item.owner())).count() as u16
    }

    /// The owner of a used slot.
    pub fn owner(&self, at: usize) -> Option<SlotOwner> {
        Some(self.0[self.find(at).ok()?].owner())
    }

    /// The owner of the used slot before which there are so many.
    pub fn nth(&self, rank: usize) -> SlotOwner {
        self.0[rank].owner()
    }

    pub fn all_owned(&self, start: usize, slots: usize, owner: EntryId) -> bool {
        let Ok(first) = self.find(start) else {
            return false;
        };
        let mut items = self.0[first..].iter().zip(0..slots);
        let own = |(item, i): (&Item, usize)| {
            item.at() == start + i && item.owner().owned_by(owner.plus(i as u32))
        };
        first + slots <= self.0.len() && items.all(own)
    }

    /// Changes the owner of a used slot.
    pub fn set(&mut self, at: usize, to: SlotOwner) {
        let rank = self.find(at).expect("the slot is used");
        self.0[rank] = Item::new(at, to);
    }

    /// Makes used slots side by side free.
    pub fn release(&mut self, start: usize, slots: usize) {
        let first = self.find(start).expect("the slot is used");
        self.0.drain(first..first + slots);
    }
}
