//! Where a fork stands: words by which the forking thread, the keeper, service threads and the child's
//! keeper tell each other.

use crate::process::paging::Process;
use ebb_sys::futex;
use ebb_tree::Member;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// 0 nobody forks; 1 a thread wants to; 2 the process is at rest; 3 the fork is over.
pub static STAGE: AtomicU32 = AtomicU32::new(0);

/// Forks whose shared pages the keeper has protected.
pub static PROTECTED: AtomicU32 = AtomicU32::new(0);

/// 1 while memory is made for a fork: what other threads brought in meanwhile would be shared then.
pub static EVICTING: AtomicU32 = AtomicU32::new(0);

/// In a service thread: waits while memory is made for a fork, but not long: where that takes much
/// time, by a device, other threads go on. No lock of ours is held.
pub fn hold_on() {
    if EVICTING.load(SeqCst) == 1 {
        futex::wait(&EVICTING, 1, Some(Duration::from_millis(5)), false);
    }
}

/// There was a fork before this process paged, of it or by it: it may share pages with relatives.
pub static EVER: AtomicBool = AtomicBool::new(false);

/// See [`EVER`].
pub fn before_paging() -> bool {
    EVER.load(SeqCst)
}

/// Our membership while this process has joined its tree and does not page.
pub static WATCHING: AtomicPtr<Member> = AtomicPtr::new(null_mut());

/// The same.
pub fn watching() -> Option<&'static Member> {
    // SAFETY: leaked by the keeper, or null.
    unsafe { WATCHING.load(SeqCst).as_ref() }
}

/// Why a child cannot be served, from its helper, which has no standard error.
pub static WHY: std::sync::Mutex<Option<String>> = std::sync::Mutex::new(None);

/// In the helper of a forked child that cannot be served: its program says why, and ends.
pub fn child_fails(why: String) {
    *WHY.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(why);
    CHILD_READY.store(2, SeqCst);
    futex::wake(&CHILD_READY, i32::MAX, false);
}

/// The child's state of setting up: 0 under way, 1 done, 2 failed.
pub static CHILD_READY: AtomicU32 = AtomicU32::new(0);

pub static INHERITED: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// In a new keeper: the parent's process, if this is a forked child that must take over from it.
pub fn inherited() -> Option<&'static Process> {
    // SAFETY: leaked when it was published, in the parent's past and so in ours.
    unsafe { INHERITED.swap(null_mut(), SeqCst).as_ref() }
}
