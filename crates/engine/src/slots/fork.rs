//! Fork and the allocator. Both halves run while no other thread of their process is in the allocator,
//! after the lender has made the child a reader of every cluster that the parent held or read.
//!
//! Clusters that are only read come back into use: to the parent once nobody reads them (`thaw`), and to the last reader
//! once the parent has ended (`adopt`).

use super::Devices;
use super::cluster::{ClusterState, FROZEN, INHERITED};
use super::device::{Device, Requeue};
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::Cpu;

impl Devices {
    /// In the parent: clusters with used slots are frozen for as long as they have readers.
    /// Frees in them take effect then. Free slots of other clusters are used on.
    pub fn fork_parent(&self) {
        self.flush_all_returns(Cpu(0));
        self.let_cursors_go(|cluster| !cluster.only_bad());
        for device in self.devices() {
            let Some(lender) = &device.lender else {
                continue;
            };
            for (c, cell) in device.cells() {
                let mut cluster = lock(&cell.cluster);
                let ours = matches!(
                    cluster.state,
                    ClusterState::NonFull(_) | ClusterState::Frag(_) | ClusterState::Full
                );
                if ours && !cluster.only_bad() && lender.has_readers(c) {
                    device.set_state(&mut device.lists(), c, &mut cluster, ClusterState::Frozen);
                }
            }
        }
    }

    /// In the child: nothing is ours any more. Clusters with used slots become the parent's,
    /// read and free only, until the last slot is freed or they are adopted; the others are forgotten. A device
    /// without a lender accepts no allocation any more: its slots go on being the parent's,
    /// who may reuse them at any time. Errors count here as they did, and are the parent's to report.
    pub fn fork_child(&self) {
        self.flush_all_returns(Cpu(0));
        self.let_cursors_go(|_| true);
        for device in self.devices() {
            device.failed.store(0, Relaxed);
            // The parent says what it finds there; this process may never write.
            device.backing().forget_full();
            let Some(lender) = &device.lender else {
                device.lists().only_read = true;
                device.accept(false);
                continue;
            };
            for (c, cell) in device.cells() {
                let mut cluster = lock(&cell.cluster);
                if cluster.state == ClusterState::Absent {
                    continue;
                }
                cluster.release_gone();
                if cluster.table.as_ref().is_some_and(|t| t.bad() > 0) {
                    let bad = cluster.release_bad();
                    device.count_in(cluster.state, -(bad as i64));
                    device.bad.fetch_sub(bad as u32, Relaxed);
                }
                if cluster.count > 0 {
                    device.set_state(
                        &mut device.lists(),
                        c,
                        &mut cluster,
                        ClusterState::Inherited,
                    );
                } else {
                    device.forget(c, &mut cluster);
                    drop(cluster);
                    lender.stop_reading(c);
                }
            }
        }
    }
}

impl Device {
    /// Makes clusters ours of which this process reads slots, and that nobody has or reads beside it; looks at no more
    /// than `looks`. Says how many.
    pub(super) fn adopt(&self, looks: usize) -> usize {
        let Some(lender) = self.lender.as_ref().filter(|_| self.accepting()) else {
            return 0;
        };
        let mut adopted = 0;
        for _ in 0..(self.len(INHERITED) as usize).min(looks) {
            let Some(c) = self.next_of(INHERITED) else {
                break;
            };
            let Some(cell) = self.cell(c) else { break };
            let mut cluster = lock(&cell.cluster);
            if cluster.state == ClusterState::Inherited && lender.adopt(c) {
                self.settle(c, &mut cluster, Requeue::AfterFree);
                adopted += 1;
            }
        }
        adopted
    }

    /// Thaws frozen clusters without readers, looking at no more than `looks`; says how many. It does not look where a
    /// look at all of them would be in vain: an allocation that fails asks again and again.
    pub(super) fn thaw(&self, looks: usize) -> usize {
        let frozen = self.len(FROZEN) as usize;
        let Some(lender) = self.lender.as_ref().filter(|_| frozen > 0) else {
            return 0;
        };
        // Before the first look: who ceases to read after a look makes the count another.
        let returned = lender.returned();
        if self.all_read().load(Relaxed) == returned {
            return 0;
        }
        let mut thawed = 0;
        for _ in 0..frozen.min(looks) {
            let Some(c) = self.next_of(FROZEN) else {
                break;
            };
            if lender.has_readers(c) {
                continue;
            }
            let Some(cell) = self.cell(c) else { break };
            let mut cluster = lock(&cell.cluster);
            if cluster.state == ClusterState::Frozen {
                cluster.release_gone();
                self.settle(c, &mut cluster, Requeue::AfterFree);
                thawed += 1;
            }
        }
        // Those that are left had readers. Another thread that looks too has passed to the list's end only what it looked
        // at since, or is about to.
        if looks >= frozen {
            self.all_read().store(returned, Relaxed);
        }
        thawed
    }
}
