//! What is known of a cluster's slots while any is used: which are, and the reverse map, a word for
//! each slot that says whose it is.
//!
//! A table has two forms. *Whole*, there is a word for every slot, found by its position; slots are
//! allocated in this form alone. *Packed*, there are words of the used slots alone, in their order,
//! found by rank: by the number of used slots before. So a cluster of which half the slots were
//! freed, wherever they lay, needs half the words. Frees take words out; the room that they leave,
//! and a whole form that is worth it, are packed by the worker (`pack`), not by who frees.
//!
//! In both forms the words of used slots side by side are side by side.

use super::bitmap::Bitmap;
use crate::words::{CLUSTER_SLOTS, EntryId, MAX_ENTRIES};
use std::ops::{Deref, DerefMut};

/// The word of a slot: its owner entry, or its last one, and what is to be known of it.
///
/// A word is gone, cached, bad, or nothing of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u32);

impl Word {
    const GONE: u32 = 1 << 29;
    const CACHED: u32 = 1 << 30;
    const NO_ENTRY: u32 = 1 << 31;

    /// Of a slot that never had an owner, or of which that is forgotten.
    pub const NONE: Self = Self(Self::NO_ENTRY);
    /// Out of service for good.
    pub const BAD: Self = Self(Self::NO_ENTRY | 1);

    pub const fn owned(owner: EntryId) -> Self {
        Self(owner.0 & MAX_ENTRIES)
    }
    /// Given back by its owner, but not yet to be used again: it waits in a return cache, or
    /// for the readers of a frozen cluster.
    pub const fn gone(self) -> bool {
        self.0 & Self::GONE != 0
    }
    /// Only a clean copy of a page in memory.
    pub const fn cached(self) -> bool {
        self.0 & Self::CACHED != 0
    }
    pub const fn bad(self) -> bool {
        self.0 == Self::BAD.0
    }
    /// This one's now, if only as a copy.
    pub const fn owned_by(self, owner: EntryId) -> bool {
        self.0 & !Self::CACHED == Self::owned(owner).0
    }
    /// The same owner's, given back.
    pub const fn as_gone(self) -> Self {
        Self(self.plain().0 | Self::GONE)
    }
    /// The same owner's, a copy or not.
    pub const fn as_cached(self, yes: bool) -> Self {
        Self(self.plain().0 | if yes { Self::CACHED } else { 0 })
    }
    /// The same owner's, neither given back nor a copy.
    pub const fn plain(self) -> Self {
        Self(self.0 & !(Self::GONE | Self::CACHED))
    }
    /// The entry, also of a slot that was freed since.
    pub const fn entry(self) -> Option<EntryId> {
        if self.0 & Self::NO_ENTRY != 0 {
            None
        } else {
            Some(EntryId(self.0 & MAX_ENTRIES))
        }
    }
}

const _: () = assert!(MAX_ENTRIES < Word::GONE);

/// What both forms hold, at the same place.
///
/// - `bad`, `gone`, `cached` = number of words that are so; bad and gone slots count as used
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub used: Bitmap,
    pub bad: u16,
    pub gone: u16,
    pub cached: u16,
    /// How many slots were used when compaction left pages that it could not move; 0: it never did.
    pub stuck: u16,
}

/// From the beginning of a cache line on, as words side by side are used together.
#[repr(align(64))]
struct Words([Word; CLUSTER_SLOTS]);

#[repr(C)]
pub(super) struct Whole {
    known: Known,
    words: Words,
}

#[repr(C)]
pub(super) struct Packed {
    known: Known,
    words: Vec<Word>,
}

/// The table of a cluster.
pub(super) enum Table {
    Whole(Box<Whole>),
    Packed(Box<Packed>),
}

/// Slots whose words lie in a cache line or two.
const FEW: usize = 16;

impl Deref for Table {
    type Target = Known;
    #[inline]
    fn deref(&self) -> &Known {
        match self {
            Self::Whole(table) => &table.known,
            Self::Packed(table) => &table.known,
        }
    }
}

impl DerefMut for Table {
    #[inline]
    fn deref_mut(&mut self) -> &mut Known {
        match self {
            Self::Whole(table) => &mut table.known,
            Self::Packed(table) => &mut table.known,
        }
    }
}

impl Table {
    /// Of a cluster of which no slot is used.
    pub fn new() -> Self {
        Self::Whole(Box::new(Whole {
            known: Known {
                used: Bitmap::EMPTY,
                bad: 0,
                gone: 0,
                cached: 0,
                stuck: 0,
            },
            words: Words([Word::NONE; CLUSTER_SLOTS]),
        }))
    }

