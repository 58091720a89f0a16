//! What is known of a cluster's slots while any is used: which are, and the reverse map, a word for
//! each slot that says whose it is.
//!
//! A table has three forms. *Whole*, there is a word for every slot, found by its position; slots are
//! allocated in this form alone. *Packed*, there are words of the used slots alone, in their order,
//! found by rank: by the number of used slots before. So a cluster of which half the slots were
//! freed, wherever they lay, needs half the words. *Few*, each of these words has its position beside it,
//! and there is nothing for the cluster as such. Frees take words out; the room that they leave,
//! and a larger form that is worth it, are packed by the worker (`pack`), not by who frees.
//!
//! In every form the words of used slots side by side are side by side.

mod few;
mod word;

pub(super) use word::Word;

use super::bitmap::Bitmap;
use crate::words::{CLUSTER_SLOTS, EntryId};
use few::Few;

/// What the two larger forms hold.
///
/// - `bad`, `gone`, `cached` = number of words that are so; bad and gone slots count as used
#[derive(Clone, Copy)]
pub(super) struct Known {
    used: Bitmap,
    bad: u16,
    gone: u16,
    cached: u16,
    /// How many slots were used when compaction left pages that it could not move; 0: it never did.
    stuck: u16,
}

impl Known {
    /// Changes a word of these.
    fn put(&mut self, word: &mut Word, to: Word) {
        let from = std::mem::replace(word, to);
        let change = |count: &mut u16, is: fn(Word) -> bool| {
            *count = *count + u16::from(is(to)) - u16::from(is(from));
        };
        change(&mut self.bad, Word::bad);
        change(&mut self.gone, Word::gone);
        change(&mut self.cached, Word::cached);
    }

    /// Whether words may be gone or cached.
    const fn marked(&self) -> bool {
        self.gone > 0 || self.cached > 0
    }

    /// Makes words plain, none of them bad.
    #[cold]
    fn unmark(&mut self, words: &mut [Word]) {
        for word in words {
            self.put(word, word.plain());
        }
    }
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

impl Packed {
    /// What it takes for so many slots.
    const fn bytes(slots: usize) -> usize {
        size_of::<Self>() + slots * size_of::<Word>()
    }
}

/// The table of a cluster.
pub(super) enum Table {
    Whole(Box<Whole>),
    Packed(Box<Packed>),
    Few(Few),
}

/// Slots whose words lie in a cache line or two.
const NEAR: usize = 16;

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

