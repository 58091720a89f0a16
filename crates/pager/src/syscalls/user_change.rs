//! A process that becomes another user, and what it keeps of the tree's.
//!
//! A worker that gives up root must not be a way to what root has, whoever takes it over. It has a copy of its
//! parent's memory, and the keys to its pages on devices. It has no key to the data that others wrote, or write later
//! (`ebb_stores::keyring`). But a descriptor that writes a swap file writes anywhere in it. So descriptors that only
//! read take its place, before the program's code goes on as the new user.
//!
//! # Protocol
//! The program's thread, before a change by which it may give up root, if the process does not page yet: it starts a
//! keeper, and waits. The keeper joins the tree and opens the descriptors of memory, as only root may do. So a server
//! that begins as root and goes on as another user pages like any other.
//!
//! The program's thread, after the change: makes a change of [`UserChanges`](crate::process::user_changes::UserChanges) and waits until the keeper, whose
//! descriptors they are, has followed it. The keeper asks the supervisor for the devices again, which judges
//! by the process's real, effective and saved users ([`Member`]'s `attach`). A process that can become the tree's
//! user again gets the former ones. A process that does not get them is ended, but where there is no supervisor.
//!
//! Not done: taking away memory that the process has, table and leases of the tree among it. With those it can hold
//! up the tree, and have pages of others lost, but neither read nor change any.

use crate::fault::fault_service::FaultService;
use crate::pager::Pager;
use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::time::Duration;

/// How long a change of user waits for the keeper's descriptors.
const DESCRIPTORS: Duration = Duration::from_secs(2);

impl<K: Kernel> Pager<K> {
    /// The calling thread is about to change its user or groups.
    pub fn prepare_user_change(&'static self) {
        let pages = self.process().is_some();
        if pages || !self.wanted() || !self.kernel.has_user(0) {
            return;
        }
        self.start_first_keeper();
        if self.lifecycle.had_keeper() {
            self.lifecycle
                .wait_for_descriptors(&self.kernel, DESCRIPTORS);
        }
    }

    /// The calling thread is another user by now, as are all others.
    pub fn user_gave_up(&'static self) {
        let Some(process) = self.process() else {
            // If it is just being taken under management, the keeper looks first thing after that.
            self.user_changes.make();
            return;
        };
        if self.kernel.has_user(process.member.user()) {
            return;
        }
        let change = self.user_changes.make();
        let wake = || process.member.wake_self();
        while !self.user_changes.wait_followed(&self.kernel, change, wake) {}
    }

    /// In the keeper of a process that pages.
    pub fn follow_user_change(&'static self, process: &FaultService<K>) {
        let Some(change) = self.user_changes.pending() else {
            return;
        };
        let member: &Member = process.member;
        match process.swap_space.devices.change_user(member) {
            // The program waits, and the keeper looks again in its next turn.
            Ok(false) => return,
            Ok(true) => {}
            // Without a supervisor nobody gives others; it goes on with what it has, as the tree does.
            Err(_) if !member.supervised() => {}
            Err(why) => process.fail(&format!(
                "the process became another user and cannot give back the swap devices, so it is ended: {why}; \
                 start `ebb run` as that user, or with --swap none"
            )),
        }
        self.user_changes.follow(&self.kernel, change);
    }
}
