//! Room under the budget, and frames that go back to the system for it.

use crate::budget::charge::Charge;
use crate::eviction::reclaimer::Reclaimer;
use crate::map::mask::runs;
use crate::map::page_map::{Mask, UNIT, UNIT_BYTES};
use crate::process::state::State;
use crate::reclaim::pages::Pages;
use crate::reclaim::staging::BayIndex;
use arrayvec::ArrayVec;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Reclaimer<K> {
    /// Whether there is room under the budget for `pages` more, by what is in use: it is charged.
    pub fn has_room(&self, state: &mut State, pages: usize) -> bool {
        let used = self.used(state);
        state.charge.reserve(self.member, used, pages as i64)
    }

    /// Gives unused frames back while more is used than is charged and no more can be charged.
    pub fn release_overdraft(&self, state: &mut State) {
        self.release_until(state, |charge, used| charge.reserve(self.member, used, 0));
    }

    /// Gives unused frames back until that makes enough room under the budget, by what is in use; false
    /// if all of them do not.
    pub fn release_until(
        &self,
        state: &mut State,
        enough: impl Fn(&mut Charge, i64) -> bool,
    ) -> bool {
        loop {
            let used = self.used(state);
            if enough(&mut state.charge, used) {
                return true;
            }
            if !self.release_frames(state) {
                return false;
            }
        }
    }

    /// Gives unused frames of a few staging back to the system; false if there are none.
    pub fn release_frames(&self, state: &mut State) -> bool {
        let mut unused = UnusedFrames::take(&mut state.pages);
        if unused.bays.is_empty() {
            unused.bays.extend(state.pages.take_early());
        }
        self.drop_unused(&unused);
        unused.released(&mut state.pages)
    }

    fn drop_unused(&self, unused: &UnusedFrames) {
        let mut parts: ArrayVec<(usize, usize), { BAYS * UNIT.div_ceil(2) }> = ArrayVec::new();
        for &(bay, frames) in &unused.bays {
            let start = unused.base + bay.0 as usize * UNIT_BYTES;
            parts.extend(
                runs(frames).map(|(first, len)| (start + first * PAGE_SIZE, len * PAGE_SIZE)),
            );
        }
        self.drop_pages(&parts);
    }

    /// Gives frames back to the system that were taken out for that. Called without the lock.
    pub fn release(&self, unused: UnusedFrames) {
        self.drop_unused(&unused);
        unused.released(&mut self.lock().pages);
    }
}

/// Where reclaim begins and ends, in pages that are free under the budget; where little is resident, that is not to
/// be what makes them free. Above `low` it rests. Below, each lot of faults that was served is followed by a step of
/// it, ahead of need (`When::Soon`), until the frames of a batch are unused. They go back to the system together, and
/// with them it is at `high` at most. A fault that finds nothing free at all reclaims by itself (`When::Now`; counter
/// `allocstall`).
pub struct Watermarks {
    pub low: usize,
    high: usize,
}

impl Watermarks {
    /// Little where there is little in all.
    pub fn of(state: &State) -> Self {
        let low = (state.charge.charged().max(0) as usize / 64).clamp(2 * UNIT, 6 * UNIT);
        let low = low.min(state.pages.map().resident() / 4).max(1);
        Self {
            low,
            high: low + (low * 2 / 3).max(1),
        }
    }

    /// Frames that go back to the system together.
    fn batch(&self) -> usize {
        self.high - self.low
    }
}

/// Unused frames on their way back to the system.
pub struct UnusedFrames {
    /// The address of the first bay.
    base: usize,
    bays: ArrayVec<(BayIndex, Mask), BAYS>,
}

/// Bays whose frames are given back at once, with one flush for all.
const BAYS: usize = 4;

impl UnusedFrames {
    /// Takes out the frames of bays that are unused whole, if there are enough of them for a call.
    pub fn ready(state: &mut State) -> Option<Self> {
        let batch = Watermarks::of(state).batch();
        let pages = &mut state.pages;
        let ready = pages.staging().takeable_frames() >= batch;
        ready.then(|| Self::take(pages))
    }

    fn take(pages: &mut Pages) -> Self {
        let mut some = ArrayVec::new();
        while !some.is_full()
            && let Some(bay) = pages.take_unused()
        {
            some.push(bay);
        }
        Self {
            base: pages.staging().address(BayIndex(0)),
            bays: some,
        }
    }

    /// The system has them; whether there were any.
    fn released(self, pages: &mut Pages) -> bool {
        let any = !self.bays.is_empty();
        for (bay, frames) in self.bays {
            pages.released(bay, frames);
        }
        any
    }
}
