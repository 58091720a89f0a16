//! The tree's devices: handing them to members, adding and removing them while the tree runs,
//! and telling the user of those that fail.
//!
//! # Removal
//! ```text
//! On ──off──▶ Asked ──there is room──▶ Leaving ──nobody owns, reads or holds it──▶ free
//!    ◀──no room, or who asked is gone──┘
//!    ◀──no room after all, cannot be read, or who asked is gone──┘
//! ```
//! Each process moves what is its own. So first each says what it wants beyond its own clusters on
//! other devices and its own memory, and the sum of that is compared with the clusters that nobody
//! has: a removal for which there is no room leaves everything where it is.
//! While a device is leaving its leases are closed, so nobody comes to own more of it; every
//! member moves away what it has there, and says how much is left and why, if it cannot: others
//! may have taken the room since, or less compresses than was thought. What had been moved when a
//! removal is taken back stays where it went, and who asked is told of it.

use super::{SetupDevice, Supervisor, Token};
use crate::lease::Leases;
use crate::table::{Answer, DeviceState, SlotNumber, VERSION, clusters_of, create_leases};
use crate::wire::{self, Reply, Request};
use crate::{Facts, MAX_DEVICES, SetupError};
use ebb_engine::{CLUSTER_SLOTS, PAGE_SIZE};
use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How often a removal is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// How often whoever asked for a removal hears how far it is.
const REPORT: Duration = Duration::from_millis(200);
/// After one member has said that it has no room: time for the others to say what they lack.
const COUNTING: Duration = Duration::from_millis(300);

/// Opens a SPEC given while the tree runs.
pub type Opener = Box<dyn FnMut(&str) -> Result<SetupDevice, String> + Send>;

/// A device of the tree.
pub(super) struct Row {
    serial: u64,
    name: String,
    facts: Facts,
    priority: Option<i16>,
    file: OwnedFd,
    lease_fd: OwnedFd,
    pub leases: Leases<'static>,
    /// Write errors that processes met which are gone.
    past_errors: u64,
    /// The user knows that writes fail.
    told_errors: bool,
    /// The user knows that a process gave it up.
    told_out: bool,
    leaving: Option<Leaving>,
}

/// A removal under way.
struct Leaving {
    /// Who asked for it.
    client: OwnedFd,
    reported: Instant,
    /// The change of the devices that members answer.
    change: u64,
    stage: Stage,
}

/// How far a removal is.
#[derive(Clone, Copy)]
enum Stage {
    /// Members say what they want.
    Asked,
    /// They move away what they had: so many pages.
    Moving {
        had: u64,
        /// When the first of them said that it cannot move everything.
        refused: Option<Instant>,
    },
}

/// A device, for people and scripts.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct DeviceShown {
    /// Its number, never used twice in a tree.
    pub device: u64,
    /// As it was given.
    pub path: String,
    /// What it can hold.
    pub size_bytes: u64,
    /// What processes have there; what forked relatives share counts once each.
    pub used_bytes: u64,
    /// What is set aside for processes, in clusters of 2 MiB.
    pub held_bytes: u64,
    /// As it was given.
    pub priority: Option<i16>,
    /// The NUMA node, if known.
    pub node: Option<u16>,
    /// Whether a head moves.
    pub rotational: bool,
    /// Whether freed clusters are discarded.
    pub discard: bool,
    /// "on", or "leaving" while it is being removed.
    pub state: String,
    /// Writes that failed.
    pub write_errors: u64,
    /// Processes that have it open.
    pub processes: u64,
    /// Processes that put nothing there any more, for errors.
    pub given_up_by: u64,
}

impl Row {
    /// Makes the leases of a device.
    fn new(serial: u64, device: SetupDevice) -> Result<Self, SetupError> {
        let clusters = clusters_of(device.facts.slots);
        if clusters == 0 {
            return Err(SetupError::DeviceTooSmall(device.name, device.facts.slots));
        }
        let (leases, lease_fd) =
            create_leases(clusters).map_err(|e| SetupError::System("leases of a device", e))?;
        Ok(Self {
            serial,
            name: device.name,
            facts: device.facts,
            priority: device.priority,
            file: device.fd,
            lease_fd,
            leases,
            past_errors: 0,
            told_errors: false,
            told_out: false,
            leaving: None,
        })
    }

    fn clusters(&self) -> u64 {
        self.leases.owner.len() as u64
    }

    /// Pages that nobody has set aside.
    fn free_pages(&self) -> u64 {
        self.leases.free() * CLUSTER_SLOTS as u64
    }
}

