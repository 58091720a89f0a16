//! Helpers: processes of ours that share a program's memory and serve it.
//!
//! A helper holds the connection, the table and all devices; its program holds nothing of these. It is no
//! process of the tree: its memory is its program's, and is counted there.
//!
//! # Who it serves
//! Its hello brings a pidfd of the program. That the two share one memory, kcmp(2) says; where that may not
//! be asked, that both run one image and are one user's.
//!
//! # When the two have left
//! The helper alone writes to devices, and the program alone to its memory. So leases and charges are
//! released once the helper is dead *and* the program is dead or another program:
//! ```text
//! program dies or execs   the helper sees it and ends; if it has not in its grace, it is killed
//! helper dies             the program is killed, as nobody can bring back what is out; unless the helper has
//!                         said that it exits, or the program is ending anyway
//! ```
//! The second descriptor of the userfaultfd (`orphan_memory`) keeps what is out from reading as zeros meanwhile.
//!
//! # Before it has joined
//! Helpers that have not said hello yet are told by their name, and by a process of the tree that they
//! share their memory with. A name alone says nothing: anybody may have it.

use super::managed_process::Helper;
use super::{ANY_CHILD, Supervisor, Token};
use crate::guard::{GRACE, PROMPT};
use crate::protocol::HelperExit;
use crate::table::{SlotNumber, SlotState};
use ebb_sys::proc::{self, Image, Process};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// How long a helper that has not joined takes to notice that its program has ended.
const NOTICES: Duration = Duration::from_secs(1);

/// The processes of a walk that helpers may belong to, by their programs. They are looked at once a walk, if at all.
#[derive(Default)]
pub(super) struct Programs(OnceCell<HashMap<Image, Vec<u32>>>);

impl Programs {
    /// Processes in the same memory have the same image, and relatives by fork have too.
    fn of_image(&self, image: Image, all: impl Iterator<Item = u32>) -> &[u32] {
        let programs = self.0.get_or_init(|| {
            let mut programs: HashMap<Image, Vec<u32>> = HashMap::new();
            for pid in all {
                let stat = Process::open(pid).and_then(|process| process.stat());
                if let Ok(stat) = stat
                    && !stat.named_helper
                {
                    programs.entry(stat.image).or_default().push(pid);
                }
            }
            programs
        });
        programs.get(&image).map_or(&[], Vec::as_slice)
    }
}

/// Whether a process that has not joined `since` then looks like a helper whose program has ended, and is about to notice.
pub(super) fn may_end(process: &Process, since: Instant) -> bool {
    since.elapsed() < GRACE && process.stat().is_ok_and(|stat| stat.named_helper)
}

impl Supervisor {
    /// Watches a member's helper, if it has one.
    pub(super) fn watch_helper(&mut self, slot: SlotNumber, helper: &Helper) -> Result<(), Errno> {
        self.helpers.insert(helper.pid, slot);
        let token = Token::Helper(slot).pack();
        epoll::add(&self.epoll, &helper.pidfd, token, epoll::EventFlags::IN)
    }

    /// A helper says that it ends.
    pub(super) fn helper_exit(&mut self, slot: SlotNumber, why: HelperExit) {
        if let Some(member) = &mut self.members[slot.index()]
            && let Some(helper) = &mut member.helper
        {
            helper.exit = Some(why);
        }
    }

    /// How long the helper of a slot has to end once its program has.
    pub(super) fn grace(&self, slot: SlotNumber) -> Duration {
        PROMPT + self.table.waits_for_children(slot).unwrap_or_default()
    }

    /// Whether the helper of a slot is given more time, as a child that was not known to be born waits for it.
    fn is_put_off(&mut self, slot: SlotNumber, now: Instant) -> bool {
        let waits = self.table.waits_for_children(slot);
        let member = self.members[slot.index()].as_mut();
        let helper = member.and_then(|member| member.helper.as_mut());
        let (Some(helper), Some(wait)) = (helper, waits) else {
            return false;
        };
        let latest = helper
            .latest
            .filter(|latest| !helper.killed && now < *latest);
        helper.due = latest.map(|latest| latest.min(now + wait)).or(helper.due);
        latest.is_some()
    }

    /// The program of a slot has ended, or become another; true if a helper of it is left, which then
    /// is given its time to end.
    pub(super) fn let_helper_end(&mut self, slot: SlotNumber, grace: Duration) -> bool {
        let Some(member) = &mut self.members[slot.index()] else {
            return false;
        };
        let Some(helper) = member.helper.as_mut().filter(|helper| !helper.ended) else {
            return false;
        };
        if helper.due.is_none() {
            // Readable from now on, and nothing to be done about it.
            let _ = epoll::delete(&self.epoll, &member.pidfd);
        }
        let due = Instant::now() + grace;
        helper.due = Some(helper.due.map_or(due, |old| old.min(due)));
        helper.latest.get_or_insert(Instant::now() + GRACE);
        if grace.is_zero() {
            helper.kill();
        }
        true
    }