    /// Whether slots can be allocated in it as it is.
    pub const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// The memory it takes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Whole(_) => size_of::<Whole>(),
            Self::Packed(table) => size_of::<Packed>() + table.words.capacity() * size_of::<Word>(),
        }
    }

    /// Words of used slots that have left, but not their room.
    pub const fn left(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Packed(table) => table.words.capacity() - table.words.len(),
        }
    }

    /// What is known of a slot; packed, that is nothing of a free one.
    #[inline]
    pub fn word(&self, at: usize) -> Word {
        match self {
            Self::Whole(table) => table.words.0[at],
            Self::Packed(table) if self.used.get(at) => table.words[self.used.rank(at)],
            Self::Packed(_) => Word::NONE,
        }
    }

    /// The used slots, each with its word.
    pub fn words(&self) -> impl Iterator<Item = (usize, Word)> {
        let used = self.used.iter().enumerate();
        used.map(move |(rank, at)| match self {
            Self::Whole(table) => (at, table.words.0[at]),
            Self::Packed(table) => (at, table.words[rank]),
        })
    }

    /// The used slots whose words are such.
    pub fn which(&self, such: impl Fn(Word) -> bool) -> Bitmap {
        let mut found = Bitmap::EMPTY;
        for (at, word) in self.words() {
            found.set(at, such(word));
        }
        found
    }

    /// Whether these slots belong to `owner`, `owner + 1`, ... and none was given back.
    #[inline]
    pub fn all_owned(&self, start: usize, slots: usize, owner: EntryId) -> bool {
        if !self.used.range_is_set(start, slots) {
            return false;
        }
        let words = self.of(start, slots).iter().enumerate();
        let own = |(i, &word): (usize, &Word)| word.owned_by(owner.plus(i as u32));
        // To the end in any case, so that several are compared at a time.
        words.fold(true, |all, word| all & own(word))
    }

    /// The words of slots side by side, all used.
    #[inline]
    fn of(&self, start: usize, slots: usize) -> &[Word] {
        match self {
            Self::Whole(table) => &table.words.0[start..start + slots],
            Self::Packed(table) => &table.words[self.used.rank(start)..][..slots],
        }
    }

    /// As `of`, to be changed.
    #[inline]
    fn of_mut(&mut self, start: usize, slots: usize) -> &mut [Word] {
        match self {
            Self::Whole(table) => &mut table.words.0[start..start + slots],
            Self::Packed(table) => {
                let first = table.known.used.rank(start);
                &mut table.words[first..][..slots]
            }
        }
    }

    /// Changes the word of a used slot.
    pub fn set(&mut self, at: usize, to: Word) {
        let from = std::mem::replace(&mut self.of_mut(at, 1)[0], to);
        let change = |count: &mut u16, is: fn(Word) -> bool| {
            *count = *count + u16::from(is(to)) - u16::from(is(from));
        };
        change(&mut self.bad, Word::bad);
        change(&mut self.gone, Word::gone);
        change(&mut self.cached, Word::cached);
    }

    /// Marks free slots as used; their words are to be set.
    ///
    /// # Panics
    /// The table is packed.
    #[inline]
    pub fn take(&mut self, start: usize, slots: usize) -> &mut [Word] {
        debug_assert!(self.used.range_is_clear(start, slots));
        let Self::Whole(table) = self else {
            panic!("slots are allocated where each has a word");
        };
        table.known.used.set_range(start, slots, true);
        &mut table.words.0[start..start + slots]
    }

    /// Takes free slots out of service. The table is whole.
    pub fn take_bad(&mut self, start: usize, slots: usize) {
        self.take(start, slots).fill(Word::BAD);
        self.bad += slots as u16;
    }

    /// Makes used slots free, none of them bad. In a whole table their words keep the last owner.
    #[inline]
    pub fn release(&mut self, start: usize, slots: usize) {
        if self.gone > 0 || self.cached > 0 {
            self.unmark(start, slots);
        }
        if let Self::Packed(table) = self {
            let first = table.known.used.rank(start);
            table.words.drain(first..first + slots);
        }
        self.used.set_range(start, slots, false);
    }

    /// Makes words plain that were gone or cached.
    fn unmark(&mut self, start: usize, slots: usize) {
        let (mut gone, mut cached) = (0, 0);
        for word in self.of_mut(start, slots) {
            gone += u16::from(word.gone());
            cached += u16::from(word.cached());
            *word = word.plain();
        }
        self.gone -= gone;
        self.cached -= cached;
    }

    /// Whether none of these slots, all used, is out of service.
    ///
    /// Of a few slots the words are read in any case. Their line comes with those above then, all at
    /// a time, and is near when the slots are allocated again, which must wait for it otherwise.
    #[inline]
    pub fn all_good(&self, start: usize, slots: usize) -> bool {
        if slots > FEW {
            return self.bad == 0;
        }
        !self.of(start, slots).iter().any(|w| w.bad())
    }

    /// Makes room for a word of every slot.
    pub fn spread(&mut self) {
        let mut words = Words([Word::NONE; CLUSTER_SLOTS]);
        for (at, word) in self.words() {
            words.0[at] = word;
        }
        let known = **self;
        *self = Self::Whole(Box::new(Whole { known, words }));
    }

    /// Leaves room for the words of used slots alone.
    pub fn pack(&mut self) {
        if let Self::Packed(table) = self {
            return table.words.shrink_to_fit();
        }
        let mut words = Vec::with_capacity(self.used.count());
        words.extend(self.words().map(|(_, word)| word));
        let known = **self;
        *self = Self::Packed(Box::new(Packed { known, words }));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(n: u32) -> Word {
        match n % 64 {
            0 => Word::BAD,
            1..8 => Word::owned(EntryId(n)).as_gone(),
            8..16 => Word::owned(EntryId(n)).as_cached(true),
            _ => Word::owned(EntryId(n)),
        }
    }

    #[test]
    fn a_word_is_one_thing_at_a_time() {
        let owned = Word::owned(EntryId(MAX_ENTRIES));
        let flags = |w: Word| (w.gone(), w.cached(), w.bad());
        assert_eq!(flags(owned), (false, false, false));
        assert_eq!(flags(owned.as_gone()), (true, false, false));
        assert_eq!(flags(owned.as_cached(true)), (false, true, false));
        assert_eq!(flags(owned.as_cached(true).as_gone()), (true, false, false));
        assert_eq!(flags(Word::BAD), (false, false, true));
        assert_eq!(flags(Word::NONE), (false, false, false));
        for same in [owned.as_gone(), owned.as_cached(true), owned.plain()] {
            assert_eq!(same.entry(), Some(EntryId(MAX_ENTRIES)));
        }
        assert_eq!((Word::BAD.entry(), Word::NONE.entry()), (None, None));
    }

    proptest! {
        /// Steps: allocate a run, free a run, change a word, pack.
        #[test]
        fn both_forms_agree_with_an_array(
            steps in proptest::collection::vec((0usize..512, 1usize..100, 0u8..6), 1..60),
        ) {
            let mut table = Table::new();
            let mut naive = [None; CLUSTER_SLOTS];
            for (n, (start, len, what)) in steps.into_iter().enumerate() {
                let len = len.min(CLUSTER_SLOTS - start);
                match what {
                    0 | 1 if table.used.range_is_clear(start, len) => {
                        if !table.is_whole() {
                            table.spread();
                        }
                        table.take(start, len).fill(Word::owned(EntryId(n as u32)));
                        for (at, naive) in naive.iter_mut().enumerate().skip(start).take(len) {
                            table.set(at, word((n + at) as u32));
                            *naive = Some(table.word(at));
                        }
                    }
                    2 | 3 if table.used.range_is_set(start, len) => {
                        let bad = naive[start..start + len].contains(&Some(Word::BAD));
                        prop_assert_eq!(table.all_good(start, len), table.bad == 0 || len <= FEW && !bad);
                        for at in start..start + len {
                            if table.word(at).bad() {
                                table.set(at, Word::NONE);
                            }
                        }
                        table.release(start, len);
                        naive[start..start + len].fill(None);
                    }
                    4 => {
                        table.pack();
                        prop_assert!(!table.is_whole() && table.left() == 0);
                    }
                    _ => {}
                }
                for (at, word) in naive.iter().enumerate() {
                    prop_assert!(word.is_none_or(|word| table.word(at) == word));
                }
                let words = naive.iter().enumerate().filter_map(|(at, w)| Some((at, (*w)?)));
                prop_assert!(table.words().eq(words.clone()));
                let count = |is: fn(Word) -> bool| words.clone().filter(|(_, w)| is(*w)).count() as u16;
                prop_assert_eq!(table.bad, count(Word::bad));
                prop_assert_eq!(table.gone, count(Word::gone));
                prop_assert_eq!(table.cached, count(Word::cached));
            }
        }
    }
}
