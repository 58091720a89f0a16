//! Where a fork stands: words by which the forking thread, the keeper, service threads and the child's
//! keeper tell each other.

use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The stages of a fork.
pub mod stage {
    /// Nobody forks.
    pub const NONE: u32 = 0;
    /// A thread wants to.
    pub const WANTED: u32 = 1;
    /// The process is at rest.
    pub const AT_REST: u32 = 2;
    /// The fork is over.
    pub const OVER: u32 = 3;
}

/// The states of a child that is set up.
pub mod child {
    /// Under way.
    pub const STARTING: u32 = 0;
    /// It is served.
    pub const READY: u32 = 1;
    /// It cannot be served.
    pub const FAILED: u32 = 2;
}

/// See the module.
pub struct ForkStage {
    /// One of [`stage`].
    pub stage: AtomicU32,
    /// Forks whose shared pages the keeper has protected.
    pub protected: AtomicU32,
    /// 1 while pages are evicted for a fork: pages that other threads bring in would be shared then.
    pub evicting: AtomicU32,
    /// There was a fork before this process paged, of it or by it: it may share pages with relatives.
    pub before_paging: AtomicBool,
    /// One of [`child`].
    pub child: AtomicU32,
    /// Why a child cannot be served, from its helper, which has no standard error.
    failure: Mutex<Option<String>>,
    /// The membership of a process that has joined its tree and does not page.
    watching: AtomicPtr<Member>,
}

impl ForkStage {
    /// Nobody forks.
    pub const fn new() -> Self {
        Self {
            stage: AtomicU32::new(stage::NONE),
            protected: AtomicU32::new(0),
            evicting: AtomicU32::new(0),
            before_paging: AtomicBool::new(false),
            child: AtomicU32::new(child::STARTING),
            failure: Mutex::new(None),
            watching: AtomicPtr::new(null_mut()),
        }
    }

    /// In a service thread: waits while pages are evicted for a fork, but not long. Where that takes much
    /// time, by a device, other threads go on. No lock of ours is held.
    pub fn hold_on(&self, kernel: &impl Kernel) {
        if self.evicting.load(SeqCst) == 1 {
            kernel.wait_word(&self.evicting, 1, Some(Duration::from_millis(5)));
        }
    }

    /// The stage changes, and those who wait for it are woken.
    pub fn enter(&self, kernel: &impl Kernel, stage: u32) {
        self.stage.store(stage, SeqCst);
        kernel.wake_word(&self.stage, i32::MAX);
    }

    /// Pages are evicted for a fork, or no longer.
    pub fn set_evicting(&self, kernel: &impl Kernel, on: bool) {
        self.evicting.store(u32::from(on), SeqCst);
        if !on {
            kernel.wake_word(&self.evicting, i32::MAX);
        }
    }

    /// The keeper has protected the pages that a fork made shared.
    pub fn has_protected(&self, kernel: &impl Kernel) {
        self.protected.fetch_add(1, SeqCst);
        kernel.wake_word(&self.protected, i32::MAX);
    }

    /// The child's state changes, and its first thread is woken.
    pub fn child_is(&self, kernel: &impl Kernel, state: u32) {
        self.child.store(state, SeqCst);
        kernel.wake_word(&self.child, i32::MAX);
    }

    /// In the helper of a forked child that cannot be served: its program says why, and ends.
    pub fn child_fails(&self, kernel: &impl Kernel, why: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.child_is(kernel, child::FAILED);
    }

    /// Why the child cannot be served.
    pub fn take_failure(&self) -> Option<String> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    /// The membership of a process that has joined its tree and does not page.
    pub fn watching(&self) -> Option<&'static Member> {
        // SAFETY: leaked by the keeper, or null.
        unsafe { self.watching.load(SeqCst).as_ref() }
    }

    /// The process has joined its tree; none: it pages, or is a forked child.
    pub fn watch(&self, member: Option<&'static Member>) {
        let member = member.map_or(null_mut(), |member| std::ptr::from_ref(member).cast_mut());
        self.watching.store(member, SeqCst);
    }
}
