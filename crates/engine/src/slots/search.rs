//! Finding slots: the order of attempts, from the processor's cursor to scattered runs.

use super::bitmap::Bitmap;
use super::cluster::{Cluster, ClusterGuard, FREE, Owner, State, frag, nonfull};
use super::device::{Device, Patience, Requeue};
use super::in_flight::{LOOKS, More};
use super::per_cpu::{Current, PerCpu, Spot, State as CpuState};
use super::{AllocError, ClusterPolicy, Devices, Extent, ExtentList, extent, order_of};
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, DeviceId, EntryId, MAX_ORDER};
use std::sync::Arc;

/// FRAG clusters looked at in one search.
const FRAG_SCANS: u32 = 8;
/// Used slots up to which a cluster that a processor has opened itself is worth going on with: a
/// quarter is free.
const OPENED_USED: usize = CLUSTER_SLOTS * 3 / 4;
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

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub pages: usize,
    pub order: u8,
    pub owner: EntryId,
}

impl Request {
    /// The first `pages` have their slots.
    pub fn advance(&mut self, pages: usize) {
        self.pages -= pages;
        self.owner = self.owner.plus(pages as u32);
    }
}

impl Devices {
    /// Allocates `pages` slots for the entries `owner`, `owner + 1`, ... and appends them to
    /// `out`: one aligned extent if one can be had on any device, else as few extents as
    /// are found.
    ///
    /// Where there is too little it asks owners of copies ([`CacheReclaim`]), and waits for what
    /// other threads have in hand for the moment, a discard or a compaction's transfer. So the
    /// caller holds no lock that `CacheReclaim`, [`Mover`](super::Mover), a store's discard or
    /// a lender may want, and is none of these itself.
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
                // What was freed before it listened, one more look finds.
                More::Listen => listener = Some(self.in_flight.listen()),
                More::Nothing => break,
            }
        }
        Err(AllocError::Full)
    }

    /// The fast path: the processor's current cluster for the order.
    ///
    /// Inlined: an extent returned through memory is written in parts and read whole, for which a
    /// processor waits longer than for all the rest.
    #[inline(always)]
    pub(super) fn take_at_cursor(&self, cpu: Cpu, want: Request) -> Option<Extent> {
        let per_cpu = self.cpu(cpu);
        let mut state = lock(&per_cpu.state);
        self.take_current(per_cpu, &mut state, want)
    }

    #[inline(always)]
    fn take_current(
        &self,
        per_cpu: &PerCpu,
        state: &mut CpuState,
        want: Request,
    ) -> Option<Extent> {
        let order = usize::from(want.order);
        if let Some(id) = state.rotating[order] {
            let device = state.devices[id.index()].as_deref()?;
            let found = device.allocate_at(&mut lock(&device.shared), want)?;
            per_cpu.count(state, id, want.pages as i64);
            return Some(found);
        }
        let current = state.current[order].as_mut()?;
        let start = current.take_window(want)?;
        let (device, index) = (current.device, current.index);
        if usize::from(current.cluster.count) == CLUSTER_SLOTS {
            self.put_back(
                &state.devices,
                state.current[order].take(),
                Requeue::AfterScan,
            );
        }
        per_cpu.count(state, device, want.pages as i64);
        Some(extent(device, index, start, want.pages))
    }

    /// What can be had with the processor's lock alone, or almost: a slot that it gave back, or one
    /// of the cluster that comes next.
    fn take_near(&self, cpu: Cpu, want: Request) -> Option<Extent> {
        let per_cpu = self.cpu(cpu);
        let mut state = lock(&per_cpu.state);
        let state = &mut *state;
        Self::open_current(state, want);
        let recycled = self.recycle(per_cpu, state, want);
        // Another thread may have got a cluster since the cursor was tried, or freed some of it.
        let at_hand = recycled
            .or_else(|| self.take_current(per_cpu, state, want))
            .or_else(|| self.take_opened(per_cpu, state, want));
        if at_hand.is_some() {
            return at_hand;
        }
        let found = self.advance(cpu, state, want);
        match found {
            Some(found) => per_cpu.count(state, found.device, want.pages as i64),
            // It was scanned in vain: nobody shall find it with the same list.
            None => {
                let current = state.current[usize::from(want.order)].take();
                self.put_back(&state.devices, current, Requeue::AfterScan);
            }
        }
        found
    }

    /// The worker may have packed the current cluster, as it was not in use.
    fn open_current(state: &mut CpuState, want: Request) {
        if let Some(current) = &mut state.current[usize::from(want.order)]
            && let Some(device) = state.devices[current.device.index()].as_deref()
        {
            device.open(&mut current.cluster);
        }
    }

    /// The cluster that this processor has opened by its frees becomes its current one, if there is
    /// some room in it by now; else those on the lists had more time to gather some.
    fn take_opened(&self, per_cpu: &PerCpu, state: &mut CpuState, want: Request) -> Option<Extent> {
        let order = usize::from(want.order);
        let opened = state.opened[order].take()?;
        if usize::from(opened.cluster.count) > OPENED_USED || !self.is_sole() {
            self.put_back(&state.devices, Some(opened), Requeue::AfterFree);
            return None;
        }
        let before = state.current[order].replace(opened);
        self.put_back(&state.devices, before, Requeue::AfterScan);
        Self::open_current(state, want);
        self.take_current(per_cpu, state, want)
    }

    /// Takes from the first cluster of the list that the policy has first, with the processor's lock
    /// held throughout, and makes it the current one unless that fills it. Most clusters are found
    /// so; on a device in long use, where one has a slot or two, that is most of what a slot costs.
    /// None if there is no room in it, or more than one device to choose from: then the search goes on.
    fn advance(&self, cpu: Cpu, state: &mut CpuState, want: Request) -> Option<Extent> {
        let device = self
            .sole(&state.devices)
            .filter(|device| !device.rotational && device.accepting())?;
        let cpu = self.own_set(cpu);
        let list = if self.free_first(device) {
            FREE
        } else {
            nonfull(want.order)
        };
        let (c, mut cluster) = device.take_first(list, |cluster| {
            if usize::from(cluster.count) + want.pages == CLUSTER_SLOTS {
                State::Full
            } else {
                State::OffList(Owner::Cpu(cpu))
            }
        })?;
        cluster.release_gone();
        if cluster.count == 0 {
            cluster.order = want.order;
        }
        if !device.accepting() {
            self.settle(device, c, &mut cluster, Requeue::AfterFree);
            return None;
        }
        let start = device.take_window(&mut cluster, want);
        let full = usize::from(cluster.count) == CLUSTER_SLOTS;
        match (start, cluster.state) {
            (Some(_), State::Full) if full => {}
            (Some(start), State::OffList(_)) if !full => {
                let spot = Spot {
                    cluster: c,
                    next: ((start + (1 << want.order)) % CLUSTER_SLOTS) as u16,
                };
                let current = device.move_out(spot, &mut cluster, cpu);
                drop(cluster);
                let before = state.current[usize::from(want.order)].replace(current);
                self.put_back(&state.devices, before, Requeue::AfterScan);
            }
            // Slots that were gone came free.
            (Some(_), _) => self.settle(device, c, &mut cluster, Requeue::AfterFree),
            (None, _) => self.settle(device, c, &mut cluster, Requeue::AfterScan),
        }
        let found = extent(device.id, c, start?, want.pages);
        if want.pages == 1 {
            state.home = Some(device.id);
            state.recycled = 0;
        }
        Some(found)
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

    fn order(&self, cpu: Cpu) -> super::device_order::OrderedDevices {
        let cpu = self.own_set(cpu);
        lock(&self.control).choice.order(self.topology.node(cpu))
    }

    /// The device, where there is one alone: nothing to choose, and no lock of all processors to
    /// take for it.
    fn only_device(&self, cpu: Cpu) -> Option<Arc<Device>> {
        let state = lock(&self.cpu(cpu).state);
        let device = self.sole(&state.devices)?;
        device.accepting().then(|| device.clone())
    }

    /// The device of this table, where there is one alone.
    fn sole<'t>(&self, devices: &'t [Option<Arc<Device>>]) -> Option<&'t Arc<Device>> {
        devices.iter().flatten().next().filter(|_| self.is_sole())
    }

    pub(super) fn is_sole(&self) -> bool {
        self.count.0.load(Relaxed) == 1
    }

    fn device_at(&self, cpu: Cpu, id: DeviceId) -> Option<Arc<Device>> {
        let device = lock(&self.cpu(cpu).state).devices[id.index()].clone()?;
        device.accepting().then_some(device)
    }

    /// Whether empty clusters are taken before those begun.
    pub(super) fn free_first(&self, device: &Device) -> bool {
        match self.options.clusters {
            ClusterPolicy::Auto => device.wants_discard,
            ClusterPolicy::FreeFirst => true,
            ClusterPolicy::NonFullFirst => false,
        }
    }

    fn search_device(
        &self,
        cpu: Cpu,
        device: &Device,
        want: Request,
        effort: Effort,
    ) -> Option<Extent> {
        let patience = effort.patience();
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
            let found = if self.free_first(device) {
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
    /// hold, or where slots only wait to be freed, or hold copies. Looks at a few.
    fn take_frag(&self, cpu: Cpu, device: &Device, want: Request) -> Option<Extent> {
        let copies = self.reclaim.get().is_some() && self.half_full(device);
        let mut looks = FRAG_SCANS;
        loop {
            let c = device.look(
                &mut device.lists(),
                frag(want.order),
                &mut looks,
                |_, cluster| cluster.is_some_and(|cluster| may_fit(cluster, want, copies)),
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
        let (c, cluster) = device.take_empty(want.order, patience)?;
        self.allocate_in(cpu, device, c, cluster, want)
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
        // How many more to try. Counted when the first has nothing, which is seldom.
        let mut left = None;
        loop {
            let (c, cluster) = device.isolate(list, Owner::Scan, patience)?;
            let found = self.allocate_in(cpu, device, c, cluster, want);
            if found.is_some() {
                return found;
            }
            let more = left.unwrap_or_else(|| device.len(list));
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
        if !device.accepting() {
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
            let spot = Spot {
                cluster: c,
                next: next as u16,
            };
            self.make_cursor(cpu, device, spot, want.order);
        }
        Some(extent(device.id, c, start, want.pages))
    }

    /// Makes a cluster that was just allocated in the current one of the processor, or of a rotating
    /// device, and lets the one before go. It is on its list, so that nobody misses it, until this
    /// has the lock of those who look for it in hands; if somebody else was faster there is no cursor.
    fn make_cursor(&self, cpu: Cpu, device: &Device, spot: Spot, order: u8) {
        let order = usize::from(order);
        let cpu = self.own_set(cpu);
        let Some(cell) = device.cell(spot.cluster) else {
            return;
        };
        let mut state = lock(&self.cpu(cpu).state);
        let state = &mut *state;
        let mut shared = device.rotational.then(|| lock(&device.shared));
        let owner = match shared {
            Some(_) => Owner::Device,
            None => Owner::Cpu(cpu),
        };
        let mut cluster = lock(&cell.cluster);
        // It asks whether the device accepts anything, under the lock that `let_cursors_go` takes: so
        // a device that was told to accept nothing more is left without cursors.
        if !matches!(cluster.state, State::NonFull(_))
            || !device.isolate_this(spot.cluster, &mut cluster, owner)
        {
            return;
        }
        device.open(&mut cluster);
        let mut before = None;
        if let Some(shared) = &mut shared {
            drop(cluster);
            if let Some(before) = shared.replace(spot) {
                self.let_go(device, before);
            }
            state.rotating[order] = Some(device.id);
        } else {
            before = Some(device.move_out(spot, &mut cluster, cpu));
            drop(cluster);
            state.rotating[order] = None;
        }
        let before = std::mem::replace(&mut state.current[order], before);
        self.put_back(&state.devices, before, Requeue::AfterFree);
    }

    /// Puts current clusters back on their lists, of every processor and every rotating
    /// device, where `which` says so.
    pub(super) fn let_cursors_go(&self, which: impl Fn(&Cluster) -> bool) {
        for per_cpu in &self.cpus {
            let mut state = lock(&per_cpu.state);
            let state = &mut *state;
            let mine = state.current.iter_mut().chain(&mut state.opened);
            for in_hand in mine {
                if in_hand.as_ref().is_some_and(|held| which(&held.cluster)) {
                    self.put_back(&state.devices, in_hand.take(), Requeue::AfterFree);
                }
            }
        }
        for device in self.devices() {
            self.let_go_if(&device, &mut lock(&device.shared), &which);
        }
    }

    /// Puts a cluster that was a processor's current one back into its cell, and on a list.
    #[cold]
    pub(super) fn put_back(
        &self,
        devices: &[Option<Arc<Device>>],
        current: Option<Current>,
        requeue: Requeue,
    ) {
        let Some(current) = current else { return };
        // A device with current clusters is not removed.
        let device = devices[current.device.index()].as_deref();
        let Some((device, cell)) = device.and_then(|d| Some((d, d.cell(current.index)?))) else {
            return debug_assert!(false, "a current cluster of no device");
        };
        let mut cluster = lock(&cell.cluster);
        *cluster = current.cluster;
        self.settle(device, current.index, &mut cluster, requeue);
    }

    /// Puts a cursor's cluster back on a list.
    fn let_go(&self, device: &Device, spot: Spot) {
        self.let_go_if(device, &mut Some(spot), |_| true);
    }

    fn let_go_if(
        &self,
        device: &Device,
        cursor: &mut Option<Spot>,
        which: impl Fn(&Cluster) -> bool,
    ) {
        let Some(spot) = *cursor else { return };
        let Some(cell) = device.cell(spot.cluster) else {
            return;
        };
        let mut cluster = lock(&cell.cluster);
        if which(&cluster) {
            *cursor = None;
            self.settle(device, spot.cluster, &mut cluster, Requeue::AfterFree);
        }
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
        if cluster.state == State::Discard {
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
            let State::OffList(Owner::Cpu(cpu)) = cluster.state else {
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

impl Current {
    #[inline(always)]
    fn take_window(&mut self, want: Request) -> Option<usize> {
        let from = usize::from(self.next);
        let start = self
            .cluster
            .take_window(from, want.order, want.pages, want.owner)?;
        self.next = ((start + (1 << want.order)) % CLUSTER_SLOTS) as u16;
        Some(start)
    }
}

impl Device {
    /// Takes a full cluster of which a folio was freed off its list, for the processor that freed it.
    pub(super) fn take_opened(&self, c: ClusterIndex, cluster: &mut Cluster, cpu: Cpu) -> Current {
        let to = State::OffList(Owner::Cpu(cpu));
        self.set_state(&mut self.lists(), c, cluster, to);
        let spot = Spot {
            cluster: c,
            next: 0,
        };
        self.move_out(spot, cluster, cpu)
    }

    /// Moves a cluster that is off every list, for a processor, out of its cell.
    fn move_out(&self, spot: Spot, cell: &mut Cluster, cpu: Cpu) -> Current {
        Current {
            device: self.id,
            index: spot.cluster,
            next: spot.next,
            seen: None,
            cluster: std::mem::replace(cell, Cluster::away(cpu)),
        }
    }

    /// Allocates at a rotating device's cursor; lets the cluster go when it is full or has nothing
    /// that fits.
    fn allocate_at(&self, cursor: &mut Option<Spot>, want: Request) -> Option<Extent> {
        let spot = cursor.as_mut()?;
        let c = spot.cluster;
        let mut cluster = lock(&self.cell(c)?.cluster);
        debug_assert_eq!(cluster.state, State::OffList(Owner::Device));
        self.open(&mut cluster);
        let found = cluster.take_window(usize::from(spot.next), want.order, want.pages, want.owner);
        match found {
            Some(start) if usize::from(cluster.count) < CLUSTER_SLOTS => {
                spot.next = ((start + (1 << want.order)) % CLUSTER_SLOTS) as u16;
            }
            _ => {
                *cursor = None;
                // For another order it may have something.
                let requeue = if cluster.order == want.order {
                    Requeue::AfterScan
                } else {
                    Requeue::AfterFree
                };
                self.settle(c, &mut cluster, requeue);
            }
        }
        Some(extent(self.id, c, found?, want.pages))
    }
}
