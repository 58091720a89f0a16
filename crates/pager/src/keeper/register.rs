//! Memory under the pager: ranges that the program maps or moves are registered with the system, and
//! which of their pages are there is learnt from it.
//!
//! The ranges themselves are noted by the hooks (`ranges`, `growth`); nothing is evicted here.

use crate::hooks::UNREGISTERED;
use crate::map::{Page, PageMap, PageNumber, UNIT};
use crate::process::{Process, cpu};
use crate::sharing::Sharing;
use crate::state::{State, lock_service};
use ebb_engine::PAGE_SIZE;
use ebb_sys::{Errno, memory};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Bumped when requests of the program's threads were answered.
pub static ANSWERED: AtomicU32 = AtomicU32::new(0);

/// Registered memory is about to be moved by `mremap`: marks it, so that the kernel does not merge it
/// with what lies beside its new place. The kernel takes the registration away from the mapping that
/// results, and with it the neighbours would lose theirs, unnoticed: what of them is out would read as
/// zeros (Linux 6.18, `move_vma`). Advice on the order of accesses keeps mappings apart and is of no
/// other use for anonymous memory.
///
/// # Errors
/// The process has too many mappings: nothing may be moved then.
pub fn set_apart(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: advice that changes no content.
    unsafe { memory::madvise(start, len, libc::MADV_RANDOM) }
}

/// Takes the mark away: what was moved is registered, or it was not moved.
pub fn join_again(start: usize, len: usize) {
    // SAFETY: advice that changes no content.
    let _ = unsafe { memory::madvise(start, len, libc::MADV_NORMAL) };
}

/// In a forked child: pages of which its parent had only read zeros, which the kernel does not copy,
/// are missing here; `there` are the runs of those that are not.
fn forget_missing(map: &mut PageMap, start: usize, end: usize, there: &[(usize, usize)]) {
    let mut missing = Vec::new();
    let mut runs = there.iter().peekable();
    map.each(PageNumber::of(start), PageNumber::of(end), |page, is| {
        let at = page.address();
        while runs.next_if(|run| run.1 <= at).is_some() {}
        if is == Page::Resident(None) && runs.peek().is_none_or(|run| at < run.0) {
            missing.push(page);
        }
        Continue(())
    });
    for page in missing {
        map.set(page, Page::Untouched);
    }
}

impl Process {
    /// Registers what was mapped or moved since the last time, and says so to who waits for that.
    pub fn register_new(&self) {
        let mut state = lock_service();
        let mut any = self.cede(&mut state);
        if state.ranges.all().any(|r| !r.attributes.registered) {
            self.register_all(&mut state);
            any = true;
        }
        if any {
            ANSWERED.fetch_add(1, SeqCst);
            ebb_sys::futex::wake(&ANSWERED, i32::MAX, false);
        }
    }

    /// Takes pages that cannot be registered off the list: the program unmapped them, or mapped something else
    /// there, without libc. Whether there were any.
    fn forget_foreign(&self, state: &mut State, start: usize, end: usize) -> bool {
        if end - start > PAGE_SIZE {
            if self.fault.register(start, end - start) != Err(Errno(libc::EINVAL)) {
                return false;
            }
            let middle = start + (end - start) / PAGE_SIZE / 2 * PAGE_SIZE;
            let first = self.forget_foreign(state, start, middle);
            return self.forget_foreign(state, middle, end) || first;
        }
        if self.fault.register(start, PAGE_SIZE) != Err(Errno(libc::EINVAL)) {
            return false;
        }
        state.drop_pages(Some(self.swap), cpu(), start, end);
        state.ranges.remove(start, end);
        self.counters().map_disagrees.add(1);
        true
    }

    /// The system refuses to register a range, and not because it is another one: it is left alone, if nothing
    /// of it is out. What is out would read as zeros.
    fn cannot_register(&self, state: &mut State, start: usize, end: usize, error: Errno) {
        let mut lost = false;
        let (first, last) = (PageNumber::of(start), PageNumber::of(end));
        state.map.each(first, last, |_, page| {
            lost = !matches!(page, Page::Resident(_));
            if lost { Break(()) } else { Continue(()) }
        });
        if lost {
            self.fail(&format!(
                "memory at {start:#x}..{end:#x} cannot be registered again ({error}), and part of it is swapped \
                 out; raise vm.max_map_count if that is low"
            ));
        }
        state.drop_pages(Some(self.swap), cpu(), start, end);
        state.ranges.remove(start, end);
    }

    /// Registers every range that is not, and learns which of its pages are present.
    pub fn register_all(&self, state: &mut State) {
        UNREGISTERED.store(0, SeqCst);
        let mut at = 0;
        while let Some(range) = state.ranges.next(at, usize::MAX) {
            at = range.end;
            if range.attributes.registered {
                continue;
            }
            let len = range.end - range.start;
            // SAFETY: advice that changes no content. Huge pages would be filled behind our back.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_NOHUGEPAGE) };
            // SAFETY: the same. Pages that the kernel merges lose their protection.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_UNMERGEABLE) };
            match self.fault.register(range.start, len) {
                Ok(()) => {}
                Err(Errno(libc::EINVAL)) if self.forget_foreign(state, range.start, range.end) => {
                    // What is left of it, in pieces.
                    at = range.start;
                    continue;
                }
                Err(error) => {
                    self.cannot_register(state, range.start, range.end, error);
                    continue;
                }
            }
            // A child of a system call that we do not see has it not at all, rather than with zeros
            // for what is out.
            // SAFETY: advice that changes no content.
            let _ = unsafe { memory::madvise(range.start, len, libc::MADV_DONTFORK) };
            join_again(range.start, len);
            if state.sharing == Sharing::Protected {
                // New, or moved by mremap, which leaves the protection behind.
                self.protect(range.start, len);
                self.give_up_written(state, range.start, range.end);
            }
            state
                .ranges
                .change(range.start, range.end, |a| a.registered = true);
            let State { map, queue, .. } = &mut *state;
            let forked = self.forked.load(SeqCst);
            let mut there = Vec::new();
            let scanned = self.pagemap.present(range.start, range.end, |start, end| {
                if forked {
                    there.push((start, end));
                }
                let (mut page, end) = (PageNumber::of(start), PageNumber::of(end));
                while page < end {
                    let unit = page.unit();
                    let stop = PageNumber(end.0.min(unit.first().0 + UNIT));
                    let mut mask = 0;
                    while page < stop {
                        match map.get(page) {
                            Page::Untouched => {
                                map.set(page, Page::Resident(None));
                                mask |= 1 << page.within();
                            }
                            // Swapped out, and yet there is a page: in a forked child libc touched
                            // it before it was registered, and the kernel gave it zeros.
                            Page::Swapped(_) | Page::Poisoned => {
                                self.drop_pages(&[(page.address(), PAGE_SIZE)]);
                            }
                            // In transit (memory that has just grown is registered already): who
                            // brings or captures it says what it is.
                            Page::Resident(_)
                            | Page::Staged(_)
                            | Page::Loading(_)
                            | Page::Storing(_) => {}
                        }
                        page = page.plus(1);
                    }
                    if mask != 0 {
                        queue.brought(map, unit, mask);
                    }
                }
            });
            if scanned.is_ok() && forked {
                forget_missing(map, range.start, range.end, &there);
            }
        }
    }
}