impl Supervisor {
    /// Puts a device into a free row and tells every member; its number.
    pub(super) fn add_device(&mut self, device: SetupDevice) -> Result<u64, SetupError> {
        let free = self.rows.iter().position(Option::is_none);
        let free = free.ok_or(SetupError::TooManyDevices(MAX_DEVICES + 1))?;
        let serial = self.next_serial;
        let row = Row::new(serial, device)?;
        let (facts, clusters) = (row.facts.to_words(), row.leases.owner.len() as u32);
        self.table.devices[free].fill(serial, facts, row.priority, clusters);
        self.next_serial += 1;
        self.rows[free] = Some(row);
        self.table.devices_changed();
        Ok(serial)
    }

    /// The leases of all devices.
    pub(super) fn each_leases(&self) -> impl Iterator<Item = Leases<'static>> + '_ {
        self.rows.iter().flatten().map(|row| row.leases)
    }

    /// Sends a member the devices of some rows. One that gave up the tree's user may read what it has
    /// there, and write no more: it could write anywhere.
    pub(super) fn send_devices(&self, slot: SlotNumber, asked: u8) {
        let Some(connection) = self.connection(slot) else {
            return;
        };
        let may_write = self.is_of_our_user(slot);
        let (mut named, mut fds) = (Vec::new(), Vec::new());
        let mut to_read: [Option<OwnedFd>; MAX_DEVICES] = [const { None }; MAX_DEVICES];
        let rows = self.rows.iter().zip(&mut to_read);
        for (row, to_read) in rows.filter(|_| !may_write) {
            *to_read = row.as_ref().and_then(|row| reopen_to_read(&row.file).ok());
        }
        for (n, row) in self.rows.iter().enumerate() {
            if let Some(row) = row
                && asked >> n & 1 == 1
            {
                let file = if may_write {
                    Some(&row.file)
                } else {
                    to_read[n].as_ref()
                };
                let Some(file) = file else {
                    (named, fds) = Default::default();
                    break;
                };
                fds.extend([file.as_fd(), row.lease_fd.as_fd()]);
                named.push((n, row.serial));
                // Before it has them: there is no moment at which it has one without this.
                self.table.slot(slot).attached.fetch_or(1 << n, SeqCst);
            }
        }
        // A member that cannot be told asks again.
        let _ = wire::send(connection, &wire::devices(&named), &fds);
    }

    /// Handles a command's request.
    pub(super) fn serve(&mut self, client: OwnedFd, version: u32, request: Option<Request>) {
        if let Err(no) = self.may_ask(&client) {
            return answer(&client, no);
        }
        let reply = match request {
            Some(request) if version == VERSION => match request {
                Request::Show => Ok(self.show()),
                Request::Counters => {
                    Ok(serde_json::Value::from(self.totals().counters_by_name()).to_string())
                }
                Request::Limit(change) => return self.limit(client, &change),
                Request::On(spec) => self.switch_on(&spec),
                Request::Off(device) => match self.find(&device) {
                    Ok(n) => return self.switch_off(n, client),
                    Err(why) => Err(why),
                },
            },
            _ => Err("it was started by another version of ebb: use that one".to_owned()),
        };
        answer(
            &client,
            match reply {
                Ok(text) => Reply::Done(text),
                Err(why) => Reply::Failed(why),
            },
        );
    }

    fn switch_on(&mut self, spec: &str) -> Result<String, String> {
        let Some(open) = &mut self.open else {
            return Err("this tree takes no devices".into());
        };
        let device = open(spec)?;
        let name = device.name.clone();
        let size = device.facts.slots / 256;
        let serial = self.add_device(device).map_err(|e| e.to_string())?;
        Ok(format!("device {serial}: {name}, {size} MiB, is in use"))
    }

    /// The row of a device that a user names: by its number, or as it was given.
    fn find(&self, text: &str) -> Result<usize, String> {
        let rows = || self.rows.iter().enumerate();
        if let Ok(serial) = text.parse::<u64>() {
            let found = rows().find(|(_, r)| r.as_ref().is_some_and(|r| r.serial == serial));
            return found
                .map(|(n, _)| n)
                .ok_or_else(|| format!("there is no device {serial}: `ebb swap show` lists them"));
        }
        let same = |row: &Row| row.name == text || same_file(&row.name, text);
        let found: Vec<usize> = rows()
            .filter(|(_, row)| row.as_ref().is_some_and(same))
            .map(|(n, _)| n)
            .collect();
        match found[..] {
            [n] => Ok(n),
            [] => Err(format!(
                "{text} is no device of this tree: `ebb swap show` lists them"
            )),
            _ => Err(format!(
                "{} devices are at {text}: give the number that `ebb swap show` prints",
                found.len()
            )),
        }
    }

