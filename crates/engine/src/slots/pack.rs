//! Packing: the owners of a cluster's slots in no more memory than those in use need.
//!
//! A free leaves the room of the owners where it is, and so nothing on that path allocates. Without
//! packing, half of a device freed at random would cost twice as much a slot in use. The worker packs
//! where the device takes more for each slot in use than it should. It goes cluster by cluster through
//! those on lists, and those that a processor holds and does not use. An allocation in a packed cluster
//! makes room for every owner again ([`Device::open`]), once for the many slots that are free there.

use super::Devices;
use super::cluster::{Cluster, ClusterState, Owner};
use super::device::Device;
use crate::locks::{lock, try_lock};
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex};

/// Bytes a slot in use up to which nothing is packed. In full clusters it is 4.4.
const ENOUGH: usize = 5;
/// Clusters looked at for each that may be packed in one step.
const LOOKS: usize = 4;
/// Used slots of a cluster above which an owner for each slot is no more than 6 bytes a slot in use.
const PACKED_USED: usize = CLUSTER_SLOTS * 3 / 4;
/// A packed table is packed again when that gives back this part of it.
const PART: usize = 32;

impl Devices {
    /// Packs the owners of up to `max` clusters of a device, and of those in hand, if that is worth it;
    /// says how many were.
    pub(super) fn pack(&self, device: &Device, max: usize) -> usize {
        if device.bookkeeping_bytes() <= self.used(device) as usize * ENOUGH {
            return 0;
        }
        self.pack_in_hand(device) + device.pack(max)
    }

    /// Packs clusters that processors allocate in, where nothing was allocated since the worker last
    /// looked. They stay where they are, and the next allocation spreads them.
    fn pack_in_hand(&self, device: &Device) -> usize {
        let mut packed = 0;
        for per_cpu in &self.cpus {
            let mut state = lock(&per_cpu.state);
            let in_hand = state.in_hand().flatten();
            for current in in_hand.filter(|current| current.device == device.id) {
                packed += usize::from(current.rests() && device.pack_this(&mut current.cluster));
            }
        }
        packed
    }
}

impl Device {
    fn pack(&self, max: usize) -> usize {
        let looks = max.saturating_mul(LOOKS).min(self.clusters as usize);
        let mut packed = 0;
        for _ in 0..looks {
            if packed == max {
                break;
            }
            let c = self.to_pack.load(Relaxed);
            self.to_pack.store((c + 1) % self.clusters, Relaxed);
            packed += usize::from(self.pack_one(ClusterIndex(c)));
        }
        packed
    }

    /// Packs the owners of a cluster that is on a list, or at a rotating device's cursor, if that is
    /// worth it.
    fn pack_one(&self, c: ClusterIndex) -> bool {
        let Some(mut cluster) = self.cell(c).and_then(|cell| try_lock(&cell.cluster)) else {
            return false;
        };
        let at_rest =
            cluster.state.list().is_some() || cluster.state == ClusterState::OffList(Owner::Device);
        at_rest && self.pack_this(&mut cluster)
    }

    fn pack_this(&self, cluster: &mut Cluster) -> bool {
        let Some(table) = &mut cluster.table else {
            return false;
        };
        let worth = if table.is_whole() {
            usize::from(cluster.count) <= PACKED_USED
        } else {
            table.spare() * PART >= table.bytes().max(1)
        };
        if worth {
            let before = table.bytes();
            table.pack();
            self.lists().tables -= before - table.bytes();
        }
        worth
    }
}
