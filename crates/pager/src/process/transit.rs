//! [`Transit`]: threads wait until pages that others move have arrived. Without the lock.
//!
//! ```text
//! a thread waits   =>  waiters > 0, from before it gives up the lock until it goes on
//! ```
//! A transit ends with the lock held. So a thread that saw its page in transit has counted itself by then, and is
//! woken.
//!
//! Where many threads fault, one transit follows another, and a thread that needs a moment without any might wait for
//! ever. So it *closes*: service threads begin no fault until it is open again, and all that is under way drains.
//! ```text
//! a service thread waits there   =>  it has nothing in transit, holds no lock, and goes on a second after the closing,
//!                                    for as long again; then it waits again
//! a thread closes                =>  it needs no fault served until it opens
//! ```
//! The keeper serves on, as others may need it. Between the steps of a long eviction it steps back for a moment.
//!
//! Not here: which pages are in transit (`map::page_map`), faults on them (`parked`).

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// More threads than a system has.
const MANY: u32 = 1 << 22;

/// Ends of transits, and the threads that wait for one.
pub struct Transit {
    /// Ends for which some thread waited.
    ended: AtomicU32,
    /// Threads that wait.
    waiters: AtomicU32,
    /// Threads that have closed.
    closers: AtomicU32,
    /// The time when the first of them did, in ns.
    closed_ns: AtomicU64,
}

/// The longest that faults are not begun. While a transit takes longer, from a device that hangs, they are begun in every
/// other such time.
const CLOSED: Duration = Duration::from_secs(1);

/// The time of a transit. It is slept, not spun away: who has to end it may need this processor.
pub const SHORT: Duration = Duration::from_micros(20);

/// No fault is begun, for as long as this is there.
pub struct Closed<'a, K: Kernel> {
    transit: &'a Transit,
    kernel: &'a K,
}

impl<K: Kernel> Closed<'_, K> {
    /// Where it has been open for a while although somebody has closed, as something took long: it closes again. Else
    /// one slow transit would leave it open to all that come.
    pub fn renew(&self) {
        let now = self.kernel.now();
        let closed = Duration::from_nanos(self.transit.closed_ns.load(SeqCst));
        if now.saturating_sub(closed) > 2 * CLOSED {
            self.transit.closed_ns.store(now.as_nanos() as u64, SeqCst);
        }
    }
}

impl<K: Kernel> Drop for Closed<'_, K> {
    fn drop(&mut self) {
        self.transit.closers.fetch_sub(1, SeqCst);
        self.kernel.wake_word(&self.transit.closers, i32::MAX);
    }
}

impl Transit {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self {
            ended: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            closers: AtomicU32::new(0),
            closed_ns: AtomicU64::new(0),
        }
    }

    /// Keeps service threads from beginning faults. See the module's text.
    pub fn close<'a, K: Kernel>(&'a self, kernel: &'a K) -> Closed<'a, K> {
        if self.closers.fetch_add(1, SeqCst) == 0 {
            self.closed_ns.store(kernel.now().as_nanos() as u64, SeqCst);
        }
        Closed {
            transit: self,
            kernel,
        }
    }

    /// Whether some thread has closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closers.load(SeqCst) > 0
    }

    /// Waits until it is open, or for so long, or has been closed for long; the time that it waited. No lock of ours is
    /// held, and nothing is in transit.
    pub fn wait_open(&self, kernel: &impl Kernel, most: Duration) -> Duration {
        let begin = kernel.now();
        loop {
            let seen = self.closers.load(SeqCst);
            let now = kernel.now();
            let waited = now.saturating_sub(begin);
            let closed = Duration::from_nanos(self.closed_ns.load(SeqCst));
            let left = most.saturating_sub(waited);
            let left = left.min(CLOSED.saturating_sub(now.saturating_sub(closed)));
            if seen == 0 || left.is_zero() {
                return waited;
            }
            kernel.wait_word(&self.closers, seen, Some(left));
        }
    }

    /// Waits until a transit ends, or for so long; `unlock` gives the lock up. Whether one ended.
    pub fn wait(&self, kernel: &impl Kernel, unlock: impl FnOnce(), most: Duration) -> bool {
        self.waiters.fetch_add(1, SeqCst);
        let seen = self.ended.load(SeqCst);
        unlock();
        kernel.wait_word(&self.ended, seen, Some(most));
        self.waiters.fetch_sub(1, SeqCst);
        self.ended.load(SeqCst) != seen
    }

    /// A transit ended; called with the lock held.
    #[inline]
    pub fn end(&self, kernel: &impl Kernel) {
        if self.waiters.load(SeqCst) > 0 {
            self.ended.fetch_add(1, SeqCst);
            kernel.wake_word(&self.ended, i32::MAX);
        }
    }

    /// In a forked child none of the threads that waited or had closed lives.
    pub fn reset_in_child(&self) {
        self.waiters.store(0, SeqCst);
        self.closers.store(0, SeqCst);
    }

    /// No thread stopped to wait that had not begun to, and none opened that had not closed.
    pub fn check(&self) {
        assert!(self.waiters.load(SeqCst) < MANY);
        assert!(self.closers.load(SeqCst) < MANY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_memory_kernel::MemoryKernel;
    use ebb_memory_kernel::alone::Alone;

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

    /// The time that a thread waits which is about to begin a fault.
    fn waits(transit: &Transit, kernel: &MemoryKernel<Alone>) -> Duration {
        let begin = kernel.now();
        transit.wait_open(kernel, Duration::from_secs(1));
        (kernel.now() - begin).as_millis() as u32 * Duration::from_millis(1)
    }

    #[test]
    fn no_fault_is_begun_while_some_thread_has_closed_but_for_no_longer_than_a_bound() {
        let kernel = MemoryKernel::alone();
        let transit = Transit::new();
        assert_eq!(waits(&transit, &kernel), Duration::ZERO);
        let both = (transit.close(&kernel), transit.close(&kernel));
        assert_eq!(waits(&transit, &kernel), Duration::from_secs(1));
        // It has been closed for long.
        drop(both.0);
        assert_eq!(waits(&transit, &kernel), Duration::ZERO);
        drop(both.1);
        assert_eq!(waits(&transit, &kernel), Duration::ZERO);
        let again = transit.close(&kernel);
        assert_eq!(waits(&transit, &kernel), Duration::from_secs(1));
        drop(again);
        std::mem::forget(transit.close(&kernel));
        transit.reset_in_child();
        assert_eq!(waits(&transit, &kernel), Duration::ZERO);
    }
}
