//! Growth of a process that does not page: when it gets a keeper, and when it waits for one.
//!
//! A process that has little is only measured, by the supervisor: its pager would take as much as could leave. So
//! most of those that live for a moment start no thread and join nothing. A process that grows to [`KEEPER_MIN`] gets
//! a keeper, which joins the tree.
//!
//! Memory is filled faster than a keeper comes to run, and many small processes that begin together are as much as
//! one that is large. So a process that grows to [`WAIT_MIN`] waits to be let into the tree, which mostly has
//! happened by then. It also waits to be paged in four cases:
//!
//! - the tree holds others back (`Member::delays_growth`)
//! - it alone has more than the tree may have before it pages
//! - it asks for more at once than the tree has room for (`Member::outgrows`), and may fill that before anybody looks
//! - its growth does not fit beside that of others (`Member::lets_grow`): processes that begin together would else all
//!   grow before one of them has been measured
//!
//! Growth is reported bit by bit: mappings and large blocks as they are asked for, threads as they start, and small
//! blocks of malloc when some pages of them were handed out. That is too much rather than too little. Each
//! [`MEASURE_EVERY`] of it the process is measured. While a thread waits, so does every other that would grow: each would else fill as much again before
//! it is its turn to look.

use crate::pager::Pager;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use ebb_tree::Mode;
use std::time::Duration;

/// Pages from which on a process has a keeper.
const KEEPER_MIN: u64 = (512 << 10) / PAGE_SIZE as u64;
/// Pages with which it waits.
const WAIT_MIN: u64 = (1 << 20) / PAGE_SIZE as u64;
/// Bytes that may be filled between two looks.
const MEASURE_EVERY: usize = 256 << 10;
/// The same where the tree does not page and the supervisor measures this process.
const MEASURE_EVERY_WATCHED: usize = 4 << 20;
/// Bytes of a stack that a thread fills as it starts.
const STACK: usize = 16 << 10;
/// The bytes for which a thread counts: what threads fill of reserved memory is seen by a look alone.
const OF_A_THREAD: usize = 1 << 20;
/// How often it is seen whether the tree still holds back.
const RECHECK: Duration = Duration::from_millis(20);
/// How long it waits in all. A supervisor that does not come in this time is stopped: on a crowded machine it may take
/// seconds. The end of one is noticed at once.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl<K: Kernel> Pager<K> {
    /// The process is in the tree by now, or pages, or never will.
    pub fn notify_growth(&'static self) {
        self.admission.change(&self.kernel);
    }

    /// A thread of the program starts: it fills its stack, and perhaps memory of which nobody reports.
    pub fn admit_thread(&'static self) {
        self.admit_counted(STACK, OF_A_THREAD);
    }

    /// `len` bytes more may be filled.
    pub fn admit(&'static self, len: usize) {
        self.admit_counted(len, len);
    }

    /// The same; `counted` bytes nearer to the next look.
    fn admit_counted(&'static self, len: usize, counted: usize) {
        if !self.may_have_to_wait() {
            return;
        }
        let look = match self.fork.watching() {
            Some(member) if member.mode() == Mode::Watching => MEASURE_EVERY_WATCHED,
            _ => MEASURE_EVERY,
        };
        if !self.admission.add(counted, look) {
            return;
        }
        if self.is_child() && !self.vfork_calls.is_served(&self.kernel) {
            // A keeper that it starts would end with it.
            return;
        }
        let Some(has) = self.kernel.resident_anonymous_pages() else {
            return;
        };
        self.grow(has, (len / PAGE_SIZE) as u64);
    }

    /// `len` bytes more are about to be filled, all at once: as if they had been.
    pub fn admit_filled(&'static self, len: usize) {
        if self.may_have_to_wait()
            && !self.is_child()
            && let Some(has) = self.kernel.resident_anonymous_pages()
        {
            self.grow(has + (len / PAGE_SIZE) as u64, 0);
        }
    }

    fn may_have_to_wait(&self) -> bool {
        self.process().is_none() && self.wanted() && !self.lifecycle.is_keeperless()
    }

    /// It has so many pages, and wants more.
    fn grow(&'static self, has: u64, more: u64) {
        if has + more >= KEEPER_MIN {
            self.start_first_keeper();
        }
        if has + more >= WAIT_MIN {
            self.wait_to_grow(has, more);
        }
    }

    /// Waits as long as a process must that has so many pages, and wants more.
    fn wait_to_grow(&'static self, has: u64, more: u64) {
        let waits = || match self.fork.watching() {
            _ if self.process().is_some() => false,
            Some(member) => {
                member.delays_growth()
                    || member.overdue(has)
                    || member.outgrows(has, more)
                    || !member.lets_grow(has, more)
            }
            // The supervisor has not answered yet.
            None => self.lifecycle.had_keeper(),
        };
        // A child that shares this memory may be killed, and would count for ever.
        let counts = !self.is_child();
        let mut since = self.kernel.now();
        if counts {
            self.admission.begin_wait();
        }
        loop {
            let seen = self.admission.changes();
            let left = WAIT_MAX.saturating_sub(self.admission.waited());
            if !waits() || left.is_zero() {
                break;
            }
            if let Some(member) = self.fork.watching()
                && member.mode() == Mode::Watching
            {
                member.request_paging();
            }
            let most = left.min(RECHECK);
            self.admission.wait_change(&self.kernel, seen, most);
            let now = self.kernel.now();
            self.admission.count_wait(since, now);
            since = now;
        }
        if counts {
            self.admission.end_wait();
        }
    }
}
