//! The tree's swap devices in this process: those that were there when it began to page, those
//! added later, and those that are to go.
//!
//! All of it happens in the keeper, never in a fault. [`DeviceSet::update`] compares what the
//! tree's table says with what the engine has:
//! ```text
//! in the table, not here       open: descriptor and leases from the supervisor, Devices::add. It is asked, and the
//!                              answer taken in a later turn: faults may wait for what a turn holds
//! here, Asked in the table     say what it would take to leave, beyond what is this process's own
//! here, Leaving in the table   no more pages go there; a few milliseconds of moving pages away a
//!                              turn, to other devices, or into the pool as far as the budget has
//!                              room; when nothing is left Devices::remove, and once no thread
//!                              reads from it any more, close the file and say so
//! here, On again               pages go there again
//! ```
//! Data that a process writes there is encrypted with its own keys ([`ebb_stores::keyring`]); a fork tells them of it
//! ([`DeviceSet::part`]). A process that gives up the tree's user ([`user`](crate::syscalls::user_change)) has
//! descriptors that only read from then on: what it has there comes back, all else stays in memory. Files are closed
//! here alone: they are descriptors of the service threads' table. Threads of the program, which may hold the last
//! reference to a device for a moment, have another.
//!
//! Not here: deciding which devices there are (the supervisor), moving data (the engine).

use ebb_engine::slots::{AddError, DeviceSpec, Devices, Drain, DrainError};
use ebb_engine::swap::Swap;
use ebb_engine::sync::{Mutex, MutexGuard, lock, try_lock};
use ebb_engine::{Cpu, DeviceId};
use ebb_stores::{self as stores, Faults, FileStore, KeyedLender, Keyring, SlotKeys};
use ebb_sys::paging::Time;
use ebb_tree::{
    Answer, Device, DeviceQuestion, DeviceState, JoinError, MAX_DEVICES, Member, ShareReport,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a turn of moving pages away may take: a fork waits for it.
const TURN: Duration = Duration::from_millis(8);
/// Pages moved in one step.
const STEP: usize = 64;
/// Failed steps after which pages count as stuck.
const MAX_FAILED_STEPS: u32 = 16;
/// How long after an attempt that failed the tree is asked for its devices again.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// After so long a question, or its answer, was lost: where a system is short of memory, packets may be. An answer that comes later is
/// passed over.
const LOST: Duration = Duration::from_secs(5);
/// How soon the tree answers, mostly: as long it is looked for an answer at once.
const ANSWERS: Duration = Duration::from_millis(20);
/// How often the tree is told what is on the devices.
const TELL: Duration = Duration::from_millis(20);
/// How often the file system of a device that is full is asked for room.
const ASK_FOR_ROOM: Duration = Duration::from_millis(100);
/// How often it is told how full each cluster is, while somebody looks.
const TELL_MAP: Duration = Duration::from_millis(400);

/// A device in use.
struct Attached {
    row: usize,
    serial: u64,
    id: DeviceId,
    file: Arc<FileStore>,
    /// The key that each slot was written with, if it is encrypted.
    marks: Option<Arc<SlotKeys>>,
    leaving: Leaving,
}

/// How a device comes to leave.
#[derive(Clone, Copy, Default)]
struct Leaving {
    /// The answer to the last change of the devices: the room that leaving this one would take, or why the attempt
    /// failed.
    answer: Option<Answer>,
    /// Failed steps, one after the other.
    failed_waits: u32,
}

/// Why the devices of the tree are not those of this process.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Unreached(#[from] JoinError),
    #[error("swap device {0} cannot be used: {1}")]
    Refused(u64, AddError),
}

impl Unusable {
    fn is_late(&self) -> bool {
        matches!(self, Self::Unreached(why) if why.is_late())
    }
}

/// A device that is empty, whose file some thread may still be reading.
struct Closing {
    row: usize,
    serial: u64,
    file: Arc<FileStore>,
}

