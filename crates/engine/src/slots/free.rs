//! Giving slots back.
//!
//! A single slot is free at once where its cluster stays on the list it is on: under the lock that shows
//! a double free anyway. If its cluster would have to move, the slot is marked *gone* and waits in the
//! processor's return cache: a move takes the lock of the device's lists and touches neighbours there. A
//! gone slot may be released by any thread that holds its cluster's lock, unless the cluster is frozen.
//! So an allocator that scans a cluster uses its waiting slots, and a notice in a cache may find nothing
//! left to do. It counts as used no longer.

use super::Devices;
use super::cluster::table::SlotOwner;
use super::cluster::{Cluster, ClusterGuard, ClusterState, Owner};
use super::device::{Device, Requeue};
use super::error::FreeError;
use super::extent::{Extent, order_of};
use super::per_cpu::{CpuState, Current, RETURNS, RETURNS_LEFT, RETURNS_WAKE, Returned, Returns};
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, EntryId, SlotIndex};
use std::sync::Arc;

impl Devices {
    /// Gives back slots that belong to `owner`, `owner + 1`, ... Slots of the extent that are out of
    /// service stay so. A single slot whose cluster would have to move waits in the processor's
    /// return cache. It waits for nobody but for locks of this module.
    ///
    /// # Errors
    /// The extent is not one, or a slot of it is not its owner's, or not any more.
    pub fn free(&self, cpu: Cpu, owner: EntryId, extent: Extent) -> Result<(), FreeError> {
        if extent.len != 1 {
            return self.free_now(cpu, owner, extent);
        }
        self.free_single(cpu, owner, extent)?;
        self.in_flight.freed(1);
        Ok(())
    }

    #[inline]
    fn free_single(&self, cpu: Cpu, owner: EntryId, extent: Extent) -> Result<(), FreeError> {
        let per_cpu = self.cpu(cpu);
        let mut guard = lock(&per_cpu.state);
        let state = &mut *guard;
        let (device, c) = locate(&state.devices, extent)?;
        if let Some(freed) = release_in_current(&mut state.current[0], c, owner, extent)? {
            per_cpu.count(state, extent.device, -freed);
            return Ok(());
        }
        {
            let Some(mut cluster) = find(device, c, owner, extent)? else {
                let device = state.devices[extent.device.index()].clone();
                drop(guard);
                return self.free_in_current(device, owner, extent);
            };
            let at = extent.start.within();
            if cluster.table().owner(at).bad() {
                return Ok(());
            }
            per_cpu.count_freed(state, device, cluster.state, 1);
            if cluster.stays_without(1) {
                cluster.release(at, 1);
                return Ok(());
            }
            cluster.set_gone(at);
            if cluster.state == ClusterState::Frozen {
                return Ok(());
            }
        }
        let full = (state.returns.len() == RETURNS)
            .then(|| std::mem::replace(&mut state.returns, Returns::EMPTY));
        state.returns.push(Returned {
            device: extent.device,
            slot: extent.start,
        });
        let wake = state.returns.len() == RETURNS_WAKE;
        drop(guard);
        if wake {
            self.want_work();
        }
        if let Some(batch) = full {
            self.finish_returns(cpu, batch.as_slice());
        }
        Ok(())
    }

    /// As [`Devices::free`], past the return cache: the slots can be allocated at once.
    ///
    /// # Errors
    /// As `free`.
    pub fn free_now(&self, cpu: Cpu, owner: EntryId, extent: Extent) -> Result<(), FreeError> {
        self.free_run(cpu, owner, extent)?;
        self.in_flight.freed(u32::from(extent.len));
        Ok(())
    }

    #[inline]
    fn free_run(&self, cpu: Cpu, owner: EntryId, extent: Extent) -> Result<(), FreeError> {
        let per_cpu = self.cpu(cpu);
        let mut guard = lock(&per_cpu.state);
        let state = &mut *guard;
        let (device, c) = locate(&state.devices, extent)?;
        let order = usize::from(order_of(extent.len));
        let freed = match release_in_current(&mut state.current[order], c, owner, extent)? {
            None => release_in_current(&mut state.opened[order], c, owner, extent)?,
            freed => freed,
        };
        if let Some(freed) = freed {
            per_cpu.count(state, extent.device, -freed);
            if emptied(&state.opened[order]) {
                // A processor that goes on allocating takes it soon; of one that does not, the worker.
                self.want_work();
            }
            return Ok(());
        }
        let Some(mut cluster) = find(device, c, owner, extent)? else {
            let device = state.devices[extent.device.index()].clone();
            drop(guard);
            return self.free_in_current(device, owner, extent);
        };
        let full = cluster.state == ClusterState::Full;
        let freed = release(&mut cluster, extent);
        per_cpu.count_freed(state, device, cluster.state, freed);
        if full && order == usize::from(cluster.order) && self.is_opened(device, c, &mut cluster) {
            let opened = &mut state.opened[order];
            if opened.is_none() {
                *opened = Some(device.take_opened(c, &mut cluster, self.own_set(cpu)));
                return Ok(());
            }
        }
        let unread = device.freed(c, &mut cluster);
        let emptied = cluster.state == ClusterState::Discard;
        drop(cluster);
        self.after_free(device, c, unread, emptied);
        Ok(())
    }

