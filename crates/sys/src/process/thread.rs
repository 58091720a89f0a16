//! The calling thread: its number, its name, how often it gave its processor up, and the limits of its process.

use crate::kernel::raw;
use crate::kernel::tasks::HELPER;

/// This thread's id.
pub fn id() -> u32 {
    // SAFETY: no arguments.
    unsafe { raw::call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// How often this thread has let its processor go so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switches {
    /// Switches to wait for something.
    pub voluntary: u64,
    /// Switches because another thread got it.
    pub forced: u64,
}

/// The switches of this thread since it began.
pub fn switches() -> Switches {
    // SAFETY: zeros are valid, and the structure is this thread's to fill.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    Switches {
        voluntary: usage.ru_nvcsw as u64,
        forced: usage.ru_nivcsw as u64,
    }
}

/// The calling thread's name, as `ps` and `top` show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskName {
    /// The first task of a helper, and so the helper.
    Helper,
    /// A thread that serves faults.
    Service,
}

/// Names the calling thread.
pub fn set_name(name: TaskName) {
    let name = match name {
        TaskName::Helper => HELPER,
        TaskName::Service => c"ebb-service",
    };
    let args = [
        libc::PR_SET_NAME.into(),
        name.as_ptr() as libc::c_long,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: a terminated text, of fewer bytes than a name may have. Without libc, as the go-between has the
    // control block of who waits for it.
    unsafe { raw::call(libc::SYS_prctl, args) };
}

/// Lifts a limit of this process, where it may; elsewhere it allows itself as much as it may.
pub fn lift_limit(resource: libc::__rlimit_resource_t) {
    let none = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: one structure of ours is read.
    if unsafe { libc::setrlimit(resource, &none) } != 0 {
        raise_limit(resource);
    }
}

/// Allows this process as much of a resource as it may allow itself.
pub fn raise_limit(resource: libc::__rlimit_resource_t) {
    // SAFETY: one structure of ours, filled before it is used.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(resource, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(resource, &limit);
        }
    }
}
