//! The stack under a thread of the program that takes the pager's lock.
//!
//! Service needs the lock, so who holds it must not fault. The stacks that a program names are never
//! paged (the preload library sees to that), but it may switch, by instructions of its own, to any
//! memory it has: coroutine libraries do. Under the lock nothing leaves memory and nothing is
//! protected from writes; so the thread looks, once it has the lock, whether what it is about to use
//! is there, and if not lets the lock go, touches it, and takes the lock again.
//!
//! It does not know how large a stack is: what lies below may be other memory of the program.

use crate::map::{Page, PageNumber};
use crate::sharing::{self, Sharing};
use crate::state::State;
use ebb_engine::PAGE_SIZE;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes below that a memory call uses, at most.
const BELOW: usize = 32 << 10;
/// Bytes above that it does: what it called before it took the lock.
const ABOVE: usize = 8 << 10;

/// Where a thread stands.
pub struct Footing {
    stack: usize,
    /// What of its stack was not there, or might not be written.
    missing: Range<usize>,
    /// The protections there had been when all of it was touched.
    touched: Option<u32>,
}

impl Footing {
    /// Of the calling thread.
    #[inline(never)]
    pub fn here() -> Self {
        let local = 0u8;
        Self {
            stack: &raw const local as usize,
            missing: 0..0,
            touched: None,
        }
    }

    /// Whether the thread can use its stack without a fault, as long as it holds the lock.
    pub fn holds(&mut self, state: &State) -> bool {
        if state.bays.is_none() {
            // Nothing has left yet.
            return true;
        }
        let Some(range) = state
            .ranges
            .find(self.stack)
            .filter(|r| r.attributes.registered)
        else {
            return true;
        };
        let start = (self.stack - BELOW).max(range.start) & !(PAGE_SIZE - 1);
        let end = (self.stack + ABOVE).min(range.end);
        self.missing = start..end;
        let there = |at| matches!(state.map.get(PageNumber::of(at)), Page::Resident(_));
        let writable =
            state.sharing == Sharing::Alone || self.touched == Some(sharing::protections());
        writable && (start..end).step_by(PAGE_SIZE).all(there)
    }

    /// Brings what was missing in, without the lock.
    pub fn touch(&mut self) {
        self.touched = Some(sharing::protections());
        for at in self.missing.clone().step_by(PAGE_SIZE) {
            // SAFETY: memory of the program that was mapped to be read and written when the lock was
            // held, around the stack that this thread runs on. Other threads may use it meanwhile, so
            // the write is atomic and changes nothing.
            let byte = unsafe { &*(at as *const AtomicU8) };
            let value = byte.load(Relaxed);
            let _ = byte.compare_exchange(value, value, Relaxed, Relaxed);
        }
    }
}
