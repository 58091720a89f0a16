//! [`Admission`]: what a process that does not page may have filled, and which threads wait to fill more. Without the
//! lock.
//!
//! ```text
//! waited  <=  counted        time counts once, and only what is past
//! ```
//! Not here: when a thread waits (`syscalls::admit`).

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// More threads than a system has.
const MANY: u32 = 1 << 22;

/// Growth of a process that does not page.
pub struct Admission {
    /// Bytes that may have been filled since the process was measured last.
    unmeasured: AtomicUsize,
    /// Threads that wait.
    waiting: AtomicU32,
    /// Nanoseconds in which some thread waited.
    waited_ns: AtomicU64,
    /// The time up to which these are counted, in nanoseconds.
    counted_ns: AtomicU64,
    /// Changes of the conditions that are waited for.
    changes: AtomicU32,
}

impl Admission {
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

    /// So many bytes more may be filled: whether the process is to be measured, which it is each `every` bytes, and
    /// always while a thread waits.
    pub fn add(&self, bytes: usize, every: usize) -> bool {
        let due = self.unmeasured.fetch_add(bytes, SeqCst) + bytes >= every
            || self.waiting.load(SeqCst) > 0;
        if due {
            self.unmeasured.store(0, SeqCst);
        }
        due
    }

    /// A thread waits from now on.
    pub fn begin_wait(&self) {
        self.waiting.fetch_add(1, SeqCst);
    }

    /// It waits no more. In a child that was forked by a handler of signals nobody waits.
    pub fn end_wait(&self) {
        let less = |waiting: u32| waiting.checked_sub(1);
        let _ = self.waiting.fetch_update(SeqCst, SeqCst, less);
    }

    /// The time for which some thread has waited.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(SeqCst))
    }

    /// A thread waited from `since` to `now`. Time that others counted already counts once.
    pub fn count_wait(&self, since: Duration, now: Duration) {
        let (since, now) = (since.as_nanos() as u64, now.as_nanos() as u64);
        let counted = self.counted_ns.fetch_max(now, SeqCst);
        self.waited_ns
            .fetch_add(now.saturating_sub(counted.max(since)), SeqCst);
    }

    /// Changes of the conditions so far.
    pub fn changes(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// They changed.
    pub fn change(&self, kernel: &impl Kernel) {
        self.changes.fetch_add(1, SeqCst);
        kernel.wake_word(&self.changes, i32::MAX);
    }

    /// Waits so long for a change.
    pub fn wait_change(&self, kernel: &impl Kernel, seen: u32, most: Duration) {
        kernel.wait_word(&self.changes, seen, Some(most));
    }

    /// The equation of the head comment, and that no thread stopped to wait that had not begun to.
    pub fn check(&self) {
        let waited = self.waited_ns.load(SeqCst);
        assert!(waited <= self.counted_ns.load(SeqCst));
        assert!(self.waiting.load(SeqCst) < MANY);
    }

    /// In a forked child none of the threads that waited lives.
    pub fn reset_in_child(&self) {
        self.waiting.store(0, SeqCst);
    }
}
