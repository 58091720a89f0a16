//! Memory that has to stay, as the program locked it. Memory that stays for other reasons: see [`pin`](super::pin).
//!
//! The kernel refuses to move pages between locked and unlocked memory. So memory that is locked to it is locked
//! here: from before the call that locks it, and after the one that unlocks it.

#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::ranges::Range;
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;

/// `mlock2(2)` then fills no page.
pub(super) const ON_FAULT: i32 = libc::MLOCK_ONFAULT as i32;

/// All pages of which there is something in `len` bytes from `addr` on, by the kernel's arithmetic: a length that wraps as it is
/// rounded up is none. Nor is there any in what ends beyond all addresses, which the kernel refuses.
pub(super) fn pages(addr: usize, len: usize) -> (usize, usize) {
    let within = addr % PAGE_SIZE;
    let start = addr - within;
    let up = len.wrapping_add(within).wrapping_add(PAGE_SIZE - 1);
    let bytes = up / PAGE_SIZE * PAGE_SIZE;
    (start, start.checked_add(bytes).unwrap_or(start))
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
    pub(super) fn lock_unfilled(&'static self, addr: usize, len: usize) -> Outcome<()> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_wrap_as_the_kernel_has_them() {
        const P: usize = PAGE_SIZE;
        let start = 16 * P;
        assert_eq!(pages(start, 1), (start, start + P));
        assert_eq!(pages(start + 1, P), (start, start + 2 * P));
        assert_eq!(pages(start + 5, 0), (start, start + P));
        for len in [0, usize::MAX, usize::MAX - P + 2] {
            assert_eq!(pages(start, len), (start, start), "{len:#x}");
        }
        // It ends beyond all addresses.
        assert_eq!(pages(start, usize::MAX - P + 1), (start, start));
        assert_eq!(pages(start + 5, usize::MAX - P + 2), (start, start));
    }
}
