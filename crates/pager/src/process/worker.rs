//! The belongings of each thread that serves faults.

use crate::map::page_map::{UNIT, UNIT_BYTES};
use crate::reclaim::attempts::Waiter;
use ebb_engine::PageBytes;
use ebb_sys::paging::Time;
use ebb_sys::userfaultfd::Fault;
use std::collections::VecDeque;

/// A buffer of one unit, aligned as pages are.
#[repr(C, align(4096))]
pub struct UnitBuffer(pub [PageBytes; UNIT]);

/// The belongings of a service thread.
pub struct Worker {
    /// Where data is put together for a copy.
    pub buffer: &'static mut UnitBuffer,
    /// Faults that were parked and whose turn it is.
    pub again: Vec<Fault>,
    /// Faults for which there was no room, to be served after others.
    pub deferred: VecDeque<DeferredFault>,
    /// Another fault was read together with the one that is served.
    pub more: bool,
    /// When the fault that is served came.
    pub since: Time,
    /// The thread that waits for the fault that is served, and its page.
    pub waiter: Option<Waiter>,
    /// Room was hard to make lately: nothing could be stored, or who waits gave a page of its own.
    pub is_short: bool,
}

/// A fault for which there is no room yet.
pub struct DeferredFault {
    pub fault: Fault,
    /// When it came, and when it was found so.
    pub since: Time,
    pub begin: Time,
    /// How often shared pages were evicted for it.
    pub copies: u32,
}

impl Worker {
    /// With a buffer that takes memory as it is used: many a process of a tree has few faults.
    pub fn new() -> Self {
        let zero = vec![0u8; size_of::<UnitBuffer>() + 4096].leak();
        let at = zero.as_ptr().align_offset(4096);
        let buffer = zero[at..at + size_of::<UnitBuffer>()]
            .as_mut_ptr()
            .cast::<UnitBuffer>();
        Self {
            // SAFETY: aligned, initialised, leaked, and handed out once.
            buffer: unsafe { &mut *buffer },
            again: Vec::with_capacity(64),
            deferred: VecDeque::with_capacity(64),
            more: false,
            since: Time::ZERO,
            waiter: None,
            is_short: false,
        }
    }
}

const _: () = assert!(size_of::<UnitBuffer>() == UNIT_BYTES);
