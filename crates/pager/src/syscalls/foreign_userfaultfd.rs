//! Memory that the program has a userfaultfd of its own for: a mapping can be registered with one alone, so
//! ours lets it go. And memory that it writes through `/proc/self/mem`, where the kernel does not wait for us.
//!
//! 1. The calling thread is about to do so. It has all pages stay, and brings in those that are out, one
//!    by one, on its own stack. Pages that nobody has touched stay missing: their faults are the program's.
//! 2. The keeper, which has the descriptor, ends our registration and forgets the range ([`FaultService::release_to_program`]).
//!    It stays in memory from then on, and counts as memory that is not managed does.
//!
//! Memory that may not be read (PROT_NONE) and has pages elsewhere is not let go: registering it fails with EBUSY.
//!
//! A copy of a file stays managed, so that pages which the program drops are the file's again (`file_copy`). All of it stays
//! in memory, and it is registered anew, so that no write waits.
//!
//! The range is not taken back when the program ends its registration. And nothing tells whether the descriptor
//! is of this process: if the addresses are another's, the same addresses here are let go for nothing.

use crate::map::page_map::{Page, PageNumber};
use crate::map::ranges::Range;
use crate::pager::Pager;
use crate::process::outcome::Outcome;
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

impl<K: Kernel> Pager<K> {
    /// The program wants `len` bytes from `start` on for itself. A line says so where that `is_reported`.
    pub fn release_to_program(&'static self, start: usize, len: usize, is_reported: bool) {
        let end = start.saturating_add(page_up(len));
        if !self.wanted() || self.is_child() || !start.is_multiple_of(PAGE_SIZE) {
            return;
        }
        if self
            .kernel
            .on_own_stack(move || self.keep_resident(start, end, is_reported))
            != Ok(true)
        {
            return;
        }
        let mut at = start;
        while let Some(page) = self.kernel.on_own_stack(move || self.first_out(at, end)) {
            // SAFETY: populating changes no content. A page that is lost, or unmapped by now, stays so.
            let _ = unsafe {
                self.kernel
                    .madvise(page, PAGE_SIZE, libc::MADV_POPULATE_READ)
            };
            at = page + PAGE_SIZE;
        }
        // The program may have taken the right to read it meanwhile.
        let all_in = self.kernel.on_own_stack(move || {
            let mut state = self.lock();
            let all_in = !is_out(&state, (start, end));
            if all_in {
                state.ranges.change(start, end, |a| a.released = true);
            }
            all_in
        });
        if !all_in {
            return;
        }
        while let Some(process) = self.process() {
            let seen = self.registration.rounds();
            // Not what another thread maps in between meanwhile.
            let is_left = move || {
                let state = self.lock();
                let mut left = state.ranges.within(start, end);
                left.any(|range| range.attributes.released)
            };
            if !self.kernel.on_own_stack(is_left) {
                return;
            }
            process.member.wake_self();
            self.registration.wait_round(&self.kernel, seen);
        }
    }

    /// The first part of an area that is managed as a whole, or not at all: where it ends, and whether it is. None in a
    /// child that shares this memory: it takes no lock of ours.
    pub fn managed_part(&'static self, start: usize, end: usize) -> Option<(usize, bool)> {
        let part = move || self.lock().ranges.part(start, end);
        (!self.is_child()).then(|| self.kernel.on_own_stack(part))
    }

    /// Nothing of it leaves from now on. True if more has to be done: the process pages.
    fn keep_resident(&'static self, start: usize, end: usize, is_reported: bool) -> Outcome<bool> {
        let mut state = self.settled(self.lock(), start, end)?;
        let is_copy = |range: &Range| range.attributes.shadow.is_some();
        let managed = || state.ranges.within(start, end);
        let goes: usize = managed()
            .filter(|range| !is_copy(range))
            .map(|range| range.end - range.start)
            .sum();
        // The kernel brings in no page that may not be read. Such memory stays ours, and the program's call fails.
        let stays = |range: Range| {
            let hidden = range.attributes.protection & libc::PROT_READ == 0;
            hidden && is_out(&state, (range.start, range.end))
        };
        if managed().next().is_none() || managed().any(stays) {
            return Ok(false);
        }
        if is_reported {
            self.registration.release(goes);
        }
        state
            .ranges
            .change(start, end, |a| a.pinned.for_good = true);
        let pages = self.process().is_some();
        let mut at = start;
        while !pages && let Some(range) = state.ranges.next(at, end) {
            if !is_copy(&range) {
                self.forget(&mut state, range.start, range.end);
            }
            at = range.end;
        }
        Ok(pages)
    }

    /// The first page from `start` on that is somewhere else.
    fn first_out(&'static self, start: usize, end: usize) -> Option<usize> {
        let state = self.settled(self.lock(), start, end).ok()?;
        let mut out = None;
        state.pages.map().each(
            PageNumber::of(start),
            PageNumber::of(end),
            |number, page| {
                if matches!(page, Page::Resident(_) | Page::Poisoned) {
                    return Continue(());
                }
                out = Some(number.address());
                Break(())
            },
        );
        out
    }
}

/// Whether a page of an area is somewhere else.
fn is_out(state: &State, (start, end): (usize, usize)) -> bool {
    let mut out = false;
    let (start, end) = (PageNumber::of(start), PageNumber::of(end));
    state.pages.map().each(start, end, |_, page| {
        out = !matches!(page, Page::Untouched | Page::Resident(_) | Page::Poisoned);
        if out { Break(()) } else { Continue(()) }
    });
    out
}
