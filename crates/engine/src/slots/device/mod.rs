//! One device: its clusters, taking empty ones, and giving them back. The lists of clusters, and how a
//! cluster moves between them, are in [`lists`].

pub(super) mod backing;
pub(super) mod compact_walk;
pub(super) mod copies;
pub(super) mod cursor;
pub(super) mod device_order;
pub(super) mod drain_progress;
pub(super) mod in_flight;
pub(super) mod lists;
pub(super) mod usage;

pub(super) use lists::Patience;

use super::cluster::cluster_directory::ClusterDirectory;
use super::cluster::table::Table;
use super::cluster::{Cell, Cluster, ClusterGuard, ClusterState, DISCARD, FREE, LISTS, NIL, Owner};
use super::options::DeviceSpec;
use super::request::Request;
use crate::env::{Lender, Store};
use crate::locks::{CachePadded, Guard, LockRank, Ordered, lock};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::types::{CLUSTER_SLOTS, ClusterIndex, DeviceId, Node};
use backing::Backing;
use compact_walk::CompactWalk;
use copies::Copies;
use cursor::Cursor;
use drain_progress::DrainProgress;
use in_flight::InFlight;
use lists::{Head, Lists};
use std::sync::Arc;
use usage::UsageCount;

/// A device as the allocator sees it.
pub(super) struct Device {
    pub id: DeviceId,
    pub store: Arc<dyn Store>,
    pub lender: Option<Arc<dyn Lender>>,
    /// Slots of its whole clusters.
    pub slots: u32,
    pub clusters: u32,
    pub wants_discard: bool,
    pub rotational: bool,
    pub node: Option<Node>,
    /// Flag: slots may be allocated. Not while it drains, nor where this process may not write. Asked with the cluster's
    /// lock held: so whoever cleared it and then looked at every cluster under its lock has seen all slots that will
    /// ever be taken. Written with the lists' lock held.
    pub accepting: AtomicBool,
    /// Write errors so far.
    pub failed: AtomicU32,
    /// The same, less those forgiven.
    pub errors: AtomicU32,
    /// Pages written well since there were errors.
    pub written: AtomicU32,
    /// Slots out of service for errors.
    pub bad: AtomicU32,
    /// The one cursor of a rotating device, for folios of all sizes: the head goes on where it is.
    pub shared: Ordered<Option<Cursor>, { LockRank::SharedCursor as usize }>,
    /// The progress of its drain, if it is drained.
    pub drained: DrainProgress,
    /// The cluster that is looked at next whether it is worth packing.
    pub to_pack: AtomicU32,
    directory: ClusterDirectory,
    /// Searches in vain: for copies in full clusters, and for frozen clusters that nobody reads any more. The second is
    /// the lender's count of returns from before the last look at all of them; `u64::MAX` before the first.
    in_vain: CachePadded<(Copies, AtomicU64)>,
    /// Slots taken and freed off the fast path, where no processor's lock is held; and all those used
    /// in frozen and inherited clusters, which nobody else counts.
    used: CachePadded<(UsageCount, UsageCount)>,
    /// The lists, and the blocks behind the slots: these fill up the cache lines of those.
    lists: CachePadded<(Ordered<Lists, { LockRank::Lists as usize }>, Backing)>,
    in_flight: Arc<InFlight>,
}

/// Why a cluster is put back on a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Requeue {
    /// It has nothing for its order.
    AfterScan,
    /// A slot of it was freed, or its holder let it go.
    AfterFree,
}

impl Device {
    pub fn new(
        id: DeviceId,
        clusters: u32,
        spec: DeviceSpec,
        store: Arc<dyn Store>,
        lender: Option<Arc<dyn Lender>>,
        in_flight: Arc<InFlight>,
    ) -> Self {
        let fresh = if lender.is_some() { 0 } else { clusters };
        Self {
            id,
            slots: clusters * CLUSTER_SLOTS as u32,
            clusters,
            wants_discard: spec.discard.unwrap_or_else(|| store.wants_discard()),
            rotational: spec.rotational.unwrap_or_else(|| store.rotational()),
            node: spec.node.or_else(|| store.node()),
            store,
            lender,
            accepting: AtomicBool::new(true),
            failed: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            written: AtomicU32::new(0),
            bad: AtomicU32::new(0),
            shared: Ordered::new(None),
            drained: DrainProgress::default(),
            to_pack: AtomicU32::new(0),
            directory: ClusterDirectory::new(clusters),
            in_vain: CachePadded((Copies::new(), AtomicU64::new(u64::MAX))),
            used: CachePadded((UsageCount::new(), UsageCount::new())),
            lists: CachePadded((
                Ordered::new(Lists {
                    heads: [Head {
                        first: NIL,
                        last: NIL,
                        len: 0,
                    }; LISTS],
                    fresh,
                    tables: 0,
                    held: 0,
                    idle: 0,
                    only_read: false,
                    file_limited: false,
                    compaction: CompactWalk::new(),
                }),
                Backing::new(clusters),
            )),
            in_flight,
        }
    }

