//! [`HeapBreak`]: the end of the heap, which a child of `vfork` cannot ask for without moving it.

use crate::map::page_map::ADDRESSES;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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

    /// It is an address of a program's.
    pub fn check(&self) {
        assert!(self.known.load(SeqCst) < ADDRESSES);
    }

    /// It is this now.
    pub fn set(&self, end: usize) {
        self.known.store(end, SeqCst);
    }
}
