//! Limits of the host for processes of a simulation, and the descriptors that they have there.

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

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    // The folder's own is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() - 1)
}
