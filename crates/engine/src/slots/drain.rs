//! Taking slots and devices out of service: bad slots, failing devices, and the draining of
//! a device that is to be removed. A drain goes through the slots' owners, never through
//! page maps.

use super::cluster::{Cluster, FROZEN, State};
use super::device::{Device, Patience};
use super::in_flight::{LOOKS, More};
use super::runs::{Ends, add_runs};
use super::table::SlotOwner;
use super::{DEVICE_ERROR_LIMIT, Devices, Extent, ExtentList, FORGIVING_PAGES, SlotError};
use crate::env::IoError;
use crate::locks::lock;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, DeviceId, EntryId, SlotIndex};
use std::sync::Arc;

/// Where the runs of a drain end: a transfer of so many pages is bounded.
const ENDS: Ends = Ends::after(64);

/// What became of a slot that was to be moved.
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
    /// A page of the new place could not be written; nothing changed. What became of the others is
    /// not known; none is used.
    Unwritten {
        /// Which page of it.
        page: u16,
        /// Why.
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

/// What it takes to empty a device, as it is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// Pages on it.
    pub pages: u64,
    /// Slots free on the other devices in service, in clusters that are this process's.
    pub room: u64,
    /// Slots there of clusters that nobody has, for which other processes may ask too.
    pub lent: u64,
}

impl Departure {
    /// Pages that would have no slot.
    pub fn lacks(&self) -> u64 {
        self.pages.saturating_sub(self.room + self.lent)
    }
}

/// How far a drain has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// So many slots were moved; call again.
    Moved(usize),
    /// No slot of the device is in use: it can be removed.
    Done,
}

/// Why a device is not drained or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrainError {
    /// No such device.
    #[error("device {0} is not in use")]
    NoDevice(DeviceId),
    /// The other devices have too little room; the device is in service as before.
    #[error(
        "the other swap devices lack room for {missing} pages ({mib} MiB): add a device or free memory first",
        mib = missing.div_ceil(256)
    )]
    NoRoom {
        /// Pages that have no place.
        missing: u64,
    },
    /// Slots could not be moved, for read or write errors.
    #[error("{left} pages on device {device} could not be moved; they stay where they are")]
    Stuck {
        /// The device.
        device: DeviceId,
        /// Its slots in use.
        left: u64,
    },
    /// Removal before the drain is done.
    #[error("device {device} still holds {used} pages: drain it first")]
    InUse {
        /// The device.
        device: DeviceId,
        /// Its slots in use.
        used: u64,
    },
    /// Other processes read from it.
    #[error(
        "forked processes still read {clusters} clusters of device {device}: drain it there first"
    )]
    Read {
        /// The device.
        device: DeviceId,
        /// Clusters with readers.
        clusters: u64,
    },
    /// Nothing can move slots: [`Devices::set_mover`] was not called.
    #[error("there is nothing to move pages with")]
    NoMover,
}

impl Devices {
    /// A write to a slot failed. What that means is up to the error: the slot leaves service, or the
    /// device, or neither, as a disk that is full may have room again. The slot is its owner's still.
    ///
    /// # Errors
    /// There is no such device or slot.
    pub fn write_failed(
        &self,
        cpu: Cpu,
        device: DeviceId,
        slot: SlotIndex,
        error: IoError,
    ) -> Result<(), SlotError> {
        match error {
            IoError::Slot => return self.bad_slot(cpu, device, slot),
            IoError::Device => self.retire(device),
            IoError::NoSpace | IoError::FileLimit | IoError::Request => {}
        }
        Ok(())
    }

    /// A write to a slot failed: it leaves service. The owner has lost it and must not free
    /// it alone (an extent freed as a whole may contain it). After `DEVICE_ERROR_LIMIT`
    /// errors that were not forgiven the device accepts no more allocations.
    ///
    /// # Errors
    /// There is no such device or slot: that says nothing of the device.
    pub fn bad_slot(&self, cpu: Cpu, device: DeviceId, slot: SlotIndex) -> Result<(), SlotError> {
        let device = self.device_of(device, slot)?;
        device.failed.fetch_add(1, Relaxed);
        if device.errors.fetch_add(1, Relaxed) + 1 >= DEVICE_ERROR_LIMIT {
            self.stop(&device);
        }
        let done = self.with_cluster(&device, slot.cluster(), |cluster| {
            device.take_out(cluster, slot.within())
        });
        if let Some(TakenOut::NotOurs(Some(owner))) = done {
            // The process whose it is finds out for itself.
            let one = Extent {
                device: device.id,
                start: slot,
                len: 1,
            };
            let _ = self.free_now(cpu, owner, one);
        }
        Ok(())
    }