struct Inner {
    attached: Vec<Attached>,
    closing: Vec<Closing>,
    /// Devices of a simulation that leave, by their places.
    unlisted: [Option<Leaving>; MAX_DEVICES],
    /// The tree's count of changes that was acted upon.
    seen: Option<u64>,
    /// The question for devices that waits for its answer.
    question: Option<DeviceQuestion>,
    /// The tree's count of changes as it was put.
    asked_at: u64,
    /// The change that could not be acted upon, as was told.
    told: Option<u64>,
    /// The change of devices that answers belong to.
    asked: Option<u64>,
    /// The time when it was last tried to act upon one.
    tried: Time,
    reported: Time,
    /// The time when file systems were last asked for room.
    room_asked: Time,
    /// The time when it was last told how full each cluster is.
    map_reported: Time,
}

/// Memory, as the place of pages that find none on devices.
pub trait DrainTarget {
    /// How many it could come to hold, if so many processes share what is free of the budget.
    fn holds(&mut self, users: u64) -> u64;
    /// Makes room for so many now; whether it could.
    fn make_room(&mut self, pages: usize) -> bool;
}

/// See the module.
pub struct DeviceSet {
    /// The engine's devices.
    pub devices: Arc<Devices>,
    /// The keys of this process, if devices are encrypted.
    keys: Option<Arc<Keyring>>,
    /// Flag: the process gave up the tree's user: it reads what it has on devices, and writes there no more.
    reads_only: AtomicBool,
    faults: Option<Faults>,
    /// Flag: service threads may watch for the end of their reads.
    watches: AtomicBool,
    /// Devices that a simulation wants to leave, a bit each by their places. The tree knows none of its devices.
    unlisted: AtomicU8,
    /// The numbers by which users know the engine's devices.
    serials: [AtomicU64; MAX_DEVICES],
    /// Only the keeper takes it, so no fork finds it taken.
    inner: Mutex<Inner>,
}

impl DeviceSet {
    /// All devices that the tree has now. It `waits` for a supervisor that is late as long as there is a program.
    pub fn new(
        devices: Arc<Devices>,
        member: &Member,
        waits: impl Fn() -> bool,
    ) -> Result<Self, String> {
        let faults = Faults::from_environment().map_err(|e| e.to_string())?;
        let set = Self {
            devices,
            keys: member.config().encrypt.then(Arc::default),
            reads_only: AtomicBool::new(false),
            watches: AtomicBool::new(false),
            faults,
            unlisted: AtomicU8::new(0),
            serials: [const { AtomicU64::new(0) }; MAX_DEVICES],
            inner: Mutex::new(Inner {
                attached: Vec::with_capacity(MAX_DEVICES),
                closing: Vec::with_capacity(MAX_DEVICES),
                unlisted: [None; MAX_DEVICES],
                seen: None,
                question: None,
                asked_at: 0,
                told: None,
                asked: None,
                tried: Time::ZERO,
                reported: Time::ZERO,
                room_asked: Time::ZERO,
                map_reported: Time::ZERO,
            }),
        };
        let followed = set.begin(&mut set.lock(), member, waits);
        match followed {
            // It is told, and asked again, in the keeper's first turn.
            Err(Unusable::Unreached(JoinError::NotGiven)) => {}
            followed => followed.map_err(|e| e.to_string())?,
        }
        Ok(set)
    }

