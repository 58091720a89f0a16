//! Cursors: the cluster that a processor, or a rotating device, allocates in, and the way it comes there
//! and goes back to its list.

use super::Devices;
use super::cluster::{Cluster, ClusterState, FREE, Owner, nonfull};
use super::device::cursor::Cursor;
use super::device::{Device, Requeue};
use super::extent::{Extent, extent};
use super::per_cpu::{CpuState, Current, PerCpu};
use super::request::Request;
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu};
use std::sync::Arc;

/// Used slots up to which a cluster that a processor has opened itself is worth going on with: a
/// quarter is free.
const OPENED_USED: usize = CLUSTER_SLOTS * 3 / 4;

impl Devices {
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

    /// A slot that the processor's lock alone gives, or almost: one that the processor gave back, or one
    /// of the cluster that comes next.
    pub(super) fn take_near(&self, cpu: Cpu, want: Request) -> Option<Extent> {
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
            // It was scanned for nothing: nobody shall find it with the same list.
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

    /// The cluster that this processor has opened by its frees becomes its current one, if it has some
    /// room by now. Otherwise clusters on the lists had more time to gather some.
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

    /// Takes from the first cluster of the policy's first list, with the processor's lock held
    /// throughout, and makes that cluster the current one unless it is full then. Most clusters are
    /// found so; on a device in long use, where one has a slot or two, that is most of what a slot
    /// costs. None if there is no room in it, or more than one device to choose from: then the search
    /// goes on.
    fn advance(&self, cpu: Cpu, state: &mut CpuState, want: Request) -> Option<Extent> {
        let device = self.sole(&state.devices).filter(|device| {
            !device.rotational && device.accepting() && !device.backing().is_short()
        })?;
        let cpu = self.own_set(cpu);
        let list = if device.wants_discard {
            FREE
        } else {
            nonfull(want.order)
        };
        let (c, mut cluster) = device.take_first(list, |cluster| {
            if usize::from(cluster.count) + want.pages == CLUSTER_SLOTS {
                ClusterState::Full
            } else {
                ClusterState::OffList(Owner::Cpu(cpu))
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
            (Some(_), ClusterState::Full) if full => device.backing().filled(c),
            (Some(start), ClusterState::OffList(_)) if !full => {
                let spot = Cursor {
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

    /// Makes a cluster that was just allocated in the current one of the processor, or of a rotating
    /// device, and lets the one before go. The cluster stays on its list, so that nobody misses it,
    /// until the locks of all who look for it are held; if another thread was faster there is no cursor.
    pub(super) fn make_cursor(&self, cpu: Cpu, device: &Device, spot: Cursor, order: u8) {
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
        if !matches!(cluster.state, ClusterState::NonFull(_))
            || !device.isolate_this(spot.cluster, &mut cluster, owner)
        {
            return;
        }
        // Nobody hears of these while the cluster is in hand.
        cluster.release_gone();
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
        self.let_in_hand_go(|held, _| which(&held.cluster));
        for device in self.devices() {
            self.let_go_if(&device, &mut lock(&device.shared), &which);
        }
    }

    /// On devices that are wanted, puts current clusters of processors back on their lists, if nothing was allocated in
    /// them since this was last called. Compaction may empty them then.
    pub(super) fn let_resting_go(&self) {
        self.let_in_hand_go(|held, devices| {
            let device = devices[held.device.index()].as_ref();
            device.is_some_and(|device| device.is_wanted()) && held.rests_long()
        });
    }

    /// Puts current clusters of every processor back on their lists, where `which` says so of one and the devices.
    fn let_in_hand_go(&self, which: impl Fn(&mut Current, &[Option<Arc<Device>>]) -> bool) {
        for per_cpu in &self.cpus {
            let mut state = lock(&per_cpu.state);
            let state = &mut *state;
            for in_hand in state.current.iter_mut().chain(&mut state.opened) {
                if in_hand
                    .as_mut()
                    .is_some_and(|held| which(held, &state.devices))
                {
                    self.put_back(&state.devices, in_hand.take(), Requeue::AfterFree);
                }
            }
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
    fn let_go(&self, device: &Device, spot: Cursor) {
        self.let_go_if(device, &mut Some(spot), |_| true);
    }

    fn let_go_if(
        &self,
        device: &Device,
        cursor: &mut Option<Cursor>,
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
        let to = ClusterState::OffList(Owner::Cpu(cpu));
        self.set_state(&mut self.lists(), c, cluster, to);
        let spot = Cursor {
            cluster: c,
            next: 0,
        };
        self.move_out(spot, cluster, cpu)
    }

    /// Moves a cluster that is off every list, for a processor, out of its cell.
    fn move_out(&self, spot: Cursor, cell: &mut Cluster, cpu: Cpu) -> Current {
        Current {
            device: self.id,
            index: spot.cluster,
            next: spot.next,
            seen: None,
            visited: None,
            cluster: std::mem::replace(cell, Cluster::away(cpu)),
        }
    }

    /// Allocates at a rotating device's cursor; lets the cluster go when it is full or has nothing
    /// that fits.
    pub(super) fn allocate_at(&self, cursor: &mut Option<Cursor>, want: Request) -> Option<Extent> {
        let spot = cursor.as_mut()?;
        let c = spot.cluster;
        let mut cluster = lock(&self.cell(c)?.cluster);
        debug_assert_eq!(cluster.state, ClusterState::OffList(Owner::Device));
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
