//! Making room: evict what has not been used for longest, ask others of the tree for theirs, and give
//! back the frames of what was stored.
//!
//! Pages go in two steps, so that a touch soon after costs little. They are captured (`capture`), wait in the staging
//! area (`hold_back`), and are stored (`swap_out`) as others come after them.
//!
//! It is done in batches ahead of need, between two watermarks, and directly where a fault finds no room.

use crate::budget::peer_reclaim::Standing;
use crate::eviction::capture::How;
use crate::eviction::reclaimer::Reclaimer;
use crate::eviction::release::{UnusedFrames, Watermarks};
use crate::map::page_map::UNIT;
use crate::process::base::Locked;
use crate::process::state::State;
use crate::process::worker::Worker;
use crate::reclaim::attempts::Waiter;
use ebb_sys::paging::Kernel;
use ebb_tree::{AgeCutoff, Asked};
use std::time::Duration;

/// The outcome of one step of making room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is enough.
    Enough,
    /// Some was made.
    Progress,
    /// Nothing can be evicted.
    Nothing,
    /// Nothing that was looked at can be stored: the pool is at its limit and no device has room.
    Full,
}

/// A step, and what it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    pub step: Step,
    /// Flag: room was hard to make: nothing could be stored, or who waits gave a page of its own.
    pub was_hard: bool,
    /// Processor time that it took.
    pub work: Duration,
}

impl From<Step> for Made {
    fn from(step: Step) -> Self {
        Self {
            step,
            was_hard: false,
            work: Duration::ZERO,
        }
    }
}

/// When room is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// A thread waits for it.
    Now(Waiter),
    /// Before anybody does.
    Soon,
}

/// How long to wait for what others give.
const PEER_WAIT: Duration = Duration::from_millis(2);
/// Units captured, when nothing more can be stored, to find pages that need no room.
const TRIES: usize = 32;
/// Pages captured in one step, about.
const AT_ONCE: usize = 4 * UNIT;

impl<K: Kernel> Reclaimer<K> {
    /// One step towards as much room under the budget as the low watermark says. Called without the lock.
    pub fn make_room(&self, worker: &mut Worker, when: When) -> Made {
        let mut state = self.lock();
        let low = Watermarks::of(&state).low;
        if self.has_room(&mut state, low) {
            return Step::Enough.into();
        }
        let before = self.kernel.worked();
        let made = self.make_some(state, worker, when);
        let work = self.kernel.worked().saturating_sub(before);
        Made { work, ..made }
    }

    fn make_some(&self, mut state: Locked, worker: &mut Worker, when: When) -> Made {
        if let Some(unused) = UnusedFrames::ready(&mut state) {
            drop(state);
            self.release(unused);
            return Step::Progress.into();
        }
        self.release_overdraft(&mut state);
        state.pages.date(self.base.now_ms());
        let (state, from_peers) = self.ask_peers(state, when);
        let made = match (from_peers, when) {
            (Some(step), _) => {
                drop(state);
                step.into()
            }
            (None, When::Now(waiter)) => self.evict(state, worker, Some(waiter)),
            (None, When::Soon) => self.evict(state, worker, None),
        };
        // Frames are room once they are given back.
        let ready = UnusedFrames::ready(&mut self.lock());
        if let Some(unused) = ready {
            self.release(unused);
        }
        made
    }

