//! Blocking signals around a critical section, and what they do.

use super::raw;
use std::ffi::{c_int, c_long};

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

/// Has this thread block these signals alone; those that it blocked before.
pub(crate) fn swap(new: u64) -> u64 {
    let mut old = 0u64;
    let sets = [&raw const new as c_long, &raw mut old as c_long];
    let args = [libc::SIG_SETMASK.into(), sets[0], sets[1], 8, 0, 0];
    // SAFETY: two words of the kernel's signal set size, 8 bytes.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
    old
}

/// The action of a signal: the kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// The action where nothing was said.
    pub(crate) const NOTHING: Self = Self {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };

    /// A function at this address is called, with these signals blocked.
    pub(crate) fn new(handler: usize, flags: c_int, mask: u64) -> Self {
        /// SA_RESTORER: the action says where its handler returns to.
        const RESTORER: u64 = 0x0400_0000;
        Self {
            handler,
            flags: flags as u64 | RESTORER,
            restorer: restore as *const () as usize,
            mask,
        }
    }
}

/// Where handlers return to: in this library's code, so that the call is made even where those of the program are
/// caught.
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, {call}", "syscall", call = const libc::SYS_rt_sigreturn)
}

/// Sets what a signal does, if that is to change; what it did.
///
/// # Safety
/// The action is one.
pub(crate) unsafe fn set_action(signal: c_int, action: Option<&Action>) -> Action {
    let mut before = Action::NOTHING;
    let new = action.map_or(core::ptr::null(), core::ptr::from_ref);
    let old = &raw mut before;
    let args = [signal.into(), new as c_long, old as c_long, 8, 0, 0];
    // SAFETY: structures of the kernel's layout, and a set of 8 bytes.
    unsafe { raw::call(libc::SYS_rt_sigaction, args) };
    before
}

/// Has this thread take a signal from now on.
pub(crate) fn open(signal: c_int) {
    let set = 1u64 << (signal - 1);
    let args = [
        libc::SIG_UNBLOCK.into(),
        (&raw const set) as c_long,
        0,
        8,
        0,
        0,
    ];
    // SAFETY: one word of the kernel's signal set size, 8 bytes.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
}
