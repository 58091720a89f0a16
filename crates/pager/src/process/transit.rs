//! [`Transit`]: threads wait until pages that others move have arrived. Without the lock.
//!
//! ```text
//! a thread waits   =>  waiters > 0, from before it gives up the lock until it goes on
//! ```
//! A transit ends with the lock held. So a thread that saw its page in transit has counted itself by then, and is
//! woken.
//!
//! Not here: which pages are in transit (`map::page_map`), faults on them (`parked`).

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// More threads than a system has.
const MANY: u32 = 1 << 22;

/// Ends of transits, and the threads that wait for one.
pub struct Transit {
    /// Ends for which some thread waited.
    ended: AtomicU32,
    /// Threads that wait.
    waiters: AtomicU32,
}

impl Transit {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self {
            ended: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Waits until a transit ends, or for so long; `unlock` gives the lock up.
    pub fn wait(&self, kernel: &impl Kernel, unlock: impl FnOnce(), most: Duration) {
        self.waiters.fetch_add(1, SeqCst);
        let seen = self.ended.load(SeqCst);
        unlock();
        kernel.wait_word(&self.ended, seen, Some(most));
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// A transit ended; called with the lock held.
    #[inline]
    pub fn end(&self, kernel: &impl Kernel) {
        if self.waiters.load(SeqCst) > 0 {
            self.ended.fetch_add(1, SeqCst);
            kernel.wake_word(&self.ended, i32::MAX);
        }
    }

    /// In a forked child none of the threads that waited lives.
    pub fn reset_in_child(&self) {
        self.waiters.store(0, SeqCst);
    }

    /// No thread stopped to wait that had not begun to.
    pub fn check(&self) {
        assert!(self.waiters.load(SeqCst) < MANY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_memory_kernel::MemoryKernel;

    /// The ends that are told, while one thread waits; `before` comes before the end.
    fn told(before: impl Fn(&Transit)) -> u32 {
        let kernel = MemoryKernel::alone();
        let transit = Transit::new();
        let end = || {
            before(&transit);
            transit.end(&kernel);
        };
        transit.wait(&kernel, end, Duration::ZERO);
        transit.ended.load(SeqCst)
    }

    #[test]
    fn an_end_is_told_to_threads_that_wait_and_these_are_not_in_a_child() {
        assert_eq!(told(|_| ()), 1);
        assert_eq!(told(Transit::reset_in_child), 0);
    }
}
