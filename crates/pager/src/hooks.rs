//! What the preload library asks of the pager: memory calls, threads, forks.
//!
//! All follow the kernel's convention, `Ok(value)` or `Err(errno)`, and allocate nothing
//! from managed memory. This version manages nothing and passes each call to the kernel.
#![allow(clippy::missing_safety_doc)]

type Outcome<T> = Result<T, i32>;

/// Starts the pager; called once, from the library's constructor, before any other
/// library's. Memory calls may come earlier than this.
pub fn start() {}

/// `mmap(2)`. # Safety: the system call's.
pub unsafe fn mmap(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) })
}

/// `munmap(2)`.
pub unsafe fn munmap(addr: usize, len: usize) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }).map(drop)
}

/// `mremap(2)`.
pub unsafe fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new_addr: usize,
) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new_addr) })
}

/// `madvise(2)`.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) }).map(drop)
}

/// `mprotect(2)`, and `pkey_mprotect(2)` with no key.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) }).map(drop)
}

/// `brk(2)` as the system call has it: asks for a break, answers the break there is.
pub unsafe fn brk_set(addr: usize) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_brk, addr) })
}

/// `mlock(2)`.
pub unsafe fn mlock(addr: usize, len: usize) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_mlock, addr, len) }).map(drop)
}

/// `munlock(2)`.
pub unsafe fn munlock(addr: usize, len: usize) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_munlock, addr, len) }).map(drop)
}

/// `mlockall(2)`.
pub unsafe fn mlockall(flags: i32) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    outcome(unsafe { libc::syscall(libc::SYS_mlockall, flags) }).map(drop)
}

/// `munlockall(2)`.
pub unsafe fn munlockall() -> Outcome<()> {
    // SAFETY: the call takes nothing.
    outcome(unsafe { libc::syscall(libc::SYS_munlockall) }).map(drop)
}

/// Names a range that must never be paged, such as a thread's stack that the program gave.
pub unsafe fn exclude(_addr: usize, _len: usize) {}

/// Whether memory that the program's allocator holds free should come back at once: true
/// when the budget nears its low watermark. Asked often, so it must be one load.
pub fn memory_is_tight() -> bool {
    true
}

/// A thread of the program starts; called on it.
pub fn thread_start() {}

/// A thread of the program ends; called on it, and it may still touch managed memory.
pub fn thread_exit() {}

/// A fork is near. Called with the locks of the program's allocator and of stdio held, so
/// between here and the `after_fork_*` calls nothing may wait for a thread that needs them.
pub unsafe fn before_fork() {}

/// The fork is over, in the parent; `child` where it is known.
pub unsafe fn after_fork_parent(_child: Option<i32>) {}

/// The fork is over, in the child: the first of ours or the program's to run there.
pub unsafe fn after_fork_child() {}

fn outcome(result: libc::c_long) -> Outcome<usize> {
    if result == -1 {
        // SAFETY: the location is this thread's.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(result as usize)
}
