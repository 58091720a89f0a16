//! Forks: the pager and every lock of ours are brought to rest before, released after.
//!
//! `fork`, `forkpty` and `daemon` run the handlers of `pthread_atfork`; `_Fork` and `clone`
//! without `CLONE_VM` are wrapped, and `syscall` for the same by number. `vfork`, `posix_spawn`, `system` and `popen` share the
//! address space until the exec and need nothing.
//!
//! Lock order at a fork: stdio's list of files → mimalloc → pager → internal heap. libc
//! takes the first itself, after the handlers ran; a thread that holds it may need any of
//! the others (to flush a file whose buffer is managed memory), so it comes first here. It
//! is recursive.

use core::ffi::{c_int, c_void};

use ebb_pager::hooks;
use ebb_sys::heap::InternalHeap;

use crate::next::Next;
use crate::thread;

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
    // csrc/allocator.c
    fn ebb_malloc_before_fork();
    fn ebb_malloc_after_fork();
}

type CloneEntry = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    CloneEntry,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

// SAFETY: the types are those of the manual pages.
static FORK_ALONE: Next<unsafe extern "C" fn() -> libc::pid_t> = unsafe { Next::new(c"_Fork") };
// SAFETY: as above; what follows the fourth argument is variadic, passed as if declared.
static CLONE: Next<Clone> = unsafe { Next::new(c"clone") };

pub fn resolve() {
    FORK_ALONE.get();
    CLONE.get();
}

/// Registers the handlers. Being the first to register makes ours the last before a fork
/// and the first after it, so the handlers of the program run with the pager at work.
pub fn register() {
    // SAFETY: the handlers live as long as the process (`-z nodelete`).
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

pub unsafe extern "C" fn before() {
    loop {
        hooks::make_ready();
        // SAFETY: each lock is released by the matching function below, or here.
        unsafe {
            _IO_list_lock();
            ebb_malloc_before_fork();
            if hooks::before_fork() {
                break;
            }
            ebb_malloc_after_fork();
            _IO_list_unlock();
        }
    }
    InternalHeap::lock_for_fork();
}

/// After a fork, in the parent; `child` where it is known.
///
/// # Safety
/// Follows [`before`] on the same thread.
pub unsafe fn release_in_parent(child: Option<i32>) {
    // SAFETY: `before` took the locks, on this thread.
    unsafe {
        InternalHeap::unlock_after_fork();
        hooks::after_fork_parent(child);
        ebb_malloc_after_fork();
        _IO_list_unlock();
    }
}

unsafe extern "C" fn after_in_parent() {
    // SAFETY: libc calls it after `before`.
    unsafe { release_in_parent(None) }
}

unsafe extern "C" fn after_in_child() {
    // SAFETY: libc calls it after `before`.
    unsafe { begin_child(false) }
}

/// The first in a child. `libc_stuck`: libc has not reset its own locks.
///
/// # Safety
/// This thread is the copy of the one that ran [`before`].
pub unsafe fn begin_child(libc_stuck: bool) {
    let alone = thread::only_this();
    // SAFETY: the copy of this thread took the locks.
    unsafe {
        InternalHeap::unlock_after_fork();
        hooks::after_fork_child(libc_stuck && !alone);
        ebb_malloc_after_fork();
        // libc's fork has reset it in a process that had threads, and not in others.
        _IO_list_resetlock();
    }
}

/// `fork` without the handlers of `pthread_atfork`.
///
/// # Safety
/// `_Fork(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let Some(fork_alone) = FORK_ALONE.get() else {
        // libc is older than `_Fork`, so the program cannot have meant this symbol.
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    // SAFETY: handlers in their order around the fork.
    unsafe {
        before();
        match fork_alone() {
            0 => {
                begin_child(true);
                0
            }
            child => {
                let errno = *libc::__errno_location();
                release_in_parent((child > 0).then_some(child));
                *libc::__errno_location() = errno;
                child
            }
        }
    }
}

/// What the child of a `clone` that copies the address space starts with; on the parent's
/// stack, of which the child has its own copy.
struct ChildStart {
    entry: CloneEntry,
    arg: *mut c_void,
}

unsafe extern "C" fn child_entry(start: *mut c_void) -> c_int {
    // SAFETY: the child's copy of what `clone` below wrote.
    unsafe {
        let ChildStart { entry, arg } = start.cast::<ChildStart>().read();
        begin_child(true);
        // libc ends the thread alone, and the child has threads of ours.
        libc::_exit(entry(arg))
    }
}

/// # Safety
/// `clone(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: CloneEntry,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let Some(next) = CLONE.get() else {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    if flags & libc::CLONE_VM != 0 {
        // SAFETY: the caller's call as it stands.
        return unsafe { next(entry, stack, flags, arg, parent_tid, tls, child_tid) };
    }
    let mut start = ChildStart { entry, arg };
    // SAFETY: the caller's call, with our entry before its own.
    unsafe {
        before();
        let start = (&raw mut start).cast();
        let child = next(child_entry, stack, flags, start, parent_tid, tls, child_tid);
        let errno = *libc::__errno_location();
        release_in_parent((child > 0).then_some(child));
        *libc::__errno_location() = errno;
        child
    }
}
