//! What the preload library asks of the pager: memory calls, threads, forks.
//!
//! All follow the kernel's convention, `Ok(value)` or `Err(errno)`, and allocate nothing from
//! managed memory. Each call that changes what is mapped runs under the pager's lock together
//! with its bookkeeping, so that the two never disagree.
//!
//! It does so on a stack of ours (`ebb_sys::stack`): functions called `_locked`, here and beside. Waits that
//! may be long (for the keeper, for the tree) are on the program's stack, with the signals it has.
//!
//! Nothing is registered at first: memory runs at full speed until the tree nears its budget.
#![allow(clippy::missing_safety_doc)]

use crate::keeper::keeper_loop;
use crate::process::fork_stage::watching;
use crate::process::lifecycle;
use crate::process::paging::Process;
use crate::process::{failure, state};
use crate::syscalls::{user_change, vfork_proxy};
use ebb_sys::{program, thread};

pub use crate::fork::around_fork::{after_fork_child, after_fork_parent, before_fork, make_ready};
pub use crate::process::lifecycle::{pages, wanted};
pub use crate::syscalls::admission::admit;
pub use crate::syscalls::foreign_userfaultfd::release_to_program;
pub use crate::syscalls::madvise::{madvise, process_madvise};
pub use crate::syscalls::mlock::{exclude, mlock, mlockall, munlock, munlockall};
pub use crate::syscalls::mmap::{brk_set, mmap, mprotect, munmap, reserve};
pub use crate::syscalls::mremap::mremap;

/// Starts the pager; called once, from the library's constructor, before any other library's.
/// Memory calls may come earlier than this.
pub fn start() {
    lifecycle::begin(keeper_loop::run);
    if !wanted() {
        let mut state = state::lock();
        state.ranges = Default::default();
        return;
    }
    failure::end_on_panic();
    vfork_proxy::begin();
    program::begin();
    thread::prepare();
}

/// The calling thread changed its user or groups. A child that shares our memory did so for itself.
pub fn user_changed() {
    if vfork_proxy::is_child() {
        return;
    }
    ebb_sys::user::changed(|| {
        if let Some(process) = Process::current() {
            process.services.nudge();
            process.member.wake_self();
        } else if let Some(member) = watching() {
            member.wake_self();
        }
    });
    user_change::changed();
}
