//! Pages that are not there when `mremap` moves their memory, and what is known of all: both are taken along.
//!
//! Staged pages are written to the new place. Memory that may not be written is opened for that, and protected again.
//! Not every process may do so: after PR_SET_MDWE, or under a filter, memory that was written never becomes code. So
//! the system is asked before anything moves, by a page that nobody knows of. If it refuses, the staged pages are brought
//! in by the program's thread, without the lock, and the call begins again. Where they cannot be, it is refused (ENOMEM).

use crate::map::page_map::{Page, PageNumber};
use crate::map::ranges::Range;
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, RETRY};
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Whether memory has to be opened before a page of it can be written.
fn is_sealed(protection: i32) -> bool {
    protection & libc::PROT_WRITE == 0
}

/// The first staged page of an area.
fn first_staged(state: &State, start: usize, end: usize) -> Option<usize> {
    let mut staged = None;
    let (first, last) = (PageNumber::of(start), PageNumber::of(end));
    state.pages.map().each(first, last, |number, page| {
        if !matches!(page, Page::Staged(_)) {
            return Continue(());
        }
        staged = Some(number.address());
        Break(())
    });
    staged
}

impl<K: Kernel> Pager<K> {
    /// The first staged page of an area that cannot be written to another place, and the memory that it is of.
    fn first_stuck(&self, state: &State, start: usize, end: usize) -> Option<(usize, Range)> {
        let sealed = |range: &Range| is_sealed(range.attributes.protection);
        let mut pages = state.ranges.within(start, end).filter(sealed);
        pages.find_map(|range| {
            let page = first_staged(state, range.start, range.end)?;
            (!self.closes_again(range.attributes.protection)).then_some((page, range))
        })
    }

    /// Whether memory that was open for writing may be protected so.
    fn closes_again(&self, protection: i32) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a page of which nobody knows, here and below.
        let Ok(page) = (unsafe { self.kernel.mmap(0, PAGE_SIZE, PLAIN, flags, -1, 0) }) else {
            return false;
        };
        // SAFETY: as above.
        let closes = unsafe { self.kernel.mprotect(page, PAGE_SIZE, protection) }.is_ok();
        // SAFETY: as above.
        let _ = unsafe { self.kernel.munmap(page, PAGE_SIZE) };
        closes
    }

    /// Why an area is not moved now, if it is not: [`RETRY`] if its staged pages can be brought in before.
    pub(super) fn refuses_carry(&self, state: &State, (start, end): (usize, usize)) -> Option<i32> {
        let (_, range) = self.first_stuck(state, start, end)?;
        let is_hidden = range.attributes.protection & libc::PROT_READ == 0;
        Some(match is_hidden || self.kernel.is_own_thread() {
            true => libc::ENOMEM,
            false => RETRY,
        })
    }

    /// Brings in the staged pages of an area that could not be moved.
    ///
    /// # Errors
    /// ENOMEM: there is one that cannot be brought in.
    pub(super) fn bring_in_stuck(&'static self, start: usize, end: usize) -> Outcome<()> {
        let stuck = move || {
            self.first_stuck(&self.lock(), start, end)
                .map(|(page, _)| page)
        };
        while let Some(page) = self.kernel.on_own_stack(stuck) {
            // SAFETY: populating changes no content.
            let populated = unsafe {
                self.kernel
                    .madvise(page, PAGE_SIZE, libc::MADV_POPULATE_READ)
            };
            populated.map_err(|_| libc::ENOMEM)?;
        }
        Ok(())
    }

    /// The pages of a range are at `to..` now, and so is what is known of them.
    pub(super) fn carry(&'static self, state: &mut Locked, piece: Range, to: usize) {
        let (old, new, len) = (piece.start, to, piece.end - piece.start);
        let protection = piece.attributes.protection;
        let keyed = piece.attributes.pinned.keyed;
        let (mut at, end) = (PageNumber::of(old), PageNumber::of(old + len));
        let swap = self.process().map(|p| p.swap_here());
        let mut opened = false;
        loop {
            let mut next = None;
            state.pages.map().each(at, end, |number, page| {
                next = Some((number, page));
                Break(())
            });
            let Some((number, page)) = next else { break };
            at = number.plus(1);
            let to = PageNumber::of(new + (number.address() - old));
            if matches!(page, Page::Staged(_)) {
                // Nobody knows of the new place yet, but for who named it.
                opened = opened || is_sealed(protection) && self.protect_moved(new, len, PLAIN);
                let from = state.pages.frame_address(number) as *const ebb_engine::PageBytes;
                // SAFETY: the frame is present. The new place is mapped, may be written, is registered
                // nowhere yet and known to nobody but this call.
                unsafe { self.kernel.write_memory(to.address(), &*from, keyed) };
            }
            if let Some(entry) = state.pages.carry(number, to) {
                let (swap, cpu) = swap.expect("a process that pages has a swap space");
                swap.free(cpu, entry, 1);
            }
        }
        if opened {
            self.protect_moved(new, len, protection);
        }
    }

    /// Protects memory that has just been moved; true, as nothing else can be done.
    fn protect_moved(&'static self, start: usize, len: usize, protection: i32) -> bool {
        // SAFETY: the program's memory, which it does not use before the call that moves it returns.
        if let Err(error) = unsafe { self.kernel.mprotect(start, len, protection) }
            && let Some(process) = self.process()
        {
            process.fail(&format!(
                "memory that was moved to {start:#x} cannot be protected: {error}"
            ));
        }
        true
    }
}