    fn switch_off(&mut self, n: usize, client: OwnedFd) {
        let Some(row) = &mut self.rows[n] else { return };
        if row.leaving.is_some() {
            let why = format!(
                "device {} is being removed already: wait for that, or interrupt it",
                row.serial
            );
            return answer(&client, Reply::Failed(why));
        }
        let token = Token::Client(n as u32).pack();
        if !listens(&self.epoll, &client, token) {
            return;
        }
        self.table.devices[n].set_state(row.serial, DeviceState::Asked);
        row.leaving = Some(Leaving {
            client,
            reported: Instant::now(),
            change: self.table.devices_changed(),
            stage: Stage::Asked,
        });
        self.due = Instant::now();
    }

    /// There is room for what is on a device: it is left.
    fn leave(&mut self, n: usize, had: u64) {
        let Some(row) = &mut self.rows[n] else { return };
        let Some(leaving) = &mut row.leaving else {
            return;
        };
        row.leases.close();
        self.table.devices[n].set_state(row.serial, DeviceState::Leaving);
        leaving.change = self.table.devices_changed();
        leaving.stage = Stage::Moving { had, refused: None };
        self.due = Instant::now();
    }

    /// Pages of each device but one that stays, which nobody has set aside.
    fn free_beside(&self, n: usize) -> [u64; MAX_DEVICES] {
        std::array::from_fn(|other| match &self.rows[other] {
            Some(row) if other != n && row.leaving.is_none() => row.free_pages(),
            _ => 0,
        })
    }

    /// Pages on a device that would find no place if everybody left it; none as long as somebody
    /// has not said what it wants, or what leaves another device is on its way to the same room.
    fn lacking(&self, n: usize, change: u64) -> Option<u64> {
        let leaving = self
            .rows
            .iter()
            .flatten()
            .filter_map(|row| row.leaving.as_ref());
        if leaving
            .into_iter()
            .any(|l| matches!(l.stage, Stage::Moving { .. }))
        {
            return None;
        }
        let free = self.free_beside(n);
        let (mut wanted, mut lacking) = (0, 0);
        for slot in self.holders(n) {
            let shares = &self.table.slot(slot).shares;
            let Some(Answer::Wants(pages)) = shares[n].answer_to(change) else {
                return None;
            };
            // Whole clusters are lent; none of a device that it gave up.
            let pages = u64::from(pages).next_multiple_of(CLUSTER_SLOTS as u64);
            let usable = free.iter().zip(shares);
            let usable = usable.filter(|(_, share)| !share.is_out());
            let usable: u64 = usable.map(|(free, _)| free).sum();
            wanted += pages;
            lacking += pages.saturating_sub(usable);
        }
        let free: u64 = free.iter().sum();
        Some(lacking.max(wanted.saturating_sub(free)))
    }

    /// Whoever asked for a removal has spoken, or is gone: then it is taken back.
    pub(super) fn hear_client(&mut self, n: u32) {
        let Some(Some(row)) = self.rows.get_mut(n as usize) else {
            return;
        };
        let Some(leaving) = &row.leaving else { return };
        match net::recv(&leaving.client, &mut [0; 64], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.stay(n as usize),
            Ok(_) => {}
        }
    }

    /// A removal is taken back; the client, to be told why.
    fn stay(&mut self, n: usize) {
        let Some(row) = &mut self.rows[n] else { return };
        if let Some(leaving) = row.leaving.take() {
            let _ = epoll::delete(&self.epoll, &leaving.client);
        }
        row.leases.reopen();
        self.table.devices[n].set_state(row.serial, DeviceState::On);
        self.table.devices_changed();
    }

    /// Looks how far removals are.
    pub(super) fn look_at_removals(&mut self) {
        for n in 0..MAX_DEVICES {
            if self.is_leaving(n) {
                self.look_at_removal(n);
            }
        }
    }

    fn is_leaving(&self, n: usize) -> bool {
        self.rows[n].as_ref().is_some_and(|r| r.leaving.is_some())
    }

    pub(super) fn removing(&self) -> bool {
        (0..MAX_DEVICES).any(|n| self.is_leaving(n))
    }

