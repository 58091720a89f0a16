//! Writes to protected pages: clean copies are given up, and copies of shared pages charged. Nobody is woken here, as the
//! lock is held.

use crate::fault::fault_service::FaultService;
use crate::map::access_pattern::around;
use crate::map::page_map::{Page, PageNumber, UNIT};
use crate::process::shared_pages::Sharing;
use crate::process::state::State;
use crate::reclaim::freeing::Freeing;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;

impl<K: Kernel> FaultService<K> {
    /// Serves a write to a protected page; the pages in a row that may be written from now on. None: there is no room
    /// for a copy.
    pub fn write_protected(
        &self,
        state: &mut State,
        page: PageNumber,
    ) -> Option<(PageNumber, usize)> {
        match state.protection.sharing() {
            Sharing::Alone => Some(self.write_clean(state, page)),
            Sharing::Protected => self.write_shared(state, page),
        }
    }

    /// Charges a copy if the page is shared, and lets it be written. In a scan its neighbours too.
    fn write_shared(&self, state: &mut State, page: PageNumber) -> Option<(PageNumber, usize)> {
        let Some(range) = state.ranges.find(page.address()) else {
            // Unmapped meanwhile: the thread that looks again gets what the kernel has for it. Or no call told of it.
            if self.serves(page) {
                self.unprotect(page.address(), PAGE_SIZE);
            }
            return Some((page, 1));
        };
        let window = state.window(page);
        let (mut first, mut pages) = around(page, window.first, window.pages, |p| {
            range.holds(p) && matches!(state.pages.map().get(p), Page::Resident(_))
        });
        let shared = self.look(first.address(), pages).shared;
        let mut copies = shared.count_ones();
        if !self.charge_copies(state, copies) {
            copies = (shared >> (page.0 - first.0) & 1) as u32;
            if !self.charge_copies(state, copies) {
                state.pattern.undo();
                return None;
            }
            (first, pages) = (page, 1);
        }
        if pages < window.pages {
            state.pattern.brought(first, pages);
        }
        self.let_be_written(state, first, pages);
        // They may leave again (`ReclaimQueue::defer`).
        if matches!(state.pages.map().get(page), Page::Resident(_)) {
            state.pages.insert(first, pages);
        }
        self.counters().fault_shared.add(1);
        self.counters().unshared.add(copies.max(1).into());
        Some((first, pages))
    }

    /// Charges copies that the kernel is about to make; spent frames are given back for them.
    fn charge_copies(&self, state: &mut State, copies: u32) -> bool {
        self.release_until(state, |charge, used| {
            charge.reserve_copies(self.member, used, copies.into())
        })
    }

    /// Serves a write to a page that is protected, and to nobody's but ours.
    fn write_clean(&self, state: &mut State, page: PageNumber) -> (PageNumber, usize) {
        let clean = |p: PageNumber| matches!(state.pages.map().get(p), Page::Resident(Some(_)));
        let range = state.ranges.find(page.address());
        let inside = |p| range.as_ref().is_some_and(|r| r.holds(p));
        let (first, pages) = around(page, page.unit().first(), UNIT, |p| inside(p) && clean(p));
        self.let_be_written(state, first, pages);
        (first, pages)
    }

    /// Lets pages in a row be written; what copies they had are given up.
    fn let_be_written(&self, state: &mut State, first: PageNumber, pages: usize) {
        let mut freeing = Freeing::default();
        let mut copies = 0;
        for at in (0..pages).map(|i| first.plus(i)) {
            if let Some(entry) = state.pages.take_copy(at) {
                self.copy_was_written();
                freeing.add(self.swap, self.cpu(), entry);
                copies += 1;
            }
        }
        freeing.finish(self.swap, self.cpu());
        self.counters().fault_clean.add(u64::from(copies > 0));
        // Always, whatever the pages are by now.
        let (start, len) = (first.address(), pages * PAGE_SIZE);
        self.unprotect(start, len);
    }
}
