//! Removing a device while the tree runs.
//!
//! ```text
//! On ──off──▶ Asked ──there is room──▶ Leaving ──nobody owns, reads or holds it──▶ free
//!    ◀──no room, or who asked is gone──┘
//!    ◀──no room after all, cannot be read, or who asked is gone──┘
//! ```
//! Each process moves what is its own. So first each process says how much it wants beyond its own clusters
//! on other devices and its own memory. The sum is compared with the clusters that nobody has or reads. A removal
//! for which there is no room leaves everything where it is. While a device is leaving its leases are
//! closed, so nobody comes to own more of it. Every member moves its pages away, and says how much is left
//! and why, if it cannot. Others may have taken the room since, or pages compress less than was thought.
//! Pages moved before a removal is taken back stay where they went, and the command that asked is told of
//! it.

use super::clients::{answer, progress, watch_client};
use super::{Supervisor, Token};
use crate::MAX_DEVICES;
use crate::protocol::Reply;
use crate::table::{Answer, DeviceState};
use ebb_engine::CLUSTER_SLOTS;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How often a removal is looked at.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How often whoever asked for a removal hears how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// After one member has said that it has no room: time for the others to say what they lack.
const ANSWER_TIME: Duration = Duration::from_millis(300);

/// A removal under way.
pub(super) struct Removal {
    /// The command that asked for it.
    pub client: OwnedFd,
    pub reported: Instant,
    /// The change of the devices that members answer.
    pub change: u64,
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
        /// The time when the first of them said that it cannot move everything.
        refused: Option<Instant>,
    },
}

impl Supervisor {
    /// Begins the removal of a device, for a command that waits for it.
    pub(super) fn switch_off(&mut self, n: usize, client: OwnedFd) {
        let Some(row) = &mut self.rows[n] else { return };
        if row.removal.is_some() {
            let why = format!(
                "device {} is being removed already: wait for that, or interrupt it",
                row.serial
            );
            return answer(&client, Reply::Failed(why));
        }
        let token = Token::Client(n as u32).pack();
        if !watch_client(&self.epoll, &client, token) {
            return;
        }
        self.table.devices[n].set_state(row.serial, DeviceState::Asked);
        row.removal = Some(Removal {
            client,
            reported: Instant::now(),
            change: self.table.devices_changed(),
            stage: Stage::Asked,
        });
        self.due = Instant::now();
    }

    /// There is room for what is on a device: it is left.
    fn start_moving(&mut self, n: usize, had: u64) {
        let Some(row) = &mut self.rows[n] else { return };
        let Some(removal) = &mut row.removal else {
            return;
        };
        row.leases.close();
        self.table.devices[n].set_state(row.serial, DeviceState::Leaving);
        removal.change = self.table.devices_changed();
        removal.stage = Stage::Moving { had, refused: None };
        self.due = Instant::now();
    }

    /// Pages of each device but one that stays, which nobody has set aside.
    fn free_on_others(&self, n: usize) -> [u64; MAX_DEVICES] {
        std::array::from_fn(|other| match &self.rows[other] {
            Some(row) if other != n && row.removal.is_none() => row.free_pages(),
            _ => 0,
        })
    }

