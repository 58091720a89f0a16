//! Memory that has to stay: locked by the program, or needed there by the kernel or libc. Stacks that the
//! program brings for its threads are such: libc's data of the thread lies on top.
//!
//! The kernel refuses to move pages between locked and unlocked memory. So memory that is locked to it is locked
//! here: from before the call that locks it, and after the one that unlocks it.

#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::page_map::PageNumber;
use crate::map::ranges::Range;
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

/// `mlock2(2)` then fills no page.
pub(super) const ON_FAULT: i32 = libc::MLOCK_ONFAULT as i32;

/// Of memory that must stay, the part at its end that is filled: libc's and the kernel's data of a thread.
const FILLED: usize = 256 << 10;

/// All pages of which there is something in `len` bytes from `addr` on.
fn pages(addr: usize, len: usize) -> (usize, usize) {
    (addr & !(PAGE_SIZE - 1), page_up(addr.saturating_add(len)))
}

impl<K: Kernel> Pager<K> {
    /// `mlock2(2)`: what is locked is never evicted. If it fails, nothing is locked that was not before,
    /// as POSIX has it; the kernel locks what lies before a hole. Requires: as the system call.
    pub unsafe fn mlock(&'static self, addr: usize, len: usize, flags: i32) -> Outcome<()> {
        if self.is_child() {
            // For its parent, too: it stays for good.
            // SAFETY: as the system call.
            unsafe { self.exclude(addr, len) };
            self.kernel.mlock(addr, len, flags).map_err(errno)?;
            // Where its parent lets it grow the kernel fills nothing (`mremap`).
            return self.kernel.mlock(addr, len, ON_FAULT).map_err(errno);
        } else if flags & !ON_FAULT == 0 {
            self.kernel
                .on_own_stack(move || self.lock_unfilled(addr, len))?;
        }
        // It fills the memory: faults are served meanwhile.
        self.kernel.mlock(addr, len, flags).map_err(errno)
    }

    /// Locks it, here and to the kernel; nothing of it leaves any more.
    fn lock_unfilled(&'static self, addr: usize, len: usize) -> Outcome<()> {
        let (start, end) = pages(addr, len);
        // Pages that are being captured are moved.
        let mut state = self.settled(self.lock(), start, end)?;
        let unlocked = |r: &Range| !r.attributes.locked;
        let before: Vec<_> = state.ranges.within(start, end).filter(unlocked).collect();
        self.change(&mut state, start, end, |a| a.locked = true);
        let locked = self.kernel.mlock(addr, len, ON_FAULT);
        if locked.is_err() {
            for range in before {
                self.unlock(&mut state, range, true);
            }
        }
        locked.map_err(errno)
    }

    /// `munlock(2)`.
    pub unsafe fn munlock(&'static self, addr: usize, len: usize) -> Outcome<()> {
        if self.is_child() {
            // Memory that its parent has locked stays where it is.
            return self.kernel.munlock(addr, len).map_err(errno);
        }
        let (start, end) = pages(addr, len);
        self.kernel.on_own_stack(move || {
            let mut state = self.lock();
            let unlocked = self.kernel.munlock(addr, len);
            self.each_locked(&mut state, start, end, unlocked.is_err());
            unlocked.map_err(errno)
        })
    }

    /// `mlockall(2)`: refused, as where the limit on locked memory is too low. It would make a program that is to run
    /// in less memory than it needs hold all of it.
    pub unsafe fn mlockall(&'static self, flags: i32) -> Outcome<()> {
        if self.wanted() {
            return Err(libc::ENOMEM);
        }
        self.kernel.mlockall(flags).map_err(errno)
    }

    /// `munlockall(2)`.
    pub unsafe fn munlockall(&'static self) -> Outcome<()> {
        if self.is_child() {
            return self.kernel.munlockall().map_err(errno);
        }
        self.kernel.on_own_stack(|| {
            let mut state = self.lock();
            self.kernel.munlockall().map_err(errno)?;
            self.each_locked(&mut state, 0, usize::MAX, false);
            Ok(())
        })
    }

    /// Unlocks what is locked of `start..end`, in the kernel too if that has not happened.
    fn each_locked(&'static self, state: &mut Locked, start: usize, end: usize, still: bool) {
        let mut at = start;
        while let Some(range) = state.ranges.next(at, end) {
            at = range.end;
            if range.attributes.locked {
                self.unlock(state, range, still);
            }
        }
    }

    fn unlock(&'static self, state: &mut Locked, range: Range, still: bool) {
        let Range { start, end, .. } = range;
        if !still || self.kernel.munlock(start, end - start).is_ok() {
            self.change(state, start, end, |a| a.locked = false);
        }
    }

    /// Names a range that must never be paged, such as a thread's stack that the program gave.
    /// Requires: the range is mapped.
    pub unsafe fn exclude(&'static self, addr: usize, len: usize) {
        let (start, end) = pages(addr, len);
        let registered = match self.executor(MemoryCall::Exclude { start, end }) {
            Executor::Direct => false,
            Executor::Done(outcome) => outcome == Ok(1),
            Executor::Here => {
                self.kernel
                    .on_own_stack(move || self.exclude_locked(start, end))
                    == Ok(true)
            }
        };
        if registered {
            // Nobody has touched the rest, and it may be much more than there is room for.
            let last = start.max(end.saturating_sub(FILLED));
            self.bring_in(last, end);
            if !self.is_child() {
                self.bring_in_known(start, last);
            }
        }
    }

    /// All of it is there, and may be written without service.
    fn bring_in(&self, start: usize, end: usize) {
        // SAFETY: populating changes no content.
        let _ = unsafe {
            self.kernel
                .madvise(start, end - start, libc::MADV_POPULATE_WRITE)
        };
    }

    /// The same of pages that hold something, here or elsewhere.
    fn bring_in_known(&'static self, start: usize, end: usize) {
        let mut at = start;
        while at < end
            && let Some(known) = self.kernel.on_own_stack(move || self.first_known(at, end))
        {
            self.bring_in(known.0, known.1);
            at = known.1;
        }
    }

    /// The first run of pages between these addresses that hold something.
    fn first_known(&'static self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut run: Option<(usize, usize)> = None;
        let (first, last) = (PageNumber::of(start), PageNumber::of(end));
        self.lock().pages.map().each(first, last, |number, _| {
            let page = number.address();
            let (from, to) = run.unwrap_or((page, page));
            if to != page {
                return Break(());
            }
            run = Some((from, to + PAGE_SIZE));
            Continue(())
        });
        run
    }

    /// True if what is out of it still has to be brought in.
    pub(crate) fn exclude_locked(&'static self, start: usize, end: usize) -> Outcome<bool> {
        let mut state = self.lock();
        if !state.ranges.overlaps(start, end) {
            return Ok(false);
        }
        // With the lock held: what is registered must stay known.
        if self.process().is_none() && !state.ranges.has_copies(start, end) {
            self.forget(&mut state, start, end);
            return Ok(false);
        }
        // Pages that are being captured are moved.
        state = self.settled(state, start, end)?;
        self.change(&mut state, start, end, |a| a.pinned = true);
        Ok(true)
    }
}
