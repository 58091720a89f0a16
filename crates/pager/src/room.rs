//! Making room: evict what has not been used for longest, ask others of the tree for theirs, and give
//! back the frames of what was stored.
//!
//! Pages go in two steps, so that a touch soon after costs little: they are captured (`capture`),
//! wait in the staging area, and are stored (`store`) as others come after them.
//!
//! It is done in batches ahead of need, between two watermarks, and directly where a fault finds no room.

use crate::account::Account;
use crate::appetite::Standing;
use crate::bays::{BayIndex, Bays, runs};
use crate::capture::{Captured, How};
use crate::map::{Mask, UNIT, UNIT_BYTES};
use crate::process::Process;
use crate::resolve::Desk;
use crate::sharing::Sharing;
use crate::state::{State, lock_service};
use arrayvec::ArrayVec;
use ebb_engine::PAGE_SIZE;
use ebb_tree::{AgeCutoff, Asked};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// What one step of making room came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is enough.
    Enough,
    /// Some was made.
    Progress,
    /// Nothing can be evicted.
    Nothing,
    /// Of what was looked at nothing can be stored: the pool is at its limit and no device has room.
    Full,
}

/// When room is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Somebody waits for it.
    Now,
    /// Before somebody does.
    Soon,
}

/// How long to wait for what others give.
const HOPE: Duration = Duration::from_millis(2);
/// Units captured, when nothing more can be stored, to find pages that need no room.
const TRIES: usize = 32;

impl Process {
    /// One step towards as much room under the budget as the low watermark says. Called without the lock.
    pub fn make_room(&self, desk: &mut Desk, when: When) -> Step {
        let mut state = lock_service();
        let low = Watermarks::of(&state).low;
        if self.has_room(&mut state, low) {
            return Step::Enough;
        }
        let mut state = match self.give_back_unlocked(state) {
            Ok(()) => return Step::Progress,
            Err(state) => state,
        };
        self.pay(&mut state);
        let step = match self.given(state, when) {
            Ok(step) => step,
            Err(state) => self.evict(state, desk),
        };
        // Frames are room once they are given back.
        let _ = self.give_back_unlocked(lock_service());
        step
    }

