//! A cluster: 512 slots, their owners, and the state that names the list it is on.
//!
//! A [`Cell`] is all there is of a cluster without used slots. Its [`Table`] is made with
//! the first used slot and dropped with the last. Everything in a [`Cluster`] is guarded by
//! the cell's lock; the links are guarded by the lock of the device's lists.

use super::bitmap::Bitmap;
use crate::locks::{Guard, Ordered, Place};
use crate::sync::atomic::AtomicU32;
use crate::words::{CLUSTER_SLOTS, Cpu, EntryId, MAX_ENTRIES};

/// Who holds a cluster that is on no list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A processor allocates in it: the cluster is in its state, and the cell is empty.
    Cpu(Cpu),
    /// The one cursor of a rotating device.
    Device,
    /// A thread that allocates, reclaims, thaws, compacts or drains in it right now.
    Scan,
    /// A thread that discards it right now, with no lock held.
    Discarding,
}

/// Where a cluster stands. Each state but `Absent` and `OffList` is one list of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Not ours: lent to nobody or to another process, or never used so far.
    Absent,
    /// No slot used, discarded where the device wants that.
    Free,
    /// Some slots used; may have room for this order.
    NonFull(u8),
    /// Scanned for this order without success since the last free.
    Frag(u8),
    /// Every slot used.
    Full,
    /// No slot used, content to be discarded first.
    Discard,
    /// Readers in other processes: nothing is allocated, frees wait.
    Frozen,
    /// Another process's: read and free only.
    Inherited,
    /// On no list, held by somebody.
    OffList(Owner),
}

/// The lists of a device, one for each listed state.
pub(super) const LISTS: usize = 25;
pub(super) const FREE: usize = 0;
pub(super) const DISCARD: usize = 1;
pub(super) const FULL: usize = 2;
pub(super) const FROZEN: usize = 3;
pub(super) const INHERITED: usize = 4;
const NONFULL: usize = 5;
const FRAG: usize = 15;

pub(super) const fn nonfull(order: u8) -> usize {
    NONFULL + order as usize
}

pub(super) const fn frag(order: u8) -> usize {
    FRAG + order as usize
}

impl State {
    /// Whether slots of the cluster can be allocated, now or when whoever holds it lets it go.
    pub const fn is_ours(self) -> bool {
        !matches!(self, State::Absent | State::Inherited | State::Frozen)
    }

    /// The list a cluster in this state is on.
    pub const fn list(self) -> Option<usize> {
        Some(match self {
            State::Free => FREE,
            State::Discard => DISCARD,
            State::Full => FULL,
            State::Frozen => FROZEN,
            State::Inherited => INHERITED,
            State::NonFull(order) => nonfull(order),
            State::Frag(order) => frag(order),
            State::Absent | State::OffList(_) => return None,
        })
    }
}

