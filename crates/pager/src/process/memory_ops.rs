//! The single operations on the program's memory that every room makes.

use crate::map::page_map::{Mask, PageNumber};
use crate::process::context::Context;
use ebb_engine::{PAGE_SIZE, PageBytes};
use ebb_sys::Errno;
use ebb_sys::pagemap::Mapped;
use ebb_sys::paging::Kernel;

/// When who waits for the pages is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    /// By the caller, after this.
    Later,
    /// By the copy.
    AtOnce,
}

/// Whether the pages may be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// As other memory.
    Free,
    /// A write is a fault (`clean`).
    Faults,
}

impl<K: Kernel> Context<K> {
    /// One copy; the bytes done, and why it stopped if it did.
    pub fn copy(
        &self,
        to: usize,
        content: &[PageBytes],
        writes: Writes,
        waking: Waking,
    ) -> (usize, Result<(), Errno>) {
        if self.refuses() {
            return (0, Err(Errno(libc::ENOMEM)));
        }
        let (protect, wake) = (writes == Writes::Faults, waking == Waking::AtOnce);
        self.kernel.copy(to, content.as_flattened(), protect, wake)
    }

    /// Gives pages back to the system that hold nothing which anybody needs: runs of them, (address,
    /// bytes), with one flush for all.
    pub fn drop_pages(&self, runs: &[(usize, usize)]) {
        // SAFETY: the caller's promise.
        if !unsafe { self.kernel.drop_pages(runs) } {
            // The page to come there would be taken for this one.
            self.fail("a page that holds nothing any more cannot be given back to the system");
        }
    }

    /// Lets threads that wait for these pages look again.
    pub fn wake(&self, page: PageNumber, pages: usize) {
        self.kernel.wake_pages(page.address(), pages * PAGE_SIZE);
    }

    /// Protects what there is in registered memory from writes. Memory that is no longer registered as it was is
    /// passed over, and in more than a window all behind it: the supervisor notices the copies.
    pub fn protect(&self, start: usize, len: usize) {
        self.set_protection(start, len, true);
    }

    /// Lets memory be written again, but for what the program mapped there anew without libc. A thread that waits
    /// for that has a fault that is to be served, or is to be woken. In more than a window all behind that stays protected,
    /// and each page costs a fault.
    pub fn unprotect(&self, start: usize, len: usize) {
        self.set_protection(start, len, false);
    }

    /// The kernel stops at the first memory of a range that is not registered. A window is then done piece by piece. Not
    /// more, of which there may be millions of pieces.
    fn set_protection(&self, start: usize, len: usize, on: bool) {
        let window = 2 * PAGE_SIZE..=Mask::BITS as usize * PAGE_SIZE;
        if self.kernel.protect(start, len, on).is_err() && window.contains(&len) {
            let half = len / PAGE_SIZE / 2 * PAGE_SIZE;
            self.set_protection(start, half, on);
            self.set_protection(start + half, len - half, on);
        }
    }

    /// Lets pages in a row be written again up to the first that was mapped anew; how many those are.
    pub fn unprotect_run(&self, start: usize, pages: usize) -> usize {
        let good = |at: usize, pages: usize| {
            let protected = self.kernel.protect(at, pages * PAGE_SIZE, false);
            protected.is_ok()
        };
        if good(start, pages) {
            return pages;
        }
        let alone = |i: &usize| good(start + i * PAGE_SIZE, 1);
        (0..pages).take_while(alone).count()
    }

    /// Looks at up to 64 pages. None is taken for present if they cannot be looked at.
    pub fn look(&self, start: usize, pages: usize) -> Mapped {
        self.kernel.try_look(start, pages).unwrap_or_default()
    }
}
