//! The belongings of each thread that serves faults.

use crate::map::page_map::{UNIT, UNIT_BYTES};
use crate::reclaim::attempts::Waiter;
use ebb_engine::PageBytes;
use ebb_sys::paging::{Kernel, Time};
use ebb_sys::userfaultfd::Fault;
use std::collections::VecDeque;

/// A buffer of one unit, aligned as pages are.
#[repr(C, align(4096))]
pub struct UnitBuffer([PageBytes; UNIT]);

impl UnitBuffer {
    /// One of zeros, which takes memory as it is written. A forked child has no copy of it, or a long chain of forks
    /// would be full of them.
    pub fn reserve(kernel: &impl Kernel) -> &'static mut Self {
        let reserved = kernel.reserve_alone(size_of::<Self>());
        let buffer = reserved.expect("memory for a buffer") as *mut Self;
        // SAFETY: just mapped, of whole pages of zeros, never unmapped, and handed out once.
        unsafe { &mut *buffer }
    }

    /// Its first `pages` pages.
    pub fn first(&self, pages: usize) -> &[PageBytes] {
        &self.0[..pages]
    }
}

/// A fault that was read.
#[derive(Clone, Copy)]
pub struct PendingFault {
    pub fault: Fault,
    /// The time when it was read.
    pub since: Time,
    /// Flag: another was read together with it, and waits for this one.
    pub is_followed: bool,
}

impl PendingFault {
    /// A fault that no other waits for.
    pub fn alone(fault: Fault, since: Time) -> Self {
        Self {
            fault,
            since,
            is_followed: false,
        }
    }

    /// The thread that waits, and its page.
    pub fn waiter(&self) -> Waiter {
        Waiter::of(&self.fault)
    }
}

/// A fault for which there is no room yet.
pub struct DeferredFault {
    pub pending: PendingFault,
    /// The time when it was found so.
    pub begin: Time,
    /// The number of times that shared pages were evicted for it.
    pub copies: u32,
}

/// The belongings of a service thread, or of the keeper: faults that it alone has to serve, and a buffer.
pub struct Worker {
    /// The place where data is put together for a copy.
    buffer: &'static mut UnitBuffer,
    /// Flag: the buffer was used since it was last given back.
    used: bool,
    /// Faults whose page's transit this thread ended.
    unparked: Vec<Fault>,
    /// Faults for which there was no room, to be served after others.
    deferred: VecDeque<DeferredFault>,
}

impl Worker {
    /// With a buffer that takes memory as it is used: many a process of a tree has few faults. Forked children have
    /// workers of their own.
    pub fn new(kernel: &impl Kernel) -> Self {
        Self {
            buffer: UnitBuffer::reserve(kernel),
            used: false,
            unparked: Vec::new(),
            deferred: VecDeque::new(),
        }
    }

    /// The first `pages` pages of its buffer.
    pub fn buffer(&mut self, pages: usize) -> &mut [PageBytes] {
        self.used = true;
        &mut self.buffer.0[..pages]
    }

    /// Gives the memory of its buffer back to the system: there is nothing in it.
    pub fn give_buffer_back(&mut self, kernel: &impl Kernel) {
        if std::mem::take(&mut self.used) {
            kernel.give_back(self.buffer.0.as_flattened_mut());
        }
    }

    /// Whether it has no fault to serve.
    pub fn is_free(&self) -> bool {
        self.unparked.is_empty() && self.deferred.is_empty()
    }

    /// Takes over faults that were parked: the transit of their pages is over.
    pub fn unpark(&mut self, parked: &mut Vec<Fault>) {
        self.unparked.append(parked);
    }

    /// The next of them to serve.
    pub fn next_unparked(&mut self) -> Option<Fault> {
        self.unparked.pop()
    }

    /// Puts a fault down, to be served after others.
    pub fn defer(&mut self, fault: DeferredFault) {
        self.deferred.push_back(fault);
    }

    /// The fault that was put down longest ago.
    pub fn next_deferred(&mut self) -> Option<DeferredFault> {
        self.deferred.pop_front()
    }

    /// Faults that were put down.
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }
}

const _: () = assert!(size_of::<UnitBuffer>() == UNIT_BYTES);
