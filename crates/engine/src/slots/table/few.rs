//! The used slots of a cluster that has few: each beside its position, in five bytes, in their order.
//! Nothing else; what a larger form counts, this one finds out.

use super::Word;
use crate::slots::bitmap::Bitmap;
use crate::words::{CLUSTER_SLOTS, EntryId};

/// A position, and the word of the slot there: the highest bits first.
#[derive(Clone, Copy)]
struct Item([u8; Few::BYTES]);

const _: () = {
    assert!(CLUSTER_SLOTS.ilog2() + Word::BITS == 8 * Few::BYTES as u32);
};

impl Item {
    fn new(at: usize, word: Word) -> Self {
        let bits = (at as u64) << Word::BITS | u64::from(word.narrow());
        let [_, _, _, bytes @ ..] = bits.to_be_bytes();
        Self(bytes)
    }

    fn bits(self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_be_bytes([0, 0, 0, a, b, c, d, e])
    }

    fn at(self) -> usize {
        (self.bits() >> Word::BITS) as usize
    }

    fn word(self) -> Word {
        Word::widened(self.bits() as u32 & ((1 << Word::BITS) - 1))
    }
}

/// Used slots, each with its word, by rising positions.
pub(in crate::slots) struct Few(Vec<Item>);

impl Few {
    /// A slot takes so many.
    pub const BYTES: usize = 5;

    /// Of slots in their order, `count` of them.
    pub fn new(count: usize, words: impl Iterator<Item = (usize, Word)>) -> Self {
        let mut items = Vec::with_capacity(count);
        items.extend(words.map(|(at, word)| Item::new(at, word)));
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

    pub fn count(&self, is: fn(Word) -> bool) -> u16 {
        self.0.iter().filter(|item| is(item.word())).count() as u16
    }

    /// The word of a used slot.
    pub fn word(&self, at: usize) -> Option<Word> {
        Some(self.0[self.find(at).ok()?].word())
    }

    /// The word of the used slot before which there are so many.
    pub fn nth(&self, rank: usize) -> Word {
        self.0[rank].word()
    }

    pub fn all_owned(&self, start: usize, slots: usize, owner: EntryId) -> bool {
        let Ok(first) = self.find(start) else {
            return false;
        };
        let mut items = self.0[first..].iter().zip(0..slots);
        let own = |(item, i): (&Item, usize)| {
            item.at() == start + i && item.word().owned_by(owner.plus(i as u32))
        };
        first + slots <= self.0.len() && items.all(own)
    }

    /// Changes the word of a used slot.
    pub fn set(&mut self, at: usize, to: Word) {
        let rank = self.find(at).expect("the slot is used");
        self.0[rank] = Item::new(at, to);
    }

    /// Makes used slots side by side free.
    pub fn release(&mut self, start: usize, slots: usize) {
        let first = self.find(start).expect("the slot is used");
        self.0.drain(first..first + slots);
    }
}
