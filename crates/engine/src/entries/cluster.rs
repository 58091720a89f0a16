//! One cluster: 512 consecutive entries, their words, and what few of them need besides.

use super::entry_word::{EntryWord, Location};
use super::fifo::Stamp;
use super::group::Hold;
use crate::BLOCK_PAGES;

/// Entries of a cluster.
pub const CLUSTER_ENTRIES: usize = if cfg!(loom) { 4 } else { crate::CLUSTER_SLOTS };
const _: () = assert!(CLUSTER_ENTRIES.is_multiple_of(BLOCK_PAGES));

/// The processor that may allocate in a cluster. Freeing is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryClusterState {
    /// The cursor of one processor allocates in it.
    Open,
    /// On its group's list of clusters worth opening again.
    Partial(Stamp),
    /// Too full to be worth opening: on no list.
    Closed,
}

/// Invariants: `used` = words that are not free; `pooled` = words that are in the pool; `clock` is set
/// if `pooled > 0`; `second_stamp` is later than `clock`; `unpackable <= left`. `left` = Σ, over the objects that its
/// entries name, of the pages once in them that none of these entries names.
///
/// It lies on cache lines of its own, so that a store of one processor disturbs no other. It is 65 lines
/// long, from the beginning or the middle of a line on, and allocators keep some bytes between two. From
/// the beginning alone would cost twice the gap.
#[repr(align(32))]
pub struct Cluster {
    pub(super) words: [EntryWord; CLUSTER_ENTRIES],
    /// The group that is charged.
    pub(super) group: Hold,
    /// The processor that made it, to which its number goes back.
    pub(super) maker: u16,
    pub(super) used: u16,
    pub(super) pooled: u16,
    /// No free entry lies before this one.
    hint: u16,
    pub(super) state: EntryClusterState,
    /// The place in the order in which the shrinker visits the group's clusters.
    pub(super) clock: Option<Stamp>,
    /// The place where the shrinker's visit goes on: it had seen the entries before this one.
    pub(super) visited: u16,
    /// The time when pages came last that are younger than that place says: they are marked referenced, and have
    /// their turn there.
    pub(super) second_stamp: Option<Stamp>,
    /// The part that was recompressed since something was last put into the pool.
    pub(super) dense: Dense,
    /// Pages that left blocks which others keep.
    pub(super) left: u16,
    /// Pages of them that packing again does not get rid of, as far as it was tried.
    pub(super) unpackable: u16,
}

/// One line beside the words: 8.1 bytes an entry in all.
const _: () = assert!(cfg!(loom) || size_of::<Cluster>() == 8 * CLUSTER_ENTRIES + 64);

/// How far recompression has been through a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dense {
    /// Not, or something came since.
    No,
    /// All but what a fork froze.
    ButFrozen,
    /// All.
    Yes,
}

/// The fate of a place that an entry no longer names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacated {
    /// Nobody names it: the caller frees what is there.
    Place(Location),
    /// Entries of the same block do.
    StillNamed,
}

impl Cluster {
    pub(super) fn new(group: Hold, maker: u16) -> Self {
        Self {
            words: [EntryWord::FREE; CLUSTER_ENTRIES],
            group,
            maker,
            used: 0,
            pooled: 0,
            hint: 0,
            state: EntryClusterState::Open,
            clock: None,
            visited: 0,
            second_stamp: None,
            dense: Dense::No,
            left: 0,
            unpackable: 0,
        }
    }

    /// An emptied cluster made ready for another life; it keeps its memory.
    pub(super) fn recycle(&mut self, group: Hold, maker: u16) {
        debug_assert!(self.used == 0 && self.pooled == 0);
        debug_assert!(self.left == 0 && self.unpackable == 0);
        self.group = group;
        self.maker = maker;
        self.hint = 0;
        self.state = EntryClusterState::Open;
        self.clock = None;
        self.second_stamp = None;
        self.dense = Dense::No;
    }

    /// The word of an entry.
    pub fn word(&self, at: usize) -> EntryWord {
        self.words[at]
    }

    /// The group that is charged for this cluster's entries.
    pub fn group(&self) -> &Hold {
        &self.group
    }

    /// Replaces a used entry's word by another used one.
    pub fn set(&mut self, at: usize, word: EntryWord) {
        let old = self.words[at];
        debug_assert!(!old.is_free() && !word.is_free());
        let pooled = |w: EntryWord| u16::from(matches!(w.location(), Location::Pool(_)));
        self.pooled = self.pooled - pooled(old) + pooled(word);
        self.words[at] = word;
    }

    /// The fate of the place that an entry names, once the entry names another or none.
    pub(super) fn vacate(&self, at: usize) -> Vacated {
        let word = self.words[at];
        let location = word.location();
        let first = at / BLOCK_PAGES * BLOCK_PAGES;
        let mut block = first..first + BLOCK_PAGES;
        let beside = |other: usize| other != at && self.words[other].same_place(word);
        if matches!(location, Location::Pool(_)) && block.any(beside) {
            Vacated::StillNamed
        } else {
            Vacated::Place(location)
        }
    }

    /// Reserves up to `out.len()` entries, lowest first; how many.
    pub(super) fn reserve_each(&mut self, out: &mut [u16]) -> usize {
        let mut n = 0;
        let mut at = self.hint as usize;
        while n < out.len() && at < CLUSTER_ENTRIES {
            if self.words[at].is_free() {
                self.words[at] = EntryWord::RESERVED;
                out[n] = at as u16;
                n += 1;
            }
            at += 1;
        }
        self.hint = at as u16;
        self.used += n as u16;
        n
    }

    /// Reserves `pages` consecutive entries, the first a multiple of the next power of two.
    pub(super) fn reserve_run(&mut self, pages: usize) -> Option<usize> {
        let align = pages.next_power_of_two();
        let first = (self.hint as usize).next_multiple_of(align);
        let start = (first..CLUSTER_ENTRIES)
            .step_by(align)
            .find(|&s| self.words[s..s + pages].iter().all(|w| w.is_free()))?;
        self.words[start..start + pages].fill(EntryWord::RESERVED);
        self.used += pages as u16;
        if first == self.hint as usize && start == first {
            self.hint = (start + pages) as u16;
        }
        Some(start)
    }

    /// A free entry lies at `at` again.
    pub(super) fn unhint(&mut self, at: usize) {
        self.hint = self.hint.min(at as u16);
    }

    /// Frees an entry; what became of the place that it named.
    pub fn release(&mut self, at: usize) -> Vacated {
        let word = self.words[at];
        assert!(!word.is_free(), "entry {at} of its cluster is freed twice");
        let vacated = self.vacate(at);
        self.set(at, EntryWord::RESERVED);
        self.words[at] = EntryWord::FREE;
        self.used -= 1;
        self.hint = self.hint.min(at as u16);
        vacated
    }

    pub(super) fn check(&self) {
        let count = |f: &dyn Fn(EntryWord) -> bool| self.words.iter().filter(|&&w| f(w)).count();
        assert_eq!(count(&|w| !w.is_free()), self.used as usize);
        assert_eq!(
            count(&|w| matches!(w.location(), Location::Pool(_))),
            self.pooled as usize
        );
        assert!(self.pooled == 0 || self.clock.is_some());
        assert!(self.second_stamp.is_none() || self.second_stamp > self.clock);
        assert!(self.unpackable <= self.left && (self.left == 0 || self.pooled > 0));
        assert!(
            self.words[..self.hint as usize]
                .iter()
                .all(|w| !w.is_free())
        );
    }
}
