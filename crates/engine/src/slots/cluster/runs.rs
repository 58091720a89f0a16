//! The content of a cluster, as runs that can be moved in one piece: slots side by side whose owners lie
//! side by side.

use super::Cluster;
use crate::slots::extent::{Extent, extent};
use crate::types::{CLUSTER_SLOTS, ClusterIndex, DeviceId, EntryId};

/// Owners that a [`Mover`](crate::slots::Mover) can move in one step: those of one group of so many entries.
pub(in crate::slots) const TOGETHER: u32 = 512;

/// Where a run ends, beside where a slot or an owner does not follow on.
#[derive(Clone, Copy)]
pub(in crate::slots) struct Ends {
    /// At owners that are multiples of this, which divides `TOGETHER`.
    pub owners: u32,
    /// At slots that are.
    pub slots: usize,
}

impl Ends {
    /// As long as can be moved, but that a run ends where a folio of such an order may begin.
    pub const fn of_folios(order: u8) -> Self {
        Self {
            owners: TOGETHER,
            slots: 1 << order,
        }
    }

    /// After so many owners at the latest.
    pub const fn after(owners: u32) -> Self {
        assert!(TOGETHER.is_multiple_of(owners));
        Self {
            owners,
            slots: CLUSTER_SLOTS,
        }
    }
}

/// Adds up to `left` slots of a cluster that an entry owns, those before `from` left out, as runs, each
/// with its first owner.
pub(in crate::slots) fn add_runs(
    device: DeviceId,
    c: ClusterIndex,
    cluster: &Cluster,
    from: usize,
    ends: Ends,
    left: &mut usize,
    found: &mut Vec<(EntryId, Extent)>,
) {
    let Some(table) = &cluster.table else { return };
    for (at, owner) in table.owners().filter(|(at, _)| *at >= from) {
        let (false, Some(owner)) = (owner.gone(), owner.entry()) else {
            continue;
        };
        if *left == 0 {
            return;
        }
        *left -= 1;
        let one = extent(device, c, at, 1);
        match found.last_mut() {
            Some((first, run))
                if run.joins(one)
                    && at % ends.slots != 0
                    && first.0 + u32::from(run.len) == owner.0
                    && first.0 / ends.owners == owner.0 / ends.owners =>
            {
                run.len += 1;
            }
            _ => found.push((owner, one)),
        }
    }
}
