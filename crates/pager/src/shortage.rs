//! A fault for which there is no room: whom it waits for, and when there is nothing to wait for.
//!
//! Memory is out when no page of the process can be put anywhere: the pool is at its limit, devices
//! are full, nobody else gives. That need not stop the program dead. A page that was just brought in
//! is unchanged and can go again without being stored, so a few pages in turn may take each other's
//! frame for ever, with tens of thousands of faults served a second. So neither one fault's wait nor the number
//! of faults decides, but all the time in which room was hard to make while hardly any *work* was
//! done, which is faults on pages that were new to their threads (`attempts`): the process is then ended, as a
//! memory limit would do it.
//!
//! Time that goes by in compression or in transfers is no shortage, however slow.

use crate::attempts::Waiter;
use crate::keeper;
use crate::map::{Page, PageNumber, UNIT};
use crate::process::Process;
use crate::resolve::{Desk, Served};
use crate::room::{Step, When};
use crate::state::lock_service;
use ebb_engine::PAGE_SIZE;
use ebb_sys::userfaultfd::Fault;
use ebb_sys::{credentials, thread};
use std::ops::ControlFlow::Continue;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the process is short of room before it is ended.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// So much work ends a shortage: a MiB in ten seconds is no progress.
const FED: u64 = 256;
/// How often it is seen, while no work is done at all, whether what cannot be swapped out is more than the
/// budget.
const HOPELESS: Duration = Duration::from_secs(3);
/// Pages to work on that a process needs beside those that stay in memory.
const WORK: u64 = (8 << 20) / PAGE_SIZE as u64;

/// How long room has been wanted in vain, by whichever threads, since work was last done as it should
/// be.
#[derive(Default)]
pub struct Shortage(Mutex<Wanted>);

#[derive(Default)]
struct Wanted {
    lasted: Lasted,
    /// Up to where times are counted.
    until: Option<Instant>,
    /// The work done when it began, and up to then.
    began: u64,
    work: u64,
}

/// How long there has been no room: the union of the times.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lasted {
    /// With less work than there should be.
    in_all: Duration,
    /// With none at all.
    idle: Duration,
    /// That has become longer than [`HOPELESS`], or twice as long, and so on, since the last look.
    looks: bool,
}

impl Shortage {
    /// Room was wanted in vain from `from` to `to`, and so much `work` has been done so far. How long it has
    /// been so.
    fn lasted(&self, from: Instant, to: Instant, work: u64) -> Lasted {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if work - wanted.began.min(work) >= FED {
            *wanted = Wanted {
                began: work,
                ..Wanted::default()
            };
        }
        if std::mem::replace(&mut wanted.work, work) != work {
            wanted.lasted.idle = Duration::ZERO;
        }
        // What was long ago is over, however little was done since.
        if wanted.until.is_some_and(|until| from > until + GIVE_UP) {
            wanted.lasted = Lasted::default();
        }
        let from = wanted.until.map_or(from, |until| until.max(from));
        let more = to.saturating_duration_since(from);
        let looks = |idle: Duration| idle.as_millis() / HOPELESS.as_millis();
        let seen = looks(wanted.lasted.idle);
        wanted.lasted.in_all += more;
        wanted.lasted.idle += more;
        wanted.lasted.looks = looks(wanted.lasted.idle) != seen;
        wanted.until = Some(from.max(to));
        wanted.lasted
    }
}

/// A fault for which there is no room yet.
pub struct Stuck {
    fault: Fault,
    /// When it came, and when it was found so.
    since: Instant,
    begin: Instant,
    /// How often shared pages were evicted for it.
    copies: u32,
}

impl Process {
    /// Serves a fault, making room as often as it takes; or puts it down for later, if there is none and
    /// others wait to be served.
    pub fn serve_fully(&self, desk: &mut Desk, fault: Fault, since: Instant) {
        self.serve_on(desk, fault, since, None);
    }

    /// Tries again what was put down for later, once each.
    pub fn serve_stuck(&self, desk: &mut Desk) {
        for _ in 0..desk.stuck.len() {
            if let Some(stuck) = desk.stuck.pop_front() {
                self.serve_on(desk, stuck.fault, stuck.since, Some(stuck));
            }
        }
    }

    fn serve_on(&self, desk: &mut Desk, fault: Fault, since: Instant, stuck: Option<Stuck>) {
        desk.waiter = Some(Waiter::of(&fault));
        if let Some(stuck) = self.serve_unless_stuck(desk, fault, since, stuck) {
            match keeper::is(thread::id()) {
                // It comes once more, to a service thread.
                true => self.wake(PageNumber::of(fault.address), 1),
                false => desk.stuck.push_back(stuck),
            }
        }
        desk.waiter = None;
    }

