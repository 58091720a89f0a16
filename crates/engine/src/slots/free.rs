//! Giving slots back.
//!
//! A single slot is free at once where its cluster stays on the list it is on: under the lock that
//! shows a double free anyway. Where the cluster would have to move, which takes the lock of the
//! device's lists and touches neighbours there, the slot is marked *gone* and waits in the
//! processor's return cache. A gone slot may be released by anybody who holds its cluster's lock,
//! unless the cluster is frozen: so an allocator that scans a cluster uses what waits there, and a
//! notice in a cache may find nothing left to do. It counts as used no longer.

use super::cluster::{ClusterGuard, State};
use super::device::Device;
use super::percpu::{RETURNS, RETURNS_WAKE, Returned, Returns};
use super::{Devices, Extent, Returns as Policy};
use crate::locks::lock;
use crate::words::{CLUSTER_SLOTS, ClusterIndex, Cpu, DeviceId, EntryId, SlotIndex};
use std::sync::Arc;

/// Why slots were not freed. Nothing is changed then; all are bugs of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeError {
    /// No such device.
    #[error("device {0} is not in use")]
    NoDevice(DeviceId),
    /// Not 1..=512 slots inside one cluster of the device.
    #[error("{len} slots from {start} are not within one cluster of device {device}")]
    OutOfRange {
        /// The device.
        device: DeviceId,
        /// First slot of the extent.
        start: SlotIndex,
        /// Length of the extent.
        len: u16,
    },
    /// The slot is free already.
    #[error("slot {slot} of device {device} was freed twice; {}", last(.owner))]
    DoubleFree {
        /// The device.
        device: DeviceId,
        /// The first slot of the extent that is free.
        slot: SlotIndex,
        /// Its last owner, if that is still known.
        owner: Option<EntryId>,
    },
}

fn last(owner: &Option<EntryId>) -> String {
    match owner {
        Some(entry) => format!("it last belonged to entry {entry}"),
        None => "nothing is known of its last owner".into(),
    }
}

impl Devices {
    /// Gives slots back. Slots of the extent that are out of service stay so. A single slot
    /// goes through the processor's return cache.
    ///
    /// # Errors
    /// The extent is not one, or a slot of it is free already.
    pub fn free(&self, cpu: Cpu, extent: Extent) -> Result<(), FreeError> {
        if extent.len != 1 || self.options.returns == Policy::Direct {
            return self.free_now(cpu, extent);
        }
        let per_cpu = self.cpu(cpu);
        let mut state = lock(&per_cpu.state);
        let (device, c) = locate(&state.devices, extent)?;
        let at = extent.start.within();
        {
            let mut cluster = used(device, c, extent)?;
            if cluster.table().words[at].bad() {
                return Ok(());
            }
            per_cpu.count(&state, device.id, -1);
            if cluster.stays_without(1) {
                cluster.release(at, 1);
                return Ok(());
            }
            cluster.set_gone(at);
            if cluster.state == State::Frozen {
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
        drop(state);
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
    pub fn free_now(&self, cpu: Cpu, extent: Extent) -> Result<(), FreeError> {
        let per_cpu = self.cpu(cpu);
        let state = lock(&per_cpu.state);
        let (device, c) = locate(&state.devices, extent)?;
        let (start, len) = (extent.start.within(), usize::from(extent.len));
        let mut cluster = used(device, c, extent)?;
        let mut freed = 0;
        let frozen = cluster.state == State::Frozen;
        if !frozen && cluster.table().bad == 0 {
            cluster.release(start, len);
            freed = len;
        } else {
            for at in start..start + len {
                if cluster.table().words[at].bad() {
                    continue;
                }
                if frozen {
                    cluster.set_gone(at);
                } else {
                    cluster.release(at, 1);
                }
                freed += 1;
            }
        }
        let unread = device.freed(c, &mut cluster);
        let emptied = cluster.state == State::Discard;
        per_cpu.count(&state, device.id, -(freed as i64));
        drop(cluster);
        if emptied {
            self.want_work();
        }
        self.after_free(device, c, unread);
        Ok(())
    }

    fn after_free(&self, device: &Device, c: ClusterIndex, unread: bool) {
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
            if cluster.state == State::Frozen || cluster.table.is_none() {
                continue;
            }
            let mut freed = false;
            for returned in group {
                let at = returned.slot.within();
                if cluster.table().words[at].gone() {
                    cluster.release(at, 1);
                    freed = true;
                }
            }
            let unread = freed && device.freed(c, &mut cluster);
            let emptied = cluster.state == State::Discard;
            drop(cluster);
            if emptied {
                self.want_work();
            }
            self.after_free(device, c, unread);
        }
    }

    /// Empties the return cache of `of`; says how many slots waited in it.
    pub(super) fn flush_returns(&self, cpu: Cpu, of: Cpu) -> usize {
        let mut state = lock(&self.cpu(of).state);
        if state.returns.len() == 0 {
            return 0;
        }
        let batch = std::mem::replace(&mut state.returns, Returns::EMPTY);
        drop(state);
        self.finish_returns(cpu, batch.as_slice());
        batch.len()
    }

    /// Empties every return cache; says how many slots waited.
    pub(super) fn flush_all_returns(&self, cpu: Cpu) -> usize {
        (0..self.cpus.len())
            .map(|of| self.flush_returns(cpu, Cpu(of as u16)))
            .sum()
    }
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

/// Locks the cluster of an extent whose every slot is in use by somebody.
fn used(device: &Device, c: ClusterIndex, extent: Extent) -> Result<ClusterGuard<'_>, FreeError> {
    let start = extent.start.within();
    let twice = |at: usize, owner| FreeError::DoubleFree {
        device: device.id,
        slot: SlotIndex(extent.start.0 + (at - start) as u32),
        owner,
    };
    let cell = device.cell(c).ok_or(twice(start, None))?;
    let cluster = lock(&cell.cluster);
    let table = cluster.table.as_ref().ok_or(twice(start, None))?;
    for at in start..start + usize::from(extent.len) {
        let word = table.words[at];
        if !table.used.get(at) || word.gone() {
            return Err(twice(at, word.entry()));
        }
    }
    Ok(cluster)
}