    /// The faults that tests ask for.
    pub fn faults(&self) -> Faults {
        self.faults.unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// A device in use has a row and a place of its own, is known by its serial number, and marks keys where there are
    /// keys; one that closes is in use no more. Nothing is said while another thread changes them.
    pub fn check(&self) {
        let Some(inner) = try_lock(&self.inner) else {
            return;
        };
        for attached in &inner.attached {
            let same = |a: &&Attached| a.row == attached.row || a.id == attached.id;
            assert_eq!(inner.attached.iter().filter(same).count(), 1);
            assert_eq!(self.serial(attached.id), attached.serial);
            assert_eq!(attached.marks.is_some(), self.keys.is_some());
        }
        let in_use = |closing: &Closing| inner.attached.iter().any(|a| a.serial == closing.serial);
        assert!(!inner.closing.iter().any(in_use));
    }

    /// In a forked child, before anything else is done with the devices: descriptors of its own, which the
    /// supervisor gives, for [`reattach`](Self::reattach). It `waits` as [`new`](Self::new) does.
    pub fn receive_again(
        &self,
        member: &Member,
        waits: impl Fn() -> bool,
    ) -> Result<Vec<(u64, OwnedFd)>, JoinError> {
        let inner = self.lock();
        let there = |a: &&Attached| member.device(a.row).is_some_and(|(s, _)| s == a.serial);
        let rows = inner.attached.iter().filter(there);
        let rows = rows.fold(0, |rows, a| rows | 1 << a.row);
        let given = member.attach(rows, waits)?;
        Ok(given.into_iter().map(|d| (d.serial, d.fd)).collect())
    }

    /// The same without a supervisor: `open` opens what the parent has by this number.
    pub fn open_again(
        &self,
        member: &Member,
        open: impl Fn(i32) -> Result<OwnedFd, String>,
    ) -> Result<Vec<(u64, OwnedFd)>, String> {
        let inner = self.lock();
        let has = |a: &&Attached| member.holds_again(a.row, a.serial);
        let attached = inner.attached.iter().filter(has);
        let opened = attached.map(|a| Ok((a.serial, open(a.file.descriptor())?)));
        opened
            .collect::<Result<_, String>>()
            .map_err(|e| format!("a swap device cannot be opened: {e}"))
    }

    /// After a fork, on either side, when the engine knows of it: what is written from now on has keys of
    /// its own.
    pub fn rotate_keys(&self, is_child: bool) {
        let inner = self.lock();
        let marks = inner.attached.iter().filter_map(|a| a.marks.as_deref());
        if let Some(keys) = &self.keys {
            keys.rotate(is_child, marks);
        }
    }

    /// Nobody needs a page of this process any more.
    pub fn wipe_keys(&self) {
        // Refused: who uses them ends with us.
        self.keys.as_ref().map(|keys| keys.wipe());
    }

    /// Whether the keys are wiped: what is read from now on is not what was written.
    pub fn has_no_keys(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.is_wiped())
    }

    /// In the keeper, after the process became another user: the descriptors that the supervisor gives to
    /// such a process take the place of those it had. Whether they have; else it is late, and is asked again.
    pub fn change_user(&self, member: &Member) -> Result<bool, String> {
        let inner = &mut *self.lock();
        // What is answered to it may have been judged before the change.
        if let Some(question) = inner.question.take() {
            member.give_up(question);
        }
        let rows = inner.attached.iter().fold(0, |rows, a| rows | 1 << a.row);
        let mut given = match member.attach(rows, || false) {
            Err(why) if why.is_late() => return Ok(false),
            given => given.map_err(|e| e.to_string())?,
        };
        for attached in &inner.attached {
            let at = given.iter().position(|d| d.serial == attached.serial);
            let at = at.ok_or("a swap device was not given again")?;
            attached.file.replace(given.swap_remove(at).fd);
            if attached.file.reads_only() {
                self.reads_only.store(true, Relaxed);
                self.devices.only_read(attached.id);
            }
        }
        Ok(true)
    }

