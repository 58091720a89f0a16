//! The tree's devices: handing them to members, and telling the user of those that fail.
//!
//! Not here: opening one while the tree runs (`opening`), and taking one away (`removal`).

use super::clients::answer;
use super::full_device::FullDevice;
use super::removal::Removal;
use super::{SetupDevice, Supervisor};
use crate::lease::Leases;
use crate::protocol::{self, GivenDevice, Reply, Request};
use crate::table::{ShareReport, SlotNumber, VERSION, clusters_of, create_leases};
use crate::{Facts, MAX_DEVICES, SetupError};
use ebb_engine::{CLUSTER_SLOTS, PAGE_SIZE};
use ebb_stores::FileIdentity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

/// A device of the tree.
pub(super) struct TreeDevice {
    /// The number; 0 where it has no row yet.
    pub serial: u64,
    pub name: String,
    /// The file, by whatever name.
    pub identity: Option<FileIdentity>,
    pub facts: Facts,
    pub priority: Option<i16>,
    pub file: OwnedFd,
    /// The same to be read alone, opened with it: nobody may answer for the file any more when a member needs it.
    pub to_read: Result<OwnedFd, Errno>,
    pub lease_fd: OwnedFd,
    pub leases: Leases<'static>,
    /// Write errors that processes met which are gone.
    pub past_errors: u64,
    /// Flag: the user knows that writes fail.
    pub warned_errors: bool,
    /// Flag: the user knows that a process gave it up.
    pub warned_given_up: bool,
    pub full: FullDevice,
    pub removal: Option<Removal>,
}

/// A device, for people and scripts.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct DeviceShown {
    /// The number, never used twice in a tree.
    pub device: u64,
    /// The path as it was given.
    pub path: String,
    /// The size.
    pub size_bytes: u64,
    /// Data of processes there; slots that forked relatives share count once each.
    pub used_bytes: u64,
    /// Clusters of 2 MiB set aside for processes.
    pub held_bytes: u64,
    /// The priority as it was given.
    pub priority: Option<i16>,
    /// The NUMA node, if known.
    pub node: Option<u16>,
    /// Flag: a head moves.
    pub rotational: bool,
    /// Flag: freed clusters are discarded.
    pub discard: bool,
    /// "on", "full" while its file system has no room, or "leaving" while it is being removed.
    pub state: String,
    /// Writes that failed.
    pub write_errors: u64,
    /// Processes that have it open.
    pub processes: u64,
    /// Processes that put nothing there any more, for errors.
    pub given_up_by: u64,
}

impl TreeDevice {
    /// Makes the leases of a device.
    pub(super) fn new(device: SetupDevice) -> Result<Self, SetupError> {
        let clusters = clusters_of(device.facts.slots);
        if clusters == 0 {
            return Err(SetupError::DeviceTooSmall(device.name, device.facts.slots));
        }
        let (leases, lease_fd) =
            create_leases(clusters).map_err(|e| SetupError::System("leases of a device", e))?;
        Ok(Self {
            serial: 0,
            name: device.name,
            identity: FileIdentity::of(&device.fd),
            facts: device.facts,
            priority: device.priority,
            to_read: reopen_to_read(&device.fd),
            file: device.fd,
            lease_fd,
            leases,
            past_errors: 0,
            warned_errors: false,
            warned_given_up: false,
            full: FullDevice::default(),
            removal: None,
        })
    }

    pub(super) fn clusters(&self) -> u64 {
        self.leases.owner.len() as u64
    }

    /// Pages that anybody can still set aside.
    pub(super) fn free_pages(&self) -> u64 {
        self.leases.takeable() * CLUSTER_SLOTS as u64
    }
}

impl Supervisor {
    /// Puts a device into a free row and tells every member; its number.
    pub(super) fn add_device(&mut self, device: SetupDevice) -> Result<u64, SetupError> {
        let free = self.free_row()?;
        let row = TreeDevice::new(device)?;
        Ok(self.fill_row(free, row))
    }

    pub(super) fn free_row(&self) -> Result<usize, SetupError> {
        let free = self.rows.iter().position(Option::is_none);
        free.ok_or(SetupError::TooManyDevices(MAX_DEVICES + 1))
    }

