//! Limits of the host for processes of a simulation, their processor, and the descriptors that they have there.

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// Seconds of a processor that a process may take.
pub const LIMIT: i64 = 60;

/// Ends this process when it has used its time.
pub fn limit_time() {
    let time = libc::timeval {
        tv_sec: LIMIT,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: one structure of ours is read.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) };
}

/// This process and what it forks run on its processor of now: the idlest, if it has just been executed. One of them runs at
/// a time: the turn goes on faster where no other processor has to be woken for it, nor has other memory cached. Where that is refused, they run anywhere.
pub fn stay_on_this_processor() {
    let mut own = CpuSet::new();
    own.set(sched_getcpu());
    let _ = sched_setaffinity(None, &own);
}

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    // The folder's own is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() - 1)
}
