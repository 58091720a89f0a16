//! Background compaction: empties the emptiest clusters into others, so that whole clusters
//! are there before large folios ask for them.
//!
//! A step compares some clusters, and the next step those behind them ([`CompactWalk`]). Once every cluster was
//! looked at in vain it rests: a visit of the worker is one more step, and no more.
//!
//! [`CompactWalk`]: super::device::compact_walk::CompactWalk
//!
//! A page that cannot be moved stays, and its cluster with it. That one would be the emptiest ever
//! after: it is *stuck*, and passed over until it holds less than was left then.

use super::Devices;
use super::cluster::runs::{Ends, add_runs};
use super::cluster::table::Table;
use super::cluster::{Cluster, FREE, Owner};
use super::device::{Device, Requeue};
use super::drain::{Moved, Mover};
use super::extent::{Extent, order_of};
use super::request::Request;
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, EntryId};

/// Whole clusters worth having at hand.
const RESERVE: u64 = 2;
/// Clusters compared in one step to find the emptiest.
const COMPARED: u32 = 64;

impl Devices {
    /// One step, if whole clusters are short: looks for one to empty, and empties it. Says how many pages were
    /// moved, or, where that is none, whether clusters are left to be looked at.
    pub(super) fn compact(&self, cpu: Cpu, device: &Device) -> usize {
        let Some(mover) = self.mover.get() else {
            return 0;
        };
        let borrowable = device.borrowable() / CLUSTER_SLOTS as u64;
        if !device.accepting() || device.whole() + borrowable >= RESERVE {
            device.lists().compaction.begin();
            return 0;
        }
        let found = device.emptiest(self.options.compact_used);
        let moved = found.map_or(0, |(c, runs)| self.empty(cpu, device, &**mover, c, runs));
        let mut lists = device.lists();
        if moved > 0 {
            lists.compaction.begin();
            return moved;
        }
        usize::from(!lists.compaction.is_over(|list| lists.heads[list].len))
    }

    /// Moves what is in a cluster of ours to others of the device; says how many pages.
    fn empty(
        &self,
        cpu: Cpu,
        device: &Device,
        mover: &dyn Mover,
        c: ClusterIndex,
        runs: Vec<(EntryId, Extent)>,
    ) -> usize {
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

    /// Takes the emptiest of the clusters whose turn it is off its list, if it is worth emptying and the others have
    /// room. Returns its content: runs of slots with consecutive owners.
    fn emptiest(&self, worth: u16) -> Option<(ClusterIndex, Vec<(EntryId, Extent)>)> {
        let c = self.compare(worth)?;
        let mut cluster = lock(&self.cell(c)?.cluster);
        if !self.isolate_this(c, &mut cluster, Owner::Scan) {
            return None;
        }
        let ends = Ends::of_folios(cluster.order);
        let (mut runs, mut all) = (Vec::new(), CLUSTER_SLOTS);
        add_runs(self.id, c, &cluster, 0, ends, &mut all, &mut runs);
        Some((c, runs))
    }

    /// Goes on through the part-filled clusters, by a bounded number; the emptiest of these, if it is worth emptying.
    fn compare(&self, worth: u16) -> Option<ClusterIndex> {
        let mut best: Option<(ClusterIndex, u16)> = None;
        let mut looks = COMPARED;
        let mut lists = self.lists();
        let mut walk = lists.compaction;
        while let Some((list, left)) = walk.next(|list| lists.heads[list].len)
            && looks > 0
        {
            let asked = left.min(looks);
            let (mut unseen, mut free) = (asked, 0);
            self.look(&mut lists, list, &mut unseen, |c, cluster| {
                let Some(cluster) = cluster else { return false };
                free += CLUSTER_SLOTS - usize::from(cluster.count);
                let better = cluster.count <= worth && best.is_none_or(|b| cluster.count < b.1);
                if better && !stays(cluster) {
                    best = Some((c, cluster.count));
                }
                false
            });
            walk.looked(asked, asked - unseen, free);
            looks -= asked;
        }
        lists.compaction = walk;
        // The free slots beside its own must hold what is in it.
        best.filter(|_| walk.has_room()).map(|(c, _)| c)
    }
}

/// Whether a cluster can not be emptied, as far as is known.
fn stays(cluster: &Cluster) -> bool {
    let stays = |table: &Table| table.bad() > 0 || (1..=cluster.count).contains(&table.stuck());
    cluster.table.as_ref().is_some_and(stays)
}
