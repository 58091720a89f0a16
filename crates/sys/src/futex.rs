//! Waiting on a word of memory, in this process or in memory shared between processes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `*word == seen`, at most `timeout`. Wakes spuriously at times. `shared`: the word
/// is in memory shared with other processes.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Option<Duration>, shared: bool) {
    let private = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as _,
        tv_nsec: t.subsec_nanos() as _,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), |t| t as *const _);
    // SAFETY: the word outlives the call and the timeout is valid or null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | private,
            seen,
            limit,
        )
    };
}

/// Wakes up to `count` who wait on `word`.
pub fn wake(word: &AtomicU32, count: i32, shared: bool) {
    let private = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word's address is only a key here.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | private,
            count,
        )
    };
}
