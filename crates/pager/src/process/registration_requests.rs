//! [`Registration`]: the program's threads ask the keeper to register memory or to let it go. Without the lock.
//!
//! Not here: the ranges (`map::ranges`), registering them (`fault::registration`).

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a thread waits before it looks again.
const LOOK: Duration = Duration::from_millis(20);

/// Requests to have memory registered or let go.
pub struct Registration {
    /// Bytes that may be written to and are not registered yet, about, in a process that pages.
    unregistered: AtomicUsize,
    /// Rounds in which the keeper answered such requests.
    rounds: AtomicU32,
    /// Flag: a thread waits for the next round.
    awaited: AtomicBool,
    /// Bytes that were let go to a userfaultfd of the program's, and not reported yet.
    released: AtomicUsize,
}

impl Registration {
    /// Nothing asked for.
    pub const fn new() -> Self {
        Self {
            unregistered: AtomicUsize::new(0),
            rounds: AtomicU32::new(0),
            awaited: AtomicBool::new(false),
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

    /// A thread is about to wait for another round.
    pub fn awaits(&self) {
        self.awaited.store(true, SeqCst);
    }

    /// In the keeper: whether threads wait for a round.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(SeqCst)
    }

    /// In the keeper: what was asked for by now is about to be done.
    pub fn answers(&self) {
        self.awaited.store(false, SeqCst);
    }

    /// Waits a while for another round.
    pub fn wait_round(&self, kernel: &impl Kernel, seen: u32) {
        self.awaits();
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
