//! Clean copies: a page that was loaded and not written since keeps its entry, and is evicted without
//! being stored again.
//!
//! Such a page is `Resident(Some(entry))`, and:
//!
//! ```text
//! Resident(Some(entry))  =>  write-protected, and entry holds its content
//! ```
//!
//! So no page has to be looked at to know whether it was written:
//!
//! 1. The load puts it into place protected (`install`).
//! 2. A write to it is a fault. Service gives up the copies of the pages in a row there, and lets all of them be
//!    written: the next write is likely to be to the next page ([`Reclaimer::write_clean`]).
//! 3. A capture moves it, as every page, and from then on nobody writes it. If it was protected until then, its entry
//!    holds its content. So it waits with its entry, and comes back protected, or without it ([`Reclaimer::give_up`]). When
//!    it is its turn to be stored, it has been already ([`Reclaimer::uncache_each`]).
//! 4. Before protection is taken away otherwise, the copies are given up: by a capture that has to own shared pages,
//!    the end of sharing ([`Reclaimer::lift_protection`]), and `mremap`.
//! 5. A forked child has the copies without the protection, until it is adopted: then it gives up those
//!    of pages that are no longer its parent's too ([`Reclaimer::give_up_written`]), and all of pinned memory, which is
//!    not protected anew.
//!
//! It pays where what was loaded is read and not written; [`Reclaimer::keeps`] learns whether it is.
//! A copy on a device saves a write. One in the pool saves a compression, but takes room that could
//! hold other pages: it is kept of scans that pass (`reclaim_queue`), and leave at once. A process that may
//! only read its devices ([`crate::syscalls::user_change`]) keeps all that are there: nothing goes back to them.

use crate::eviction::reclaimer::Reclaimer;
use crate::map::mask::{ones, set_bits};
use crate::map::page_map::{ADDRESSES, Mask, Page, PageNumber, UNIT};
use crate::process::state::State;
use crate::reclaim::freeing::Freeing;
use crate::reclaim::pages::Copies;
use ebb_engine::{EntryId, PAGE_SIZE};
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

impl<K: Kernel> Reclaimer<K> {
    /// Whether a load keeps copies that might: a page that is loaded to be written does not.
    pub fn keeps(&self, write: bool) -> bool {
        !write && self.copies.worth_it()
    }

    /// Lets memory be written whatever it is: with the lock held, but for pages in transit too. Those that
    /// are being loaded keep no copies then (`Protection::lifts`); nothing is being captured, as a capture
    /// in a family holds the lock.
    pub fn lift_protection(&self, state: &mut State, start: usize, len: usize) {
        state.protection.lift();
        state
            .pages
            .drop_copies(self.swap, self.cpu(), start, start + len);
        self.unprotect(start, len);
    }

    /// In a forked child, whose pages were protected just now: those that it wrote since the fork, as libc does, are
    /// its own. Pages that it still has in common with relatives are unchanged.
    pub fn give_up_written(&self, state: &mut State, start: usize, end: usize) {
        let mut at = PageNumber::of(start);
        loop {
            let mut next = None;
            state
                .pages
                .map()
                .each(at, PageNumber::of(end), |page, is| match is {
                    Page::Resident(Some(_)) => {
                        next = Some(page);
                        Break(())
                    }
                    _ => Continue(()),
                });
            let Some(first) = next else { return };
            let pages = UNIT - first.within();
            let shared = self.look(first.address(), pages).shared;
            for page in set_bits(!shared & ones(0, pages)).map(|i| first.plus(i)) {
                let address = page.address();
                state
                    .pages
                    .drop_copies(self.swap, self.cpu(), address, address + PAGE_SIZE);
            }
            at = first.plus(pages);
        }
    }

    /// The invariant, where a page is still there (it may have gone without libc).
    pub fn check_copies(&self, state: &State) {
        state
            .pages
            .map()
            .each(PageNumber(0), PageNumber::of(ADDRESSES), |page, is| {
                if let Page::Resident(Some(entry)) = is {
                    let there = self.look(page.address(), 1);
                    let closed = there.present == 0 || there.protected != 0;
                    assert!(
                        closed || !self.is_ours(page.address()),
                        "{page:?} may be written and has a copy, {entry}"
                    );
                }
                Continue(())
            });
    }

    /// Frees the entries of pages that may have been written, or are gone; the rest of `copies`.
    pub fn give_up(&self, copies: &Copies, pages: Mask) -> Copies {
        let mut rest = *copies;
        let mut freeing = Freeing::default();
        for i in set_bits(pages) {
            if let Some(entry) = rest[i].take() {
                freeing.add(self.swap, self.cpu(), entry);
            }
        }
        freeing.finish(self.swap, self.cpu());
        rest
    }

    /// A staged page leaves by the entry that it kept, before it is its bay's turn; false if it has none that is good.
    pub fn leaves_by_copy(&self, state: &mut State, page: PageNumber) -> bool {
        let Some(entry) = state.pages.staged_copy(page) else {
            return false;
        };
        let good = self.uncache(entry);
        if let Some(bad) = state.pages.leaves_by_copy(page, good) {
            self.swap.free(self.cpu(), bad, 1);
        }
        good
    }

    /// A page leaves that kept this entry, and was not written: the entry is where it is. False if its content was given
    /// up to make room.
    fn uncache(&self, entry: EntryId) -> bool {
        let good = self.swap.uncache(entry);
        if good {
            self.counters().clean_reuse.add(1);
            self.copies.learn(true);
        }
        good
    }

    /// Pages leave that kept these entries, and were not written. Their entries are where they are; but for those whose
    /// content was given up to make room: they are freed. Returns the others.
    pub fn uncache_each(&self, copies: &Copies) -> Copies {
        let bad = (0..UNIT).filter(|i| copies[*i].is_some_and(|entry| !self.uncache(entry)));
        self.give_up(copies, bad.fold(0, |mask, i| mask | 1 << i))
    }
}
