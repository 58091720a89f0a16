//! Finding slots: the order of attempts, from the processor's cursor to scattered runs.

use super::Devices;
use super::cluster::bitmap::Bitmap;
use super::cluster::{Cluster, ClusterGuard, ClusterState, FREE, Owner, frag, nonfull};
use super::device::cursor::Cursor;
use super::device::device_order::OrderedDevices;
use super::device::in_flight::{LOOKS, More};
use super::device::{Device, Patience, Requeue};
use super::error::AllocError;
use super::extent::{Extent, ExtentList, extent, order_of};
pub(super) use super::request::Request;
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, DeviceId, EntryId, MAX_ORDER};
use std::sync::Arc;

/// FRAG clusters looked at in one search.
const FRAG_SCANS: u32 = 8;
/// Clusters of a list looked at in one search of a device that is short of blocks.
const SHORT_SCANS: u32 = 32;
/// Frozen clusters whose readers are asked for in one allocation, but for the last attempt.
const THAW_LOOKS: usize = 16;

/// How far a search goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// A few looks; what another thread holds is passed over.
    Short,
    /// Before a folio is scattered: what is empty, or may have room for its order, is waited for. Nothing
    /// that a short search looked at just before.
    Patient,
    /// Before "full" is said: whatever may hold room, however many clusters that are.
    Full,
}

impl Effort {
    fn patience(self) -> Patience {
        match self {
            Self::Short => Patience::Skip,
            Self::Patient | Self::Full => Patience::Wait,
        }
    }
}

impl Devices {
    /// Allocates `pages` slots for the entries `owner`, `owner + 1`, ... and appends them to `out`: one
    /// aligned extent if any device has one, else as few extents as are found.
    ///
    /// Where there is too little it asks owners of copies ([`CacheReclaim`]), and waits for room in
    /// other threads' hands: a discard, or a compaction's transfer. So the caller holds no lock that
    /// `CacheReclaim`, [`Mover`](super::Mover), a store's discard or a lender may want, and is none of
    /// these itself.
    ///
    /// # Errors
    /// `Full` if all devices together have too few free slots: nothing is allocated then.
    pub fn allocate(
        &self,
        cpu: Cpu,
        pages: u16,
        owner: EntryId,
        out: &mut ExtentList,
    ) -> Result<(), AllocError> {
        if pages == 0 || usize::from(pages) > CLUSTER_SLOTS {
            return Err(AllocError::Pages(pages));
        }
        let want = Request {
            pages: usize::from(pages),
            order: order_of(pages),
            owner,
        };
        if let Some(extent) = self.take_at_cursor(cpu, want) {
            out.0.push(extent);
            return Ok(());
        }
        self.allocate_elsewhere(cpu, want, out)
    }

    /// The processor's current cluster has nothing.
    #[inline(never)]
    fn allocate_elsewhere(
        &self,
        cpu: Cpu,
        want: Request,
        out: &mut ExtentList,
    ) -> Result<(), AllocError> {
        if let Some(extent) = self.take_near(cpu, want) {
            out.0.push(extent);
            return Ok(());
        }
        let (mut looks, mut listener) = (0, None);
        while looks < LOOKS {
            let seen = self.in_flight.seen();
            if let Some(extent) = self.search_devices(cpu, want) {
                out.0.push(extent);
                return Ok(());
            }
            let seen = match self.scatter(cpu, want, out) {
                Ok(()) => return Ok(()),
                Err(own) => seen.and_own(own),
            };
            // Nothing that is under way may make an allocation fail.
            match self
                .in_flight
                .more_since(seen, want.pages, listener.as_ref())
            {
                More::Arrived => looks += 1,
                More::Freed => {}
                // One more look finds slots freed before it listened.
                More::Listen => listener = Some(self.in_flight.listen()),
                More::Nothing => break,
            }
        }
        Err(AllocError::Full)
    }

    /// The slow path: the lists of every device, best device first.
    pub(super) fn search_devices(&self, cpu: Cpu, want: Request) -> Option<Extent> {
        let found = self.search_lists(cpu, want)?;
        if want.pages == 1 {
            self.came_to(cpu, found);
        }
        Some(found)
    }

    fn search_lists(&self, cpu: Cpu, want: Request) -> Option<Extent> {
        let mut free = 0;
        let mut search = |device: &Device| {
            let found = self.search_device(cpu, device, want, Effort::Short);
            if found.is_none() {
                free += self.free_slots(device);
            }
            found
        };
        let found = match self.only_device(cpu) {
            Some(device) => search(&device),
            None => self.on_each_device(cpu, search),
        };
        if found.is_some() {
            return found;
        }
        // Nothing that waits or that another processor holds may make an allocation fail.
        self.flush_all_returns(cpu);
        self.let_cursors_go(|cluster| {
            let table = cluster.table.as_ref();
            let full = usize::from(cluster.count) == CLUSTER_SLOTS;
            full || table.is_none_or(|t| t.used().window(0, want.order, want.pages).is_some())
        });
        let effort = if want.pages > 1 && free >= want.pages as u64 {
            Effort::Patient
        } else {
            Effort::Full
        };
        self.on_each_device(cpu, |device| {
            self.search_device(cpu, device, want, effort)
                .or_else(|| device.take_other_order(want))
                .or_else(|| {
                    if want.pages == 1 {
                        self.sweep(device, want)
                    } else {
                        None
                    }
                })
        })
    }