    fn look_at_removal(&mut self, n: usize) {
        let holders = self.holders(n).count();
        let shares = || {
            let slots = self.table.taken();
            slots.map(|(slot, _)| &self.table.slot(slot).shares[n])
        };
        let left: u64 = shares().map(|s| u64::from(s.used.load(SeqCst))).sum();
        let Some(row) = &self.rows[n] else { return };
        let Some(leaving) = &row.leaving else { return };
        match leaving.stage {
            Stage::Asked => match self.lacking(n, leaving.change) {
                Some(0) => self.leave(n, left),
                Some(missing) => self.refuse(n, &no_room(missing), 0),
                None => self.report(n, format!("{holders} processes are asked")),
            },
            Stage::Moving { .. } if holders == 0 && row.leases.is_idle() => self.drop_device(n),
            Stage::Moving { had, refused } => {
                let answers: Vec<Answer> = shares()
                    .filter_map(|s| s.answer_to(leaving.change))
                    .collect();
                if answers.is_empty() {
                    let text = format!("{} MiB left, {holders} processes", left.div_ceil(256));
                    return self.report(n, text);
                }
                let since = refused.unwrap_or_else(Instant::now);
                if since.elapsed() < COUNTING {
                    let refused = Some(since);
                    return self.set_stage(n, Stage::Moving { had, refused });
                }
                let (mut lacking, mut stuck) = (0, 0);
                for answer in answers {
                    match answer {
                        Answer::NoRoom(pages) | Answer::Wants(pages) => lacking += u64::from(pages),
                        Answer::Stuck(pages) => stuck += u64::from(pages),
                    }
                }
                let why = match lacking {
                    0 => format!(
                        "{stuck} pages on it cannot be read, or not be written elsewhere; they go when the programs free them"
                    ),
                    lacking => {
                        let free: u64 = self.free_beside(n).iter().sum();
                        no_room(lacking.max(left.saturating_sub(free)))
                    }
                };
                self.refuse(n, &why, had.saturating_sub(left));
            }
        }
    }

    fn set_stage(&mut self, n: usize, stage: Stage) {
        if let Some(leaving) = self.rows[n].as_mut().and_then(|row| row.leaving.as_mut()) {
            leaving.stage = stage;
        }
    }

    /// Tells who asked for a removal how far it is, now and then.
    fn report(&mut self, n: usize, text: String) {
        if let Some(leaving) = self.rows[n].as_mut().and_then(|row| row.leaving.as_mut())
            && leaving.reported.elapsed() > REPORT
        {
            leaving.reported = Instant::now();
            answer(&leaving.client, Reply::Progress(text));
        }
    }

    /// A removal cannot be: who asked is told why, and how many pages went elsewhere before that.
    fn refuse(&mut self, n: usize, why: &str, moved: u64) {
        let Some(row) = &self.rows[n] else { return };
        let moved = match moved {
            0 => String::new(),
            moved => format!("; {moved} pages had gone elsewhere before that, and stay there"),
        };
        let text = format!(
            "device {}, {}, stays in use: {why}{moved}",
            row.serial, row.name
        );
        if let Some(leaving) = &row.leaving {
            answer(&leaving.client, Reply::Failed(text));
        }
        self.stay(n);
    }

    /// Nobody has anything on a device any more: it goes, and who asked for that hears of it.
    fn drop_device(&mut self, n: usize) {
        let Some(mut row) = self.rows[n].take() else {
            return;
        };
        // Its mapping stays with us for ever: at least its pages go.
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if let Ok(stat) = rustix::fs::fstat(&row.lease_fd) {
            let _ = rustix::fs::fallocate(&row.lease_fd, punch, 0, stat.st_size as u64);
        }
        self.table.devices[n].clear();
        self.table.devices_changed();
        let text = format!(
            "device {}, {}, is not in use any more",
            row.serial, row.name
        );
        let leaving = row.leaving.take();
        // Closed before anybody hears that it is.
        drop(row);
        if let Some(leaving) = leaving {
            let _ = epoll::delete(&self.epoll, &leaving.client);
            answer(&leaving.client, Reply::Done(text));
        }
    }

