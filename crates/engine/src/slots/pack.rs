//! Packing: the owners of a cluster's slots in no more memory than those in use need.
//!
//! Who frees slots leaves the room of their owners where it is, and so nothing on that path
//! allocates: half of a device freed at random would cost twice as much a slot in use. The worker
//! packs, where the device takes more for each slot in use than it should: cluster by cluster, of
//! those on lists. Who allocates in a packed cluster makes room for every owner again
//! ([`Device::open`]), once for the many slots that are free there.

use super::device::Device;
use crate::locks::try_lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::words::{CLUSTER_SLOTS, ClusterIndex};

/// Bytes a slot in use up to which nothing is packed. In full clusters it is 4.4.
const ENOUGH: usize = 5;
/// Clusters looked at for each that may be packed in one step.
const LOOKS: usize = 4;
/// Used slots of a cluster above which a word for each slot is no more than 6 bytes a slot in use.
const PACKED_USED: usize = CLUSTER_SLOTS * 3 / 4;
/// What is packed is packed again when that gives back one part of so many.
const PART: usize = 16;

impl Device {
    /// Packs the owners of up to `max` clusters, if that is worth it; says how many were.
    pub(super) fn pack(&self, max: usize, used: u32) -> usize {
        if self.bookkeeping_bytes() <= used as usize * ENOUGH {
            return 0;
        }
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

    /// Packs the owners of a cluster that is on a list, if that is worth it.
    fn pack_one(&self, c: ClusterIndex) -> bool {
        let Some(mut cluster) = self.cell(c).and_then(|cell| try_lock(&cell.cluster)) else {
            return false;
        };
        let listed = cluster.state.list().is_some();
        let count = usize::from(cluster.count);
        let Some(table) = cluster.table.as_mut().filter(|_| listed) else {
            return false;
        };
        let worth = if table.is_whole() {
            count <= PACKED_USED
        } else {
            table.spare() * PART >= table.bytes()
        };
        if worth {
            let before = table.bytes();
            table.pack();
            self.lists().tables -= before - table.bytes();
        }
        worth
    }
}