    pub fn accepting(&self) -> bool {
        self.accepting.load(Relaxed)
    }

    /// Whether slots of a cluster can be given now.
    pub fn gives(&self, c: ClusterIndex) -> bool {
        self.accepting() && self.backing().has(c)
    }

    pub fn bad(&self) -> u32 {
        self.bad.load(Relaxed)
    }

    /// Counts slots taken (or freed, if negative) by somebody who holds no processor's lock, in
    /// clusters that are ours.
    pub fn count(&self, slots: i64) {
        if slots != 0 {
            self.used.0.0.add(slots);
        }
    }

    /// The same in a cluster of any state, with its lock held.
    pub fn count_in(&self, state: ClusterState, slots: i64) {
        if !state.is_idle() {
            self.count(slots);
        } else if slots != 0 {
            self.used.0.1.add(slots);
        }
    }

    /// Whether a full cluster may hold slots that are only copies. See `reclaim`.
    pub fn copies(&self) -> &Copies {
        &self.in_vain.0.0
    }

    /// The lender's count of returns when all frozen clusters had readers.
    pub fn all_read(&self) -> &AtomicU64 {
        &self.in_vain.0.1
    }

    /// What is counted here of the clusters that are ours.
    pub fn counted(&self) -> &UsageCount {
        &self.used.0.0
    }

    /// The slots used in frozen and inherited clusters.
    pub fn counted_idle(&self) -> &UsageCount {
        &self.used.0.1
    }

