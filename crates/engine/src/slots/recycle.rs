//! Slots from the return cache, used again by the processor that gave them back.
//!
//! Slots there lie in clusters that would have to change lists to be free, most of them full ones. Taken
//! from the cache, a slot goes from one owner to the next and its cluster stays where it is. On a device
//! long in use every free opens a full cluster and the next allocation fills it again; recycling spares
//! both moves.
//!
//! Only single slots are recycled, when the cursor is used up, and only on the device of the processor's
//! last search, as many as a cluster has. Then it searches again, so that a better device, or the next
//! of equal ones, gets its turn as it does when a cursor ends. Never the last slots of a cluster, which
//! is worth more empty, nor those in clusters of larger folios.

use super::Devices;
use super::cluster::table::SlotOwner;
use super::cluster::{Cluster, ClusterState};
use super::extent::{Extent, extent};
use super::per_cpu::{CpuState, PerCpu};
use super::request::Request;
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, Cpu};

/// The treatment of the oldest notice of a return cache.
enum Notice {
    /// The slot has its next owner.
    Taken,
    /// Somebody released the slot already, or will without being told.
    Void,
    /// It has to be freed in earnest.
    Keep,
}

impl Devices {
    /// A slot that this processor gave back.
    pub(super) fn recycle(
        &self,
        per_cpu: &PerCpu,
        state: &mut CpuState,
        want: Request,
    ) -> Option<Extent> {
        if want.pages != 1 {
            return None;
        }
        let home = state.home?;
        let device = state.devices[home.index()].as_deref()?;
        while state.recycled < CLUSTER_SLOTS
            && let Some(returned) = state.returns.as_slice().first().copied()
            && returned.device == home
        {
            let c = returned.slot.cluster();
            let at = returned.slot.within();
            let mut cluster = lock(&device.cell(c)?.cluster);
            // Asked with the lock held, as for any allocation.
            if !device.gives(c) {
                return None;
            }
            match retake(&mut cluster, at, want) {
                Notice::Taken => {
                    state.returns.pop();
                    state.recycled += 1;
                    state.recycles = true;
                    per_cpu.count(state, home, 1);
                    return Some(extent(home, c, at, 1));
                }
                Notice::Void => state.returns.pop(),
                Notice::Keep => return None,
            }
        }
        None
    }

    /// After a search: from now on slots of this device may be recycled.
    pub(super) fn came_to(&self, cpu: Cpu, found: Extent) {
        let mut state = lock(&self.cpu(cpu).state);
        let device = state.devices[found.device.index()].as_deref();
        let home = device.filter(|d| !d.rotational).map(|d| d.id);
        (state.home, state.recycled) = (home, 0);
    }
}

fn retake(cluster: &mut Cluster, at: usize, want: Request) -> Notice {
    let (count, order) = (cluster.count, cluster.order);
    let Some(table) = &mut cluster.table else {
        return Notice::Void;
    };
    if !table.owner(at).gone() {
        return Notice::Void;
    }
    match cluster.state {
        ClusterState::Full | ClusterState::NonFull(_) | ClusterState::Frag(_)
            if order == 0 && count > table.gone() =>
        {
            table.set(at, SlotOwner::owned(want.owner));
            cluster.gone = table.gone() > 0;
            Notice::Taken
        }
        ClusterState::Frozen => Notice::Void,
        _ => Notice::Keep,
    }
}