    /// In a forked child: goes on with the same files by the descriptors that are `given`, by serial numbers.
    pub fn reattach(&self, member: &Member, mut given: Vec<(u64, OwnedFd)>) -> Result<(), String> {
        let mut inner = self.lock();
        inner.seen = None;
        // Its parent's: it has a connection of its own.
        inner.question = None;
        // Its clock may be another one's, which is behind (`unshare`).
        (inner.tried, inner.reported, inner.room_asked) = (Time::ZERO, Time::ZERO, Time::ZERO);
        inner.map_reported = Time::ZERO;
        // The numbers of their descriptors mean nothing here.
        inner
            .closing
            .drain(..)
            .for_each(|closing| std::mem::forget(closing.file));
        let mut kept = Vec::with_capacity(MAX_DEVICES);
        for attached in inner.attached.drain(..) {
            match given
                .iter()
                .position(|(serial, _)| *serial == attached.serial)
            {
                Some(at) => {
                    let (_, fd) = given.swap_remove(at);
                    let taken = attached.file.reattach(fd);
                    taken.map_err(|e| format!("a swap device cannot be taken over: {e:?}"))?;
                    kept.push(attached);
                }
                // It went while we were born; then we have nothing there.
                None => {
                    let removed = self.devices.remove(Cpu(0), attached.id);
                    removed.map_err(|e| format!("a swap device was not handed on: {e}"))?;
                    std::mem::forget(attached.file);
                    member.detach(attached.row, attached.serial);
                }
            }
        }
        inner.attached = kept;
        Ok(())
    }

    /// The process will not page after all: lets go of everything.
    pub fn abandon(&self, member: &Member) {
        let mut inner = self.lock();
        for attached in inner.attached.drain(..) {
            // Nothing was ever put there.
            if self.devices.remove(Cpu(0), attached.id).is_ok() {
                drop(attached.file);
                member.detach(attached.row, attached.serial);
            }
        }
    }

    /// The keeper's turn; whether there is more to do at once. Requires: the gate.
    pub fn update(
        &self,
        member: &Member,
        swap: &Swap,
        cpu: Cpu,
        now: impl Fn() -> Time,
        memory: &mut dyn DrainTarget,
    ) -> bool {
        let inner = &mut *self.lock();
        self.choose_waiting(inner, member);
        let changes = member.device_changes();
        let changed = inner.asked.replace(changes) != Some(changes);
        if changed {
            // Another removal than the one answered may be under way, and there may be room by now.
            for attached in &mut inner.attached {
                attached.leaving = Leaving::default();
            }
        }
        self.follow(inner, member, changed, &now);
        self.close(inner, member);
        let busy = self.drain_leaving(inner, member, swap, cpu, &now, memory);
        if now().saturating_sub(inner.room_asked) > ASK_FOR_ROOM {
            inner.room_asked = now();
            self.ask_for_room(inner);
        }
        if busy || now().saturating_sub(inner.reported) > TELL {
            inner.reported = now();
            self.tell(inner, member);
        }
        if now().saturating_sub(inner.map_reported) > TELL_MAP && member.map_is_wanted() {
            inner.map_reported = now();
            for attached in &inner.attached {
                let fills = self.devices.cluster_fills(attached.id);
                member.report_fills(attached.row, fills.into_iter());
            }
        }
        let answers = || now().saturating_sub(inner.tried) <= ANSWERS;
        busy || !inner.closing.is_empty() || inner.question.is_some() && answers()
    }

    /// Service threads may watch for the end of their reads where the run lets them and no other process of the tree
    /// pages. The service threads of another would wait for this one's, and take it for a crowd.
    fn choose_waiting(&self, inner: &Inner, member: &Member) {
        let watches = member.config().watches && member.pages_alone();
        if self.watches.swap(watches, Relaxed) != watches {
            for attached in &inner.attached {
                attached.file.set_watches(watches);
            }
        }
    }

    /// Whether what is on devices can be read, and nothing more go there.
    pub fn reads_only(&self) -> bool {
        self.reads_only.load(Relaxed)
    }

    /// The number by which users know a device of the engine.
    pub fn serial(&self, id: DeviceId) -> u64 {
        self.serials[id.index()].load(Relaxed)
    }

    /// Whether pages can go to a device that is not about to go itself.
    pub fn stays(&self, member: &Member) -> bool {
        let on = |state| matches!(state, DeviceState::On | DeviceState::Asked);
        !self.reads_only() && !self.devices.is_empty() && states(member).any(on)
    }

    /// Whether pages can go to a device, and no device is to go: its pages may have to be held in memory.
    pub fn all_stay(&self, member: &Member) -> bool {
        self.stays(member) && !states(member).any(DeviceState::is_to_go)
    }

