//! Which members wait for room: the bits, apart from what the room is.
//!
//! # Protocol
//! - Who finds no room sets its bit, **then** looks once more, and waits if there is none still ([`Waiters::add`]).
//! - Who makes room says so in the shared sums, **then** looks for bits, and wakes their members ([`Waiters::take`]).
//!
//! Each writes one word and reads the other's. A fence on either side has one of the two see the other, so no room is
//! made behind the back of a member that goes to sleep.
//!
//! Not here: how a member sleeps and is woken (`table/wait.rs`).

use crate::lease::SLOT_WORDS;
use ebb_engine::sync::atomic::{AtomicU64, Ordering::*, fence};

/// A bit for each slot. All zeros is a fresh start.
#[repr(C)]
pub(crate) struct Waiters([AtomicU64; SLOT_WORDS]);

impl Waiters {
    fn word(&self, slot: usize) -> (&AtomicU64, u64) {
        (&self.0[slot / 64], 1 << (slot % 64))
    }

    /// Room made before this has woken nobody: the caller looks once more.
    pub fn add(&self, slot: usize) {
        let (word, bit) = self.word(slot);
        word.fetch_or(bit, SeqCst);
        fence(SeqCst);
    }

    /// It is dead.
    #[cfg(not(loom))]
    pub fn remove(&self, slot: usize) {
        let (word, bit) = self.word(slot);
        word.fetch_and(!bit, SeqCst);
    }

    /// After room was made: those that wait, who do so no more.
    pub fn take(&self, mut wake: impl FnMut(usize)) {
        fence(SeqCst);
        for (i, word) in self.0.iter().enumerate() {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                wake(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicI64;
    use loom::thread;

    /// A member that finds no room sleeps only where who makes some wakes it.
    #[test]
    fn loom_nobody_sleeps_beside_room() {
        loom::model(|| {
            let waiters = Arc::new(Waiters(std::array::from_fn(|_| AtomicU64::new(0))));
            let charged = Arc::new(AtomicI64::new(1));
            let gives = {
                let (waiters, charged) = (waiters.clone(), charged.clone());
                thread::spawn(move || {
                    charged.fetch_sub(1, SeqCst);
                    let mut woken = false;
                    waiters.take(|slot| woken |= slot == 2);
                    woken
                })
            };
            let is_full = || charged.load(SeqCst) > 0;
            let sleeps = is_full() && {
                waiters.add(2);
                is_full()
            };
            let woken = gives.join().unwrap();
            assert!(woken || !sleeps, "it sleeps beside room");
        });
    }
}
