//! Storing captured pages: what a bay holds gets entries, and its frames are unused.
//!
//! The thread that stores has the bay's pages in transit and works without the lock. Compression, or a transfer,
//! holds up only threads that touch these pages.

use crate::eviction::make_room::Step;
use crate::eviction::reclaimer::Reclaimer;
use crate::map::mask::set_bits;
use crate::map::page_map::UNIT;
use crate::process::base::Locked;
use crate::process::worker::Worker;
use arrayvec::ArrayVec;
use ebb_engine::{EntryId, PAGE_SIZE, PageBytes};
use ebb_sys::paging::Kernel;
use std::time::Duration;

/// How long a thread sleeps that finds others at work on all that it could do.
const MAKE_WAY: Duration = Duration::from_micros(50);

impl<K: Kernel> Reclaimer<K> {
    /// Stores the bay staged longest ago, if there is one.
    pub fn swap_out_staged(&self, worker: &mut Worker) -> Step {
        let state = self.lock();
        match state.pages.staged_frames() {
            0 => Step::Nothing,
            _ => self.swap_out(state, worker, false),
        }
    }

    /// Stores the bay staged longest ago, or of those with clean copies where these come first. Something is staged.
    pub fn swap_out(&self, mut state: Locked, worker: &mut Worker, clean: bool) -> Step {
        let Some(storing) = state.pages.begin_store(clean) else {
            // Others store all there is. They may have less urgency than this thread: it makes way.
            drop(state);
            self.kernel.sleep(MAKE_WAY);
            return Step::Progress;
        };
        drop(state);

        let content = |i: usize| {
            // SAFETY: the frame is present and in transit: nobody but this thread uses it.
            unsafe { &*((storing.address + i * PAGE_SIZE) as *const PageBytes) }
        };
        let copies = self.uncache_each(&storing.copies);
        let is_clean = |i: &usize| copies[*i].is_some();
        let dirty = || set_bits(storing.frames).filter(|i| !is_clean(i));
        let pages: ArrayVec<&PageBytes, UNIT> = dirty().map(content).collect();
        let mut new = [None; UNIT];
        let mut stored = storing.frames.count_ones() as usize - pages.len();
        if !pages.is_empty() {
            stored += self.store_pages(&pages, &mut new[..pages.len()], storing.is_unit);
        }
        let mut entries = copies;
        for (i, entry) in dirty().zip(new) {
            entries[i] = entry;
        }

        let mut state = self.lock();
        state.pages.end_store(&storing, &entries);
        self.base.transit.end(self.kernel);
        state.parked.unpark(worker);
        self.release_overdraft(&mut state);
        if stored == 0 {
            Step::Full
        } else {
            Step::Progress
        }
    }

    /// Stores as many of the pages as there is room for, or as need none; how many.
    fn store_pages(&self, pages: &[&PageBytes], out: &mut [Option<EntryId>], unit: bool) -> usize {
        let generation = self.swap_space.generations.youngest();
        // A whole unit is a folio: neighbouring entries, and neighbouring slots on a device.
        let folio =
            (unit && pages.len() == UNIT).then(|| self.swap.store(self.cpu(), generation, pages));
        let stored = if let Some(Ok(first)) = folio {
            for (i, entry) in out.iter_mut().enumerate() {
                *entry = Some(first.plus(i as u32));
            }
            UNIT
        } else {
            let each = self.swap.store_each(self.cpu(), generation, pages, out);
            each.unwrap_or(0)
        };
        if matches!(folio, Some(Err(_))) && stored > 0 {
            self.counters().swpout_fallback[UNIT.ilog2() as usize].add(1);
        }
        // Once in a few hundred pages, so it costs little: the keeper writes on another processor
        // what else the next store would have to.
        if self.swap.needs_writeback() {
            self.call_keeper();
        }
        stored
    }
}
