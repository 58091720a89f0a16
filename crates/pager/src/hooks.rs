//! The interface for the preload library: memory calls, threads, forks.
//!
//! All follow the kernel's convention, `Ok(value)` or `Err(errno)`, and allocate nothing from
//! managed memory. Each call that changes what is mapped runs under the pager's lock together
//! with its bookkeeping, so that the two never disagree.
//!
//! It does so on a stack of ours (`ebb_sys::stack`): functions called `_locked`. Waits that
//! may be long (for the keeper, for the tree) are on the program's stack, with the signals it has.
//!
//! Nothing is registered at first: memory runs at full speed until the tree nears its budget.
#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::process::lifecycle::{Beginning, Entries};
use crate::process::outcome::Outcome;
use crate::statics::PAGER;
use ebb_sys::paging::Kernel;

extern "C" fn keeper(_: usize) -> ! {
    PAGER.run_keeper()
}

extern "C" fn service(index: usize) -> ! {
    PAGER.run_service(index)
}

/// Starts the pager; called once, from the library's constructor, before any other library's.
/// Memory calls may come earlier than this.
#[unsafe(link_section = ".text.startup")]
pub fn start() {
    let control = PAGER.kernel.setting(c"EBB_CONTROL");
    let control = control.filter(|control| !control.is_empty());
    PAGER.lifecycle.begin(Beginning {
        control,
        entries: Entries { keeper, service },
        standard_error: PAGER.kernel.standard_error(),
    });
    if !wanted() {
        PAGER.lock().ranges.clear();
        return;
    }
    PAGER.vfork_calls.begin(&PAGER.kernel);
    PAGER.kernel.begin();
}

/// Whether this process pages.
pub fn pages() -> bool {
    PAGER.pages()
}

/// Whether the calling thread's memory may be paged one day: before [`start`] one cannot know, so yes.
#[inline]
pub fn wanted() -> bool {
    PAGER.wanted()
}

/// `len` bytes more may be filled: see `syscalls::admit`.
pub fn admit(len: usize) {
    PAGER.admit(len);
}

/// A thread of the program starts: see `syscalls::admit`.
pub fn admit_thread() {
    PAGER.admit_thread();
}

/// The first part of an area that is managed as a whole, or not at all: where it ends, and whether it is. None in a
/// child of `vfork`.
pub fn managed_part(start: usize, end: usize) -> Option<(usize, bool)> {
    PAGER.managed_part(start, end)
}

/// The program is about to register `len` bytes from `start` on with a userfaultfd.
pub fn release_to_program(start: usize, len: usize) {
    PAGER.release_to_program(start, len, true);
}

/// The program writes `len` bytes from `start` on where the kernel does not wait for a page: they stay in RAM.
pub fn release_written(start: usize, len: usize) {
    PAGER.release_to_program(start, len, false);
}

/// The calling thread is about to change its user or groups.
pub fn user_will_change() {
    if !PAGER.is_child() {
        PAGER.prepare_user_change();
    }
}

/// The calling thread changed its user or groups. A child that shares our memory did so for itself.
pub fn user_changed() {
    if PAGER.is_child() {
        return;
    }
    let changed = PAGER.kernel.user_changed(|| {
        if let Some(process) = PAGER.process() {
            process.services.nudge();
        }
        if let Some(member) = PAGER.member() {
            member.wake_self();
        }
    });
    if let Err(why) = changed {
        let why = format!(
            "process {} became another user and is ended: {why}",
            PAGER.kernel.process()
        );
        PAGER.end(PAGER.member(), &why);
    }
    PAGER.user_gave_up();
}

/// A child that shares this memory is about to be made, and the caller will not wait for its exec or end.
pub fn prepare_sharing() {
    PAGER.prepare_sharing();
}

/// A fork is near, and no lock of ours or of the allocator's is held. False: it is to fail, for want of a place.
#[must_use]
pub fn make_ready() -> bool {
    PAGER.make_ready()
}

/// The calling thread is the one that runs on a stack of the program's: see [`hold_stack`].
pub fn stack_begins(start: usize) {
    PAGER.stack_begins(start);
}

/// The thread of such a stack could not be made.
pub fn stack_is_unused(start: usize) {
    PAGER.stack_is_unused(start);
}

/// A mutex was destroyed, a robust one perhaps.
pub fn mutex_is_gone(addr: usize) {
    PAGER.mutex_is_gone(addr);
}

macro_rules! hooks {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        $(#[$doc])*
        pub unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: passed on to the caller.
            unsafe { PAGER.$name($($argument),*) }
        }
    )*};
}

hooks! {
    /// A fork is near; false if another took the last place for a child since [`make_ready`], and
    /// nothing was done. Requires: unless that, `after_fork_parent` or `after_fork_child` follows on this thread.
    before_fork() -> bool;
    /// The fork is over, in the parent; `child` where it is known. Requires: [`before_fork`] on this thread.
    after_fork_parent(child: Option<i32>) -> ();
    /// The fork is over, in the child. Requires: [`before_fork`] on the thread that forked.
    after_fork_child() -> ();
    /// `mmap(2)`. Requires: as the system call.
    mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Outcome<usize>;
    /// `mmap(2)` of memory that will not be filled as a whole: [`admit`] is told of what will be.
    /// Requires: as the system call.
    reserve(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Outcome<usize>;
    /// `munmap(2)`. Requires: as the system call.
    munmap(addr: usize, len: usize) -> Outcome<()>;
    /// `mremap(2)`. Requires: as the system call.
    mremap(old: usize, old_len: usize, new_len: usize, flags: i32, new_addr: usize) -> Outcome<usize>;
    /// `pkey_mprotect(2)`, with a protection and a key. Requires: as the system call.
    pkey_mprotect(addr: usize, len: usize, prot: (i32, i32)) -> Outcome<()>;
    /// `mprotect(2)`. Requires: as the system call.
    mprotect(addr: usize, len: usize, prot: i32) -> Outcome<()>;
    /// `madvise(2)`. Requires: as the system call.
    madvise(addr: usize, len: usize, advice: i32) -> Outcome<()>;
    /// `process_madvise(2)`. Requires: as the system call.
    process_madvise(process: i32, areas: *const libc::iovec, count: usize, advice: i32, flags: u32) -> Outcome<usize>;
    /// `brk(2)` as the system call has it: asks for a break, answers the break there is.
    brk_set(addr: usize) -> Outcome<usize>;
    /// `mlock2(2)`. Requires: as the system call.
    mlock(addr: usize, len: usize, flags: i32) -> Outcome<()>;
    /// `munlock(2)`. Requires: as the system call.
    munlock(addr: usize, len: usize) -> Outcome<()>;
    /// `mlockall(2)`: refused in a process that may page. Requires: as the system call.
    mlockall(flags: i32) -> Outcome<()>;
    /// `munlockall(2)`. Requires: as the system call.
    munlockall() -> Outcome<()>;
    /// Names memory that must never be paged: the kernel stores words there. Requires: the range is mapped.
    exclude(addr: usize, len: usize) -> ();
    /// A thread is about to be made on a stack of the program's. True: [`stack_begins`] follows in that thread, or
    /// [`stack_is_unused`]. Requires: the range is mapped.
    hold_stack(addr: usize, len: usize) -> bool;
    /// A robust mutex is about to be made. Requires: it is mapped.
    hold_mutex(addr: usize) -> ();
}