    /// `pages` were written without an error: each `FORGIVING_PAGES` forgive one.
    pub fn wrote(&self, device: DeviceId, pages: u32) {
        let Some(device) = self.device(device) else {
            return;
        };
        if device.errors.load(Relaxed) == 0 {
            return;
        }
        let before = device.written.fetch_add(pages, Relaxed) % FORGIVING_PAGES;
        let forgiven = (before + pages) / FORGIVING_PAGES;
        if forgiven > 0 {
            let _ = device.errors.fetch_update(Relaxed, Relaxed, |errors| {
                // What went out of service stays out.
                (errors < DEVICE_ERROR_LIMIT).then(|| errors.saturating_sub(forgiven))
            });
        }
    }

    /// The device is gone, or refuses everything: it accepts no more allocations, ever.
    pub fn retire(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            device.errors.fetch_max(DEVICE_ERROR_LIMIT, Relaxed);
            self.stop(&device);
        }
    }

    /// Nothing more goes to the device, which this process may only read: what is there stays until it is
    /// freed. That is no fault of the device.
    pub fn only_read(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            self.stop(&device);
        }
    }

    /// No allocation begins on the device after this.
    fn stop(&self, device: &Device) {
        if device.accept(false) {
            self.let_cursors_go(|_| true);
        }
    }

    fn resume(&self, device: &Device) {
        device.accept(true);
        device.drained.begun.store(false, Relaxed);
        self.in_flight.tell(device.slots);
    }

    /// A drain is taken back: the device is in service again, unless errors took it out.
    pub fn readmit(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            self.resume(&device);
        }
    }

    /// Clusters that hold nothing but bad slots are on no list of free ones: they go back too.
    fn give_up_the_rest(&self, device: &Device) {
        let Some(lender) = &device.lender else { return };
        for (c, cell) in device.cells() {
            let mut cluster = lock(&cell.cluster);
            match cluster.state {
                State::Absent => {}
                State::Inherited => {
                    device.forget(c, &mut cluster);
                    drop(cluster);
                    lender.stop_reading(c);
                }
                _ => device.give_back(c, cluster),
            }
        }
    }

    fn known(&self, device: DeviceId) -> Result<Arc<Device>, DrainError> {
        self.device(device).ok_or(DrainError::NoDevice(device))
    }

    /// What it takes to empty a device: asked before the first page moves, it tells whether all
    /// will find a place.
    ///
    /// # Errors
    /// There is no such device.
    pub fn departure(&self, device: DeviceId) -> Result<Departure, DrainError> {
        let device = self.known(device)?;
        Ok(self.departure_of(&device))
    }

    /// Pages of a device for which there is too little room, memory included that the mover may use.
    /// Before the first moves, and where the counts find too little, every cluster is looked at.
    fn lacks(&self, device: &Device, mover: &dyn Mover) -> Option<u64> {
        let in_memory = mover.takes();
        if device.drained.begun.load(Relaxed) {
            let others = self.devices();
            let others = others.iter().filter(|d| d.id != device.id && d.accepting());
            let room: u64 = others.map(|other| self.free_slots(other)).sum();
            if room + in_memory >= u64::from(self.used(device)) {
                return None;
            }
        }
        let missing = self.departure_of(device).lacks();
        (missing > in_memory).then_some(missing)
    }

    /// What another thread has in its hands for the moment is counted nowhere: where room is short
    /// that is waited for, as by who allocates.
    fn departure_of(&self, device: &Device) -> Departure {
        let (mut looks, mut listener) = (0, None);
        loop {
            let seen = self.in_flight.seen();
            let departure = self.departure_now(device);
            let missing = departure.lacks();
            if missing == 0 || looks == LOOKS {
                return departure;
            }
            looks += 1;
            match self
                .in_flight
                .more_since(seen, missing as usize, listener.as_ref())
            {
                More::Arrived | More::Freed => {}
                More::Listen => listener = Some(self.in_flight.listen()),
                More::Nothing => return departure,
            }
        }
    }

    fn departure_now(&self, device: &Device) -> Departure {
        let mut others = self.devices();
        others.retain(|other| other.id != device.id);
        others.retain(|other| other.accepting());
        Departure {
            pages: self.live(device),
            room: others.iter().map(|d| self.own_room(d)).sum(),
            lent: others.iter().map(|d| self.lent_room(d)).sum(),
        }
    }

    /// Slots of the clusters of a device that the lender has, as far as it is known which those are.
    fn lent_room(&self, device: &Device) -> u64 {
        let last = ClusterIndex(device.clusters - 1);
        let ours = self.with_cluster(device, last, |cluster| cluster.state.is_ours());
        let beyond = if ours == Some(true) {
            0
        } else {
            device.past_end(last)
        };
        device.borrowable().saturating_sub(beyond as u64)
    }

    /// Free slots in the clusters of a device that are ours, those in return caches among them.
    fn own_room(&self, device: &Device) -> u64 {
        let untouched = match device.lists().fresh {
            0 => 0,
            fresh => {
                let last = ClusterIndex(device.clusters - 1);
                fresh as usize * CLUSTER_SLOTS - device.past_end(last)
            }
        };
        let mut room = untouched as u64;
        self.each_cluster(device, |_, cluster| {
            if cluster.state.is_ours() {
                let gone = cluster.table.as_ref().map_or(0, |t| t.gone());
                room += CLUSTER_SLOTS as u64 - u64::from(cluster.count - gone);
            }
        });
        room
    }

    /// Free slots of a device that this process can take: in its own clusters, and in those that
    /// the lender has.
    pub(super) fn free_slots(&self, device: &Device) -> u64 {
        let held = match device.lender {
            Some(_) => device.lists().held * CLUSTER_SLOTS as u64,
            None => u64::from(device.slots),
        };
        (held + device.borrowable()).saturating_sub(u64::from(self.used(device)))
    }

    /// One bounded step of emptying a device: moves up to `max` pages to other devices, or to
    /// memory as far as the [`Mover`] takes them there. The first step takes the device out of service.
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
        let (mut moved, mut failed) = (0, false);
        let mut to = ExtentList::new();
        for (owner, from) in self.live_runs(&device, max) {
            if from.len > 1 && self.move_run(cpu, &**mover, owner, from, &mut to) {
                moved += usize::from(from.len);
                continue;
            }
            let Some(pages) = self.move_each(cpu, &**mover, owner, from, &mut to) else {
                self.resume(&device);
                let missing = self.departure_of(&device).lacks().max(1);
                return Err(DrainError::NoRoom { missing });
            };
            moved += pages;
            failed |= pages < usize::from(from.len);
        }
        let Some(round) = drained.ended(moved, failed) else {
            return Ok(Drain::Moved(moved));
        };
        match self.live(&device) {
            0 => Ok(Drain::Done),
            left if round == Round::Failed => Err(DrainError::Stuck {
                device: device.id,
                left,
            }),
            // More rounds, or another thread holds a cluster for the moment.
            _ => Ok(Drain::Moved(moved)),
        }
    }

    /// Moves the pages of a run one by one: what cannot be moved does not hold up what can. How
    /// many were moved, or none if there is no room for one of them.
    fn move_each(
        &self,
        cpu: Cpu,
        mover: &dyn Mover,
        owner: EntryId,
        from: Extent,
        to: &mut ExtentList,
    ) -> Option<usize> {
        let mut moved = 0;
        for i in 0..u32::from(from.len) {
            let one = Extent {
                start: SlotIndex(from.start.0 + i),
                len: 1,
                ..from
            };
            match self.move_one(cpu, mover, owner.plus(i), one, to) {
                (Moved::NoPlace, _) => return None,
                (Moved::Failed | Moved::Unwritten { .. }, _) => {}
                _ => moved += 1,
            }
        }
        Some(moved)
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

    /// Takes a drained device out. Its clusters go back to the lender.
    ///
    /// # Errors
    /// Slots are in use, or other processes read some.
    pub fn remove(&self, cpu: Cpu, device: DeviceId) -> Result<(), DrainError> {
        let device = self.known(device)?;
        self.flush_all_returns(cpu);
        let was = device.accepting();
        self.stop(&device);
        device.thaw(usize::MAX);
        // Before anything is looked at: a discard that another thread begins after the look must
        // not meet its cluster given back, and lent to another process.
        while device.discard_one(Patience::Wait) {}
        while device.release_one(0) {}
        // With the lists' lock: who takes a cluster for the first time has changed them before, so that
        // its cell is seen, or will after, and finds that the device accepts nothing.
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
        control.choice.remove(device.id);
        control.devices[device.id.index()] = None;
        self.count.0.fetch_sub(1, Relaxed);
        Ok(())
    }

    /// Slots that an entry owns.
    fn live(&self, device: &Device) -> u64 {
        let mut live = 0;
        self.each_cluster(device, |_, cluster| {
            let lost = cluster.table.as_ref().map_or(0, |t| t.bad() + t.gone());
            live += u64::from(cluster.count - lost);
        });
        live
    }

    /// What a removal must wait for: live slots, those on their way through a return cache,
    /// and clusters in somebody's hands, or that anybody may take to discard them, each counted as
    /// one slot.
    fn unsettled(&self, device: &Device) -> u64 {
        let mut unsettled = 0;
        self.each_cluster(device, |_, cluster| {
            let table = cluster.table.as_ref();
            let done = table.map_or(0, |t| {
                t.bad()
                    + if cluster.state == State::Frozen {
                        t.gone()
                    } else {
                        0
                    }
            });
            let busy = matches!(cluster.state, State::OffList(_) | State::Discard);
            unsettled += u64::from(cluster.count - done).max(u64::from(busy));
        });
        unsettled
    }

    /// The next `max` slots of the round that an entry owns, or fewer at its end, as runs of slots and
    /// their owners side by side, each with its first owner.
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

/// How far a drain has come. It goes round the device, so that each step costs what it moves: what
/// stayed behind, as it could not be moved or came after, is met in the next round.
#[derive(Default)]
pub(super) struct Drained {
    /// Whether it was seen that all has a place, and nothing was allocated since.
    begun: AtomicBool,
    /// The slot at which the next step begins; 0: a round does.
    next: AtomicU32,
    /// What this round has come to before.
    moved: AtomicBool,
    failed: AtomicBool,
}

/// What a whole round has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Some pages were moved, or none was there.
    Moved,
    /// Pages were there, and none could be moved.
    Failed,
}

