//! The reverse map of a cluster: a word for each slot, which says whose it is.
//!
//! It has two forms. *Whole*, there is a word for every slot, found by its position; slots are
//! allocated in this form alone. *Packed*, there are words of the used slots alone, in their order,
//! found by rank: by the number of used slots before. So a cluster of which half the slots were
//! freed, wherever they lay, needs half the words. Frees take words out; the room that they leave,
//! and a whole form that is worth it, are packed by the worker (`pack`), not by who frees.
//!
//! In both forms the words of used slots side by side are side by side.

use super::bitmap::Bitmap;
use crate::words::{CLUSTER_SLOTS, EntryId, MAX_ENTRIES};

/// The word of a slot: its owner entry, or its last one, and what is to be known of it.
///
/// A word is gone, cached, bad, or nothing of these.
#[derive(Clone, Copy, PartialEq, Eq)]
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

/// A word for every slot; on cache lines that nothing else is on.
#[repr(align(64))]
pub(super) struct Whole([Word; CLUSTER_SLOTS]);

/// The words of a cluster. Which slots are used, those who ask say.
pub(super) enum Owners {
    Whole(Box<Whole>),
    Packed(Vec<Word>),
}

impl Owners {
    /// Of a cluster that never had any.
    pub fn new() -> Self {
        Self::Whole(Box::new(Whole([Word::NONE; CLUSTER_SLOTS])))
    }

    pub const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// Words that there is memory for.
    pub const fn room(&self) -> usize {
        match self {
            Self::Whole(_) => CLUSTER_SLOTS,
            Self::Packed(words) => words.capacity(),
        }
    }

    /// The word of a slot; packed, nothing is known of free ones.
    #[inline]
    pub fn get(&self, used: &Bitmap, at: usize) -> Word {
        match self {
            Self::Whole(words) => words.0[at],
            Self::Packed(words) if used.get(at) => words[used.rank(at)],
            Self::Packed(_) => Word::NONE,
        }
    }

    /// The words of slots side by side, all used.
    #[inline]
    pub fn of(&self, used: &Bitmap, start: usize, slots: usize) -> &[Word] {
        match self {
            Self::Whole(words) => &words.0[start..start + slots],
            Self::Packed(words) => &words[used.rank(start)..][..slots],
        }
    }

    /// As `of`, to be changed.
    #[inline]
    pub fn of_mut(&mut self, used: &Bitmap, start: usize, slots: usize) -> &mut [Word] {
        match self {
            Self::Whole(words) => &mut words.0[start..start + slots],
            Self::Packed(words) => &mut words[used.rank(start)..][..slots],
        }
    }

    /// Room for the words of slots to be allocated.
    ///
    /// # Panics
    /// The form is packed.
    #[inline]
    pub fn free_mut(&mut self, start: usize, slots: usize) -> &mut [Word] {
        match self {
            Self::Whole(words) => &mut words.0[start..start + slots],
            Self::Packed(_) => panic!("slots are allocated where there is a word for each"),
        }
    }

    /// Slots that are used still are free from now on. Whole, their words stay.
    #[inline]
    pub fn remove(&mut self, used: &Bitmap, start: usize, slots: usize) {
        if let Self::Packed(words) = self {
            let first = used.rank(start);
            words.drain(first..first + slots);
        }
    }

    /// The used slots, each with its word.
    pub fn iter<'a>(&'a self, used: &'a Bitmap) -> impl Iterator<Item = (usize, Word)> + 'a {
        used.iter().enumerate().map(move |(rank, at)| match self {
            Self::Whole(words) => (at, words.0[at]),
            Self::Packed(words) => (at, words[rank]),
        })
    }

    /// The used slots whose words are such.
    pub fn which(&self, used: &Bitmap, such: impl Fn(Word) -> bool) -> Bitmap {
        let mut found = Bitmap::EMPTY;
        for (at, word) in self.iter(used) {
            found.set(at, such(word));
        }
        found
    }

    /// A word for every slot, from now on.
    pub fn spread(&mut self, used: &Bitmap) {
        let mut words = Box::new(Whole([Word::NONE; CLUSTER_SLOTS]));
        for (at, word) in self.iter(used) {
            words.0[at] = word;
        }
        *self = Self::Whole(words);
    }

    /// Words of used slots alone, from now on, and no room for more.
    pub fn pack(&mut self, used: &Bitmap) {
        if let Self::Packed(words) = self {
            return words.shrink_to_fit();
        }
        let mut words = Vec::with_capacity(used.count());
        words.extend(self.iter(used).map(|(_, word)| word));
        *self = Self::Packed(words);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(n: u32) -> Word {
        match n % 5 {
            0 => Word::BAD,
            1 => Word::owned(EntryId(n)).as_gone(),
            2 => Word::owned(EntryId(n)).as_cached(true),
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
        /// Steps: allocate a run, free a run, pack.
        #[test]
        fn both_forms_agree_with_an_array(
            steps in proptest::collection::vec((0usize..512, 1usize..100, 0u8..5), 1..60),
        ) {
            let (mut owners, mut used) = (Owners::new(), Bitmap::EMPTY);
            let mut naive = [None; CLUSTER_SLOTS];
            for (n, (start, len, what)) in steps.into_iter().enumerate() {
                let len = len.min(CLUSTER_SLOTS - start);
                match what {
                    0 | 1 if used.range_is_clear(start, len) => {
                        if !owners.is_whole() {
                            owners.spread(&used);
                        }
                        used.set_range(start, len, true);
                        for (i, free) in owners.free_mut(start, len).iter_mut().enumerate() {
                            *free = word((n * 512 + i) as u32);
                            naive[start + i] = Some(*free);
                        }
                    }
                    2 | 3 if used.range_is_set(start, len) => {
                        prop_assert!(owners.of(&used, start, len).iter().map(|w| Some(*w))
                            .eq(naive[start..start + len].iter().copied()));
                        owners.remove(&used, start, len);
                        used.set_range(start, len, false);
                        naive[start..start + len].fill(None);
                    }
                    4 => {
                        owners.pack(&used);
                        prop_assert_eq!(owners.room(), used.count());
                    }
                    _ => {}
                }
                for (at, word) in naive.iter().enumerate() {
                    if let Some(word) = word {
                        prop_assert!(owners.get(&used, at) == *word);
                    }
                }
                let known = naive.iter().enumerate().filter_map(|(at, w)| Some((at, (*w)?)));
                prop_assert!(owners.iter(&used).eq(known.clone()));
                let gone = known.filter(|(_, w)| w.gone()).map(|(at, _)| at);
                prop_assert!(owners.which(&used, Word::gone).iter().eq(gone));
            }
        }
    }
}