    /// Room that others of the tree make, whose pages were not used for much longer than ours; none
    /// if nothing is to be expected. The lock goes meanwhile.
    fn ask_peers(&self, mut state: Locked, when: When) -> (Locked, Option<Step>) {
        let now = || self.now();
        let standing = Standing {
            evicted: self.counters().evicted.get(),
            written: self.counters().zswpwb.get(),
            oldest_ms: state.pages.oldest_ms().unwrap_or(0),
            return_time_ms: state.pages.return_time_ms().unwrap_or(0),
            pool_oldest_ms: state.offer.pool_oldest_ms().unwrap_or(0),
            price: state.offer.price(),
        };
        if let Some(request) = state.peer_reclaim.next_request(now(), &standing) {
            // It wakes somebody.
            drop(state);
            let before = AgeCutoff {
                resident_ns: request.before_ms * 1_000_000,
                pool_ns: request.pool_before_ms * 1_000_000,
            };
            let asked = self.member.ask_colder(before, request.pages);
            state = self.lock();
            state.peer_reclaim.sent(asked != Asked::Nobody, now());
        }
        if !state.peer_reclaim.is_waiting() {
            return (state, None);
        }
        if when == When::Soon {
            return (state, Some(Step::Enough));
        }
        let begin = self.now();
        loop {
            // News before this look are no news to the wait.
            let seen = self.member.wait(0, Some(Duration::ZERO));
            let low = Watermarks::of(&state).low;
            if self.has_room(&mut state, low) {
                state.peer_reclaim.received();
                return (state, Some(Step::Progress));
            }
            let Some(left) = PEER_WAIT.checked_sub(self.now() - begin) else {
                state.peer_reclaim.timed_out(now());
                return (state, None);
            };
            drop(state);
            let wait = |most| self.member.wait(seen, Some(most));
            self.kernel.wait_for_news(seen, left, wait);
            state = self.lock();
        }
    }

    /// Evicts something, room or not.
    pub fn evict_some(&self, worker: &mut Worker) -> Step {
        self.evict(self.lock(), worker, None).step
    }

    fn evict(&self, mut state: Locked, worker: &mut Worker, waiter: Option<Waiter>) -> Made {
        let staged = |state: &State| state.pages.staged_frames();
        // More are captured than stored at a time, so that as many wait as are to, but somebody waits for this.
        let target = (state.pages.held_back() + UNIT).min(staged(&state) + AT_ONCE);
        let mut captured;
        if !state.protection.allows_copies() {
            while staged(&state) < target {
                (state, captured) = self.capture(state, worker, waiter, How::default());
                if captured == 0 {
                    break;
                }
            }
        }
        let tries_shared = state.protection.allows_copies();
        // Each captured so takes a page more for a moment: no more of them than one store needs.
        while state.protection.allows_copies() && staged(&state) < UNIT {
            state.protection.take_copy();
            let how = How {
                shared: true,
                ..How::default()
            };
            (state, captured) = self.capture(state, worker, waiter, how);
            if captured == 0 {
                break;
            }
        }
        let shared_first = !state.protection.is_alone() && self.shared_may_leave() && !tries_shared;
        let was_hard = staged(&state) == 0 && waiter.is_some() && !shared_first;
        if was_hard {
            // As little as can be of what threads hold.
            let how = How {
                force: true,
                ..How::default()
            };
            (state, _) = self.capture(state, worker, waiter, how);
        }
        let step = match staged(&state) {
            0 => Step::Nothing,
            _ => self.swap_out(state, worker, false),
        };
        match step {
            Step::Full => Made {
                was_hard: true,
                ..self.evict_without_storing(worker, waiter).into()
            },
            step => Made {
                was_hard,
                ..step.into()
            },
        }
    }

    /// Pages that find no room do not hold up those that need none: pages with clean copies, and pages of one value.
    fn evict_without_storing(&self, worker: &mut Worker, waiter: Option<Waiter>) -> Step {
        let mut step = Step::Full;
        for _ in 0..TRIES {
            if step != Step::Full {
                break;
            }
            let (state, _) = self.capture(self.lock(), worker, waiter, How::default());
            step = self.swap_out(state, worker, true);
        }
        step
    }

    /// Makes room under the budget for `pages` more, evicting what it takes; false if that is not
    /// to be had. The caller serves the faults on its worker after it, without the gate.
    pub fn room_for(&self, worker: &mut Worker, pages: usize) -> bool {
        for _ in 0..4 * pages.div_ceil(UNIT) {
            {
                let mut state = self.lock();
                if self.release_until(&mut state, |charge, used| {
                    charge.reserve(self.member, used, pages as i64)
                }) {
                    return true;
                }
            }
            if self.evict_some(worker) != Step::Progress {
                return false;
            }
        }
        false
    }
}