    /// Before the first turn: opens all devices. While the supervisor is late, it `waits`.
    fn begin(
        &self,
        inner: &mut Inner,
        member: &Member,
        waits: impl Fn() -> bool,
    ) -> Result<(), Unusable> {
        let changes = member.device_changes();
        let wanted = self.wanted(inner, member).unwrap_or(0);
        self.open(inner, member, member.attach(wanted, waits)?)?;
        inner.seen = Some(changes);
        Ok(())
    }

    /// Acts upon a change of the devices: asks for those that are new, or takes the answer in.
    fn follow(&self, inner: &mut Inner, member: &Member, changed: bool, now: &impl Fn() -> Time) {
        let changes = member.device_changes();
        let since = now().saturating_sub(inner.tried);
        if since > LOST
            && let Some(question) = inner.question.take()
        {
            member.give_up(question);
        }
        let again = since > TRY_AGAIN;
        if inner.question.is_none() && inner.seen != Some(changes) && (changed || again) {
            inner.tried = now();
            let asked = self.ask(inner, member, changes);
            self.tell_failure(inner, member, asked);
        }
        let Some(answered) = member.take_answer(&mut inner.question) else {
            return;
        };
        let opened = answered
            .map_err(Unusable::from)
            .and_then(|devices| self.open(inner, member, devices));
        if opened.is_ok() {
            inner.seen = Some(inner.asked_at);
        }
        self.tell_failure(inner, member, opened);
    }

    /// Asks for the devices that are new, if any are.
    fn ask(&self, inner: &mut Inner, member: &Member, changes: u64) -> Result<(), Unusable> {
        match self.wanted(inner, member) {
            None => {}
            Some(0) => inner.seen = Some(changes),
            Some(rows) => {
                inner.question = Some(member.ask_for(rows)?);
                inner.asked_at = changes;
            }
        }
        Ok(())
    }

    /// The supervisor is gone or out of descriptors: what we have stays. That is said once for each change.
    fn tell_failure(&self, inner: &mut Inner, member: &Member, done: Result<(), Unusable>) {
        if let Err(why) = done
            && !why.is_late()
            && inner.told != inner.asked
        {
            inner.told = inner.asked;
            member.message(&format!("the swap devices cannot be looked at: {why}"));
        }
    }

    /// The rows of devices that are new; those that were to go are taken back into service. None: not yet.
    fn wanted(&self, inner: &Inner, member: &Member) -> Option<u8> {
        let mut wanted = 0;
        for row in 0..MAX_DEVICES {
            let Some((serial, DeviceState::On | DeviceState::Asked)) = member.device(row) else {
                continue;
            };
            match inner.attached.iter().find(|a| a.serial == serial) {
                _ if self.reads_only() => {}
                Some(attached) => self.devices.readmit(attached.id),
                // Its file is being closed: it is opened again after that.
                None if inner.closing.iter().any(|c| c.serial == serial) => return None,
                None => wanted |= 1 << row,
            }
        }
        Some(wanted)
    }

    /// Opens devices that the supervisor gave.
    fn open(
        &self,
        inner: &mut Inner,
        member: &Member,
        devices: Vec<Device>,
    ) -> Result<(), Unusable> {
        for device in devices {
            let (row, serial) = (device.row, device.serial);
            let real = stores::Device::new(
                device.fd,
                device.facts,
                serial,
                self.keys.as_ref(),
                self.faults,
            );
            real.file.set_watches(self.watches.load(Relaxed));
            if real.file.reads_only() {
                // Of no use to a process that has nothing there.
                self.reads_only.store(true, Relaxed);
                drop(real);
                member.detach(row, serial);
                continue;
            }
            let lender = member.lender(row).map(|lender| match &real.slot_keys {
                Some(marks) => Arc::new(KeyedLender::new(lender, marks.clone())),
                None => lender,
            });
            let spec = DeviceSpec {
                priority: device.priority,
                node: real.store.node(),
                discard: Some(real.store.wants_discard()),
                rotational: Some(real.store.rotational()),
            };
            match self.devices.add(real.store, spec, lender) {
                Ok(id) => {
                    self.serials[id.index()].store(serial, Relaxed);
                    inner.attached.push(Attached {
                        row,
                        serial,
                        id,
                        file: real.file,
                        marks: real.slot_keys,
                        leaving: Leaving::default(),
                    });
                }
                Err(e) => {
                    drop(real.file);
                    member.detach(row, serial);
                    return Err(Unusable::Refused(serial, e));
                }
            }
        }
        Ok(())
    }