    /// The memory it takes, beside the cell.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Whole(_) => size_of::<Whole>(),
            Self::Packed(table) => Packed::bytes(table.words.capacity()),
            Self::Few(few) => few.bytes(),
        }
    }

    /// What of that packing would give back.
    pub fn spare(&self) -> usize {
        let slots = match self {
            Self::Whole(table) => table.known.used.count(),
            Self::Packed(table) => table.words.len(),
            Self::Few(few) => few.len(),
        };
        let needed = if self.is_few(slots) {
            slots * Few::BYTES
        } else {
            Packed::bytes(slots)
        };
        self.bytes().saturating_sub(needed)
    }

    /// Whether so many slots, all that are used, take the least with their positions. What
    /// compaction knows of a cluster has no place there.
    const fn is_few(&self, slots: usize) -> bool {
        self.stuck() == 0 && slots * Few::BYTES <= Packed::bytes(slots)
    }

    /// What the larger forms hold.
    #[inline]
    const fn known(&self) -> Result<&Known, &Few> {
        match self {
            Self::Whole(table) => Ok(&table.known),
            Self::Packed(table) => Ok(&table.known),
            Self::Few(few) => Err(few),
        }
    }

    /// Which slots are used, those included that are bad or gone.
    #[inline]
    pub fn used(&self) -> Bitmap {
        self.known().map_or_else(Few::used, |known| known.used)
    }

    /// Slots out of service.
    pub fn bad(&self) -> u16 {
        let count = |few: &Few| few.count(Word::bad);
        self.known().map_or_else(count, |known| known.bad)
    }

    /// Slots given back that cannot be used again yet.
    #[inline]
    pub fn gone(&self) -> u16 {
        let count = |few: &Few| few.count(Word::gone);
        self.known().map_or_else(count, |known| known.gone)
    }

    /// Slots that are only copies.
    pub fn cached(&self) -> u16 {
        let count = |few: &Few| few.count(Word::cached);
        self.known().map_or_else(count, |known| known.cached)
    }

    /// How many slots were used when compaction left pages that it could not move; 0: it never did.
    pub const fn stuck(&self) -> u16 {
        match self.known() {
            Ok(known) => known.stuck,
            Err(_) => 0,
        }
    }

    /// Remembers that, in a table that is whole.
    pub fn set_stuck(&mut self, used: u16) {
        self.whole().known.stuck = used;
    }

    /// What is known of a slot; but for a whole table, that is nothing of a free one.
    #[inline]
    pub fn word(&self, at: usize) -> Word {
        match self {
            Self::Whole(table) => table.words.0[at],
            Self::Packed(table) if table.known.used.get(at) => {
                table.words[table.known.used.rank(at)]
            }
            Self::Packed(_) => Word::NONE,
            Self::Few(few) => few.word(at).unwrap_or(Word::NONE),
        }
    }

    /// The word of a used slot; none of a free one.
    #[inline]
    pub fn used_word(&self, at: usize) -> Option<Word> {
        match self.known() {
            Ok(known) => known.used.get(at).then(|| self.word(at)),
            Err(few) => few.word(at),
        }
    }

    /// The used slots, each with its word.
    pub fn words(&self) -> impl Iterator<Item = (usize, Word)> {
        let used = self.used();
        let (mut from, mut rank) = (0, 0);
        std::iter::from_fn(move || {
            let at = used.next(from, true)?;
            let word = match self {
                Self::Whole(table) => table.words.0[at],
                Self::Packed(table) => table.words[rank],
                Self::Few(few) => few.nth(rank),
            };
            (from, rank) = (at + 1, rank + 1);
            Some((at, word))
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
        let words = match self {
            Self::Whole(table) if table.known.used.range_is_set(start, slots) => {
                &table.words.0[start..start + slots]
            }
            Self::Packed(table) if table.known.used.range_is_set(start, slots) => {
                &table.words[table.known.used.rank(start)..][..slots]
            }
            Self::Few(few) => return few.all_owned(start, slots, owner),
            _ => return false,
        };
        let own = |(i, &word): (usize, &Word)| word.owned_by(owner.plus(i as u32));
        // To the end in any case, so that several are compared at a time.
        let words = words.iter().enumerate();
        words.fold(true, |all, word| all & own(word))
    }

    /// Changes the word of a used slot.
    pub fn set(&mut self, at: usize, to: Word) {
        match self {
            Self::Whole(table) => table.known.put(&mut table.words.0[at], to),
            Self::Packed(table) => {
                let rank = table.known.used.rank(at);
                table.known.put(&mut table.words[rank], to);
            }
            Self::Few(few) => few.set(at, to),
        }
    }

    /// The table, which is whole.
    ///
    /// # Panics
    /// It is not.
    #[inline]
    fn whole(&mut self) -> &mut Whole {
        let Self::Whole(table) = self else {
            panic!("slots are allocated where each has a word");
        };
        table
    }

    /// Marks free slots of a whole table as used; their words are to be set.
    #[inline]
    pub fn take(&mut self, start: usize, slots: usize) -> &mut [Word] {
        let Whole { known, words } = self.whole();
        debug_assert!(known.used.range_is_clear(start, slots));
        known.used.set_range(start, slots, true);
        &mut words.0[start..start + slots]
    }

    /// Takes so the first free window, looking from `from` on and round: where it begins, and its words.
    /// None too if the table is not whole.
    #[inline]
    pub fn take_window(
        &mut self,
        from: usize,
        order: u8,
        pages: usize,
    ) -> Option<(usize, &mut [Word])> {
        let Self::Whole(table) = self else {
            return None;
        };
        let Whole { known, words } = &mut **table;
        let start = known.used.window(from, order, pages)?;
        known.used.set_range(start, pages, true);
        Some((start, &mut words.0[start..start + pages]))
    }

    /// Takes free slots out of service. The table is whole.
    pub fn take_bad(&mut self, start: usize, slots: usize) {
        self.take(start, slots).fill(Word::BAD);
        self.whole().known.bad += slots as u16;
    }

    /// Makes used slots free, none of them bad. In a whole table their words keep the last owner.
    #[inline]
    pub fn release(&mut self, start: usize, slots: usize) {
        match self {
            Self::Whole(table) => {
                let Whole { known, words } = &mut **table;
                if known.marked() {
                    known.unmark(&mut words.0[start..start + slots]);
                }
                known.used.set_range(start, slots, false);
            }
            Self::Packed(table) => {
                let Packed { known, words } = &mut **table;
                let first = known.used.rank(start);
                if known.marked() {
                    known.unmark(&mut words[first..first + slots]);
                }
                words.drain(first..first + slots);
                known.used.set_range(start, slots, false);
            }
            Self::Few(few) => few.release(start, slots),
        }
    }

    /// Whether none of these slots, all used, is out of service.
    ///
    /// Of a few slots the words are read in any case. Their line comes with those above then, all at
    /// a time, and is near when the slots are allocated again, which must wait for it otherwise.
    #[inline]
    pub fn all_good(&self, start: usize, slots: usize) -> bool {
        if slots > NEAR {
            return self.bad() == 0;
        }
        let bad = |words: &[Word]| words.iter().any(|word| word.bad());
        match self {
            Self::Whole(table) => !bad(&table.words.0[start..start + slots]),
            Self::Packed(table) => !bad(&table.words[table.known.used.rank(start)..][..slots]),
            Self::Few(_) => (start..start + slots).all(|at| !self.word(at).bad()),
        }
    }

    /// Makes room for a word of every slot.
    pub fn spread(&mut self) {
        let mut words = Words([Word::NONE; CLUSTER_SLOTS]);
        for (at, word) in self.words() {
            words.0[at] = word;
        }
        let known = Known {
            used: self.used(),
            bad: self.bad(),
            gone: self.gone(),
            cached: self.cached(),
            stuck: self.stuck(),
        };
        *self = Self::Whole(Box::new(Whole { known, words }));
    }

    /// Leaves room for the words of used slots alone.
    pub fn pack(&mut self) {
        let count = self.used().count();
        if let Self::Few(few) = self {
            few.shrink();
        } else if self.is_few(count) {
            *self = Self::Few(Few::new(count, self.words()));
        } else if let Self::Packed(table) = self {
            table.words.shrink_to_fit();
        } else if let Self::Whole(table) = self {
            let known = table.known;
            let mut words = Vec::with_capacity(count);
            words.extend(self.words().map(|(_, word)| word));
            *self = Self::Packed(Box::new(Packed { known, words }));
        }
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

    proptest! {
        /// Steps: allocate a run, free a run, change a word, pack.
        #[test]
        fn every_form_agrees_with_an_array(
            steps in proptest::collection::vec((0usize..512, 1usize..100, 0u8..6), 1..60),
        ) {
            let mut table = Table::new();
            let mut naive = [None; CLUSTER_SLOTS];
            for (n, (start, len, what)) in steps.into_iter().enumerate() {
                let len = len.min(CLUSTER_SLOTS - start);
                match what {
                    0 | 1 if table.used().range_is_clear(start, len) => {
                        if !table.is_whole() {
                            table.spread();
                        }
                        table.take(start, len).fill(Word::owned(EntryId(n as u32)));
                        for (at, naive) in naive.iter_mut().enumerate().skip(start).take(len) {
                            table.set(at, word((n + at) as u32));
                            *naive = Some(table.word(at));
                        }
                    }
                    2 | 3 if table.used().range_is_set(start, len) => {
                        let bad = naive[start..start + len].contains(&Some(Word::BAD));
                        prop_assert_eq!(table.all_good(start, len), table.bad() == 0 || len <= NEAR && !bad);
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
                        prop_assert!(!table.is_whole() && table.spare() == 0);
                    }
                    _ => {}
                }
                for (at, word) in naive.iter().enumerate() {
                    prop_assert!(word.is_none_or(|word| table.word(at) == word));
                    prop_assert_eq!(table.used_word(at), *word);
                }
                let words = naive.iter().enumerate().filter_map(|(at, w)| Some((at, (*w)?)));
                prop_assert!(table.words().eq(words.clone()));
                let count = |is: fn(Word) -> bool| words.clone().filter(|(_, w)| is(*w)).count() as u16;
                prop_assert_eq!(table.bad(), count(Word::bad));
                prop_assert_eq!(table.gone(), count(Word::gone));
                prop_assert_eq!(table.cached(), count(Word::cached));
            }
        }
    }
}
