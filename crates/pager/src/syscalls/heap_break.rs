//! The end of the heap, as `brk` moved it last.

use ebb_sys::memory::{self, page_up};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The end of the heap.
pub fn known_break() -> usize {
    match BREAK.load(SeqCst) {
        // SAFETY: asks for nothing.
        0 => page_up(unsafe { memory::brk(0) }),
        known => known,
    }
}

/// The end of the heap, once the program asked for it.
pub static BREAK: AtomicUsize = AtomicUsize::new(0);
