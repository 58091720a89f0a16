//! Memory under the pager: ranges that the program maps or moves are registered with the system, and
//! which of their pages are there is learnt from it.
//!
//! A hole that the program made without libc may hold memory of ours by now, which is never registered: a thread of
//! ours would wait for itself to serve its fault (`ebb_sys::own`).
//!
//! The ranges themselves are noted by the hooks (`ranges`, `mmap`); nothing is evicted here.

use crate::fault::fault_service::FaultService;
use crate::map::page_map::{Page, PageNumber, UNIT};
use crate::map::ranges::Range;
use crate::process::base::Base;
use crate::process::state::State;
use crate::reclaim::attempts::Waiter;
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

/// What became of a range that was to be registered.
enum Registered {
    Whole,
    /// None of it is ours.
    Nothing,
    /// Part of it was taken off the list; the pieces that are left are still to be registered.
    Pieces,
}

impl<K: Kernel> FaultService<K> {
    /// Whether faults on a page of which no call told are ours: memory was extended by an instruction of the program's.
    /// Not, if the program has it registered with a userfaultfd of its own by now.
    pub fn serves(&self, page: PageNumber) -> bool {
        // Of memory that is registered so already this changes nothing; that of another descriptor is refused.
        self.is_ours(page.address()) && self.kernel.register(page.address(), PAGE_SIZE).is_ok()
    }

    /// Registers what was mapped or moved since the last time, and says so to who waits for that.
    pub fn register_new(&self) {
        self.base.registration.answers();
        let mut state = self.lock();
        let any = state.ranges.any_unsettled();
        if any {
            self.release_to_program(&mut state);
            self.register_all(&mut state);
        }
        let early = state.parked.take_early();
        if any {
            self.base.registration.end_round(self.kernel);
        }
        drop(state);
        for fault in early {
            self.wake_unserved(Waiter::of(&fault));
        }
    }

    /// Registers every range that is not, and learns which of its pages are present.
    pub fn register_all(&self, state: &mut State) {
        self.base.registration.begin_round();
        let mut at = 0;
        while let Some(range) = state.ranges.next_where(at, |a| !a.registered) {
            at = range.end;
            match self.register_range(state, &range) {
                Registered::Whole => self.learn_present(state, &range),
                Registered::Nothing => {}
                Registered::Pieces => at = range.start,
            }
        }
    }

    /// Registers one, or takes it off the list.
    fn register_range(&self, state: &mut State, range: &Range) -> Registered {
        let (start, len) = (range.start, range.end - range.start);
        // SAFETY: advice that changes no content.
        let advise = |advice| unsafe { self.kernel.madvise(start, len, advice) };
        let registered = self.kernel.apart_from_own(range.start..range.end, || {
            // Huge pages would be filled behind our back, and pages that the kernel merges lose their protection.
            let _ = advise(libc::MADV_NOHUGEPAGE);
            let _ = advise(libc::MADV_UNMERGEABLE);
            let registered = self.kernel.register(start, len);
            if registered.is_ok() {
                // A child of a system call that we do not see has no such memory, rather than zeros for pages
                // that are out.
                let _ = advise(libc::MADV_DONTFORK);
            }
            registered
        });
        let registered = match registered {
            Ok(registered) => registered,
            Err(ours) => {
                self.forget_unmapped(state, ours.start, ours.end);
                return Registered::Pieces;
            }
        };
        if registered == Err(Errno(libc::EINVAL))
            && self.forget_foreign(state, range.start, range.end)
        {
            return Registered::Pieces;
        }
        if let Err(error) = registered {
            // The system refuses it, and not because it is another range. That is harmless unless some of it is
            // swapped out, which would now read as zeros.
            if self.is_lost(state, range) {
                self.fail(&format!(
                    "memory at {:#x}..{:#x} cannot be registered again ({error}), and part of it is \
                     swapped out; raise vm.max_map_count if that is low",
                    range.start, range.end
                ));
            }
            // Part of it may be registered. Nobody would serve its faults. All of it may be another userfaultfd's.
            if error != Errno(libc::EBUSY) {
                let _ = self.kernel.unregister(start, len);
            }
            self.let_go(state, range);
            return Registered::Nothing;
        }
        self.base.join_again(start, len);
        if !state.protection.is_alone() {
            // New, or moved by mremap, which leaves the protection behind.
            match range.attributes.is_protected() {
                true => {
                    self.protect(start, len);
                    self.give_up_written(state, range.start, range.end);
                }
                false => {
                    let pages = &mut state.pages;
                    pages.drop_copies(self.swap, self.cpu(), range.start, range.end);
                }
            }
        }
        state
            .ranges
            .change(range.start, range.end, |a| a.registered = true);
        // Nothing of it could leave until now, and units whose turn it was meanwhile left the queue.
        let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
        state.pages.requeue_resident(first, end);
        Registered::Whole
    }

