//! Taking slots and devices out of service: bad slots, failing devices, and the draining of
//! a device that is to be removed. A drain goes through the slots' owners, never through
//! page maps.

use super::Devices;
use super::cluster::runs::{Ends, add_runs};
use super::cluster::{Cluster, ClusterState, FROZEN};
use super::device::drain_progress::Round;
use super::device::{Device, Patience};
use super::error::DrainError;
use super::extent::{Extent, ExtentList};
use crate::env::IoError;
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{ClusterIndex, Cpu, DeviceId, EntryId, SlotIndex};
use std::sync::Arc;

/// Where the runs of a drain end: a transfer of so many pages is bounded.
const ENDS: Ends = Ends::after(64);
/// Clusters discarded in one attempt to remove a device: each may take a device milliseconds.
const DISCARDS: usize = 8;
/// Clusters given back in one: a few stores to memory each.
const RELEASES: usize = 1024;

/// The fate of a slot that was to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// The owner names the new place; the old slot is the allocator's to free.
    Yes,
    /// The owner does not name the old slot any more; whoever changed that frees it. The new
    /// place is not used.
    Gone,
    /// It could not be read; nothing changed. The new place is not used.
    Failed,
    /// No new place was given, and there is none elsewhere; nothing changed.
    NoPlace,
    /// The system had no memory for a transfer at this moment; nothing changed. The new place is not used.
    Later,
    /// A page of the new place could not be written; nothing changed. The fate of the others is unknown;
    /// none is used.
    Unwritten {
        /// The page of it.
        page: u16,
        /// The reason.
        error: IoError,
    },
}

/// Moves the content of slots. Implemented by the virtual swap space; called with none of
/// this module's locks held.
///
/// Room is under way meanwhile, for which allocations of other threads wait: so it calls no
/// [`Devices::allocate`], and waits for no lock under which anybody does. Freeing is allowed.
pub trait Mover: Send + Sync {
    /// Copies the content of the slots `from` to `to` and lets the owners name the new
    /// place, in one step each under the entry's lock. `owner` owned `from.start` a moment ago,
    /// `owner + 1` the next slot, and so on; both extents are `from.len` long. Without `to`
    /// no slot is to be had elsewhere: the content goes to memory, or it fails.
    /// All of the extent has one fate; its owners are of one aligned group of 512 entries.
    fn relocate(&self, cpu: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved;

    /// Pages that it takes to memory at present, where there is no slot elsewhere.
    fn takes(&self) -> u64 {
        0
    }
}

/// How far a drain has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// The number of slots moved; call again, after a while if it is 0.
    Moved(usize),
    /// No slot of the device is in use: it can be removed.
    Done,
}

/// Pages of a run that were moved one by one.
#[derive(Default)]
struct MovedEach {
    moved: usize,
    /// Flag: some could not be read or written.
    failed: bool,
    /// Flag: the system lacked memory for a transfer, and the rest was left.
    later: bool,
}

impl Devices {
    /// Clusters that hold nothing but bad slots are on no list of free ones: they go back too.
    fn give_up_the_rest(&self, device: &Device) {
        let Some(lender) = &device.lender else { return };
        for (c, cell) in device.cells() {
            let mut cluster = lock(&cell.cluster);
            match cluster.state {
                ClusterState::Absent => {}
                ClusterState::Inherited => {
                    device.forget(c, &mut cluster);
                    drop(cluster);
                    lender.stop_reading(c);
                }
                _ => device.give_back(c, cluster),
            }
        }
    }

    pub(super) fn known(&self, device: DeviceId) -> Result<Arc<Device>, DrainError> {
        self.device(device).ok_or(DrainError::NoDevice(device))
    }

    /// One bounded step of emptying a device: moves up to `max` pages to other devices, or to
    /// memory as far as the [`Mover`] takes them there. Copies of pages in memory are given up instead. The first step
    /// takes the device out of service.
    ///
    /// # Errors
    /// `NoRoom` if there is too little for all that is on it: then nothing was moved, and the device
    /// goes on as before. Only what others take meanwhile shows in a later step, or in the midst of one.
    pub fn drain_step(&self, cpu: Cpu, device: DeviceId, max: usize) -> Result<Drain, DrainError> {
        let device = self.known(device)?;
        let mover = self.mover.get().ok_or(DrainError::NoMover)?;
        self.flush_all_returns(cpu);
        if let Some(missing) = self.lacks(&device, &**mover) {
            if !device.accepting() {
                self.resume(&device);
            }
            return Err(DrainError::NoRoom { missing });
        }
        self.stop(&device);
        let drained = &device.drained;
        drained.begun.store(true, Relaxed);
        let (mut moved, runs) = self.give_up_copies(self.live_runs(&device, max));
        let (mut failed, mut later) = (false, false);
        let mut to = ExtentList::new();
        for (owner, from) in runs {
            if from.len > 1 && self.move_run(cpu, &**mover, owner, from, &mut to) {
                moved += usize::from(from.len);
                continue;
            }
            let Some(each) = self.move_each(cpu, &**mover, owner, from, &mut to) else {
                self.resume(&device);
                let missing = self.estimate_of(&device).lacks().max(1);
                return Err(DrainError::NoRoom { missing });
            };
            moved += each.moved;
            failed |= each.failed;
            later = each.later;
            if later {
                break;
            }
        }
        let Some(round) = drained.ended(moved > 0 || later, failed) else {
            return Ok(Drain::Moved(moved));
        };
        match self.live(&device) {
            0 => Ok(Drain::Done),
            left if round == Round::Failed => Err(DrainError::Stuck {
                device: device.id,
                left,
            }),
            // More rounds; or another thread holds a cluster for the moment, or memory is short.
            _ => Ok(Drain::Moved(moved)),
        }
    }

