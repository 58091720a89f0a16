//! Leaving a process behind that carries on with everything this one holds.

use crate::Errno;
use std::time::{Duration, Instant};

/// How long a thread that has ended may be seen.
const ON_THE_WAY: Duration = Duration::from_millis(500);

/// Which of the two processes this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that was there before, and the number of its copy.
    Foreground(u32),
    /// Its copy, in a session of its own.
    Background,
}

/// Splits this process in two, as a daemon does. Only for a process with a single thread:
/// a copy of several would hold locks whose owners do not exist in it.
///
/// # Errors
/// EBUSY with more than one thread; those of fork(2).
pub fn split() -> Result<Side, Errno> {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    // A thread that has been waited for is on its way out for a moment.
    let until = Instant::now() + ON_THE_WAY;
    while threads() != 1 {
        if Instant::now() > until {
            return Err(Errno(libc::EBUSY));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: this process has one thread, so the child's copy of every lock and every heap structure is
    // consistent. The child may go on as if nothing had happened.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => {
            // SAFETY: setsid takes nothing; it fails only for a group leader, which a fresh
            // child is not.
            unsafe { libc::setsid() };
            Ok(Side::Background)
        }
        copy => Ok(Side::Foreground(copy as u32)),
    }
}