    /// For a simulation, which adds its devices itself: one of them is to leave from the keeper's next turn on, or is to
    /// stay after all.
    pub fn leave_unlisted(&self, id: DeviceId, leaves: bool) {
        let bit = 1 << id.index();
        match leaves {
            true => self.unlisted.fetch_or(bit, Relaxed),
            false => self.unlisted.fetch_and(!bit, Relaxed),
        };
    }

    /// The same as [`DeviceSet::drain_leaving`] of devices that are in no table.
    fn drain_unlisted(
        &self,
        inner: &mut Inner,
        engine: (&Swap, Cpu),
        has_time: impl Fn() -> bool,
        memory: &mut dyn DrainTarget,
    ) -> bool {
        let mut more = false;
        let leave = self.unlisted.load(Relaxed);
        for (n, leaving) in inner.unlisted.iter_mut().enumerate() {
            let id = DeviceId(n as u8);
            if leave & 1 << n == 0 {
                if leaving.take().is_some() {
                    self.devices.readmit(id);
                }
                continue;
            }
            // It is asked first, as the supervisor does.
            let how = leaving.get_or_insert_with(|| {
                self.wants(id, memory.holds(1));
                Leaving::default()
            });
            if how.answer.is_none() && self.drain(id, how, engine, &has_time, memory) {
                *leaving = None;
                self.leave_unlisted(id, false);
            } else {
                more |= how.answer.is_none();
            }
        }
        more
    }

    /// Moves pages away from devices that are to go, for a while; whether there is more to do.
    fn drain_leaving(
        &self,
        inner: &mut Inner,
        member: &Member,
        swap: &Swap,
        cpu: Cpu,
        now: &impl Fn() -> Time,
        memory: &mut dyn DrainTarget,
    ) -> bool {
        let started = now();
        let has_time = || now() - started < TURN;
        let mut more = self.drain_unlisted(inner, (swap, cpu), has_time, memory);
        let mut at = 0;
        while let Some(attached) = inner.attached.get_mut(at) {
            let state = member.device(attached.row);
            let state = state.filter(|(serial, _)| *serial == attached.serial);
            let leaving = match state {
                Some((_, DeviceState::Asked)) if attached.leaving.answer.is_none() => {
                    let users = member.users(attached.row);
                    attached.leaving.answer = self.wants(attached.id, memory.holds(users));
                    more = true;
                    false
                }
                // Nobody forgets a device that is in use; and if it is, nothing more may go there.
                Some((_, DeviceState::Leaving)) | None => attached.leaving.answer.is_none(),
                _ => false,
            };
            more |= leaving;
            let (id, how) = (attached.id, &mut attached.leaving);
            if leaving && self.drain(id, how, (swap, cpu), has_time, memory) {
                let Attached {
                    row, serial, file, ..
                } = inner.attached.swap_remove(at);
                inner.closing.push(Closing { row, serial, file });
            } else {
                at += 1;
            }
        }
        more
    }

