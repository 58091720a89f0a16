//! Pages shared with forked relatives: protected from writes, so that a copy is charged before the
//! kernel makes it.
//!
//! A fork leaves parent and child with the same resident pages; they are charged to both and credited to the family.
//! A write to one gets a copy from the kernel, without a fault of ours unless the page is write-protected. So:
//!
//! 1. Both sides protect every present page before the program's code runs on: in the parent the keeper, for which
//!    the forking thread waits; in the child adoption. Most pages that the budget cannot hold twice were evicted
//!    before. (Waiting to see whether the child calls exec would leave copies uncharged for as long as the keeper
//!    gets no processor.)
//! 2. A write to such a page is a fault. Service charges the copy, making room where there is none,
//!    and lets the page be written; the faulting thread makes the copy. A page that nobody else
//!    maps any more costs nothing.
//! 3. Pages that are made writable (by eviction, which has to own them) or dropped are counted if they were shared:
//!    the charge for them is no longer credited.
//! 4. When no relative is left, the keeper lets everything be written again, in one call a range.
//!
//! Evicting a page that relatives share frees nothing: they keep it, and this process stores it for itself alone. So
//! eviction passes such pages over; what the budget could not hold twice has left before the fork, stored once for
//! all. Shared pages leave only where a fault waits for room that nobody has, and there is a device. A page is free
//! when all relatives have given it up. Held pages are not taken before that: else a process that has little else
//! would have its few pages go round, and wait for nothing (`attempts`). Without a device each would keep it in its
//! pool, which takes more than it makes.
//!
//! Some copies are made without a fault: of pages that a fault made writable beside the touched one, which are
//! charged; and of memory that is never protected, the pool and the tables of this library. Those the supervisor
//! notices, by minor faults.
//!
//! Threads of the program have another descriptor table than ours (`ebb_sys::thread`): by our numbers
//! they would reach descriptors of the program. So what they do here takes a thread of ours (1: the
//! keeper), or is left to the supervisor (3).
//!
//! Protection is a bit of the page's mapping. It goes where the mapping goes (DONTNEED, munmap,
//! a move by UFFDIO_MOVE or mremap, the copy that fork makes of it), and mprotect keeps it.

use crate::eviction::reclaimer::Reclaimer;
use crate::map::mask::{ones, runs};
use crate::map::page_map::{Mask, Page, PageNumber};
use crate::map::ranges::Range;
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow;
use std::time::Duration;

/// Units that are evicted at a time although relatives share pages of them.
const COPY_UNITS: u32 = 64;
/// How long a fault waits for room before that.
const COPY_AFTER: Duration = Duration::from_millis(20);

impl<K: Kernel> Reclaimer<K> {
    /// A fault has waited for room for so long: lets shared pages be evicted, once each time
    /// [`COPY_AFTER`] has passed; `rounds` is how often it was. How often that makes.
    pub fn evict_shared(&self, waited: Duration, rounds: u32) -> u32 {
        if self.shared_may_leave() && waited >= COPY_AFTER * (rounds + 1) {
            self.lock().protection.allow_copies(COPY_UNITS);
            return rounds + 1;
        }
        rounds
    }

    /// Whether pages that relatives share may be evicted: where there is a device.
    pub fn shared_may_leave(&self) -> bool {
        let device =
            || self.swap_space.devices.stays(self.member) && self.swap_space.may_write(self.member);
        self.is_family() && device()
    }

    /// In the keeper of a parent that has just forked: protects what is shared now.
    pub fn protect_shared(&self, state: &mut State) {
        if !state.protection.is_alone() {
            for range in registered(state).filter(|r| r.attributes.is_protected()) {
                self.protect(range.start, range.end - range.start);
            }
        }
    }

    /// In the keeper: protects what was pinned, which is written without a fault.
    pub fn protect_unpinned(&self, state: &State, (start, end): (usize, usize)) {
        if !state.protection.is_alone() {
            let unpinned = |r: &Range| r.attributes.registered && r.attributes.is_protected();
            for range in state.ranges.within(start, end).filter(unpinned) {
                self.protect(range.start, range.end - range.start);
            }
        }
    }

    /// In the keeper: ends protection when no relative is left.
    pub fn end_protection(&self, state: &mut State) {
        if state.protection.is_alone() {
            return;
        }
        self.settle_given_back(state);
        if !self.member.has_relatives() {
            self.base.shared_pages.end();
            self.swap.alone();
            let all: Vec<_> = registered(state).collect();
            for range in all {
                self.lift_protection(state, range.start, range.end - range.start);
            }
            state.protection.end();
            state.pages.readmit(usize::MAX);
        }
    }

    /// Gives back the credit for what the engine gave back and relatives kept.
    pub fn settle_given_back(&self, state: &mut State) {
        let (pages, since) = self.base.shared_pages.take_given_back();
        if pages > 0 {
            state.charge.unshare(pages, since);
        }
    }

    /// Makes pages from `start` on writable and nobody else's: as many of the first `pages` as are there without a
    /// gap, and ours. Unless `shared` ones may be copied, none that another process maps. How many could be written
    /// meanwhile, and how many of them were copied.
    ///
    /// The program may drop pages without libc, and the system those that it freed (MADV_FREE), just after the look. A
    /// thread of ours that waited for one would wait for itself, with the lock held.
    pub fn own(&self, start: usize, pages: usize, shared: bool) -> (usize, usize) {
        let mapped = self.look(start, pages);
        let good: Mask = mapped.present & if shared { !0 } else { !mapped.shared };
        // A page that is protected would not be written.
        let run = self.unprotect_run(start, (good.trailing_ones() as usize).min(pages));
        let address = |i: usize| start + i * PAGE_SIZE;
        let is_own = |i: &usize| self.kernel.own_page(address(*i));
        let own = (0..run).filter(is_own).fold(0, |mask, i| mask | ones(i, 1));
        self.counters().unshared.add(own.count_ones().into());
        // A copy of what relatives still have is charged before it is made.
        for (first, len) in runs(mapped.protected & ones(0, run) & !own) {
            self.protect(address(first), len * PAGE_SIZE);
        }
        let copied = match mapped.shared & ones(0, run) {
            0 => 0,
            shared => {
                let now = self.look(start, run);
                shared & now.present & !now.shared
            }
        };
        (run, copied.count_ones() as usize)
    }

    /// Pages of `start..end` are about to be dropped: those that relatives keep are theirs alone.
    pub fn before_drop(&self, state: &mut State, start: usize, end: usize) {
        if state.protection.is_alone() {
            return;
        }
        if !self.kernel.is_own_thread() {
            // It has another descriptor table, in which nothing of ours may appear, and perhaps a filter of system
            // calls: the supervisor is to find out.
            let mut pages = 0;
            state
                .pages
                .map()
                .each(PageNumber::of(start), PageNumber::of(end), |_, page| {
                    pages += i64::from(matches!(page, Page::Resident(_)));
                    ControlFlow::Continue(())
                });
            state.charge.doubt(pages);
            return;
        }
        let registered = |r: &Range| r.attributes.registered;
        let rollups = self.member.rollups();
        let pages: usize = state
            .ranges
            .within(start, end)
            .filter(registered)
            .map(|range| self.kernel.shared(range.start, range.end))
            .sum();
        state.charge.unshare(pages as i64, rollups);
    }
}

/// Memory that is registered.
fn registered(state: &State) -> impl Iterator<Item = Range> + '_ {
    state.ranges.all().filter(|r| r.attributes.registered)
}