    pub(super) fn fill_row(&mut self, free: usize, mut row: TreeDevice) -> u64 {
        let serial = self.next_serial;
        row.serial = serial;
        self.table.devices[free].fill(serial);
        self.next_serial = serial + 1;
        self.rows[free] = Some(row);
        self.table.devices_changed();
        serial
    }

    /// The leases of all devices.
    pub(crate) fn each_leases(&self) -> impl Iterator<Item = Leases<'static>> + '_ {
        let rows = self.rows.iter().flatten().map(|row| row.leases);
        rows.chain(self.without_files.iter().copied())
    }

    /// Sends a member the devices of some rows. One that gave up the tree's user may read what it has
    /// there, and write no more: it could write anywhere. None is sent where one cannot be: the member sees that.
    pub(super) fn send_devices(&self, slot: SlotNumber, number: u32, asked: u8) {
        let Some(connection) = self.connection(slot) else {
            return;
        };
        let rows = self.rows.iter().enumerate();
        let rows = rows.filter(|(n, _)| asked >> n & 1 == 1);
        let rows = rows.filter_map(|(n, row)| Some((n, row.as_ref()?)));
        let rows: Vec<_> = rows.collect();
        let to_read = || rows.iter().map(|(_, row)| row.to_read.as_ref());
        let to_read = self.is_of_our_user(slot).and_then(|ours| match ours {
            true => Ok(Vec::new()),
            false => to_read().collect::<Result<_, _>>().map_err(|error| *error),
        });
        let (mut given, mut fds, mut new) = (Vec::new(), Vec::new(), 0);
        let attached = &self.table.slot(slot).attached;
        if let Ok(to_read) = &to_read {
            for (i, &(n, row)) in rows.iter().enumerate() {
                fds.extend(
                    [to_read.get(i).copied().unwrap_or(&row.file), &row.lease_fd].map(AsFd::as_fd),
                );
                given.push(GivenDevice {
                    row: n,
                    serial: row.serial,
                    facts: row.facts,
                    priority: row.priority,
                });
                // Before it has them: there is no moment at which it has one without this.
                new |= 1 << n & !attached.fetch_or(1 << n, SeqCst);
            }
        }
        if protocol::send(connection, &protocol::devices(number, &given), &fds).is_err() {
            attached.fetch_and(!new, SeqCst);
            // Without descriptors it may go. A member that cannot be told at all asks again, when it is tired of waiting.
            let _ = protocol::send(connection, &protocol::devices(number, &[]), &[]);
        }
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
                Request::Stats => {
                    Ok(serde_json::to_string(&self.stats()).unwrap_or_else(|_| "{}".into()))
                }
                Request::Limit(change) => return self.limit(client, &change),
                Request::On(spec) => return self.switch_on(spec, client),
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

    /// The row of a device that a user names: by its number, or as it was given.
    fn find(&self, text: &str) -> Result<usize, String> {
        let rows = || self.rows.iter().enumerate();
        if let Ok(serial) = text.parse::<u64>() {
            let found = rows().find(|(_, r)| r.as_ref().is_some_and(|r| r.serial == serial));
            return found
                .map(|(n, _)| n)
                .ok_or_else(|| format!("there is no device {serial}: `ebb swap show` lists them"));
        }
        let same = |row: &TreeDevice| row.name == text || same_file(&row.name, text);
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

    /// The processes that hold a device's descriptors.
    pub(super) fn holders(&self, n: usize) -> impl Iterator<Item = SlotNumber> + '_ {
        let taken = self.table.taken().map(|(slot, _)| slot);
        taken.filter(move |slot| self.table.slot(*slot).attached.load(SeqCst) >> n & 1 == 1)
    }

    /// Write errors on a device.
    pub(super) fn errors(&self, n: usize) -> u64 {
        let now = self.table.taken();
        let now = now.map(|(slot, _)| self.table.slot(slot).shares[n].errors.load(SeqCst));
        let past = self.rows[n].as_ref().map_or(0, |row| row.past_errors);
        past + now.map(u64::from).sum::<u64>()
    }

    pub(super) fn given_up_by(&self, n: usize) -> u64 {
        let slots = self.table.taken();
        let out = slots.filter(|(slot, _)| self.table.slot(*slot).shares[n].is_out());
        out.count() as u64
    }

    /// Whether a process finds the file system of a device full.
    fn is_full(&self, n: usize) -> bool {
        let mut slots = self.table.taken();
        slots.any(|(slot, _)| self.table.slot(slot).shares[n].is_full())
    }

    /// Tells the user of devices whose file system is full.
    pub(super) fn warn_of_full_devices(&mut self) {
        let (us, now) = (std::process::id(), Instant::now());
        for n in 0..MAX_DEVICES {
            let is_full = self.rows[n].is_some() && self.is_full(n);
            let Some(row) = &mut self.rows[n] else {
                continue;
            };
            if row.full.saw(is_full, now) {
                let (serial, name) = (row.serial, row.name.clone());
                self.notice(&format!(
                    "the file system of swap device {serial}, {name}, is full: free room there, or `ebb swap on SPEC {us}` adds another; until then pages stay in RAM, and programs may wait or be ended for memory"
                ));
            }
        }
    }

    /// Tells the user of devices that fail, each once when it begins and once when a process
    /// gives it up.
    pub(super) fn warn_of_errors(&mut self) {
        let us = std::process::id();
        for n in 0..MAX_DEVICES {
            let (errors, out) = (self.errors(n), self.given_up_by(n));
            let Some(row) = &mut self.rows[n] else {
                continue;
            };
            let (serial, name) = (row.serial, row.name.clone());
            if out > 0 && !row.warned_given_up {
                (row.warned_given_up, row.warned_errors) = (true, true);
                // A device that is gone fails as a whole, not slot by slot.
                let failed = match errors {
                    0 => "fails".into(),
                    _ => format!("failed to write {errors} times"),
                };
                self.notice(&format!(
                    "swap device {serial}, {name}, {failed} and takes no more pages of {out} processes; what is on it stays readable if the device lets it. Look at the device; `ebb swap on SPEC {us}` adds another, `ebb swap off {serial} {us}` empties this one"
                ));
            } else if errors > 0 && !row.warned_errors {
                row.warned_errors = true;
                self.notice(&format!(
                    "swap device {serial}, {name}, failed to write {errors} times; those slots are used no more and the pages went elsewhere. Look at the device; `ebb swap show {us}` counts the errors"
                ));
            }
        }
    }

    /// A process is gone: what it said of the devices is kept where it counts.
    pub(super) fn forget_shares(&mut self, slot: SlotNumber) {
        self.warn_of_errors();
        let slot = self.table.slot(slot);
        slot.attached.store(0, SeqCst);
        for (row, share) in self.rows.iter_mut().zip(&slot.shares) {
            if let Some(row) = row {
                row.past_errors += u64::from(share.errors.load(SeqCst));
            }
            share.report(ShareReport::default());
        }
    }

    /// Every device, as JSON.
    fn show(&self) -> String {
        serde_json::to_string(&self.devices()).unwrap_or_else(|_| "[]".into())
    }

    /// Every device.
    pub fn devices(&self) -> Vec<DeviceShown> {
        let shown = |(n, row): (usize, &Option<TreeDevice>)| {
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
                state: match () {
                    () if row.removal.is_some() => "leaving",
                    () if self.is_full(n) => "full",
                    () => "on",
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

/// Whether two paths lead to the same file or directory.
fn same_file(a: &str, b: &str) -> bool {
    let a = whole(a);
    a.is_some() && a == whole(b)
}

/// A path without links. A private file has no name any more, but its directory has.
fn whole(path: &str) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    if let Ok(whole) = path.canonicalize() {
        return Some(whole);
    }
    let directory = path.parent()?.canonicalize().ok()?;
    Some(directory.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name_is_found_by_the_path_it_was_given_with() {
        let here = std::env::current_dir().unwrap();
        let at = |name: &str| here.join(name).to_str().unwrap().to_owned();
        assert!(same_file("private", &at("private")));
        assert!(same_file("./src/../private", &at("private")));
        assert!(same_file("src", &at("src/.")), "a directory");
        assert!(!same_file("private", &at("src/private")));
        assert!(!same_file("private", &at("other")));
        assert!(!same_file("no/such", &at("no/such")), "nor any directory");
    }
}
