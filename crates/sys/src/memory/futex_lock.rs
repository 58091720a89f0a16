//! [`FutexLock`]: a lock that the child of a fork can release.

use crate::kernel::futex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mutex of one word on a private futex, after Drepper, "Futexes are tricky", mutex 2.
/// It has no owner, so that the child of a fork can release what its parent took.
#[derive(Default)]
pub struct FutexLock {
    word: AtomicU32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

impl FutexLock {
    /// Free.
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(FREE),
        }
    }

    /// Waits until it is free, and takes it.
    pub fn acquire(&self) {
        if self
            .word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            // Wakes, interruptions and a changed word all lead back to the swap.
            futex::wait(&self.word, CONTENDED, None, false);
        }
    }

    /// Frees it, for whoever holds it.
    pub fn release(&self) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.word, 1, false);
        }
    }
}
