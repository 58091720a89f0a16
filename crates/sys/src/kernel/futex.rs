//! Waiting on a word of memory, in this process or in memory shared between processes.

use super::raw;
use crate::Errno;
use std::ffi::c_long;
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
    let limit = limit.as_ref().map_or(0, |t| &raw const *t as c_long);
    let operation = libc::FUTEX_WAIT | private;
    let args = [
        word.as_ptr() as c_long,
        operation.into(),
        seen.into(),
        limit,
        0,
        0,
    ];
    // SAFETY: the word outlives the call and the timeout is valid or null.
    unsafe { raw::call(libc::SYS_futex, args) };
}

/// Wakes up to `count` who wait on `word`.
pub fn wake(word: &AtomicU32, count: i32, shared: bool) {
    let private = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    let operation = libc::FUTEX_WAKE | private;
    let args = [
        word.as_ptr() as c_long,
        operation.into(),
        count.into(),
        0,
        0,
        0,
    ];
    // SAFETY: the word's address is only a key here.
    unsafe { raw::call(libc::SYS_futex, args) };
}

/// A word to be waited for, what it was seen to hold, and whether it is in memory shared with other processes.
pub type Watched<'a> = (&'a AtomicU32, u32, bool);

/// Sleeps while both words are as seen, at most `timeout`. Wakes spuriously at times. Where the system does not
/// let wait for two, it waits for the first, in short turns.
pub fn wait_for_either(first: Watched<'_>, second: Watched<'_>, timeout: Option<Duration>) {
    /// `struct futex_waitv`, and its flags.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    const WORD: u32 = 2;
    const TURN: Duration = Duration::from_millis(20);
    let waiter = |(word, seen, shared): Watched<'_>| Waiter {
        value: seen.into(),
        address: word.as_ptr() as u64,
        flags: WORD
            | if shared {
                0
            } else {
                libc::FUTEX_PRIVATE_FLAG as u32
            },
        reserved: 0,
    };
    let waiters = [waiter(first), waiter(second)];
    let limit = timeout.map(|timeout| {
        let until = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ns = until.tv_nsec as u64 + u64::from(timeout.subsec_nanos());
        libc::timespec {
            tv_sec: until.tv_sec + (timeout.as_secs() + ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        }
    });
    let limit = limit.as_ref().map_or(0, |t| &raw const *t as c_long);
    let (list, count) = (waiters.as_ptr() as c_long, waiters.len() as c_long);
    let args = [list, count, 0, limit, libc::CLOCK_MONOTONIC.into(), 0];
    // SAFETY: the words outlive the call; the structures and the timeout are valid, or that is null.
    let result = unsafe { raw::checked(libc::SYS_futex_waitv, args) };
    if matches!(result, Err(Errno(libc::ENOSYS | libc::EPERM))) {
        let turn = timeout.map_or(TURN, |timeout| timeout.min(TURN));
        wait(first.0, first.1, Some(turn), first.2);
    }
}
