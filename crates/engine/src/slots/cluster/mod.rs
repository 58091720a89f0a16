//! A cluster: 512 slots, their owners, and the state that names the list it is on.
//!
//! A [`Cell`] is all there is of a cluster without used slots. Its [`Table`] is made with
//! the first used slot and dropped with the last. Everything in a [`Cluster`] is guarded by
//! the cell's lock; the links are guarded by the lock of the device's lists.

pub(super) mod bitmap;
pub(super) mod cluster_directory;
pub(super) mod runs;
pub(super) mod table;

use crate::locks::{Guard, LockRank, Ordered};
use crate::sync::atomic::AtomicU32;
use crate::types::{CLUSTER_SLOTS, Cpu, EntryId};
use table::{SlotOwner, Table};

/// The holder of a cluster that is on no list.
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
pub(super) enum ClusterState {
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
    /// Another process's, or of one that has ended: read and free only, until it is adopted.
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

impl ClusterState {
    /// Whether slots of the cluster can be allocated, now or when whoever holds it lets it go.
    pub const fn is_ours(self) -> bool {
        !matches!(
            self,
            ClusterState::Absent | ClusterState::Inherited | ClusterState::Frozen
        )
    }

    /// Whether slots of the cluster can be in use, but none is allocated for the sake of another process.
    pub const fn is_idle(self) -> bool {
        matches!(self, ClusterState::Inherited | ClusterState::Frozen)
    }

    /// The list a cluster in this state is on.
    pub const fn list(self) -> Option<usize> {
        Some(match self {
            ClusterState::Free => FREE,
            ClusterState::Discard => DISCARD,
            ClusterState::Full => FULL,
            ClusterState::Frozen => FROZEN,
            ClusterState::Inherited => INHERITED,
            ClusterState::NonFull(order) => nonfull(order),
            ClusterState::Frag(order) => frag(order),
            ClusterState::Absent | ClusterState::OffList(_) => return None,
        })
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
    pub table: Option<Table>,
    pub count: u16,
    /// The order of its windows; has a meaning while a slot is used.
    pub order: u8,
    /// Flag: some of its slots are gone.
    pub gone: bool,
    pub state: ClusterState,
}

impl Cluster {
    /// A cluster of which no slot is used.
    const fn unused(state: ClusterState) -> Self {
        Self {
            table: None,
            count: 0,
            order: 0,
            gone: false,
            state,
        }
    }

    /// The cell's content while the cluster is in the hands of a processor.
    pub const fn away(cpu: Cpu) -> Self {
        Self::unused(ClusterState::OffList(Owner::Cpu(cpu)))
    }

    /// Slots in use or out of service, without those that were given back and wait.
    pub fn used(&self) -> u16 {
        self.count - self.table.as_ref().map_or(0, Table::gone)
    }

    /// The table; the cluster must have one.
    pub fn table(&mut self) -> &mut Table {
        self.table.as_mut().expect("a cluster in use has a table")
    }

    /// Marks `pages` slots from `start` as used by `owner`, `owner + 1`, ... The table is whole.
    #[inline]
    pub fn take(&mut self, start: usize, pages: usize, owner: EntryId) {
        let owners = self.table().take(start, pages);
        own(owners, owner);
        self.count += pages as u16;
    }

    /// Takes the first free window, looking from `from` on and round. None too if the table is not whole.
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
        let (start, owners) = self.table().take_window(from, order, pages)?;
        own(owners, owner);
        self.count += pages as u16;
        Some(start)
    }

    /// Whether the cluster stays where it is when `pages` of its slots are freed: its holder will put it
    /// on a list, or it is on the right one already.
    pub const fn stays_without(&self, pages: u16) -> bool {
        match self.state {
            ClusterState::OffList(_) => true,
            ClusterState::NonFull(_) | ClusterState::Inherited => self.count > pages,
            _ => false,
        }
    }

    /// Marks a used slot as given back, to be released later.
    pub fn set_gone(&mut self, at: usize) {
        let table = self.table();
        table.set(at, table.owner(at).as_gone());
        self.gone = true;
    }

    /// Makes used slots free, none of them bad.
    #[inline]
    pub fn release(&mut self, start: usize, pages: usize) {
        self.count -= pages as u16;
        let some_gone = self.gone;
        let table = self.table();
        table.release(start, pages);
        self.gone = some_gone && table.gone() > 0;
    }

    /// Releases the slots that only wait in return caches; says how many. The parked
    /// notices of them find nothing to do later.
    pub fn release_gone(&mut self) -> usize {
        if !self.gone {
            return 0;
        }
        let gone = self.table().which(SlotOwner::gone);
        for at in gone.iter() {
            self.release(at, 1);
        }
        gone.count()
    }

    /// Forgets which slots are bad: of a cluster that is not ours any more. Says how many.
    pub fn release_bad(&mut self) -> usize {
        let Some(table) = &self.table else { return 0 };
        let bad = table.which(SlotOwner::bad);
        for at in bad.iter() {
            self.table().set(at, SlotOwner::NONE);
            self.release(at, 1);
        }
        bad.count()
    }

    /// Whether bad slots are all that is used.
    pub fn only_bad(&self) -> bool {
        self.table
            .as_ref()
            .map_or(self.count == 0, |t| t.bad() == self.count)
    }
}

/// Makes slots those of `owner`, `owner + 1`, ...
#[inline]
fn own(owners: &mut [SlotOwner], owner: EntryId) {
    for (i, slot) in owners.iter_mut().enumerate() {
        *slot = SlotOwner::owned(owner.plus(i as u32));
    }
}

/// A cluster and its links. Neighbours share cache lines; blocks of cells are laid out so that
/// clusters handed out one after the other are none.
pub(super) struct Cell {
    pub cluster: Ordered<Cluster, { LockRank::Cluster as usize }>,
    pub prev: AtomicU32,
    pub next: AtomicU32,
}

#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = assert!(size_of::<Cell>() == 48);

impl Cell {
    pub fn new() -> Self {
        Self {
            cluster: Ordered::new(Cluster::unused(ClusterState::Absent)),
            prev: AtomicU32::new(NIL),
            next: AtomicU32::new(NIL),
        }
    }
}

/// A cluster, locked.
pub(super) type ClusterGuard<'a> = Guard<'a, Cluster, { LockRank::Cluster as usize }>;

/// No cluster, in a link.
pub(super) const NIL: u32 = u32::MAX;