    /// Whether a cluster of which a folio was just freed, until then a full one, should be next for
    /// the processor that freed it. Of single pages the return cache sees to that; one
    /// processor alone is in nobody's way; with several devices it is for them to take turns.
    fn is_opened(&self, device: &Device, c: ClusterIndex, cluster: &mut Cluster) -> bool {
        cluster.order > 0
            && self.cpus.len() > 1
            && self.is_sole()
            && !device.rotational
            && !device.wants_discard
            // With the processor's lock held, under which clusters in hand are let go.
            && device.gives(c)
            && {
                cluster.release_gone();
                cluster.count > 0
            }
    }

    /// Frees slots of a cluster that is, or was a moment ago, in the hands of a processor: another
    /// one, or this one for another order. With no lock held.
    fn free_in_current(
        &self,
        device: Option<Arc<Device>>,
        owner: EntryId,
        extent: Extent,
    ) -> Result<(), FreeError> {
        let device = device.ok_or(FreeError::NoDevice(extent.device))?;
        let c = extent.start.cluster();
        let outcome = self.with_cluster(&device, c, |cluster| {
            owned(cluster, owner, extent)?;
            device.count_in(cluster.state, -release(cluster, extent));
            let unread = device.freed(c, cluster);
            Ok((unread, cluster.state == ClusterState::Discard))
        });
        let (unread, emptied) = outcome.ok_or(twice(extent, 0, owner, None))??;
        self.after_free(&device, c, unread, emptied);
        Ok(())
    }

    /// The rest of a free, done without the cluster's lock: `unread` and `emptied` say what the free
    /// made of the cluster.
    fn after_free(&self, device: &Device, c: ClusterIndex, unread: bool, emptied: bool) {
        if emptied {
            self.want_work();
        }
        if unread && let Some(lender) = &device.lender {
            lender.stop_reading(c);
        }
    }

    /// Makes returned slots free, cluster by cluster.
    pub(super) fn finish_returns(&self, cpu: Cpu, batch: &[Returned]) {
        let mut known: Option<Arc<Device>> = None;
        for group in
            batch.chunk_by(|a, b| a.device == b.device && a.slot.cluster() == b.slot.cluster())
        {
            let first = group[0];
            if known.as_ref().is_none_or(|d| d.id != first.device) {
                known = lock(&self.cpu(cpu).state).devices[first.device.index()].clone();
            }
            let Some(device) = &known else { continue };
            let c = first.slot.cluster();
            let Some(cell) = device.cell(c) else { continue };
            let mut cluster = lock(&cell.cluster);
            if cluster.state == ClusterState::Frozen || cluster.table.is_none() {
                continue;
            }
            let mut freed = false;
            for returned in group {
                let at = returned.slot.within();
                if cluster.table().owner(at).gone() {
                    cluster.release(at, 1);
                    freed = true;
                }
            }
            let unread = freed && device.freed(c, &mut cluster);
            let emptied = cluster.state == ClusterState::Discard;
            drop(cluster);
            self.after_free(device, c, unread, emptied);
        }
    }

    /// Emptied clusters that processors keep for themselves go back to the device, for others.
    pub(super) fn let_emptied_go(&self) {
        for per_cpu in &self.cpus {
            let mut guard = lock(&per_cpu.state);
            let state = &mut *guard;
            for opened in &mut state.opened {
                if emptied(opened) {
                    self.put_back(&state.devices, opened.take(), Requeue::AfterFree);
                }
            }
        }
    }

    /// Frees what waits in the return cache of `of`, the oldest first, but for as many as `left` says;
    /// how many that were.
    fn flush_returns(
        &self,
        cpu: Cpu,
        of: usize,
        left: impl FnOnce(&mut CpuState) -> usize,
    ) -> usize {
        let mut batch = [Returned::NONE; RETURNS];
        let waiting = {
            let mut state = lock(&self.cpus[of].state);
            let left = left(&mut state);
            let waiting = state.returns.len().saturating_sub(left);
            batch[..waiting].copy_from_slice(&state.returns.as_slice()[..waiting]);
            state.returns.forget(waiting);
            waiting
        };
        self.finish_returns(cpu, &batch[..waiting]);
        waiting
    }

