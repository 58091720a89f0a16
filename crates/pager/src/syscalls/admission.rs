//! Growth of a process that does not page: when it gets a keeper, and when it waits for one.
//!
//! A process that has little is only measured, by the supervisor: its pager would take as much as
//! could leave. So most of those that live for a moment start no thread and join nothing. Who grows
//! to [`KEEPER_MIN`] gets a keeper, which joins the tree.
//!
//! Memory is filled faster than a keeper comes to run, and many small processes that begin together
//! are as much as one that is large. So whoever grows to [`WAIT_MIN`] waits: to be let into the tree,
//! which mostly has happened by then; and to be paged, if the tree holds back who is not
//! (`Member::holds_back`), or if this process alone has more than the tree may have before it pages.
//!
//! What may be filled is told bit by bit: what is mapped or asked for at once as it is, small blocks
//! of malloc when some pages of them were handed out. That is too much rather than too little; each
//! [`MEASURE_EVERY`] of it the process is measured. While a thread waits, so does every other that would grow: each
//! would else fill as much again before it is its turn to look.

use crate::process::fork_stage;
use crate::process::lifecycle::{had_keeper, keeperless, start_first_keeper, wanted};
use crate::process::paging::Process;
use crate::syscalls::vfork_proxy;
use ebb_engine::PAGE_SIZE;
use ebb_sys::{futex, memory, proc};
use ebb_tree::Mode;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Pages from which on a process has a keeper.
const KEEPER_MIN: u64 = (512 << 10) / PAGE_SIZE as u64;
/// Pages with which it waits.
const WAIT_MIN: u64 = (1 << 20) / PAGE_SIZE as u64;
/// Bytes that may be filled between two looks.
const MEASURE_EVERY: usize = 256 << 10;
/// The same where the tree does not page and the supervisor measures this process.
const MEASURE_EVERY_WATCHED: usize = 4 << 20;
/// How often it is seen whether the tree still holds back.
const RECHECK: Duration = Duration::from_millis(20);
/// How long it waits in all. A supervisor that does not come in this time is gone.
const WAIT_MAX: Duration = Duration::from_secs(2);

static UNMEASURED: AtomicUsize = AtomicUsize::new(0);
/// Threads that wait.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Nanoseconds in which somebody waited.
static WAITED: AtomicU64 = AtomicU64::new(0);
/// Until when that has been counted (CLOCK_MONOTONIC, nanoseconds).
static COUNTED: AtomicU64 = AtomicU64::new(0);
/// Changes with what is waited for.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// The process is in the tree by now, or pages, or never will.
pub fn notify() {
    CHANGES.fetch_add(1, SeqCst);
    futex::wake(&CHANGES, i32::MAX, false);
}

/// In a forked child: of the threads that waited there is none.
pub fn reset_in_child() {
    WAITING.store(0, SeqCst);
}

/// `len` bytes more may be filled.
pub fn admit(len: usize) {
    if Process::current().is_some() || !wanted() || keeperless() {
        return;
    }
    let look = match fork_stage::watching() {
        Some(member) if member.mode() == Mode::Watching => MEASURE_EVERY_WATCHED,
        _ => MEASURE_EVERY,
    };
    if UNMEASURED.fetch_add(len, SeqCst) + len < look && WAITING.load(SeqCst) == 0 {
        return;
    }
    UNMEASURED.store(0, SeqCst);
    if vfork_proxy::is_child() {
        // A keeper that it starts would end with it.
        return;
    }
    let Some(has) = memory::resident_anonymous_pages() else {
        return;
    };
    let may_have = has + (len / PAGE_SIZE) as u64;
    if may_have >= KEEPER_MIN {
        start_first_keeper();
    }
    if may_have >= WAIT_MIN {
        wait(has);
    }
}

/// Waits as long as a process must that has so many pages.
fn wait(has: u64) {
    let waits = || match fork_stage::watching() {
        _ if Process::current().is_some() => false,
        Some(member) => member.holds_back() || member.overdue(has),
        // The supervisor has not answered yet.
        None => had_keeper(),
    };
    let mut since = proc::monotonic_ns();
    WAITING.fetch_add(1, SeqCst);
    loop {
        let seen = CHANGES.load(SeqCst);
        let left = WAIT_MAX.saturating_sub(Duration::from_nanos(WAITED.load(SeqCst)));
        if !waits() || left.is_zero() {
            break;
        }
        if let Some(member) = fork_stage::watching()
            && member.mode() == Mode::Watching
        {
            member.wish_to_page();
        }
        futex::wait(&CHANGES, seen, Some(left.min(RECHECK)), false);
        // Of what others counted already only the rest.
        let now = proc::monotonic_ns();
        let counted = COUNTED.fetch_max(now, SeqCst);
        WAITED.fetch_add(now.saturating_sub(counted.max(since)), SeqCst);
        since = now;
    }
    // In a child that was forked by a handler of signals nobody waits.
    let _ = WAITING.fetch_update(SeqCst, SeqCst, |waiting| waiting.checked_sub(1));
}