    /// Every thread of a helper is gone.
    pub(super) fn helper_ended(&mut self, slot: SlotNumber) {
        // Its last words may still be waiting.
        self.receive_last_of(slot);
        let Some(member) = &mut self.members[slot.index()] else {
            return;
        };
        let Some(helper) = member.helper.as_mut().filter(|helper| !helper.ended) else {
            return;
        };
        if !helper.is_gone() {
            return;
        }
        helper.ended = true;
        // Somebody may have a duplicate of its end, and a process from which this one took over this end.
        if let Some(connection) = member.connection.take() {
            let _ = epoll::delete(&self.epoll, &connection);
        }
        let _ = epoll::delete(&self.epoll, &helper.pidfd);
        // Our child, unless this process carries on for another; or reaped by whoever embeds us.
        let child = Pid::from_raw(helper.pid as i32);
        let _ = rustix::process::waitpid(child, WaitOptions::NOHANG | ANY_CHILD);
        if self.helpers.get(&helper.pid) == Some(&slot) {
            self.helpers.remove(&helper.pid);
        }
        let (exit, name) = (helper.exit, member.process.pid());
        // A program that pages cannot do without its helper.
        let pages = self.table.state(slot).state == SlotState::Paging;
        let exit = exit.filter(|&why| why != HelperExit::Unmanaged || !pages);
        if exit == Some(HelperExit::Unmanaged) {
            self.member_left(slot);
            return;
        }
        if self.check_left(slot) || exit.is_some() {
            return;
        }
        let Some(member) = &self.members[slot.index()] else {
            return;
        };
        let expected = member.process.is_ending();
        let _ = pidfd_send_signal(&member.pidfd, Signal::KILL);
        if !expected {
            self.notice(&format!(
                "{} [{name}] is ended: the process of ours that served its memory is gone, and nobody can \
                 bring back what was swapped out; look for who killed it, or for a lack of memory",
                proc::name(name)
            ));
        }
    }

    /// In a simulation, where no descriptor tells of it: helpers that have ended.
    #[cfg(debug_assertions)]
    pub(super) fn notice_ended_helpers(&mut self) {
        for slot in SlotNumber::all() {
            let member = self.members[slot.index()].as_ref();
            let helper = member.and_then(|member| member.living_helper());
            if helper.is_some_and(|helper| helper.is_gone()) {
                self.helper_ended(slot);
            }
        }
    }

    /// Notices programs that have become others while their helpers live on, and ends helpers that are
    /// left over.
    pub(super) fn check_helpers(&mut self) {
        let now = Instant::now();
        let slots: Vec<SlotNumber> = self.helpers.values().copied().collect();
        for slot in slots {
            let Some(member) = &self.members[slot.index()] else {
                continue;
            };
            let Some(helper) = member.living_helper() else {
                continue;
            };
            if helper.is_due(now) {
                if !self.is_put_off(slot, now) {
                    self.let_helper_end(slot, Duration::ZERO);
                }
            } else if helper.due.is_none() && member.program_is_gone() {
                self.let_helper_end(slot, self.grace(slot));
            }
        }
    }

    /// The member that a user names by its process, or by its helper.
    pub(super) fn member_of(&self, pid: u32) -> Option<SlotNumber> {
        self.by_pid.get(&pid).or(self.helpers.get(&pid)).copied()
    }

    /// Whether `process`, which has not joined, is the helper of another process of the tree, or of those `found` in this
    /// walk.
    pub(super) fn is_helper(&self, process: &Process, found: &[u32], programs: &Programs) -> bool {
        if self.helpers.contains_key(&process.pid()) {
            return true;
        }
        let Ok(stat) = process.stat() else {
            return false;
        };
        if !stat.named_helper || !stat.image.is_some() {
            return false;
        }
        let all = found.iter().chain(self.by_pid.keys()).copied();
        // Where it may not be asked, one image is enough, as for the hello.
        let shares = |&pid: &u32| proc::share_memory(process.pid(), pid).unwrap_or(true);
        programs.of_image(stat.image, all).iter().any(shares)
    }

    /// Ends the helpers of processes that have ended, and waits until they are gone, for at most `limit`.
    /// So nothing of the tree is left when its end is reported.
    ///
    /// # Errors
    /// Those of the event queue; none is expected.
    pub fn wait_for_helpers(
        &mut self,
        limit: Duration,
        mut progress: impl FnMut(usize, Duration),
    ) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let mut slots: Vec<SlotNumber> = self.helpers.values().copied().collect();
            slots.retain(|slot| {
                let member = self.members[slot.index()].as_ref();
                member.is_some_and(|member| proc::has_ended(&member.pidfd))
            });
            for &slot in &slots {
                self.let_helper_end(slot, Duration::ZERO);
            }
            let waited = start.elapsed();
            // Of those that have not joined nothing is known but the name.
            let unknown = || waited < NOTICES && self.has_unjoined_helper();
            if slots.is_empty() && !unknown() || waited >= limit {
                return Ok(());
            }
            progress(slots.len(), waited);
            self.step(Duration::from_millis(2))?;
        }
    }

    /// Whether a child of ours looks like a helper that has not joined: its program may have ended before,
    /// and it is about to notice.
    fn has_unjoined_helper(&self) -> bool {
        let mut found = false;
        let _ = proc::children(std::process::id(), |pid| {
            let stat = Process::open(pid).and_then(|process| process.stat());
            found |= !self.helpers.contains_key(&pid)
                && stat.is_ok_and(|stat| stat.named_helper && !stat.is_dead())
                && !self.measurements.strangers.has(pid).unwrap_or(false);
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With many helpers that have not joined a walk looked at every process for each of them.
    #[test]
    fn programs_are_looked_at_once_a_walk() {
        let pid = std::process::id();
        let image = Process::open(pid).unwrap().stat().unwrap().image;
        let looked = std::cell::Cell::new(0);
        let all = || {
            [pid, 1]
                .into_iter()
                .inspect(|_| looked.set(looked.get() + 1))
        };
        let programs = Programs::default();
        for _ in 0..3 {
            assert_eq!(programs.of_image(image, all()), [pid]);
        }
        assert_eq!(programs.of_image(Image::default(), all()), [0; 0]);
        assert_eq!(looked.get(), 2);
    }
}