    /// The processes that hold a device's descriptors.
    fn holders(&self, n: usize) -> impl Iterator<Item = SlotNumber> + '_ {
        let taken = self.table.taken().map(|(slot, _)| slot);
        taken.filter(move |slot| self.table.slot(*slot).attached.load(SeqCst) >> n & 1 == 1)
    }

    /// Write errors on a device.
    fn errors(&self, n: usize) -> u64 {
        let now = self.table.taken();
        let now = now.map(|(slot, _)| self.table.slot(slot).shares[n].errors.load(SeqCst));
        let past = self.rows[n].as_ref().map_or(0, |row| row.past_errors);
        past + now.map(u64::from).sum::<u64>()
    }

    fn given_up_by(&self, n: usize) -> u64 {
        let slots = self.table.taken();
        let out = slots.filter(|(slot, _)| self.table.slot(*slot).shares[n].is_out());
        out.count() as u64
    }

    /// Tells the user of devices that fail, each once when it begins and once when a process
    /// gives it up.
    pub(super) fn look_for_errors(&mut self) {
        let us = std::process::id();
        for n in 0..MAX_DEVICES {
            let (errors, out) = (self.errors(n), self.given_up_by(n));
            let Some(row) = &mut self.rows[n] else {
                continue;
            };
            let (serial, name) = (row.serial, row.name.clone());
            if out > 0 && !row.told_out {
                (row.told_out, row.told_errors) = (true, true);
                // A device that is gone fails as a whole, not slot by slot.
                let failed = match errors {
                    0 => "fails".into(),
                    _ => format!("failed to write {errors} times"),
                };
                self.notice(&format!(
                    "swap device {serial}, {name}, {failed} and takes no more pages of {out} processes; what is on it stays readable if the device lets it. Look at the device; `ebb swap on SPEC {us}` adds another, `ebb swap off {serial} {us}` empties this one"
                ));
            } else if errors > 0 && !row.told_errors {
                row.told_errors = true;
                self.notice(&format!(
                    "swap device {serial}, {name}, failed to write {errors} times; those slots are used no more and the pages went elsewhere. Look at the device; `ebb swap show {us}` counts the errors"
                ));
            }
        }
    }

    /// A process is gone: what it said of the devices is kept where it counts.
    pub(super) fn forget_shares(&mut self, slot: SlotNumber) {
        self.look_for_errors();
        let slot = self.table.slot(slot);
        slot.attached.store(0, SeqCst);
        for (row, share) in self.rows.iter_mut().zip(&slot.shares) {
            if let Some(row) = row {
                row.past_errors += u64::from(share.errors.load(SeqCst));
            }
            share.tell(0, 0, false, None);
        }
    }

    /// Every device, as JSON.
    fn show(&self) -> String {
        serde_json::to_string(&self.devices()).unwrap_or_else(|_| "[]".into())
    }

    /// Every device.
    pub fn devices(&self) -> Vec<DeviceShown> {
        let shown = |(n, row): (usize, &Option<Row>)| {
            let row = row.as_ref()?;
            let slots = self.table.taken();
            let used = slots.map(|(slot, _)| self.table.slot(slot).shares[n].used.load(SeqCst));
            let cluster = (CLUSTER_SLOTS * PAGE_SIZE) as u64;
            Some(DeviceShown {
                device: row.serial,
                path: row.name.clone(),
                size_bytes: row.clusters() * cluster,
                used_bytes: used.map(u64::from).sum::<u64>() * PAGE_SIZE as u64,
                held_bytes: (row.clusters() - row.leases.free().min(row.clusters())) * cluster,
                priority: row.priority,
                node: row.facts.node().map(|node| node.0),
                rotational: row.facts.rotational,
                discard: row.facts.wants_discard,
                state: if row.leaving.is_some() {
                    "leaving"
                } else {
                    "on"
                }
                .into(),
                write_errors: self.errors(n),
                processes: self.holders(n).count() as u64,
                given_up_by: self.given_up_by(n),
            })
        };
        self.rows.iter().enumerate().filter_map(shown).collect()
    }
}

/// The same file by a description that cannot write.
fn reopen_to_read(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let direct = rustix::fs::fcntl_getfl(file)? & OFlags::DIRECT;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | direct,
        Mode::empty(),
    )
}

fn no_room(missing: u64) -> String {
    format!(
        "the other swap devices and the pool lack room for {missing} pages ({} MiB); add a device first, or let the programs free memory",
        missing.div_ceil(256)
    )
}

/// Whether two paths lead to the same file or directory now.
fn same_file(a: &str, b: &str) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Hears of a command that goes away before it is answered; one that cannot be listened to is refused.
pub(super) fn listens(epoll: &OwnedFd, client: &OwnedFd, token: epoll::EventData) -> bool {
    let added = epoll::add(epoll, client, token, epoll::EventFlags::IN).is_ok();
    if !added {
        let why = "the kernel has no memory for it: free some and ask again";
        answer(client, Reply::Failed(why.into()));
    }
    added
}

/// Tells a command; one that does not listen is no matter of ours.
pub(super) fn answer(client: &OwnedFd, reply: Reply) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = net::send(client, &reply.encode(), flags);
}
