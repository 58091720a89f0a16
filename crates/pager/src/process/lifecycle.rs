//! Whether this process pages, may page one day, or never will; and its keeper task.

use crate::process::paging::Process;
use ebb_sys::{Errno, stack, thread};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Bytes that may be written to and are not registered yet, about, in a process that pages.
pub static UNREGISTERED: AtomicUsize = AtomicUsize::new(0);

static CONTROL: OnceLock<Option<String>> = OnceLock::new();

/// What there is of a keeper: one of the three below.
static KEEPER: AtomicU32 = AtomicU32::new(NO_KEEPER);

const NO_KEEPER: u32 = 0;

const HAS_KEEPER: u32 = 1;

/// There can be none: the process is not in a tree, or none can be started.
const NEVER_A_KEEPER: u32 = 2;

/// How to reach the tree's supervisor, if this process is in a tree.
pub fn control() -> Option<&'static str> {
    CONTROL.get()?.as_deref()
}

/// Whether this process pages.
pub fn pages() -> bool {
    Process::current().is_some()
}

/// Whether the calling thread's memory may be paged one day: before `start` one cannot know, so yes.
pub fn wanted() -> bool {
    !thread::is_ours() && CONTROL.get().is_none_or(Option::is_some)
}

/// Starts the keeper, unless there is one.
pub fn start_first_keeper() {
    let none = || KEEPER.compare_exchange(NO_KEEPER, HAS_KEEPER, SeqCst, SeqCst);
    if control().is_some() && none().is_ok() {
        // Without one the process is measured, as a small one is.
        let _ = stack::borrow(|| start_keeper(Duration::ZERO));
    }
}

/// Starts the keeper, and so the helper; where the system refuses it again and again for `patience`.
pub fn start_keeper(patience: Duration) -> Result<(), Errno> {
    let started = match ENTRY.get() {
        Some(&entry) => thread::start_helper(entry, 0, patience),
        None => Err(Errno(libc::EAGAIN)),
    };
    if started.is_err() {
        KEEPER.store(NEVER_A_KEEPER, SeqCst);
    }
    started
}

/// The keeper has nothing to do here, and ends.
pub fn keeper_ends() {
    KEEPER.store(NEVER_A_KEEPER, SeqCst);
}

/// Whether there is none and never will be.
pub fn keeperless() -> bool {
    KEEPER.load(SeqCst) == NEVER_A_KEEPER
}

/// Whether there is a keeper, or in a forked child: its parent had one.
pub fn had_keeper() -> bool {
    KEEPER.load(SeqCst) == HAS_KEEPER
}

/// The keeper's task, by its number in the system: a forked child finds its parent's.
pub static KEEPER_TASK: AtomicU32 = AtomicU32::new(0);

pub static CHECKING: AtomicBool = AtomicBool::new(false);

/// For tests: every invariant of the pager is checked again and again while the program runs, and that
/// no thread of ours faults.
pub fn checking() -> bool {
    CHECKING.load(SeqCst)
}

/// Whether this thread is the keeper.
pub fn is_keeper(thread: u32) -> bool {
    KEEPER_TASK.load(SeqCst) == thread
}

/// The keeper's entry point, from [`begin`] on.
static ENTRY: OnceLock<Entry> = OnceLock::new();

/// The entry point of a helper's first task.
pub type Entry = extern "C" fn(usize) -> !;

/// The library begins: whether it is in a tree stands in the environment. `keeper` is where keepers start.
pub fn begin(keeper: Entry) {
    ENTRY.get_or_init(|| keeper);
    CONTROL.get_or_init(|| std::env::var("EBB_CONTROL").ok().filter(|v| !v.is_empty()));
}

/// Milliseconds of CLOCK_MONOTONIC, as far as pages are dated.
pub fn now_ms() -> u32 {
    (ebb_sys::proc::monotonic_ns() / 1_000_000) as u32
}