    /// Empties every return cache; says how many slots waited.
    pub(super) fn flush_all_returns(&self, cpu: Cpu) -> usize {
        let every = 0..self.cpus.len();
        every.map(|of| self.flush_returns(cpu, of, |_| 0)).sum()
    }

    /// As the worker empties them: where slots were recycled since it last came, some are left.
    pub(super) fn trim_all_returns(&self, cpu: Cpu) -> usize {
        let left = |state: &mut CpuState| {
            let recycles = std::mem::take(&mut state.recycles);
            if recycles { RETURNS_LEFT } else { 0 }
        };
        let every = 0..self.cpus.len();
        every.map(|of| self.flush_returns(cpu, of, left)).sum()
    }
}

/// Whether nothing is left in a cluster that a processor has opened.
fn emptied(opened: &Option<Current>) -> bool {
    matches!(opened, Some(opened) if opened.cluster.count == 0)
}

/// The device and cluster of an extent that lies within one cluster.
fn locate(
    devices: &[Option<Arc<Device>>],
    extent: Extent,
) -> Result<(&Device, ClusterIndex), FreeError> {
    let device = devices.get(extent.device.index()).and_then(Option::as_ref);
    let device = device.ok_or(FreeError::NoDevice(extent.device))?;
    let (start, len) = (extent.start, extent.len);
    let within = start.within() + usize::from(len) <= CLUSTER_SLOTS;
    if len == 0 || !within || u64::from(start.0) + u64::from(len) > u64::from(device.slots) {
        return Err(FreeError::OutOfRange {
            device: device.id,
            start,
            len,
        });
    }
    Ok((device, start.cluster()))
}

/// Locks the cluster of an extent whose every slot is its owner's; none if a processor has it.
fn find(
    device: &Device,
    c: ClusterIndex,
    owner: EntryId,
    extent: Extent,
) -> Result<Option<ClusterGuard<'_>>, FreeError> {
    let cell = device.cell(c).ok_or(twice(extent, 0, owner, None))?;
    let cluster = lock(&cell.cluster);
    if let ClusterState::OffList(Owner::Cpu(_)) = cluster.state {
        return Ok(None);
    }
    owned(&cluster, owner, extent)?;
    Ok(Some(cluster))
}

/// The error of who frees the slot at `i` of the extent, which is not `owner + i`'s.
const fn twice(extent: Extent, i: u32, owner: EntryId, now: Option<EntryId>) -> FreeError {
    FreeError::DoubleFree {
        device: extent.device,
        slot: SlotIndex(extent.start.0 + i),
        owner: owner.plus(i),
        now,
    }
}

/// Fails unless every slot of the extent that is in service belongs to its owner.
#[inline]
fn owned(cluster: &Cluster, owner: EntryId, extent: Extent) -> Result<(), FreeError> {
    let table = cluster.table.as_ref();
    let table = table.ok_or(twice(extent, 0, owner, None))?;
    let (start, len) = (extent.start.within(), usize::from(extent.len));
    if table.all_owned(start, len, owner) {
        return Ok(());
    }
    for i in 0..u32::from(extent.len) {
        let at = start + i as usize;
        let found = table.used_owner(at).unwrap_or(SlotOwner::NONE);
        let now = found.entry().filter(|_| !found.gone());
        if now != Some(owner.plus(i)) && !found.bad() {
            return Err(twice(extent, i, owner, now));
        }
    }
    Ok(())
}

/// Frees the slots of an extent, all in use, but those out of service; how many. Those of a frozen
/// cluster wait for its readers.
#[inline]
fn release(cluster: &mut Cluster, extent: Extent) -> i64 {
    let (start, len) = (extent.start.within(), usize::from(extent.len));
    let frozen = cluster.state == ClusterState::Frozen;
    if !frozen && cluster.table().all_good(start, len) {
        cluster.release(start, len);
        return len as i64;
    }
    let mut freed = 0;
    for at in start..start + len {
        if cluster.table().owner(at).bad() {
            continue;
        }
        if frozen {
            cluster.set_gone(at);
        } else {
            cluster.release(at, 1);
        }
        freed += 1;
    }
    freed
}

/// Frees the slots of an extent if they are in this current cluster; how many then.
#[inline]
fn release_in_current(
    place: &mut Option<Current>,
    c: ClusterIndex,
    owner: EntryId,
    extent: Extent,
) -> Result<Option<i64>, FreeError> {
    match place {
        Some(current) if current.is(extent.device, c) => {
            owned(&current.cluster, owner, extent)?;
            Ok(Some(release(&mut current.cluster, extent)))
        }
        _ => Ok(None),
    }
}