/// The word of a slot in the reverse map: its owner entry, or its last one, and two flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    const GONE: u32 = 1 << 29;
    const BAD: u32 = 1 << 30;
    const NO_ENTRY: u32 = 1 << 31;

    pub const fn owned(owner: EntryId) -> Self {
        Self(owner.0 & MAX_ENTRIES)
    }
    /// Given back by its owner, but not yet to be used again: it waits in a return cache, or
    /// for the readers of a frozen cluster.
    pub const fn gone(self) -> bool {
        self.0 & Self::GONE != 0
    }
    /// Out of service for good.
    pub const fn bad(self) -> bool {
        self.0 & Self::BAD != 0
    }
    pub const fn set_gone(&mut self, yes: bool) {
        self.0 = self.0 & !Self::GONE | if yes { Self::GONE } else { 0 };
    }
    pub const fn set_bad(&mut self) {
        self.0 = Self::BAD | Self::NO_ENTRY;
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

/// Slots whose words lie in a cache line or two.
const FEW: usize = 16;

/// What is known of a cluster's slots while any is used.
///
/// - `cached` ⊆ `used`; a cached slot is neither gone nor bad
/// - `bad` = number of bad words; bad slots count as used
/// - `gone` = number of gone words; gone slots count as used
#[repr(align(64))]
pub(super) struct Table {
    pub used: Bitmap,
    pub cached: Bitmap,
    pub words: [Word; CLUSTER_SLOTS],
    pub bad: u16,
    pub gone: u16,
}

impl Table {
    pub fn new() -> Box<Self> {
        Box::new(Self {
            used: Bitmap::EMPTY,
            cached: Bitmap::EMPTY,
            words: [Word(Word::NO_ENTRY); CLUSTER_SLOTS],
            bad: 0,
            gone: 0,
        })
    }

    /// Whether these slots belong to `owner`, `owner + 1`, ... and none was given back.
    #[inline]
    pub fn all_owned(&self, start: usize, pages: usize, owner: EntryId) -> bool {
        let words = self.words[start..start + pages].iter().enumerate();
        let own = |(i, &word): (usize, &Word)| word == Word::owned(owner.plus(i as u32));
        // To the end in any case, so that several are compared at a time.
        self.used.range_is_set(start, pages) && words.fold(true, |all, word| all & own(word))
    }

    /// Whether none of these slots is out of service.
    pub fn all_good(&self, start: usize, pages: usize) -> bool {
        if pages > FEW {
            return self.bad == 0;
        }
        !self.words[start..start + pages].iter().any(|w| w.bad())
    }
}

/// The guarded part of a cell.
///
/// - `table` is None ⇒ `count` = 0
/// - `count` = used slots
/// - `state` Free, Discard, Absent ⇒ `table` is None
/// - `state` Full ⇔ listed and `count` = 512, unless Frozen or Inherited
/// - `gone` ⇔ the table counts gone slots: so that who only asks that touches no line of the table
/// - `state` OffList(Cpu) in a cell ⇒ the cell has no table: the cluster is where `state` says
pub(super) struct Cluster {
    pub table: Option<Box<Table>>,
    pub count: u16,
    /// What its windows are for; has a meaning while a slot is used.
    pub order: u8,
    /// Whether any of its slots is gone.
    pub gone: bool,
    pub state: State,
}

impl Cluster {
    /// A cluster of which no slot is used.
    const fn unused(state: State) -> Self {
        Self {
            table: None,
            count: 0,
            order: 0,
            gone: false,
            state,
        }
    }

    /// What stays in the cell of a cluster in the hands of a processor.
    pub const fn away(cpu: Cpu) -> Self {
        Self::unused(State::OffList(Owner::Cpu(cpu)))
    }

    /// The table; the cluster must have one.
    pub fn table(&mut self) -> &mut Table {
        self.table.as_mut().expect("a cluster in use has a table")
    }

    /// Marks `pages` slots from `start` as used by `owner`, `owner + 1`, ...
    #[inline]
    pub fn take(&mut self, start: usize, pages: usize, owner: EntryId) {
        let table = self.table();
        debug_assert!(table.used.range_is_clear(start, pages));
        table.used.set_range(start, pages, true);
        for (i, word) in table.words[start..start + pages].iter_mut().enumerate() {
            *word = Word::owned(owner.plus(i as u32));
        }
        self.count += pages as u16;
    }

    /// Takes the first free window, looking from `from` on and round.
    #[inline]
    pub fn take_window(
        &mut self,
        from: usize,
        order: u8,
        pages: usize,
        owner: EntryId,
    ) -> Option<usize> {
        if usize::from(self.count) + pages > CLUSTER_SLOTS {
            return None;
        }
        let start = self.table().used.window(from, order, pages)?;
        self.take(start, pages, owner);
        Some(start)
    }

    /// Whether the cluster stays where it is when `pages` of its slots are freed: held by somebody
    /// who will put it on a list, or on the right one already.
    pub const fn stays_without(&self, pages: u16) -> bool {
        match self.state {
            State::OffList(_) => true,
            State::NonFull(_) | State::Inherited => self.count > pages,
            _ => false,
        }
    }

    /// Marks a used slot as given back, to be released later.
    pub fn set_gone(&mut self, at: usize) {
        let table = self.table();
        table.words[at].set_gone(true);
        table.cached.set(at, false);
        table.gone += 1;
        self.gone = true;
    }

    /// Makes used slots free; the words keep the last owner.
    ///
    /// Of a few slots the words are read in any case. Their line comes with those above then, all at
    /// a time, and is near when the slots are allocated again, which must wait for it otherwise.
    #[inline]
    pub fn release(&mut self, start: usize, pages: usize) {
        self.count -= pages as u16;
        let some_gone = self.gone;
        let table = self.table();
        table.used.set_range(start, pages, false);
        table.cached.set_range(start, pages, false);
        if pages > FEW && !some_gone {
            return;
        }
        for word in &mut table.words[start..start + pages] {
            if word.gone() {
                word.set_gone(false);
                table.gone -= 1;
            }
        }
        self.gone = some_gone && table.gone > 0;
    }

    /// Releases the slots that only wait in return caches; says how many. The parked
    /// notices of them find nothing to do later.
    pub fn release_gone(&mut self) -> usize {
        if !self.gone {
            return 0;
        }
        let gone = usize::from(self.table().gone);
        let mut left = gone;
        let mut at = 0;
        while left > 0 {
            if self.table().words[at].gone() {
                self.release(at, 1);
                left -= 1;
            }
            at += 1;
        }
        gone
    }

    /// Forgets which slots are bad: of a cluster that is not ours any more. Says how many.
    pub fn release_bad(&mut self) -> usize {
        let Some(table) = &self.table else { return 0 };
        let bad = usize::from(table.bad);
        for at in 0..CLUSTER_SLOTS {
            if self.table().words[at].bad() {
                self.table().words[at] = Word(Word::NO_ENTRY);
                self.release(at, 1);
            }
        }
        self.table().bad = 0;
        bad
    }

    /// Whether bad slots are all that is used.
    pub fn only_bad(&self) -> bool {
        self.table
            .as_ref()
            .map_or(self.count == 0, |t| t.bad == self.count)
    }
}

/// A cluster and its links. Two share a cache line; blocks of cells are laid out so that
/// clusters handed out one after the other do not.
#[repr(align(32))]
pub(super) struct Cell {
    pub cluster: Ordered<Cluster, { Place::Cluster as usize }>,
    pub prev: AtomicU32,
    pub next: AtomicU32,
}

#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = assert!(size_of::<Cell>() == 32);

impl Cell {
    pub fn new() -> Self {
        Self {
            cluster: Ordered::new(Cluster::unused(State::Absent)),
            prev: AtomicU32::new(NIL),
            next: AtomicU32::new(NIL),
        }
    }
}

/// A cluster, locked.
pub(super) type ClusterGuard<'a> = Guard<'a, Cluster, { Place::Cluster as usize }>;

/// No cluster, in a link.
pub(super) const NIL: u32 = u32::MAX;