    /// The same; what is to be served later.
    fn serve_unless_stuck(
        &self,
        desk: &mut Desk,
        fault: Fault,
        since: Instant,
        mut stuck: Option<Stuck>,
    ) -> Option<Stuck> {
        let mut refused: Option<Instant> = None;
        let mut direct = stuck.is_some();
        loop {
            match self.serve(desk, fault, since) {
                Served::Done => return None,
                // Nobody but the keeper gives pages up: it comes once more, to a service thread.
                Served::NoPage if keeper::is(thread::id()) => {
                    self.wake(PageNumber::of(fault.address), 1);
                    return None;
                }
                Served::NoPage => {
                    self.refused(*refused.get_or_insert_with(Instant::now));
                    continue;
                }
                Served::NoRoom => {}
            }
            if !std::mem::replace(&mut direct, true) {
                self.counters().allocstall.add(1);
            }
            let wanted = Instant::now();
            let step = self.make_room(desk, When::Now);
            if std::mem::take(&mut desk.hard) {
                self.wanted_room(wanted);
            }
            match step {
                Step::Progress | Step::Enough if stuck.is_none() => continue,
                Step::Progress | Step::Enough => {}
                Step::Full | Step::Nothing if self.shrinks_pool() => continue,
                Step::Full | Step::Nothing => {}
            }
            let waits = stuck.get_or_insert_with(|| {
                self.counters().stall.add(1);
                Stuck {
                    fault,
                    since,
                    begin: wanted,
                    copies: 0,
                }
            });
            self.waits_for_others();
            self.evict_shared(waits.begin.elapsed(), &mut waits.copies);
            credentials::follow();
            self.wanted_room(wanted);
            // They may be older, and what they are brought is not to be taken from them meanwhile.
            if desk.more || self.fault.wait(0) {
                return stuck;
            }
        }
    }

    /// What the pool holds may go to a device, all the more if nothing else is left. But not while a fork has
    /// the gate: it may be this fault that it waits for.
    fn shrinks_pool(&self) -> bool {
        let Some(_gate) = crate::process::try_gate(self) else {
            return false;
        };
        let bytes = (8 * UNIT * PAGE_SIZE) as u64;
        self.swap.shrink_pool(crate::process::cpu(), bytes) > 0
    }

    /// Nothing to evict here, or nowhere to put it: others may have cold memory.
    fn waits_for_others(&self) {
        let seen = self.member.wait(0, Some(Duration::ZERO));
        self.member.ask_reclaim(256);
        // Who is asked as well hears of that too: no news of room.
        self.member.wait(seen, Some(Duration::from_millis(1)));
        if !self.has_room(&mut lock_service(), 1) {
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Room was wanted in vain since `from`: ends the process if it has been so for too long. Called
    /// without the lock.
    pub fn wanted_room(&self, from: Instant) {
        let work = lock_service().attempts.work();
        let lasted = self.shortage.lasted(from, Instant::now(), work);
        let hopeless = || self.stays() + WORK > self.member.budget();
        if lasted.in_all > GIVE_UP || lasted.looks && hopeless() {
            self.out_of_memory();
        }
    }

    /// The budget is used up by memory that cannot be put anywhere: ends the process as a memory
    /// limit would.
    fn out_of_memory(&self) -> ! {
        let mib = |pages: u64| (pages * PAGE_SIZE as u64).div_ceil(1 << 20);
        let (budget, least) = (self.member.budget(), self.stays() + WORK);
        if least > budget {
            self.fail(&format!(
                "out of memory: of a budget of {} MiB this process has {} MiB by now that cannot be \
                 swapped out (stacks, code, locked memory); give --memory at least {}M",
                mib(budget),
                mib(least - WORK),
                mib(least)
            ))
        }
        if self.swap.file_limited() {
            self.fail(&format!(
                "the budget's {} MiB are in use, and what is in them cannot be swapped out, as the program may \
                 write no larger file (RLIMIT_FSIZE, `ulimit -f`); raise that limit or --memory, or give --swap a \
                 block device",
                mib(budget)
            ))
        }
        self.fail(&format!(
            "out of memory: the budget's {} MiB are in use and nothing more can be swapped out; \
             raise --memory, or give it a --swap file with room",
            mib(budget)
        ))
    }

    /// Pages of this process in memory that cannot be swapped out, whatever room there is elsewhere.
    fn stays(&self) -> u64 {
        let mut state = lock_service();
        self.measure(&mut state);
        let kept = state.ranges.all().filter(|r| r.attributes.stays());
        let mut pages = state.account.unmanaged();
        for range in kept {
            let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
            state.map.each(first, end, |_, page| {
                pages += u64::from(matches!(page, Page::Resident(_)));
                Continue(())
            });
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_wait_counts_once() {
        let shortage = Shortage::default();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| shortage.lasted(at(from), at(to), work).in_all.as_secs();
        assert_eq!(lasted(0, 2, 0), 2);
        assert_eq!(lasted(1, 3, 0), 3);
        // Within what is counted, and long after.
        assert_eq!(lasted(1, 2, 1), 3);
        assert_eq!(lasted(10, 14, 2), 7);
        assert_eq!(lasted(9, 15, FED - 1), 8);
        assert_eq!(lasted(100, 104, FED - 1), 4, "long after");
    }

    #[test]
    fn work_ends_a_shortage() {
        let shortage = Shortage::default();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let lasted = |from, to, work| {
            let lasted = shortage.lasted(at(from), at(to), work);
            (lasted.in_all.as_secs(), lasted.idle.as_secs())
        };
        lasted(0, 1, 1000);
        assert_eq!(lasted(1, 9, 1000), (9, 9));
        assert_eq!(lasted(9, 10, 999 + FED), (10, 1));
        assert_eq!(lasted(10, 11, 1000 + FED), (1, 1));
        assert_eq!(lasted(20, 21, 1001 + FED), (2, 1));
        assert_eq!(lasted(21, 23, 1001 + FED), (4, 3));
        let looks = |from, to| {
            let at = |ms| start + Duration::from_secs(23) + Duration::from_millis(ms);
            shortage.lasted(at(from), at(to), 1001 + FED).looks
        };
        assert_eq!(
            [looks(0, 1500), looks(1500, 2990), looks(2990, 3010)],
            [false, false, true]
        );
    }
}