    /// Pages on a device that would find no place if everybody left it. None: a process has not said yet
    /// how much it wants, or pages of another device are on their way to the same room.
    fn missing_pages(&self, n: usize, change: u64) -> Option<u64> {
        let leaving = self
            .rows
            .iter()
            .flatten()
            .filter_map(|row| row.removal.as_ref());
        if leaving
            .into_iter()
            .any(|l| matches!(l.stage, Stage::Moving { .. }))
        {
            return None;
        }
        let free = self.free_on_others(n);
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

    /// The command that asked for a removal has spoken, or is gone: then the removal is taken back.
    pub(super) fn on_removal_client(&mut self, n: u32) {
        let Some(Some(row)) = self.rows.get_mut(n as usize) else {
            return;
        };
        let Some(removal) = &row.removal else { return };
        match net::recv(&removal.client, &mut [0; 64], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.cancel_removal(n as usize),
            Ok(_) => {}
        }
    }

    /// A removal is taken back; the client, to be told why.
    fn cancel_removal(&mut self, n: usize) {
        let Some(row) = &mut self.rows[n] else { return };
        if let Some(removal) = row.removal.take() {
            let _ = epoll::delete(&self.epoll, &removal.client);
        }
        row.leases.reopen();
        self.table.devices[n].set_state(row.serial, DeviceState::On);
        self.table.devices_changed();
    }

    /// Looks how far removals are.
    pub(super) fn check_removals(&mut self) {
        for n in 0..MAX_DEVICES {
            if self.is_leaving(n) {
                self.check_removal(n);
            }
        }
    }

    fn is_leaving(&self, n: usize) -> bool {
        self.rows[n].as_ref().is_some_and(|r| r.removal.is_some())
    }

    pub(super) fn has_removals(&self) -> bool {
        (0..MAX_DEVICES).any(|n| self.is_leaving(n))
    }

    fn check_removal(&mut self, n: usize) {
        let holders = self.holders(n).count();
        let shares = || {
            let slots = self.table.taken();
            slots.map(|(slot, _)| &self.table.slot(slot).shares[n])
        };
        let left: u64 = shares().map(|s| u64::from(s.used.load(SeqCst))).sum();
        let Some(row) = &self.rows[n] else { return };
        let Some(removal) = &row.removal else { return };
        match removal.stage {
            Stage::Asked => match self.missing_pages(n, removal.change) {
                Some(0) => self.start_moving(n, left),
                Some(missing) => self.refuse(n, &no_room(missing), 0),
                None => self.report(n, format!("{holders} processes are asked")),
            },
            Stage::Moving { .. } if holders == 0 && row.leases.is_idle() => self.drop_device(n),
            Stage::Moving { had, refused } => {
                let answers: Vec<Answer> = shares()
                    .filter_map(|s| s.answer_to(removal.change))
                    .collect();
                if answers.is_empty() {
                    // Others may have put pages there since the first look.
                    let all = had.max(left);
                    return self.report(n, moved(all - left, all));
                }
                let since = refused.unwrap_or_else(Instant::now);
                if since.elapsed() < ANSWER_TIME {
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
                        let free: u64 = self.free_on_others(n).iter().sum();
                        no_room(lacking.max(left.saturating_sub(free)))
                    }
                };
                self.refuse(n, &why, had.saturating_sub(left));
            }
        }
    }

    fn set_stage(&mut self, n: usize, stage: Stage) {
        if let Some(removal) = self.rows[n].as_mut().and_then(|row| row.removal.as_mut()) {
            removal.stage = stage;
        }
    }

    /// Tells who asked for a removal how far it is, now and then.
    fn report(&mut self, n: usize, text: String) {
        if let Some(removal) = self.rows[n].as_mut().and_then(|row| row.removal.as_mut())
            && removal.reported.elapsed() > REPORT_INTERVAL
        {
            removal.reported = Instant::now();
            progress(&removal.client, text);
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
        if let Some(removal) = &row.removal {
            answer(&removal.client, Reply::Failed(text));
        }
        self.cancel_removal(n);
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
            // As they were before: nobody who still has them may own more.
            row.leases.close();
        }
        self.table.devices[n].clear();
        self.table.devices_changed();
        let text = format!(
            "device {}, {}, is not in use any more",
            row.serial, row.name
        );
        let removal = row.removal.take();
        // Closed before anybody hears that it is.
        drop(row);
        if let Some(removal) = removal {
            let _ = epoll::delete(&self.epoll, &removal.client);
            answer(&removal.client, Reply::Done(text));
        }
    }
}

/// Of so many pages, both in the unit of the larger.
fn moved(pages: u64, all: u64) -> String {
    let (unit, name) = match all {
        0..262_144 => (256.0, "MiB"),
        _ => (262_144.0, "GiB"),
    };
    format!(
        "moved {:.1} of {:.1} {name}",
        pages as f64 / unit,
        all as f64 / unit
    )
}

#[cfg(test)]
#[test]
fn progress_has_one_unit() {
    assert_eq!(moved(0, 1), "moved 0.0 of 0.0 MiB");
    assert_eq!(moved(12_800, 25_600), "moved 50.0 of 100.0 MiB");
    assert_eq!(moved(314_573, 891_290), "moved 1.2 of 3.4 GiB");
}

fn no_room(missing: u64) -> String {
    format!(
        "the other swap devices and the pool lack room for {missing} pages ({} MiB); add a device first, or let the programs free memory",
        missing.div_ceil(256)
    )
}
