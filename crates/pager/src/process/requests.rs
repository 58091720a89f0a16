//! Requests of the program's threads, which the keeper answers, and what they may add. All without the lock.

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a thread waits before it looks again.
const LOOK: Duration = Duration::from_millis(20);

/// Requests to have memory registered or let go.
pub struct Registration {
    /// Bytes that may be written to and are not registered yet, about, in a process that pages.
    unregistered: AtomicUsize,
    /// Rounds in which the keeper answered such requests.
    rounds: AtomicU32,
    /// Bytes that were let go to a userfaultfd of the program's, and not reported yet.
    released: AtomicUsize,
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

    /// So many bytes were mapped and are not registered; how many that makes, about.
    pub fn add_unregistered(&self, bytes: usize) -> usize {
        self.unregistered.fetch_add(bytes, SeqCst) + bytes
    }

    /// In the keeper: all is about to be registered.
    pub fn begin_round(&self) {
        self.unregistered.store(0, SeqCst);
    }

    /// In the keeper: requests were answered.
    pub fn end_round(&self, kernel: &impl Kernel) {
        self.rounds.fetch_add(1, SeqCst);
        kernel.wake_word(&self.rounds, i32::MAX);
    }

    /// Rounds so far.
    pub fn rounds(&self) -> u32 {
        self.rounds.load(SeqCst)
    }

    /// Waits a while for another round.
    pub fn wait_round(&self, kernel: &impl Kernel, seen: u32) {
        kernel.wait_word(&self.rounds, seen, Some(LOOK));
    }

    /// So many bytes are the program's alone from now on.
    pub fn release(&self, bytes: usize) {
        self.released.fetch_add(bytes, SeqCst);
    }

    /// In the keeper: how many were since the last call.
    pub fn take_released(&self) -> usize {
        self.released.swap(0, SeqCst)
    }
}

/// Growth of a process that does not page.
pub struct Growth {
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

    /// In a forked child none of the threads that waited lives.
    pub fn reset_in_child(&self) {
        self.waiting.store(0, SeqCst);
    }
}

/// Changes of the program's user.
pub struct UserChanges {
    /// Changes by which the process may have given up the tree's user.
    made: AtomicU32,
    /// Those that the keeper has acted upon.
    followed: AtomicU32,
}

impl UserChanges {
    /// None.
    pub const fn new() -> Self {
        Self {
            made: AtomicU32::new(0),
            followed: AtomicU32::new(0),
        }
    }

    /// One more; its number.
    pub fn make(&self) -> u32 {
        self.made.fetch_add(1, SeqCst) + 1
    }

    /// Waits a while for the keeper; whether it has acted upon this one.
    pub fn wait_followed(&self, kernel: &impl Kernel, change: u32, wake_keeper: impl Fn()) -> bool {
        let followed = self.followed.load(SeqCst);
        if followed.wrapping_sub(change) as i32 >= 0 {
            return true;
        }
        wake_keeper();
        kernel.wait_word(&self.followed, followed, Some(Duration::from_millis(5)));
        false
    }

    /// In the keeper: the change that it has not acted upon.
    pub fn pending(&self) -> Option<u32> {
        let made = self.made.load(SeqCst);
        (self.followed.load(SeqCst) != made).then_some(made)
    }

    /// In the keeper: it has.
    pub fn follow(&self, kernel: &impl Kernel, change: u32) {
        self.followed.store(change, SeqCst);
        kernel.wake_word(&self.followed, i32::MAX);
    }
}

/// The end of the heap as `brk` has it.
pub struct HeapBreak {
    /// 0 before the program asked for it.
    known: AtomicUsize,
}

impl HeapBreak {
    /// Not known yet.
    pub const fn new() -> Self {
        Self {
            known: AtomicUsize::new(0),
        }
    }

    /// The end, if the program asked for it.
    pub fn get(&self) -> Option<usize> {
        Some(self.known.load(SeqCst)).filter(|end| *end != 0)
    }

    /// It is this now.
    pub fn set(&self, end: usize) {
        self.known.store(end, SeqCst);
    }
}
