//! Forks: how a child comes to a pager of its own.
//!
//! The child gets a copy-on-write copy of everything: pages, page map, pool. It does not get threads, descriptors,
//! and registration of its ranges. Until those are set up again its swapped pages would read as zeros, so the
//! program's code does not run before.
//!
//! 0. `make_ready` (the forking thread, before any lock): where the tree does not page yet and has
//!    no room for all that the child might copy, it pages first. Copies in processes that do not
//!    page are seen when the supervisor measures them, which may be late. Where it pages, and as
//!    many processes as can be are managed already, the fork waits until one of them ends. After a
//!    while it fails: all of them may be waiting so.
//! 1. `before_fork` (the forking thread): asks the keeper to make the process quiescent. Pages that the budget could
//!    not hold twice are evicted; no page is in transit or staged, as the staging area is not inherited; no thread of
//!    ours is inside the engine. From that eviction to the end of the fork no fault is begun (`transit`). Then takes
//!    the lock and holds it while the system copies the process. Registered ranges are kept from children
//!    (`MADV_DONTFORK`) but for the time of such a fork. A child made by a system call that we do not see gets
//!    SIGSEGV, not zeros.
//! 2. `after_fork_parent`: pages stored on devices at the fork may be read by the child for as long as it likes
//!    (`Swap::fork_parent`). Shared pages cannot be moved until written, and the keeper protects them (`sharing`)
//!    before the forking thread goes on.
//! 3. `after_fork_child`: drops the parent's belongings, starts a helper of its own, and waits for it. The helper's
//!    keeper joins the tree in the slot reserved for it, opens a userfaultfd, and registers every range. If it fails
//!    the child ends: it must not read zeros.

#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::fault::fault_service::FaultService;
use crate::map::page_map::{Page, PageNumber};
use crate::map::ranges::{InChild, Range};
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::state::State;
use crate::process::transit::SHORT;
use ebb_sys::paging::Kernel;
use ebb_tree::ChildSlot;
use std::ops::ControlFlow::Continue;
use std::time::Duration;

/// Resident pages that a child has no copy of, by the program's wish.
fn kept_from_child(state: &State) -> usize {
    let mut pages = 0;
    let kept = |range: &Range| range.attributes.in_child != InChild::default();
    for range in state.ranges.all().filter(kept) {
        let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
        state.pages.map().each(first, end, |_, page| {
            pages += usize::from(matches!(page, Page::Resident(_)));
            Continue(())
        });
    }
    pages
}

/// How long a fork waits for the tree to page: a supervisor that is gone or stopped limits nobody any more.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a fork waits for a place for its child. All who have places may wait so, each for another.
const PATIENCE_FOR_PLACE: Duration = Duration::from_secs(10);
/// How long a child tries to start its helper.
const PATIENCE_OF_CHILD: Duration = Duration::from_secs(5);

impl<K: Kernel> Pager<K> {
    /// In a child of vfork whose parent is dead: nobody could keep what was out from reading as zeros in a copy
    /// of its memory.
    fn end_orphan(&'static self) {
        if self.is_orphaned() {
            self.end(
                None,
                "a child of vfork whose parent has ended forks, and what was swapped out of their memory is \
                 lost: it is ended; end children of vfork before their parent",
            );
        }
    }

    /// A fork is near, and no lock of ours or of the allocator's is held: starting service takes both.
    /// See the module's text. False: there is no place for a child, and the fork is to fail.
    pub fn make_ready(&'static self) -> bool {
        self.end_orphan();
        self.await_paging();
        self.await_place()
    }

    /// Waits until there is a place for a child, if this process pages; whether there is.
    fn await_place(&self) -> bool {
        let begin = self.kernel.now();
        while let Some(process) = self.process()
            && !process.member.has_free_slot()
        {
            if self.kernel.now() - begin > PATIENCE_FOR_PLACE {
                return false;
            }
            self.kernel.sleep(Duration::from_millis(1));
        }
        true
    }

    /// Where the tree does not page, and has no room for what a child might copy, waits until it does.
    fn await_paging(&self) {
        let Some(member) = self.fork.watching() else {
            return;
        };
        let Some(pages) = self.kernel.resident_anonymous_pages() else {
            return;
        };
        if member.fork_fits(pages) || !member.may_request_paging() {
            return;
        }
        member.request_paging();
        let begin = self.kernel.now();
        while self.fork.watching().is_some() && member.may_request_paging() {
            if self.kernel.now() - begin >= PATIENCE {
                return member.waits_in_vain();
            }
            self.kernel.sleep(Duration::from_micros(200));
        }
    }

    /// A fork is near; false if another took the last place for a child since [`make_ready`], and
    /// nothing was done. Requires: unless that, `after_fork_parent` or `after_fork_child` follows on this thread.
    pub unsafe fn before_fork(&'static self) -> bool {
        let unpaged = || {
            let locked = self.lock();
            // It may have been adopted while we waited for the lock.
            self.process().is_none().then_some(locked)
        };
        let (mut locked, slot) = match unpaged() {
            Some(locked) => {
                self.fork.note_before_paging();
                (locked, None)
            }
            None => {
                let process = self.process().expect("once there, it stays");
                match self.lock_quiescent(process) {
                    (locked, Some(slot)) => (locked, Some(slot)),
                    (locked, None) => {
                        drop(locked);
                        self.fork.over(&self.kernel);
                        return false;
                    }
                }
            }
        };
        locked.holders.forks(self.kernel.thread());
        self.inherit(&locked, true);
        // SAFETY: it is the state's lock.
        unsafe { self.hold_in_fork(locked, slot) };
        true
    }

