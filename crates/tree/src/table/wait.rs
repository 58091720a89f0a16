//! Waiting for news, and waking the members that wait.

use super::{SlotNumber, Table};
use ebb_sys::futex::{Watched, wait_for_either};
use rustix::thread::futex;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

impl Table {
    /// Wakes who waits for room, if anyone does.
    pub fn wake_waiters(&self) {
        self.waiters.0.take(|slot| {
            if let Some(slot) = SlotNumber::new(slot) {
                self.wake(slot);
            }
        });
    }

    /// Wakes the threads of a member that [`wait`](Self::wait).
    pub fn wake(&self, n: SlotNumber) {
        let word = &self.slot(n).futex;
        word.fetch_add(1, SeqCst);
        #[cfg(all(debug_assertions, not(loom)))]
        if crate::waits::has_news() {
            return;
        }
        // Waking a word that lies in a valid mapping cannot fail.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the slot's word differs from `seen`, or the time is over. Returns the word.
    pub fn wait(&self, me: SlotNumber, seen: u32, timeout: Option<Duration>) -> u32 {
        let word = &self.slot(me).futex;
        // One who only looks makes no call.
        let waits = timeout != Some(Duration::ZERO);
        let timeout = timeout.and_then(|t| t.try_into().ok());
        if waits && word.load(SeqCst) == seen {
            // The word says whether there is news, however the wait ended.
            let _ = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
        }
        word.load(SeqCst)
    }

    /// The same, and also until another word changes.
    pub fn wait_beside(
        &self,
        me: SlotNumber,
        seen: u32,
        timeout: Duration,
        other: Watched<'_>,
    ) -> u32 {
        let word = &self.slot(me).futex;
        if word.load(SeqCst) == seen {
            wait_for_either((word, seen, true), other, Some(timeout));
        }
        word.load(SeqCst)
    }
}