    /// Moves pages away from a device while there is time; whether it is gone.
    fn drain(
        &self,
        id: DeviceId,
        leaving: &mut Leaving,
        (swap, cpu): (&Swap, Cpu),
        has_time: impl Fn() -> bool,
        memory: &mut dyn DrainTarget,
    ) -> bool {
        let mut pooled = false;
        while has_time() {
            let step = self.devices.drain_step(cpu, id, STEP);
            // For each step in which devices lack room some is made.
            swap.let_drained_into_pool(0);
            match step {
                // Somebody has a cluster in hand: the next turn.
                Ok(Drain::Moved(0)) => break,
                Ok(Drain::Moved(_)) => (leaving.failed_waits, pooled) = (0, false),
                Ok(Drain::Done) => return self.remove(id, cpu, has_time),
                Err(DrainError::NoDevice(_)) => return true,
                Err(DrainError::NoRoom { missing }) => {
                    // The process that comes first takes all free room.
                    let fits = missing <= memory.holds(1);
                    if fits && !pooled && memory.make_room(STEP) {
                        pooled = true;
                        swap.let_drained_into_pool(missing);
                        continue;
                    }
                    // Room in the budget is none in the pool, or the program took it: not this time.
                    if !fits || leaving.failed_waits >= MAX_FAILED_STEPS {
                        leaving.answer = Some(Answer::NoRoom(saturated(missing)));
                    }
                    leaving.failed_waits += 1;
                    break;
                }
                Err(DrainError::Stuck { left, .. }) if leaving.failed_waits >= MAX_FAILED_STEPS => {
                    leaving.answer = Some(Answer::Stuck(saturated(left)));
                    break;
                }
                Err(_) => {
                    leaving.failed_waits += 1;
                    break;
                }
            }
        }
        false
    }

    /// Takes out a device on which nothing is left, if there is time for what is to be discarded there; whether it is gone.
    fn remove(&self, id: DeviceId, cpu: Cpu, has_time: impl Fn() -> bool) -> bool {
        loop {
            match self.devices.remove(cpu, id) {
                Err(DrainError::Unfinished(_)) if has_time() => {}
                // Not yet while relatives read from it: they are leaving too.
                removed => return removed.is_ok(),
            }
        }
    }

    /// The room that it would take to leave a device, if memory holds so many of its pages.
    fn wants(&self, id: DeviceId, held: u64) -> Option<Answer> {
        let estimate = self.devices.drain_estimate(id).ok()?;
        let wants = estimate.pages.saturating_sub(estimate.room + held);
        Some(Answer::Wants(saturated(wants)))
    }

    /// Closes files that no thread uses any more.
    fn close(&self, inner: &mut Inner, member: &Member) {
        let mut at = 0;
        while let Some(closing) = inner.closing.get(at) {
            // At one, nobody can come by another reference: the engine has none.
            if Arc::strong_count(&closing.file) > 1 {
                at += 1;
                continue;
            }
            let Closing { row, serial, file } = inner.closing.swap_remove(at);
            drop(file);
            member.detach(row, serial);
        }
    }

    /// Asks the file systems of devices that are full for room: nobody else may write there for long.
    fn ask_for_room(&self, inner: &Inner) {
        let usage = self.devices.usage();
        for full in usage.iter().filter(|u| u.full) {
            let attached = inner.attached.iter().find(|a| a.id == full.device);
            if let Some(attached) = attached {
                let has_room = attached.file.has_blocks();
                self.devices.file_system_told(full.device, has_room);
            }
        }
    }

    fn tell(&self, inner: &Inner, member: &Member) {
        let usage = self.devices.usage();
        for attached in &inner.attached {
            if let Some(u) = usage.iter().find(|u| u.device == attached.id) {
                let used = u.used.saturating_sub(u.bad);
                let answer = inner.asked.zip(attached.leaving.answer);
                let said = ShareReport {
                    used,
                    errors: u.errors,
                    out: u.out,
                    // One that only reads asks for no room.
                    full: u.full && !self.reads_only(),
                    answer,
                };
                member.report_share(attached.row, said);
            }
        }
    }
}

/// The states of the tree's devices.
fn states(member: &Member) -> impl Iterator<Item = DeviceState> {
    (0..MAX_DEVICES).filter_map(|row| Some(member.device(row)?.1))
}

fn saturated(pages: u64) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}
