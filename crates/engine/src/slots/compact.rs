//! Background compaction: empties the emptiest clusters into others, so that whole clusters
//! are there before large folios ask for them.
//!
//! A page that cannot be moved stays, and its cluster with it. That one would be the emptiest ever
//! after: it is *stuck*, and passed over until it holds less than was left then.

use super::Devices;
use super::cluster::runs::{Ends, add_runs};
use super::cluster::table::Table;
use super::cluster::{FREE, Owner, frag, nonfull};
use super::device::{Device, Requeue};
use super::drain::Moved;
use super::extent::{Extent, order_of};
use super::request::Request;
use crate::locks::{lock, try_lock};
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, EntryId, ORDERS};

/// Whole clusters worth having at hand.
const RESERVE: u64 = 2;
/// Clusters compared to find the emptiest.
const COMPARED: usize = 64;

impl Devices {
    /// Empties one cluster, if whole ones are short. Says how many pages were moved.
    pub(super) fn compact(&self, cpu: Cpu, device: &Device) -> usize {
        let Some(mover) = self.mover.get() else {
            return 0;
        };
        let borrowable = device.borrowable() / CLUSTER_SLOTS as u64;
        if !device.accepting() || device.whole() + borrowable >= RESERVE {
            return 0;
        }
        let Some((c, runs)) = device.emptiest(self.options.compact_used) else {
            return 0;
        };
        let (mut moved, mut stuck) = (0, false);
        for (owner, from) in runs {
            let want = Request {
                pages: usize::from(from.len),
                order: order_of(from.len),
                owner,
            };
            // Twice as many slots as pages are held until one half is free again.
            let withdrawn = self.in_flight.begin();
            let Some(to) = self.take_begun(cpu, device, want) else {
                break;
            };
            let fate = mover.relocate(cpu, owner, from, Some(to));
            self.settle_move(cpu, fate, owner, from, &[to]);
            withdrawn.arrived();
            match fate {
                Moved::Yes => moved += usize::from(from.len),
                Moved::Gone => {}
                Moved::Failed => stuck = true,
                Moved::NoPlace | Moved::Later | Moved::Unwritten { .. } => break,
            }
        }
        if let Some(cell) = device.cell(c) {
            let mut cluster = lock(&cell.cluster);
            cluster.release_gone();
            let left = cluster.count;
            if stuck && left > 0 {
                device.open(&mut cluster).set_stuck(left);
            }
            self.settle(device, c, &mut cluster, Requeue::AfterFree);
        }
        moved
    }
}

impl Device {
    /// Empty clusters of ours.
    fn whole(&self) -> u64 {
        let lists = self.lists();
        u64::from(lists.heads[FREE].len + lists.fresh)
    }

    /// Takes the emptiest of some clusters off its list, if it is worth emptying and the others have
    /// room. Returns its content: runs of slots with consecutive owners.
    fn emptiest(&self, worth: u16) -> Option<(ClusterIndex, Vec<(EntryId, Extent)>)> {
        let mut best: Option<(ClusterIndex, u16)> = None;
        let mut free = 0;
        let mut seen = 0;
        {
            let lists = self.lists();
            for list in (0..ORDERS as u8).flat_map(|o| [nonfull(o), frag(o)]) {
                let mut at = lists.heads[list].first;
                while let Some(cell) = self.cell(ClusterIndex(at))
                    && seen < COMPARED
                {
                    seen += 1;
                    let c = ClusterIndex(at);
                    at = cell.next.load(Relaxed);
                    let Some(cluster) = try_lock(&cell.cluster) else {
                        continue;
                    };
                    free += CLUSTER_SLOTS - usize::from(cluster.count);
                    let stays = |table: &Table| {
                        table.bad() > 0 || (1..=cluster.count).contains(&table.stuck())
                    };
                    if !cluster.table.as_ref().is_some_and(stays)
                        && cluster.count <= worth
                        && best.is_none_or(|b| cluster.count < b.1)
                    {
                        best = Some((c, cluster.count));
                    }
                }
            }
        }
        let (c, _) = best?;
        // The free slots beside its own must hold what is in it.
        if free < CLUSTER_SLOTS {
            return None;
        }
        let mut cluster = lock(&self.cell(c)?.cluster);
        if !self.isolate_this(c, &mut cluster, Owner::Scan) {
            return None;
        }
        let ends = Ends::of_folios(cluster.order);
        let (mut runs, mut all) = (Vec::new(), CLUSTER_SLOTS);
        add_runs(self.id, c, &cluster, 0, ends, &mut all, &mut runs);
        Some((c, runs))
    }
}