    /// Waits until the process is quiescent; the lock, and the slot for the child if there is one.
    fn lock_quiescent(&'static self, process: &FaultService<K>) -> (Locked, Option<ChildSlot>) {
        while !self.fork.claim() {
            self.end_orphan();
            self.kernel.sleep(Duration::from_micros(100));
        }
        loop {
            self.end_orphan();
            process.member.wake_self();
            if !self.fork.wait_quiescent(&self.kernel) {
                continue;
            }
            if let Some(quiescent) = self.reserve_quiescent(process) {
                return quiescent;
            }
            self.kernel.sleep(SHORT);
        }
    }

    /// The lock, if nothing is in transit or staged, and the slot for the child if there is one.
    pub fn reserve_quiescent(
        &'static self,
        process: &FaultService<K>,
    ) -> Option<(Locked, Option<ChildSlot>)> {
        let mut locked = self.lock();
        let pages = &locked.pages;
        if pages.map().in_transit() > 0 || pages.staged_frames() > 0 {
            return None;
        }
        // The child's charge is a copy of ours and all of it is credited as shared: nothing must be in it
        // that stands for no page.
        let used = process.used(&locked);
        locked.charge.settle(process.member, used, 0);
        // It does not inherit the staging area.
        let alone = locked.pages.staging().unused_frames() + kept_from_child(&locked);
        let slot = process.member.reserve_child(alone as u64);
        Some((locked, slot))
    }

    /// Lets a forked child have what is or was registered, or not. Memory that `mremap` has just moved is registered no
    /// more, but would still be kept from children. Ranges side by side are one call: they may be one mapping, and the
    /// process may have no more of them.
    pub fn inherit(&'static self, locked: &Locked, on: bool) {
        if self.process().is_none() {
            return;
        }
        let advice = if on {
            libc::MADV_DOFORK
        } else {
            libc::MADV_DONTFORK
        };
        let concerned =
            |r: &Range| (on || r.attributes.registered) && !r.attributes.in_child.absent;
        let advise = |(start, end): (usize, usize)| {
            if start < end {
                // Where memory was unmapped without libc the kernel answers with an error, and goes on behind it.
                // SAFETY: advice that changes no content.
                let _ = unsafe { self.kernel.madvise(start, end - start, advice) };
            }
        };
        let mut run = (0, 0);
        for range in locked.ranges.all().filter(concerned) {
            if range.start != run.1 {
                advise(run);
                run.0 = range.start;
            }
            run.1 = range.end;
        }
        advise(run);
    }

    /// The fork is over, in the parent; `child` where it is known. Requires: `before_fork` on this thread.
    pub unsafe fn after_fork_parent(&'static self, child: Option<i32>) {
        // SAFETY: `before_fork` on this thread took the lock, which is inside.
        let Some((mut locked, slot)) = (unsafe { self.take_held() }) else {
            return;
        };
        self.inherit(&locked, false);
        let Some(process) = self.process() else {
            return;
        };
        if let Some(slot) = slot {
            self.share_with(process, &mut locked, slot, child);
        }
        let seen = self.fork.protections();
        drop(locked);
        self.fork.over(&self.kernel);
        self.fork.wait_protected(&self.kernel, seen);
    }

    /// In the parent: pages and pool are shared with a child in this slot from now on; or not, if the fork
    /// failed.
    pub fn share_with(
        &'static self,
        process: &FaultService<K>,
        locked: &mut Locked,
        slot: ChildSlot,
        child: Option<i32>,
    ) {
        process.swap.fork_parent();
        process.swap_space.devices.rotate_keys(false);
        process.swap_space.generations.begin(process.swap);
        process.joins_family();
        self.shared_pages.begin(&mut locked.protection);
        match child {
            Some(pid) if pid > 0 => process.member.child_forked(slot, pid as u32),
            Some(_) => process.member.cancel_child(slot),
            // The supervisor finds out whether there is one.
            None => process.member.child_forked(slot, 0),
        }
    }

    /// The fork is over, in the child: the first of ours or the program's to run there. Requires: `before_fork`
    /// on the thread that forked.
    pub unsafe fn after_fork_child(&'static self) {
        // SAFETY: as above; the child has this thread alone, and its copy of the lock is held by it.
        let held = unsafe { self.take_held() };
        let Some((locked, slot)) = held else {
            return self.reset_without_lock();
        };
        let parent = self.process();
        self.reset_in_child(locked, slot);
        let Some(parent) = parent else {
            if self.lifecycle.had_keeper() {
                self.lifecycle.start_keeper_or_warn(&self.kernel);
            }
            return;
        };
        if let Err(e) = self.lifecycle.start_keeper(&self.kernel, PATIENCE_OF_CHILD) {
            parent.fail(&format!(
                "no thread can be started in a forked child, which cannot be served and is ended: {e}; \
                 raise `ulimit -u`"
            ));
        }
        self.wait_until_served(parent);
    }

    /// In a forked child: waits until its keeper serves it.
    fn wait_until_served(&'static self, parent: &FaultService<K>) {
        while self
            .fork
            .wait_child(&self.kernel, Duration::from_millis(100))
        {
            if !self.kernel.helper_lives() {
                let why = "its helper was killed".into();
                self.fork.child_fails(&self.kernel, why);
            }
        }
        if let Some(why) = self.fork.child_failure() {
            parent.fail(&format!(
                "a forked child cannot be served and is ended: {why}; `ebb doctor` says what is low or missing \
                 here"
            ));
        }
    }
}
