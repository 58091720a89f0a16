//! System calls without libc. The preload library stands before libc's `syscall` too, so that the
//! program's memory calls by number reach the pager; those of our own must not.

use std::ffi::c_long;

use crate::Errno;

#[cfg(miri)]
pub use super::interpreted::call;

/// The system call, its result as libc's callers have it, `errno` left alone.
///
/// # Safety
/// That of the system call.
#[inline(always)]
pub unsafe fn checked(number: c_long, args: [c_long; 6]) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    match unsafe { call(number, args) } {
        error @ -4095..0 => Err(Errno(-error as i32)),
        result => Ok(result as usize),
    }
}

/// The system call itself; an error is its number, negated.
///
/// # Safety
/// That of the system call.
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result: c_long;
    // SAFETY: the caller answers for the call; registers as the kernel has them.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}