    /// Gives up the pages of these runs that are copies of pages in memory, and need no other place: how many, and what
    /// is left to be moved.
    fn give_up_copies(&self, runs: Vec<(EntryId, Extent)>) -> (usize, Vec<(EntryId, Extent)>) {
        let Some(reclaim) = self.reclaim.get() else {
            return (0, runs);
        };
        let mut copies = 0;
        let mut left: Vec<(EntryId, Extent)> = Vec::with_capacity(runs.len());
        for (first, run) in runs {
            let mut follows = false;
            for i in 0..u32::from(run.len) {
                let (owner, one) = (first.plus(i), page_of(run, i));
                let is_given_up = self.cache_only(run.device, one.start) && reclaim.reclaim(owner);
                match left.last_mut() {
                    _ if is_given_up => copies += 1,
                    Some((_, run)) if follows => run.len += 1,
                    _ => left.push((owner, one)),
                }
                follows = !is_given_up;
            }
        }
        (copies, left)
    }

    /// Moves the pages of a run one by one: what cannot be moved does not hold up what can. None if there is no room for
    /// one of them.
    fn move_each(
        &self,
        cpu: Cpu,
        mover: &dyn Mover,
        owner: EntryId,
        from: Extent,
        to: &mut ExtentList,
    ) -> Option<MovedEach> {
        let mut each = MovedEach::default();
        for i in 0..u32::from(from.len) {
            match self.move_one(cpu, mover, owner.plus(i), page_of(from, i), to) {
                (Moved::NoPlace, _) => return None,
                (Moved::Failed | Moved::Unwritten { .. }, _) => each.failed = true,
                (Moved::Later, _) => {
                    each.later = true;
                    break;
                }
                // Freed, or not yet named by who stores it.
                (Moved::Gone, _) => {}
                (Moved::Yes, _) => each.moved += 1,
            }
        }
        Some(each)
    }

    /// Moves one page; its fate, and where it was to go, if anywhere.
    fn move_one(
        &self,
        cpu: Cpu,
        mover: &dyn Mover,
        owner: EntryId,
        from: Extent,
        to: &mut ExtentList,
    ) -> (Moved, Option<Extent>) {
        to.clear();
        let target = match self.allocate(cpu, 1, owner, to) {
            Ok(()) => Some(to[0]),
            Err(_) => None,
        };
        let fate = mover.relocate(cpu, owner, from, target);
        self.settle_move(cpu, fate, owner, from, target.as_slice());
        (fate, target)
    }

    /// Moves a run of pages in one piece, with one read and one write; false, and nothing
    /// done, if that cannot be.
    fn move_run(
        &self,
        cpu: Cpu,
        mover: &dyn Mover,
        owner: EntryId,
        from: Extent,
        to: &mut ExtentList,
    ) -> bool {
        to.clear();
        if self.allocate(cpu, from.len, owner, to).is_err() {
            return false;
        }
        let fate = match to[..] {
            [target] => mover.relocate(cpu, owner, from, Some(target)),
            _ => Moved::Failed,
        };
        self.settle_move(cpu, fate, owner, from, to);
        fate == Moved::Yes
    }

    /// Frees the slots that a move leaves behind: the old ones, or the new ones if it failed, but for
    /// one that could not be written.
    pub(super) fn settle_move(
        &self,
        cpu: Cpu,
        fate: Moved,
        owner: EntryId,
        from: Extent,
        to: &[Extent],
    ) {
        if let (Moved::Unwritten { page, error }, [to]) = (fate, to) {
            let slot = SlotIndex(to.start.0 + u32::from(page));
            let told = self.write_failed(cpu, to.device, slot, error);
            debug_assert!(told.is_ok(), "{told:?}");
        }
        let losers = if fate == Moved::Yes { &[from][..] } else { to };
        let mut owner = owner;
        for &loser in losers {
            let freed = self.free_now(cpu, owner, loser);
            debug_assert!(freed.is_ok(), "{freed:?}");
            owner = owner.plus(u32::from(loser.len));
        }
    }

