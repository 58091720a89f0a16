//! Words that threads of the program and the keeper share without the lock.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Requests of the program's threads to have memory registered or let go.
pub struct Registration {
    /// Bytes that may be written to and are not registered yet, about, in a process that pages.
    pub unregistered: AtomicUsize,
    /// Rounds in which the keeper answered such requests.
    pub rounds: AtomicU32,
    /// Bytes that were let go to a userfaultfd of the program's, and not reported yet.
    pub released: AtomicUsize,
}

impl Registration {
    /// Nothing asked for.
    pub const fn new() -> Self {
        Self {
            unregistered: AtomicUsize::new(0),
            rounds: AtomicU32::new(0),
            released: AtomicUsize::new(0),
        }
    }
}

/// Growth of a process that does not page.
pub struct Growth {
    /// Bytes that may have been filled since the process was measured last.
    pub unmeasured: AtomicUsize,
    /// Threads that wait.
    pub waiting: AtomicU32,
    /// Nanoseconds in which some thread waited.
    pub waited_ns: AtomicU64,
    /// The time up to which these are counted, in nanoseconds.
    pub counted_ns: AtomicU64,
    /// Changes of the conditions that are waited for.
    pub changes: AtomicU32,
}

impl Growth {
    /// Nothing filled.
    pub const fn new() -> Self {
        Self {
            unmeasured: AtomicUsize::new(0),
            waiting: AtomicU32::new(0),
            waited_ns: AtomicU64::new(0),
            counted_ns: AtomicU64::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// In a forked child none of the threads that waited lives.
    pub fn reset_in_child(&self) {
        self.waiting.store(0, SeqCst);
    }
}

/// Changes of the program's user.
pub struct UserChanges {
    /// Changes by which the process may have given up the tree's user.
    pub made: AtomicU32,
    /// Those that the keeper has acted upon.
    pub followed: AtomicU32,
}

impl UserChanges {
    /// None.
    pub const fn new() -> Self {
        Self {
            made: AtomicU32::new(0),
            followed: AtomicU32::new(0),
        }
    }
}