    /// Takes pages that cannot be registered off the list: the program unmapped them, or mapped something else
    /// there, without libc. Whether there were any.
    fn forget_foreign(&self, state: &mut State, start: usize, end: usize) -> bool {
        if self.kernel.register(start, end - start) != Err(Errno(libc::EINVAL)) {
            return false;
        }
        if end - start > PAGE_SIZE {
            let middle = start + (end - start) / PAGE_SIZE / 2 * PAGE_SIZE;
            let first = self.forget_foreign(state, start, middle);
            return self.forget_foreign(state, middle, end) || first;
        }
        self.forget_unmapped(state, start, end);
        true
    }

    /// Takes pages off the list that are the program's no more: it unmapped them without libc.
    fn forget_unmapped(&self, state: &mut State, start: usize, end: usize) {
        state.pages.forget(Some(self.swap_here()), start, end);
        state.pages.give_back_tables();
        self.leave_to_program(state, start, end);
        self.counters()
            .map_disagrees
            .add(((end - start) / PAGE_SIZE) as u64);
    }

    /// Whether a page of a range is somewhere else than in memory.
    fn is_lost(&self, state: &State, range: &Range) -> bool {
        let mut lost = false;
        let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
        state.pages.map().each(first, end, |_, page| {
            lost = !matches!(page, Page::Resident(_));
            if lost { Break(()) } else { Continue(()) }
        });
        lost
    }

    /// Learns from the kernel which pages of a range are present.
    fn learn_present(&self, state: &mut State, range: &Range) {
        let pages = &mut state.pages;
        let forked = self.is_family();
        let mut there = Vec::new();
        let scanned = self.kernel.scan(range.start, range.end, |start, end| {
            if forked {
                there.push((start, end));
            }
            let (mut page, end) = (PageNumber::of(start), PageNumber::of(end));
            while page < end {
                let unit = page.unit();
                let stop = PageNumber(end.0.min(unit.first().0 + UNIT));
                let mut mask = 0;
                while page < stop {
                    match pages.map().get(page) {
                        Page::Untouched => mask |= 1 << page.within(),
                        // Swapped out, and yet there is a page: in a forked child libc touched it before it
                        // was registered, and the kernel gave it zeros.
                        Page::Swapped(_) | Page::Poisoned => {
                            self.drop_pages(&[(page.address(), PAGE_SIZE)]);
                        }
                        // In transit (memory that has just grown is registered already): the thread that
                        // brings or captures it says what it is.
                        Page::Resident(_)
                        | Page::Staged(_)
                        | Page::Loading(_)
                        | Page::Storing(_) => {}
                    }
                    page = page.plus(1);
                }
                if mask != 0 {
                    pages.fill(unit, mask);
                }
            }
        });
        if scanned.is_ok() && forked {
            pages.forget_missing(range.start, range.end, &there);
        }
    }
}

impl<K: Kernel> FaultService<K> {
    /// In the keeper: lets go what is to be let go.
    pub fn release_to_program(&self, state: &mut State) {
        while let Some(range) = state.ranges.next_where(0, |a| a.released) {
            let (start, len) = (range.start, range.end - range.start);
            // Something else may be mapped there by now: then there is nothing to end.
            let _ = self.kernel.unregister(start, len);
            match range.attributes.shadow {
                None => self.let_go(state, &range),
                // It stays ours, and all of it stays there: to be registered anew, without its protection, which clean
                // copies would need.
                Some(_) => {
                    let (swap, cpu) = (self.swap, self.cpu());
                    state.pages.drop_copies(swap, cpu, start, range.end);
                    state.ranges.change(start, range.end, |a| {
                        (a.registered, a.released) = (false, false)
                    });
                }
            }
        }
    }

    /// Forgets a range that is the program's alone from now on. Children have of it what the program wishes.
    fn let_go(&self, state: &mut State, range: &Range) {
        let (start, end) = (range.start, range.end);
        state.pages.forget(Some(self.swap_here()), start, end);
        state.pages.give_back_tables();
        match range.attributes.in_child.absent {
            true => state.ranges.remove(start, end),
            false => self.leave_to_program(state, start, end),
        }
    }

    /// In the keeper: says once that there is such memory.
    pub fn report_released(&self) {
        let bytes = self.base.registration.take_released();
        if bytes > 0 {
            self.member.message(&format!(
                "process {} has a userfaultfd of its own for {} KiB of its memory: they stay in RAM, and count",
                self.kernel.process(),
                bytes >> 10
            ));
        }
    }
}

impl<K: Kernel> Base<K> {
    /// Registered memory is about to be moved by `mremap`: marks it, so that the kernel does not merge it with what
    /// lies beside its new place. The kernel takes the registration away from the mapping that results (Linux 6.18,
    /// `move_vma`). The neighbours would lose theirs with it, unnoticed: their pages that are out would read as
    /// zeros. Advice on the order of accesses keeps mappings apart and is of no other use for anonymous memory.
    ///
    /// # Errors
    /// The process has too many mappings: nothing may be moved then.
    pub fn set_apart(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: advice that changes no content.
        unsafe { self.kernel.madvise(start, len, libc::MADV_RANDOM) }
    }

    /// Takes the mark away: what was moved is registered, or it was not moved.
    pub fn join_again(&self, start: usize, len: usize) {
        // SAFETY: advice that changes no content.
        let _ = unsafe { self.kernel.madvise(start, len, libc::MADV_NORMAL) };
    }
}
