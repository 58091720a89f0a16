//! `syscall(2)`: the system calls that copy the address space, made by number, are forks like
//! any other. Everything else passes as it is.
//!
//! Memory calls by number are not looked at: the pager's notes are corrected when libc's calls
//! meet the same addresses. System calls made without libc are out of reach: a child of such a one
//! has no managed memory at all once its parent pages, and gets SIGSEGV where it touches it.

use core::ffi::c_long;

use crate::fork;

/// libc declares it variadic and reads six arguments in any case; both calling conventions pass
/// them as if they were declared.
///
/// # Safety
/// That of the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller answers for the call.
    let result = unsafe {
        if copies_memory(number, a, b) {
            fork::before();
            let result = raw(number, a, b, c, d, e, f);
            if result == 0 {
                fork::begin_child(true);
            } else {
                fork::release_in_parent((result > 0).then_some(result as i32));
            }
            result
        } else {
            raw(number, a, b, c, d, e, f)
        }
    };
    if (-4095..0).contains(&result) {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result
}

/// Whether it makes a process with a copy of this one's memory, which returns here as the caller
/// does. (On another stack it could not return from this function, nor from libc's.)
///
/// # Safety
/// The arguments are those of the call.
unsafe fn copies_memory(number: c_long, a: c_long, b: c_long) -> bool {
    let copies = |flags: c_long, stack: c_long| flags & libc::CLONE_VM as c_long == 0 && stack == 0;
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => copies(a, b),
        libc::SYS_clone3 => {
            // The first and the sixth of a structure of 64-bit words.
            let args = a as *const c_long;
            // SAFETY: the kernel would read them, if the size says so.
            b as usize >= 64
                && !args.is_null()
                && unsafe { copies(args.read(), args.add(5).read()) }
        }
        _ => false,
    }
}

/// The system call itself; an error is its number, negated.
///
/// # Safety
/// That of the system call.
#[inline(always)]
unsafe fn raw(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let result: c_long;
    // SAFETY: the caller answers for the call; registers as the kernel has them.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}