    /// Takes a drained device out. Its clusters go back to the lender. Those that wait to be discarded are, a few in each
    /// call.
    ///
    /// # Errors
    /// Slots are in use, or other processes read some; `Unfinished` as long as clusters are left to be discarded. Then
    /// the device is in service as before.
    pub fn remove(&self, cpu: Cpu, device: DeviceId) -> Result<(), DrainError> {
        let device = self.known(device)?;
        self.flush_all_returns(cpu);
        let was = device.accepting();
        self.stop(&device);
        device.thaw(usize::MAX);
        // Before anything is looked at: a discard that another thread begins after the look must
        // not meet its cluster given back, and lent to another process.
        let discard = |_| device.discard_one(Patience::Wait);
        let release = |_| device.release_one(0);
        if (0..DISCARDS).all(discard) || (0..RELEASES).all(release) {
            if was {
                self.resume(&device);
            }
            return Err(DrainError::Unfinished(device.id));
        }
        // With the lists' lock: a thread that takes a cluster for the first time has changed them
        // before, so that its cell is seen, or changes them later and finds that the device accepts
        // nothing.
        let read = u64::from(device.len(FROZEN));
        let used = self.unsettled(&device);
        if used > 0 {
            if was {
                self.resume(&device);
            }
            return Err(DrainError::InUse {
                device: device.id,
                used,
            });
        }
        if read > 0 {
            return Err(DrainError::Read {
                device: device.id,
                clusters: read,
            });
        }
        self.give_up_the_rest(&device);
        let mut control = lock(&self.control);
        for per_cpu in &self.cpus {
            let mut state = lock(&per_cpu.state);
            state.devices[device.id.index()] = None;
            for rotating in &mut state.rotating {
                if *rotating == Some(device.id) {
                    *rotating = None;
                }
            }
        }
        control.order.remove(device.id);
        control.devices[device.id.index()] = None;
        self.count.0.fetch_sub(1, Relaxed);
        Ok(())
    }

    /// Slots that an entry owns.
    pub(super) fn live(&self, device: &Device) -> u64 {
        let mut live = 0;
        self.each_cluster(device, |_, cluster| live += live_of(cluster));
        live
    }

    /// The same, without copies.
    pub(super) fn data(&self, device: &Device) -> u64 {
        let mut data = 0;
        self.each_cluster(device, |_, cluster| {
            data += live_of(cluster) - self.copies(cluster);
        });
        data
    }

    /// Slots of a cluster that are only copies of pages in memory, and would be given up.
    pub(super) fn copies(&self, cluster: &Cluster) -> u64 {
        let table = cluster.table.as_ref();
        let table = table.filter(|_| self.reclaim.get().is_some());
        table.map_or(0, |table| u64::from(table.cached()))
    }

    /// Slots that a removal must wait for: live ones, and those on their way through a return cache. A
    /// cluster in somebody's hands, or one that may be taken to be discarded, counts as one slot.
    fn unsettled(&self, device: &Device) -> u64 {
        let mut unsettled = 0;
        self.each_cluster(device, |_, cluster| {
            let table = cluster.table.as_ref();
            let done = table.map_or(0, |t| {
                t.bad()
                    + if cluster.state == ClusterState::Frozen {
                        t.gone()
                    } else {
                        0
                    }
            });
            let busy = matches!(
                cluster.state,
                ClusterState::OffList(_) | ClusterState::Discard
            );
            unsettled += u64::from(cluster.count - done).max(u64::from(busy));
        });
        unsettled
    }

    /// The next `max` slots of the round that an entry owns, or fewer at its end. They are runs of slots
    /// and their owners side by side, each with its first owner.
    fn live_runs(&self, device: &Device, max: usize) -> Vec<(EntryId, Extent)> {
        let mut found: Vec<(EntryId, Extent)> = Vec::new();
        let from = SlotIndex(device.drained.next.load(Relaxed));
        let mut left = max;
        for c in (from.cluster().0..device.clusters).map(ClusterIndex) {
            if left == 0 {
                break;
            }
            let first = if c == from.cluster() {
                from.within()
            } else {
                0
            };
            self.with_cluster(device, c, |cluster| {
                add_runs(device.id, c, cluster, first, ENDS, &mut left, &mut found);
            });
        }
        let next = match found.last() {
            Some((_, run)) if left == 0 => run.start.0 + u32::from(run.len),
            _ => 0,
        };
        device.drained.next.store(next, Relaxed);
        found
    }
}

/// Slots of a cluster that an entry owns.
fn live_of(cluster: &Cluster) -> u64 {
    let lost = cluster.table.as_ref().map_or(0, |t| t.bad() + t.gone());
    u64::from(cluster.count - lost)
}

/// The slot of a run with this number.
fn page_of(run: Extent, i: u32) -> Extent {
    Extent {
        start: SlotIndex(run.start.0 + i),
        len: 1,
        ..run
    }
}
