//! Members that leave: by dying, or by becoming another program.
//!
//! # When a process has left
//! - **Death**: its pidfd is readable, which is when every thread of it is gone and no write
//!   of it is in flight any more. The end of its connection alone does not say that: the
//!   thread that held it may die before one that is writing to a device.
//! - **With a helper** (`helpers`): both of them, the one and the other.
//! - **Exec**: the connection has ended, and one of three holds. The process lives on with another program
//!   image (addresses drawn anew). Or nobody uses the memory any more that it paged: a program that may not
//!   be read shows no addresses, and no thread that has let its memory go has a write in flight. Or it has
//!   joined a second time.
//!

use super::Supervisor;
use super::measure::image_of;
use super::pending_children::PendingChild;
use crate::table::{SlotNumber, StateWord};
use ebb_sys::proc::{self, Process};
use rustix::event::epoll;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

impl Supervisor {
    /// Every thread of the process is gone.
    pub(super) fn died(&mut self, slot: SlotNumber) {
        // Its last words may still be waiting.
        self.receive_last_of(slot);
        // Unless that ended it, and another has the slot since.
        if let Some(member) = &self.members[slot.index()]
            && proc::has_ended(&member.pidfd)
        {
            self.own_limits.forget(&member.process);
            if !self.let_helper_end(slot, self.grace(slot)) {
                self.reap(slot);
            }
        }
    }

    /// The connection has ended: has the process become another program, and is its helper gone, if it had
    /// one? If it is only dying, its pidfd will say so. Whether it has left.
    pub(super) fn check_left(&mut self, slot: SlotNumber) -> bool {
        let left = self.members[slot.index()].as_ref().is_some_and(|member| {
            member.connection.is_none()
                && member.living_helper().is_none()
                && member.program_is_gone()
        });
        if left {
            self.member_left(slot);
        }
        left
    }

    /// The member is none any more, and its process may live on: it is measured like any other from now on.
    pub(super) fn member_left(&mut self, slot: SlotNumber) {
        // Known without a walk: this process may not be its ancestor any more.
        if let Some(process) = self.reap(slot)
            && !process.has_ended()
            && !self.by_pid.contains_key(&process.pid())
        {
            let image = image_of(&process);
            self.begin_to_measure(process, image);
        }
        self.measurements.walk_soon();
        self.due = Instant::now();
    }

    /// Takes back all that belongs to a slot, whose process is no more, and frees it. The process, if it was known: it may
    /// have become another program.
    pub(super) fn reap(&mut self, slot: SlotNumber) -> Option<Process> {
        let origin = self.origin(slot);
        let mut left = None;
        if let Some(member) = self.members[slot.index()].take() {
            let pid = member.process.pid();
            // A process from which this one took over may have them too.
            for fd in member.connection.iter().chain([&member.pidfd]) {
                let _ = epoll::delete(&self.epoll, fd);
            }
            if self.by_pid.get(&pid) == Some(&slot) {
                self.by_pid.remove(&pid);
            }
            if let Some(helper) = &member.helper
                && self.helpers.get(&helper.pid) == Some(&slot)
            {
                self.helpers.remove(&helper.pid);
            }
            if let Some(userfaultfd) = member.userfaultfd {
                self.keep_orphan_memory(pid, userfaultfd);
            }
            left = Some(member.process);
        }
        self.pending_children[slot.index()] = None;
        self.used[slot.index()] = true;

        // Children it reserved slots for are on their own now; what we know of them, we
        // know through it. Some may page already, and never have reached us.
        let is_of_it = |word: StateWord| word.parent == Some(slot);
        let reserved: Vec<(SlotNumber, StateWord)> = self
            .table
            .taken()
            .filter(|(_, word)| is_of_it(*word))
            .collect();
        for (child, StateWord { taken, .. }) in reserved {
            let entry = &mut self.pending_children[child.index()];
            if entry.as_ref().is_none_or(|e| e.taken != taken) {
                *entry = Some(PendingChild::of(taken, self.looked, origin));
            }
            self.table.change_state(child, |word| StateWord {
                parent: word.parent.filter(|_| !is_of_it(word)),
                ..word
            });
        }

        for leases in self.each_leases() {
            leases.reap(slot.index());
        }
        self.forget_shares(slot);
        let shared = self.table.slot(slot);
        let family = shared.family.swap(0, SeqCst);
        let credit = shared.credit.load(SeqCst);
        let charged = self.table.clear_charges(None, slot);
        self.lose_credit(family, charged - credit);
        shared.done.store(shared.begun.load(SeqCst), SeqCst);
        shared.coldest.store(0, SeqCst);
        shared.return_time_ns.store(0, SeqCst);
        shared.request.store(0, SeqCst);
        shared.pool.store(0, SeqCst);
        self.table.waiters.0.remove(slot.index());
        self.table.set_state(slot, StateWord::FREE);
        self.drifted = true;
        self.table.wake_waiters();
        self.due = Instant::now();
        left
    }

    /// A member of a family is gone: pages that the others share with it alone are now theirs
    /// to pay for. Which those are is not known until they are measured again, so all of
    /// its uncredited charge is assumed.
    fn lose_credit(&mut self, family: u64, pages: i64) {
        if family == 0 {
            return;
        }
        // How much of that was shared with it alone is not known until then.
        self.table.suspected.store(-1, SeqCst);
        self.table.take_credit(self.family(family), pages);
        // Those that are left may be alone now, and look.
        self.family(family).for_each(|n| self.table.wake(n));
        self.measurements.measure_sharing_soon();
    }
}
