//! Storing captured pages: what a bay holds gets entries, and its frames are spent.
//!
//! The thread that stores has the bay's pages in transit and works without the lock: compression,
//! and where it has to be a transfer, hold nobody up but who touches these pages.

use crate::bays::{BayIndex, Bays, places};
use crate::generations;
use crate::map::{Page, UNIT};
use crate::process::{Process, cpu};
use crate::resolve::Desk;
use crate::room::Step;
use crate::state::{State, lock_service, transit_ended};
use arrayvec::ArrayVec;
use ebb_engine::{EntryId, PAGE_SIZE, PageBytes};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a thread sleeps that finds others at work on all that it could do.
const MAKE_WAY: Duration = Duration::from_micros(50);

impl Process {
    /// Stores the bay staged longest ago, if there is one.
    pub fn store_staged(&self, desk: &mut Desk) -> Step {
        let state = lock_service();
        match state.bays.as_ref().map_or(0, Bays::staged_frames) {
            0 => Step::Nothing,
            _ => self.store_oldest(state, desk),
        }
    }

    /// Stores the bay staged longest ago. Something is staged.
    pub fn store_oldest(&self, mut state: MutexGuard<'static, State>, desk: &mut Desk) -> Step {
        let State { map, bays, .. } = &mut *state;
        let bays = bays.as_mut().expect("something is staged");
        let Some(bay) = bays.begin_store() else {
            // Others store all there is. They may have less urgency than this thread: it makes way.
            drop(state);
            std::thread::sleep(MAKE_WAY);
            return Step::Progress;
        };
        let mask = bays.staged_of(bay);
        let base = bays.address(bay);
        for i in places(mask) {
            let frame = Bays::frame(bay, i);
            map.set(bays.page_of(frame), Page::Storing(frame));
        }
        let unit = is_unit(bays, bay);
        drop(state);

        let content = |i: usize| {
            // SAFETY: the frame is present and in transit: nobody but this thread uses it.
            unsafe { &*((base + i * PAGE_SIZE) as *const PageBytes) }
        };
        let pages: ArrayVec<&PageBytes, UNIT> = places(mask).map(content).collect();
        let mut entries = [None; UNIT];
        let stored = self.store_pages(&pages, &mut entries[..pages.len()], unit);

        let mut state = lock_service();
        let State {
            map, bays, parked, ..
        } = &mut *state;
        let bays = bays.as_mut().expect("as above");
        bays.end_store(bay);
        if stored < pages.len() {
            bays.pass_over(bay);
        }
        for (i, entry) in places(mask).zip(entries) {
            let frame = Bays::frame(bay, i);
            let page = bays.page_of(frame);
            match entry {
                Some(entry) => {
                    map.set(page, Page::Swapped(entry));
                    bays.stored(frame);
                }
                None => map.set(page, Page::Staged(frame)),
            }
        }
        transit_ended();
        desk.again.append(parked);
        self.pay(&mut state);
        if stored == 0 {
            Step::Full
        } else {
            Step::Progress
        }
    }

    /// Stores as many of the pages as there is room for, or as need none; how many.
    fn store_pages(&self, pages: &[&PageBytes], out: &mut [Option<EntryId>], unit: bool) -> usize {
        let generation = generations::youngest();
        // A whole unit is a folio: neighbouring entries, and neighbouring slots on a device.
        let folio =
            (unit && pages.len() == UNIT).then(|| self.swap.store(cpu(), generation, pages));
        let stored = if let Some(Ok(first)) = folio {
            for (i, entry) in out.iter_mut().enumerate() {
                *entry = Some(first.plus(i as u32));
            }
            UNIT
        } else {
            let each = self.swap.store_each(cpu(), generation, pages, out);
            each.unwrap_or(0)
        };
        if matches!(folio, Some(Err(_))) && stored > 0 {
            self.counters().swpout_fallback[UNIT.ilog2() as usize].add(1);
        }
        // Once in a few hundred pages, so it costs little: the keeper writes on another processor
        // what else the next store would have to.
        if self.swap.behind() && !self.behind.swap(true, Relaxed) {
            self.member.wake_self();
        }
        stored
    }

    /// Puts every captured page back where it was.
    pub fn unstage(&self, state: &mut State) -> Unstaged {
        if state.map.in_transit() > 0 {
            return Unstaged::Busy;
        }
        while let Some(bay) = state.bays.as_mut().and_then(Bays::oldest_staged) {
            let bays = state.bays.as_ref().expect("as above");
            let frames: ArrayVec<_, UNIT> = places(bays.staged_of(bay))
                .map(|i| Bays::frame(bay, i))
                .map(|frame| (bays.page_of(frame), frame))
                .collect();
            for (page, frame) in frames {
                if !self.put_back(state, page, frame) {
                    return Unstaged::NoPage;
                }
            }
        }
        Unstaged::All
    }
}

/// Whether captured pages are back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstaged {
    /// All of them.
    All,
    /// Some are in transit.
    Busy,
    /// The system has no page for one that can only be copied.
    NoPage,
}

/// Whether a bay holds a whole unit, in order.
fn is_unit(bays: &Bays, bay: BayIndex) -> bool {
    let first = bays.page_of(Bays::frame(bay, 0));
    first.within() == 0 && (0..UNIT).all(|i| bays.page_of(Bays::frame(bay, i)) == first.plus(i))
}