    pub fn lists(&self) -> Guard<'_, Lists, { LockRank::Lists as usize }> {
        lock(&self.lists.0.0)
    }

    /// The blocks behind the slots.
    pub fn backing(&self) -> &Backing {
        &self.lists.0.1
    }

    /// The cell of a cluster, if the cluster was ever used.
    pub fn cell(&self, c: ClusterIndex) -> Option<&Cell> {
        self.directory.get(c)
    }

    /// The cell of a cluster that is on a list.
    fn listed(&self, c: u32) -> &Cell {
        self.cell(ClusterIndex(c))
            .expect("a listed cluster has a cell")
    }

    /// An empty cluster, for `order`: one of ours, or one never used, or one borrowed.
    pub fn take_empty(
        &self,
        order: u8,
        patience: Patience,
    ) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        let (c, mut cluster) = match self.isolate(FREE, Owner::Scan, patience) {
            Some(found) => found,
            // It would not be backed.
            None if self.backing().is_short() => return None,
            None => self.take_absent()?,
        };
        cluster.order = order;
        Some((c, cluster))
    }

    /// A cluster that is not ours so far: one of the lender's, or one never used.
    ///
    /// A lender goes by words that other processes write. What they cannot mean is refused: a cluster beyond the
    /// device, and one that we hold or read already. It does not go back, as nobody else is to have it either.
    fn take_absent(&self) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        let (c, withdrawn) = match &self.lender {
            Some(lender) => {
                let withdrawn = self.in_flight.begin();
                (lender.acquire()?, withdrawn)
            }
            None => {
                let mut lists = self.lists();
                if lists.fresh == 0 {
                    return None;
                }
                lists.fresh -= 1;
                let c = ClusterIndex(self.clusters - 1 - lists.fresh);
                (c, self.in_flight.begin())
            }
        };
        if c.0 >= self.clusters {
            return None;
        }
        let mut cluster = lock(&self.directory.make(c).cluster);
        if cluster.state != ClusterState::Absent {
            // In the models nobody writes wrong words.
            if cfg!(loom) {
                panic!("cluster {c} was lent to us twice");
            }
            return None;
        }
        self.set_state(
            &mut self.lists(),
            c,
            &mut cluster,
            ClusterState::OffList(Owner::Scan),
        );
        // A removal that has not seen this cluster has seen to it that this is false by now (see
        // `Devices::remove`), and nobody would give the cluster back.
        let stays = self.accepting() || self.lender.is_none();
        let found = if stays {
            Some((c, cluster))
        } else {
            self.give_back(c, cluster);
            None
        };
        withdrawn.arrived();
        found
    }

    /// Makes sure that slots can be allocated in a cluster: it has a table, with room for every
    /// owner.
    pub fn open<'a>(&self, cluster: &'a mut Cluster) -> &'a mut Table {
        let before = cluster.table.as_ref().map_or(0, Table::bytes);
        let table = cluster.table.get_or_insert_with(Table::new);
        if !table.is_whole() {
            table.spread();
        }
        let bytes = table.bytes();
        if bytes > before {
            self.lists().tables += bytes - before;
        }
        table
    }

    /// Takes the first free window of a cluster that need not be open.
    pub fn take_window(&self, cluster: &mut Cluster, want: Request) -> Option<usize> {
        let start = match &cluster.table {
            Some(table) => table.used().window(0, want.order, want.pages)?,
            None => 0,
        };
        self.open(cluster);
        cluster.take(start, want.pages, want.owner);
        Some(start)
    }

    /// Puts a cluster on the list where it belongs now, whatever it was on.
    pub fn settle(&self, c: ClusterIndex, cluster: &mut Cluster, requeue: Requeue) {
        let to = if cluster.count == 0 {
            if self.wants_discard && cluster.table.is_some() {
                ClusterState::Discard
            } else {
                ClusterState::Free
            }
        } else if usize::from(cluster.count) == CLUSTER_SLOTS {
            self.backing().filled(c);
            ClusterState::Full
        } else if cluster.only_bad() {
            // Of no use whole: small folios may have it, so that they spare whole ones.
            cluster.order = 0;
            ClusterState::NonFull(0)
        } else {
            match requeue {
                Requeue::AfterScan => ClusterState::Frag(cluster.order),
                Requeue::AfterFree => ClusterState::NonFull(cluster.order),
            }
        };
        let dropped = if cluster.count == 0 {
            cluster.table.take()
        } else {
            None
        };
        let mut lists = self.lists();
        lists.tables -= dropped.as_ref().map_or(0, Table::bytes);
        self.set_state(&mut lists, c, cluster, to);
        drop(lists);
    }

    /// After slots of a cluster were freed: moves it where it belongs. True if the last slot
    /// of a cluster that another process lent us to read is gone, and the lender must be
    /// told (without the cluster's lock).
    #[must_use]
    pub fn freed(&self, c: ClusterIndex, cluster: &mut Cluster) -> bool {
        match cluster.state {
            ClusterState::Full | ClusterState::Frag(_) => {
                self.settle(c, cluster, Requeue::AfterFree)
            }
            ClusterState::NonFull(_) if cluster.count == 0 => {
                self.settle(c, cluster, Requeue::AfterFree)
            }
            ClusterState::Inherited if cluster.count == 0 => {
                self.forget(c, cluster);
                return true;
            }
            _ => {}
        }
        false
    }

    /// The cluster is not ours any more.
    pub fn forget(&self, c: ClusterIndex, cluster: &mut Cluster) {
        self.backing().lost(c);
        cluster.count = 0;
        cluster.gone = false;
        let dropped = cluster.table.take();
        let mut lists = self.lists();
        lists.tables -= dropped.as_ref().map_or(0, Table::bytes);
        self.set_state(&mut lists, c, cluster, ClusterState::Absent);
    }

    /// The cluster is the lender's again, whatever it holds.
    pub fn give_back(&self, c: ClusterIndex, mut cluster: ClusterGuard<'_>) {
        self.forget(c, &mut cluster);
        drop(cluster);
        if let Some(lender) = &self.lender {
            lender.release(c);
        }
    }

    /// Discards one emptied cluster and makes it free. False if none waits.
    ///
    /// The cluster is off every list meanwhile, and says who holds it: nobody else can move it, whatever
    /// happens while no lock is held. An allocation that needs it waits for its arrival.
    pub fn discard_one(&self, patience: Patience) -> bool {
        if !self.wants_discard || self.len(DISCARD) == 0 {
            return false;
        }
        let withdrawn = self.in_flight.begin();
        let Some((c, cluster)) = self.isolate(DISCARD, Owner::Discarding, patience) else {
            return false;
        };
        drop(cluster);
        let (start, slots) = (u64::from(c.first_slot().0), CLUSTER_SLOTS as u64);
        // A failed discard costs room behind the device, not correctness.
        if self.store.wants_discard() && self.store.discard(start, slots).is_ok() {
            self.backing().discarded(c);
        }
        let mut cluster = lock(&self.listed(c.0).cluster);
        debug_assert_eq!(cluster.state, ClusterState::OffList(Owner::Discarding));
        self.set_state(&mut self.lists(), c, &mut cluster, ClusterState::Free);
        withdrawn.arrived();
        true
    }

    /// Whether another process looked for a cluster in vain, or this one did.
    pub fn is_wanted(&self) -> bool {
        self.lender
            .as_ref()
            .is_some_and(|lender| lender.is_wanted())
    }

    /// Gives one empty cluster back to the lender if more than `reserve` are free.
    pub fn release_one(&self, reserve: u32) -> bool {
        if self.lender.is_none() || self.len(FREE) <= reserve {
            return false;
        }
        let withdrawn = self.in_flight.begin();
        let Some((c, cluster)) = self.isolate(FREE, Owner::Scan, Patience::Skip) else {
            return false;
        };
        self.give_back(c, cluster);
        withdrawn.arrived();
        true
    }

    /// All clusters that have a cell.
    pub fn cells(&self) -> impl Iterator<Item = (ClusterIndex, &Cell)> {
        (0..self.clusters).filter_map(|c| Some((ClusterIndex(c), self.cell(ClusterIndex(c))?)))
    }

    /// Bytes this device costs: itself, cells and tables.
    pub fn bookkeeping_bytes(&self) -> usize {
        size_of::<Self>() + self.directory.bytes() + self.backing().bytes() + self.lists().tables
    }
}
