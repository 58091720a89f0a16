//! A context of asynchronous I/O (`io_setup(2)`): requests go in, completions come out.
//!
//! Its completions lie in a ring that the kernel maps into the process, behind a header (`struct aio_ring`). So whoever
//! waits may look at the ring instead of asking the kernel.
//!
//! Not io_uring, which is often refused: there the thread that submitted posts the completion when it next runs. Our threads have idle
//! urgency, so another thread that waits could starve. Here the interrupt posts the completion. And containers that
//! refuse io_uring allow this.
//!
//! Not here: what the requests are for, and whose memory they name.
//!
//! The ring is moved to a place of ours, where the program maps nothing by accident (`memory::own`).
//!
//! Fork: the child has neither ring nor context. It calls [`Context::abandon`] and nothing else.

use crate::kernel::{clock, raw};
use crate::memory::own::OWN;
use crate::{Errno, memory};
use libc::{c_long, iocb};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};

/// A completion: `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Completion {
    /// The mark of the request.
    pub token: u64,
    request: u64,
    /// Bytes moved, or an error number below zero.
    pub result: i64,
    more: i64,
}

/// The ring's header.
#[repr(C)]
struct Header {
    id: u32,
    /// Places for completions; they stay as many.
    places: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    length: u32,
}

impl Header {
    /// Whether the ring is of the form that is known.
    fn is_known(&self) -> bool {
        self.magic == MAGIC && self.incompatible == 0 && self.length as usize == size_of::<Self>()
    }
}

/// The header's mark.
const MAGIC: u32 = 0xa10a_10a1;
/// Looks at the ring between two at the clock.
const LOOKS: u32 = 16;

/// Threads of this process that watch: the system counts them among those that run.
pub static WATCHERS: AtomicU32 = AtomicU32::new(0);

/// See the module.
pub struct Context {
    /// The kernel's name for it: the address of its ring.
    name: usize,
    /// Bytes of the ring.
    len: usize,
}

impl Context {
    /// A context for so many requests at a time.
    ///
    /// # Errors
    /// ENOSYS, EPERM: not allowed here; EAGAIN: `/proc/sys/fs/aio-max-nr` is used up; ENOMEM.
    pub fn new(requests: usize) -> Result<Self, Errno> {
        let mut name = 0usize;
        let args = [requests as c_long, &raw mut name as c_long, 0, 0, 0, 0];
        // SAFETY: the kernel writes one word.
        unsafe { raw::checked(libc::SYS_io_setup, args) }?;
        let made = Self { name, len: 0 };
        let ring = made.header();
        if !ring.is_known() {
            return Err(Errno(libc::ENOSYS));
        }
        let len = size_of::<Header>() + ring.places as usize * size_of::<Completion>();
        let len = len.next_multiple_of(memory::PAGE);
        // SAFETY: the kernel mapped so much for the context alone, and names the context anew where it is moved.
        let name = unsafe { OWN.take_in(name, len) }?;
        std::mem::forget(made);
        Ok(Self { name, len })
    }

    /// Hands requests to the kernel, without waiting; returns how many of them it took, from the first on.
    ///
    /// # Safety
    /// The requests live until the call returns. The memory that each names is valid, and nobody else uses it
    /// before the completion has come.
    pub unsafe fn submit(&self, requests: &[*mut iocb]) -> usize {
        let mut taken = 0;
        while taken < requests.len() {
            let left = &requests[taken..];
            let args = [
                self.name as c_long,
                left.len() as c_long,
                left.as_ptr() as c_long,
                0,
                0,
                0,
            ];
            // SAFETY: passed on to the caller; the kernel copies the requests.
            match unsafe { raw::checked(libc::SYS_io_submit, args) } {
                Ok(n) if n > 0 => taken += n,
                Err(Errno(libc::EINTR)) => {}
                _ => break,
            }
        }
        taken
    }

    /// Collects completions, as many as there is room for; waits for so many at `least`. Returns how many came: fewer
    /// where a signal came first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn collect(&self, completions: &mut [Completion], least: usize) -> Result<usize, Errno> {
        let none = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let timeout = match least {
            0 => &raw const none as c_long,
            _ => 0,
        };
        let args = [
            self.name as c_long,
            least as c_long,
            completions.len() as c_long,
            completions.as_mut_ptr() as c_long,
            timeout,
            0,
        ];
        // SAFETY: the kernel writes at most so many completions into the room for them.
        match unsafe { raw::checked(libc::SYS_io_getevents, args) } {
            Err(Errno(libc::EINTR)) => Ok(0),
            outcome => outcome,
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the kernel mapped the ring, whose header is aligned, and unmaps it when the context goes, which needs
        // `self`. It writes to head and tail alone from then on.
        unsafe { &*(self.name as *const Header) }
    }

    /// Whether there is a completion to collect, by a look at the ring.
    pub fn has_completion(&self) -> bool {
        self.completions() > 0
    }

    /// Completions to collect, by a look at the ring.
    pub fn completions(&self) -> usize {
        let ring = self.header();
        let (head, tail) = (ring.head.load(Acquire), ring.tail.load(Acquire));
        let turn = if tail < head { ring.places } else { 0 };
        (tail + turn - head) as usize
    }

    /// Watches for a completion to collect until this time (CLOCK_MONOTONIC, ns). It takes the processor's time, but a
    /// thread that sleeps would be woken by the interrupt, which on an idle processor ends a halt first.
    pub fn watch(&self, until_ns: u64) {
        if self.has_completion() || clock::monotonic_ns() >= until_ns {
            return;
        }
        WATCHERS.fetch_add(1, Relaxed);
        while !self.has_completion() && clock::monotonic_ns() < until_ns {
            for _ in 0..LOOKS {
                if self.has_completion() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        WATCHERS.fetch_sub(1, Relaxed);
    }

    /// In a forked child: the context is the parent's, and unknown here.
    pub fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for Context {
    /// Waits for what is in flight.
    fn drop(&mut self) {
        OWN.let_go(self.name, self.len);
        // SAFETY: the context is ours, and not used afterwards.
        unsafe { raw::call(libc::SYS_io_destroy, [self.name as c_long, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_ring_lies_with_memory_of_ours_until_it_goes() {
        let Ok(context) = Context::new(1) else {
            return println!("skipped: no asynchronous reads");
        };
        assert!(!context.has_completion() && context.header().is_known());
        assert_eq!(context.collect(&mut [Completion::default()], 0), Ok(0));
        drop(context);
        // Another test's memory may come to lie where a ring has gone, so one ring of a few is enough.
        let gone_again = (0..100).any(|_| {
            let context = Context::new(1).expect("a context, as before");
            let ring = context.name..context.name + context.len;
            assert_eq!(OWN.apart(ring.clone(), || ()), Err(ring.clone()));
            drop(context);
            OWN.apart(ring, || ()) == Ok(())
        });
        assert!(gone_again);
    }
}