    /// Tries the devices in service, best device first.
    pub(super) fn on_each_device<R>(
        &self,
        cpu: Cpu,
        mut f: impl FnMut(&Device) -> Option<R>,
    ) -> Option<R> {
        let order = self.order(cpu);
        let mut ids = order.as_slice().iter();
        ids.find_map(|id| f(&*self.device_at(cpu, *id)?))
    }

    fn order(&self, cpu: Cpu) -> OrderedDevices {
        let cpu = self.own_set(cpu);
        lock(&self.control).order.order(self.topology.node(cpu))
    }

    /// The device, where there is one alone: nothing to choose, and no lock of all processors to
    /// take for it.
    fn only_device(&self, cpu: Cpu) -> Option<Arc<Device>> {
        let state = lock(&self.cpu(cpu).state);
        let device = self.sole(&state.devices)?;
        device.accepting().then(|| device.clone())
    }

    /// The device of this table, where there is one alone.
    pub(super) fn sole<'t>(&self, devices: &'t [Option<Arc<Device>>]) -> Option<&'t Arc<Device>> {
        devices.iter().flatten().next().filter(|_| self.is_sole())
    }

    pub(super) fn is_sole(&self) -> bool {
        self.count.0.load(Relaxed) == 1
    }

    fn device_at(&self, cpu: Cpu, id: DeviceId) -> Option<Arc<Device>> {
        let device = lock(&self.cpu(cpu).state).devices[id.index()].clone()?;
        device.accepting().then_some(device)
    }

    fn search_device(
        &self,
        cpu: Cpu,
        device: &Device,
        want: Request,
        effort: Effort,
    ) -> Option<Extent> {
        let patience = effort.patience();
        if effort == Effort::Short {
            device.backing().pass();
        }
        if device.rotational {
            let found = device.allocate_at(&mut lock(&device.shared), want);
            if let Some(found) = found {
                device.count(want.pages as i64);
                lock(&self.cpu(cpu).state).rotating[usize::from(want.order)] = Some(device.id);
                return Some(found);
            }
        }
        let (full, thaw) = match effort {
            Effort::Short => (1, THAW_LOOKS),
            Effort::Patient => (0, 0),
            Effort::Full => (usize::MAX, usize::MAX),
        };
        loop {
            let begun = || self.scan(cpu, device, nonfull(want.order), want, patience);
            let whole = || self.take_whole(cpu, device, want, patience);
            // A cluster that is let become empty is worth a discard; elsewhere begun ones spare whole clusters
            // for large folios.
            let found = if device.wants_discard {
                whole().or_else(begun)
            } else {
                begun().or_else(whole)
            };
            if found.is_some() {
                return found;
            }
            if full > 0 && self.half_full(device) {
                let enough = if full == 1 { 1 } else { want.pages };
                if self.reclaim_full(cpu, device, full, enough) > 0
                    && let Some(found) = begun()
                {
                    return Some(found);
                }
            }
            let found = if effort == Effort::Patient {
                None
            } else {
                self.take_frag(cpu, device, want)
            };
            if found.is_some() {
                return found;
            }
            let more = device.discard_one(patience) || device.thaw(thaw) > 0;
            if !more || !device.accepting() {
                break;
            }
        }
        if want.order > 0 {
            return None;
        }
        (1..=MAX_ORDER).find_map(|order| {
            // Those with no room for their own order first.
            self.scan(cpu, device, frag(order), want, patience)
                .or_else(|| self.scan(cpu, device, nonfull(order), want, patience))
        })
    }

    /// A place in a cluster in use, not in a whole one.
    pub(super) fn take_begun(&self, cpu: Cpu, device: &Device, want: Request) -> Option<Extent> {
        self.scan(cpu, device, nonfull(want.order), want, Patience::Skip)
            .or_else(|| self.take_frag(cpu, device, want))
            .or_else(|| device.take_other_order(want))
    }

    /// A place in a cluster that had none when it was last scanned: for fewer pages than its windows
    /// hold, or where slots wait to be freed or hold copies. Looks at a few.
    fn take_frag(&self, cpu: Cpu, device: &Device, want: Request) -> Option<Extent> {
        let copies = self.reclaim.get().is_some() && self.half_full(device);
        let mut looks = FRAG_SCANS;
        loop {
            let c = device.look(
                &mut device.lists(),
                frag(want.order),
                &mut looks,
                |c, cluster| {
                    device.backing().has(c)
                        && cluster.is_some_and(|cluster| may_fit(cluster, want, copies))
                },
            )?;
            let mut cluster = lock(&device.cell(c)?.cluster);
            if device.isolate_this(c, &mut cluster, Owner::Scan)
                && let Some(found) = self.allocate_in(cpu, device, c, cluster, want)
            {
                return Some(found);
            }
        }
    }

    fn take_whole(
        &self,
        cpu: Cpu,
        device: &Device,
        want: Request,
        patience: Patience,
    ) -> Option<Extent> {
        // Of those of a short device some have blocks. One without goes to the end of its list.
        let looks = match device.backing().is_short() {
            true => device.len(FREE).min(SHORT_SCANS),
            false => 1,
        };
        (0..looks).find_map(|_| {
            let (c, cluster) = device.take_empty(want.order, patience)?;
            self.allocate_in(cpu, device, c, cluster, want)
        })
    }

    /// Tries the clusters of a list, each at most once, but perhaps the first.
    fn scan(
        &self,
        cpu: Cpu,
        device: &Device,
        list: usize,
        want: Request,
        patience: Patience,
    ) -> Option<Extent> {
        // Clusters without blocks stay on the list, at its end.
        let most = match device.backing().is_short() {
            true => SHORT_SCANS,
            false => u32::MAX,
        };
        // How many more to try. Counted when the first has nothing, which is seldom.
        let mut left = None;
        loop {
            let (c, cluster) = device.isolate(list, Owner::Scan, patience)?;
            let found = self.allocate_in(cpu, device, c, cluster, want);
            if found.is_some() {
                return found;
            }
            let more = left.unwrap_or_else(|| device.len(list).min(most));
            left = Some(more.checked_sub(1)?);
        }
    }

    /// Tries a cluster that this thread holds, and puts it where it belongs then.
    fn allocate_in<'d>(
        &self,
        cpu: Cpu,
        device: &'d Device,
        c: ClusterIndex,
        mut cluster: ClusterGuard<'d>,
        want: Request,
    ) -> Option<Extent> {
        cluster.release_gone();
        if !device.gives(c) {
            self.settle(device, c, &mut cluster, Requeue::AfterFree);
            return None;
        }
        let mut start = device.take_window(&mut cluster, want);
        if start.is_none() && cluster.table().cached() > 0 && self.half_full(device) {
            cluster = self.reclaim_window(device, c, cluster, want);
            // The lock was dropped: everything is asked again.
            if !device.accepting() {
                self.settle(device, c, &mut cluster, Requeue::AfterFree);
                return None;
            }
            start = device.take_window(&mut cluster, want);
        }
        let Some(start) = start else {
            self.settle(device, c, &mut cluster, Requeue::AfterScan);
            return None;
        };
        device.count(want.pages as i64);
        if usize::from(cluster.count) == CLUSTER_SLOTS {
            self.settle(device, c, &mut cluster, Requeue::AfterScan);
        } else {
            self.settle(device, c, &mut cluster, Requeue::AfterFree);
            drop(cluster);
            let next = (start + (1 << want.order)) % CLUSTER_SLOTS;
            let spot = Cursor {
                cluster: c,
                next: next as u16,
            };
            self.make_cursor(cpu, device, spot, want.order);
        }
        Some(extent(device.id, c, start, want.pages))
    }

    /// Lists a cluster that was in somebody's hands; if it ran empty there, the worker is to
    /// discard it.
    pub(super) fn settle(
        &self,
        device: &Device,
        c: ClusterIndex,
        cluster: &mut Cluster,
        requeue: Requeue,
    ) {
        device.settle(c, cluster, requeue);
        if cluster.state == ClusterState::Discard {
            self.want_work();
        }
    }

    /// Runs `f` on a cluster, wherever it is: in its cell, or in the hands of a processor, whose
    /// lock is taken then. None if it was never used.
    pub(super) fn with_cluster<R>(
        &self,
        device: &Device,
        c: ClusterIndex,
        f: impl FnOnce(&mut Cluster) -> R,
    ) -> Option<R> {
        let cell = device.cell(c)?;
        loop {
            let mut cluster = lock(&cell.cluster);
            let ClusterState::OffList(Owner::Cpu(cpu)) = cluster.state else {
                return Some(f(&mut cluster));
            };
            drop(cluster);
            let mut state = lock(&self.cpu(cpu).state);
            if let Some(current) = state.in_hand_at(device.id, c) {
                return Some(f(&mut current.cluster));
            }
            // It was put back in between.
        }
    }

    /// Runs `f` on every cluster of a device that has a cell, one after the other.
    pub(super) fn each_cluster(
        &self,
        device: &Device,
        mut f: impl FnMut(ClusterIndex, &mut Cluster),
    ) {
        for (c, _) in device.cells() {
            self.with_cluster(device, c, |cluster| f(c, cluster));
        }
    }
}

/// Whether a cluster without a place for its order may have one for this folio.
fn may_fit(cluster: &Cluster, want: Request, copies: bool) -> bool {
    let fits = |used: &Bitmap| used.window(0, want.order, want.pages).is_some();
    let table = cluster.table.as_ref();
    cluster.gone
        || table.is_some_and(|table| {
            fits(&table.used())
                || copies && table.cached() > 0 && fits(&table.which(|owner| !owner.cached()))
        })
}
