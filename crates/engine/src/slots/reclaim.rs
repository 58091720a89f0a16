//! Slots that only hold a copy of a page in memory: reclaimed from their owners when room is short.
//!
//! Where a cluster is scanned in any case, those of one window make way for a folio. Full clusters are
//! on a list that nobody scans. An allocation looks at the first, which goes to the end, the worker at
//! some, and an allocation that would have to say "full" at all of them. That costs nothing where there
//! are no copies: a device knows whether a full cluster may hold one ([`Copies`]).

use super::Devices;
use super::cluster::table::SlotOwner;
use super::cluster::{ClusterGuard, FULL};
use super::device::Device;
use super::request::Request;
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, EntryId};

/// Full clusters looked at without letting the lists go.
const LOOKS: u32 = 16;

impl Devices {
    /// Whether more than half of the slots that this process can have on a device are used: then those
    /// that only hold a copy are worth reclaiming.
    pub(super) fn half_full(&self, device: &Device) -> bool {
        u64::from(self.used_of_ours(device)) * 2 > device.within_reach()
    }

    /// Reclaims the cached slots of a window that could hold the folio. The cluster stays
    /// held, but its lock is dropped meanwhile: look again afterwards.
    pub(super) fn reclaim_window<'d>(
        &self,
        device: &'d Device,
        c: ClusterIndex,
        mut cluster: ClusterGuard<'d>,
        want: Request,
    ) -> ClusterGuard<'d> {
        let table = cluster.table();
        let kept = table.which(|owner| !owner.cached());
        let Some(start) = kept.window(0, want.order, want.pages) else {
            return cluster;
        };
        let mut owners = [EntryId(0); CLUSTER_SLOTS];
        let mut n = 0;
        for at in start..start + want.pages {
            if let Some(owner) = table.used_owner(at).and_then(SlotOwner::entry) {
                owners[n] = owner;
                n += 1;
            }
        }
        drop(cluster);
        self.reclaim_owners(&owners[..n]);
        let mut cluster = lock(&device.cell(c).expect("a cluster in use has a cell").cluster);
        cluster.release_gone();
        cluster
    }

    /// Reclaims the cached slots of up to `clusters` full clusters until `enough` owners have agreed; says
    /// how many have.
    pub(super) fn reclaim_full(
        &self,
        cpu: Cpu,
        device: &Device,
        clusters: usize,
        enough: usize,
    ) -> usize {
        let copies = device.copies();
        let (Some(_), Some(said)) = (self.reclaim.get(), copies.said()) else {
            return 0;
        };
        let every = device.len(FULL);
        let mut left = (every as usize).min(clusters) as u32;
        let (mut none, mut reclaimed) = (left == every, 0);
        while left > 0 && reclaimed < enough {
            let mut looks = left.min(LOOKS);
            left -= looks;
            let found = device.look(&mut device.lists(), FULL, &mut looks, |_, cluster| {
                let table = cluster.map(|cluster| cluster.table.as_ref());
                // A cluster that another thread holds is waited for.
                let some = table.is_none_or(|t| t.is_some_and(|t| t.cached() > 0));
                if some {
                    copies.say();
                }
                some
            });
            let Some(cell) = found.and_then(|c| device.cell(c)) else {
                continue;
            };
            left += looks;
            none = false;
            let mut owners = [EntryId(0); CLUSTER_SLOTS];
            let mut n = 0;
            if let Some(table) = &lock(&cell.cluster).table {
                let cached = table.owners().filter(|(_, owner)| owner.cached());
                for owner in cached.filter_map(|(_, owner)| owner.entry()) {
                    owners[n] = owner;
                    n += 1;
                }
            }
            reclaimed += self.reclaim_owners(&owners[..n]);
            // They may have come back through any processor.
            self.flush_all_returns(cpu);
        }
        if none {
            copies.none(said);
        }
        reclaimed
    }

    fn reclaim_owners(&self, owners: &[EntryId]) -> usize {
        let Some(reclaim) = self.reclaim.get() else {
            return 0;
        };
        owners
            .iter()
            .filter(|owner| reclaim.reclaim(**owner))
            .count()
    }
}

impl Device {
    /// Slots that this process can have, or has: with a lender, of the clusters that it holds
    /// and of those that the lender has. Those that a fork froze, or that others have, give none.
    fn within_reach(&self) -> u64 {
        if self.lender.is_none() {
            return u64::from(self.slots);
        }
        let held = self.lists().held;
        held + self.borrowable()
    }
}
