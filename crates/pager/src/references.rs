//! Pages that the kernel goes on referring to after a call: what a pipe, a socket or an io_uring has
//! still to send, and what a device may still write.
//!
//! Where a page is *pinned*, it refuses to be moved, and stays; a look at how many are says whether
//! memory may be dropped (`capture`), which asks nobody.
//!
//! A mere *reference* stops nothing: the page leaves the program, and whoever refers to it sends what
//! is in it by then. The kernel's own swap leaves it alone, as nobody else has it. Here it is a frame, and
//! the next load would be put into it. Calls that lend pages in this way are copied or refused by the
//! preload library (`vmsplice`, SO_ZEROCOPY); the requests of an io_uring cannot be seen one by one. So
//! once a process has one, no frame is filled any more (`lent`): they go back to the system, which
//! keeps those that are referred to, and loads copy.
//!
//! What it does not do: keep a page where it is that is referred to only and about to be written.

use ebb_sys::{memory, proc};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Whether the process has an io_uring, or had one. A child has what its parent had.
static RING: AtomicBool = AtomicBool::new(false);

/// The program made an io_uring, and cannot have used it yet.
pub fn ring_made() {
    RING.store(true, Relaxed);
}

/// Whether frames may be referred to by others, and must not be filled.
pub fn lent() -> bool {
    RING.load(Relaxed)
}

/// Whether a device may write pages of this process at any time.
pub fn pinned() -> bool {
    memory::pinned_pages() != Some(0)
}

/// Looks for a ring made without libc.
pub fn look() {
    // What cannot be looked at may be one.
    if !lent() && proc::has_ring(std::process::id()) != Ok(false) {
        ring_made();
    }
}

/// Looks again and again, in the keeper.
pub struct Watch {
    next: Instant,
}

impl Watch {
    /// Looks take no more than this part of the time.
    const PART: u32 = 1000;
    const SOONEST: Duration = Duration::from_millis(20);

    /// The first look is due.
    pub fn new() -> Self {
        Self {
            next: Instant::now(),
        }
    }

    /// Looks if it is time to.
    pub fn look(&mut self) {
        let begin = Instant::now();
        if begin >= self.next {
            look();
            self.next = begin + (Self::PART * begin.elapsed()).max(Self::SOONEST);
        }
    }
}
