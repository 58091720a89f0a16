//! Blocking signals around a critical section.

use super::raw;
use std::ffi::c_long;

/// While it lives, no signal is delivered to this thread, glibc's internal ones included. A handler run
/// inside a critical section could touch memory whose service needs that section.
pub struct Blocked {
    old: u64,
}

impl Blocked {
    /// Restores `mask` when it is dropped.
    pub(crate) fn until(mask: u64) -> Self {
        Self { old: mask }
    }

    /// The mask from before.
    pub(crate) fn before(&self) -> u64 {
        self.old
    }

    /// Blocks every signal.
    pub fn all() -> Self {
        Self {
            old: swap(u64::MAX),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        swap(self.old);
    }
}

/// Whether every signal that can be blocked is, in this thread, or a filter refuses to tell. For checks: a system
/// call.
pub fn are_blocked() -> bool {
    const ALWAYS_OPEN: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let mut mask = 0u64;
    let args = [libc::SIG_BLOCK.into(), 0, &raw mut mask as c_long, 8, 0, 0];
    // SAFETY: asks alone; one word of the kernel's signal set size, 8 bytes.
    let told = unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
    told < 0 || mask | ALWAYS_OPEN == u64::MAX
}

fn swap(new: u64) -> u64 {
    let mut old = 0u64;
    let sets = [&raw const new as c_long, &raw mut old as c_long];
    let args = [libc::SIG_SETMASK.into(), sets[0], sets[1], 8, 0, 0];
    // SAFETY: two words of the kernel's signal set size, 8 bytes.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
    old
}