impl Drained {
    /// After a step: what the round has come to, if it has ended.
    fn ended(&self, moved: usize, failed: bool) -> Option<Round> {
        let over = self.next.load(Relaxed) == 0;
        let moved = self.moved.load(Relaxed) || moved > 0;
        let failed = self.failed.load(Relaxed) || failed;
        self.moved.store(moved && !over, Relaxed);
        self.failed.store(failed && !over, Relaxed);
        over.then_some(match failed && !moved {
            true => Round::Failed,
            false => Round::Moved,
        })
    }
}

/// What became of a slot that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakenOut {
    /// It is out of service, or was free or out already.
    Done,
    /// It is lent by another process, and only read here, for this entry.
    NotOurs(Option<EntryId>),
}

impl Device {
    /// Begins to accept allocations, or ceases to; whether that is a change. Errors take it out for good:
    /// the lists' lock is held, so that who ceases for them and who begins see each other.
    pub(super) fn accept(&self, yes: bool) -> bool {
        let _lists = self.lists();
        let yes = yes && self.errors.load(Relaxed) < DEVICE_ERROR_LIMIT;
        self.accepting.swap(yes, Relaxed) != yes
    }

    /// Takes a slot out of service, if it is in use.
    fn take_out(&self, cluster: &mut Cluster, at: usize) -> TakenOut {
        let inherited = cluster.state == State::Inherited;
        let Some(table) = &mut cluster.table else {
            return TakenOut::Done;
        };
        let Some(owner) = table.used_owner(at).filter(|owner| !owner.bad()) else {
            return TakenOut::Done;
        };
        if inherited {
            return TakenOut::NotOurs(owner.entry());
        }
        table.set(at, SlotOwner::BAD);
        cluster.gone = table.gone() > 0;
        self.count(i64::from(owner.gone()));
        self.bad.fetch_add(1, Relaxed);
        TakenOut::Done
    }

    /// Slots of the clusters that the lender has.
    pub(super) fn borrowable(&self) -> u64 {
        let clusters = self.lender.as_ref().map_or(0, |l| l.free_clusters());
        clusters * CLUSTER_SLOTS as u64
    }
}