    /// Room that others of the tree make, whose pages were not used for much longer than ours; or
    /// the lock back, if none is to be hoped for.
    fn given(
        &self,
        mut state: MutexGuard<'static, State>,
        when: When,
    ) -> Result<Step, MutexGuard<'static, State>> {
        let now = || Duration::from_nanos(ebb_sys::clock::monotonic_ns());
        let standing = Standing {
            evicted: self.counters().evicted.get(),
            written: self.counters().zswpwb.get(),
            oldest_ms: state.queue.oldest_ms(&state.map).unwrap_or(0),
            pool_oldest_ms: state.pool_oldest_ms.unwrap_or(0),
            price: state.pool_price,
        };
        if let Some(wish) = state.appetite.hungers(now(), &standing) {
            // It wakes somebody.
            drop(state);
            let before = AgeCutoff {
                resident_ns: wish.before_ms * 1_000_000,
                pool_ns: wish.pool_before_ms * 1_000_000,
            };
            let asked = self.member.ask_colder(before, wish.pages);
            state = lock_service();
            state.appetite.told(asked != Asked::Nobody, now());
        }
        if !state.appetite.hopes() {
            return Err(state);
        }
        if when == When::Soon {
            return Ok(Step::Enough);
        }
        let begin = Instant::now();
        loop {
            // News before this look are no news to the wait.
            let seen = self.member.wait(0, Some(Duration::ZERO));
            let low = Watermarks::of(&state).low;
            if self.has_room(&mut state, low) {
                state.appetite.given();
                return Ok(Step::Progress);
            }
            let Some(left) = HOPE.checked_sub(begin.elapsed()) else {
                state.appetite.disappointed(now());
                return Err(state);
            };
            drop(state);
            self.member.wait(seen, Some(left));
            state = lock_service();
        }
    }

    /// Evicts something, room or not.
    pub fn evict_some(&self, desk: &mut Desk) -> Step {
        self.evict(lock_service(), desk)
    }

    fn evict(&self, mut state: MutexGuard<'static, State>, desk: &mut Desk) -> Step {
        let target = self.probation(&state);
        let staged = |state: &State| state.bays.as_ref().map_or(0, Bays::staged_frames);
        let mut captured: Captured;
        let mut clean = 0;
        if state.copy_units == 0 {
            while staged(&state) < target + UNIT && clean < UNIT {
                (state, captured) = self.capture(state, desk, How::default());
                if captured == Captured::default() {
                    break;
                }
                clean += captured.clean;
            }
        }
        let tries_shared = state.copy_units > 0;
        // Each captured so takes a page more for a moment: no more of them than one store needs.
        while state.copy_units > 0 && staged(&state) < UNIT && clean < UNIT {
            state.copy_units -= 1;
            let how = How {
                shared: true,
                force: false,
            };
            (state, captured) = self.capture(state, desk, how);
            if captured == Captured::default() {
                break;
            }
            clean += captured.clean;
        }
        let shared_first =
            state.sharing != Sharing::Alone && self.shared_may_leave() && !tries_shared;
        if clean == 0 && staged(&state) == 0 && desk.waiter.is_some() && !shared_first {
            // As little as can be of what threads hold.
            desk.hard = true;
            let how = How {
                shared: false,
                force: true,
            };
            (state, captured) = self.capture(state, desk, how);
            clean += captured.clean;
        }
        if clean >= UNIT || clean > 0 && staged(&state) == 0 {
            return Step::Progress;
        }
        if staged(&state) == 0 {
            return Step::Nothing;
        }
        match self.store_oldest(state, desk) {
            Step::Full => self.evict_without_storing(desk),
            step => step,
        }
    }

    /// What finds no room does not hold up what needs none: pages with clean copies, and pages of one
    /// value.
    fn evict_without_storing(&self, desk: &mut Desk) -> Step {
        desk.hard = true;
        let mut step = Step::Full;
        for _ in 0..TRIES {
            if step != Step::Full {
                break;
            }
            let (state, captured) = self.capture(lock_service(), desk, How::default());
            if captured.clean > 0 {
                return Step::Progress;
            }
            step = self.store_oldest(state, desk);
        }
        step
    }

    /// Whether there is room under the budget for `pages` more, by what is in use: it is charged.
    pub fn has_room(&self, state: &mut State, pages: usize) -> bool {
        let used = state.used(self.swap);
        state.account.room(self.member, used, pages as i64)
    }

    /// Makes room under the budget for `pages` more, evicting what it takes; false if that is not
    /// to be had. The caller serves the faults on its desk after it, without the gate.
    pub fn room_for(&self, desk: &mut Desk, pages: usize) -> bool {
        for _ in 0..4 * pages.div_ceil(UNIT) {
            {
                let mut state = lock_service();
                if self.give_back_until(&mut state, |account, used| {
                    account.room(self.member, used, pages as i64)
                }) {
                    return true;
                }
            }
            if self.evict_some(desk) != Step::Progress {
                return false;
            }
        }
        false
    }

    /// How many captured pages to hold back before storing them: a touch meanwhile costs a remap,
    /// but they are out. Four times as many made random touches 2.5% slower.
    fn probation(&self, state: &State) -> usize {
        (state.account.charged().max(0) as usize / 256).clamp(UNIT / 2, 1024)
    }

    /// Gives spent frames back while more is used than is charged and no more can be charged.
    pub fn pay(&self, state: &mut State) {
        self.give_back_until(state, |account, used| account.room(self.member, used, 0));
    }

    /// Gives spent frames back until that makes enough room under the budget, by what is in use; false
    /// if all of them do not.
    pub fn give_back_until(
        &self,
        state: &mut State,
        enough: impl Fn(&mut Account, i64) -> bool,
    ) -> bool {
        loop {
            let used = state.used(self.swap);
            if enough(&mut state.account, used) {
                return true;
            }
            if !self.give_back(state) {
                return false;
            }
        }
    }

    /// Gives spent frames of a few bays back to the system; false if there are none.
    pub fn give_back(&self, state: &mut State) -> bool {
        let Some(bays) = state.bays.as_mut() else {
            return false;
        };
        let mut spent = Spent::take(bays);
        if spent.bays.is_empty() {
            spent.bays.extend(bays.leave_early());
        }
        self.drop_spent(&spent);
        spent.gone(bays)
    }

    fn drop_spent(&self, spent: &Spent) {
        let mut parts: ArrayVec<(usize, usize), { BAYS * UNIT.div_ceil(2) }> = ArrayVec::new();
        for &(bay, frames) in &spent.bays {
            let start = spent.base + bay.0 as usize * UNIT_BYTES;
            parts.extend(
                runs(frames).map(|(first, len)| (start + first * PAGE_SIZE, len * PAGE_SIZE)),
            );
        }
        self.drop_pages(&parts);
    }

    /// Gives back the frames of bays that are spent whole, without the lock, if it is worth a call; else
    /// the lock is handed back.
    fn give_back_unlocked(
        &self,
        mut state: MutexGuard<'static, State>,
    ) -> Result<(), MutexGuard<'static, State>> {
        let batch = Watermarks::of(&state).batch();
        let bays = state.bays.as_mut();
        let Some(bays) = bays.filter(|bays| bays.ready_frames() >= batch) else {
            return Err(state);
        };
        let spent = Spent::take(bays);
        drop(state);
        self.drop_spent(&spent);
        let mut state = lock_service();
        spent.gone(state.bays.as_mut().expect("taken from there"));
        Ok(())
    }
}

/// Where reclaim begins and ends, in pages that are free under the budget; where little is resident, that
/// is not to be what makes them free. Above `low` it rests. Below,
/// each lot of faults that was served is followed by a step of it, ahead of need (`When::Soon`), until the
/// frames of a batch are spent: they go back to the system together, and with them it is at `high` at most.
/// A fault that finds nothing free at all reclaims by itself (`When::Now`; counter `allocstall`).
struct Watermarks {
    low: usize,
    high: usize,
}

impl Watermarks {
    /// Little where there is little in all.
    fn of(state: &State) -> Self {
        let low = (state.account.charged().max(0) as usize / 64).clamp(2 * UNIT, 6 * UNIT);
        let low = low.min(state.map.resident() / 4).max(1);
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

/// Spent frames on their way back to the system.
struct Spent {
    /// The address of the first bay.
    base: usize,
    bays: ArrayVec<(BayIndex, Mask), BAYS>,
}

/// Bays whose frames are given back at once, with one flush for all.
const BAYS: usize = 4;

impl Spent {
    fn take(bays: &mut Bays) -> Self {
        let mut some = ArrayVec::new();
        while !some.is_full()
            && let Some(bay) = bays.leave()
        {
            some.push(bay);
        }
        Self {
            base: bays.address(BayIndex(0)),
            bays: some,
        }
    }

    /// The system has them; whether there were any.
    fn gone(self, bays: &mut Bays) -> bool {
        let any = !self.bays.is_empty();
        for (bay, frames) in self.bays {
            bays.gone(bay, frames);
        }
        any
    }
}
