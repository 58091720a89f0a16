//! Where a fork stands: words by which the forking thread, the keeper, service threads and the child's
//! keeper tell each other.

use ebb_engine::sync::{Mutex, lock};
use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// The stages of a fork, in this order, and back to the first.
mod stage {
    /// Nobody forks.
    pub const NONE: u32 = 0;
    /// A thread wants to.
    pub const WANTED: u32 = 1;
    /// The process is quiescent.
    pub const QUIESCENT: u32 = 2;
    /// The fork is over.
    pub const OVER: u32 = 3;
}

/// The states of a child that is set up.
mod child {
    /// Under way.
    pub const STARTING: u32 = 0;
    /// It is served.
    pub const READY: u32 = 1;
    /// It cannot be served.
    pub const FAILED: u32 = 2;
}

/// How long one waits for the other side before it looks what else has happened.
const LOOK: Duration = Duration::from_millis(5);

/// See the module. The forking thread claims the stage and ends it; the keeper says that the process is quiescent,
/// and that the fork is done with.
pub struct ForkStage {
    /// One of [`stage`].
    stage: AtomicU32,
    /// Forks whose shared pages the keeper has protected.
    protected: AtomicU32,
    /// 1 while pages are evicted for a fork: pages that other threads bring in would be shared then.
    evicting: AtomicU32,
    /// Flag: there was a fork before this process paged, of it or by it. It may share pages with relatives.
    before_paging: AtomicBool,
    /// One of [`child`].
    child: AtomicU32,
    /// The reason why a child cannot be served, from its helper, which has no standard error.
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

    fn is(&self, stage: u32) -> bool {
        self.stage.load(SeqCst) == stage
    }

    /// The stage changes, and those who wait for it are woken.
    fn enter(&self, kernel: &impl Kernel, stage: u32) {
        self.stage.store(stage, SeqCst);
        kernel.wake_word(&self.stage, i32::MAX);
    }

    /// In a forking thread: it is this thread's turn to fork, unless another forks.
    pub fn claim(&self) -> bool {
        let claimed = self
            .stage
            .compare_exchange(stage::NONE, stage::WANTED, SeqCst, SeqCst);
        claimed.is_ok()
    }

    /// In the forking thread: waits for the keeper a while; whether the process is quiescent.
    pub fn wait_quiescent(&self, kernel: &impl Kernel) -> bool {
        kernel.wait_word(&self.stage, stage::WANTED, Some(LOOK));
        self.is(stage::QUIESCENT)
    }

    /// In the forking thread: the fork is over, or was not made.
    pub fn over(&self, kernel: &impl Kernel) {
        self.enter(kernel, stage::OVER);
    }

    /// In the keeper: whether a thread wants to fork.
    pub fn is_wanted(&self) -> bool {
        self.is(stage::WANTED)
    }

    /// In the keeper: the process is quiescent; the thread may fork.
    pub fn quiescent(&self, kernel: &impl Kernel) {
        self.enter(kernel, stage::QUIESCENT);
    }

    /// In the keeper: waits for the forking thread so long; whether it is not done yet.
    pub fn wait_over(&self, kernel: &impl Kernel, pause: Duration) -> bool {
        if self.is(stage::QUIESCENT) {
            kernel.wait_word(&self.stage, stage::QUIESCENT, Some(pause));
        }
        !self.is(stage::OVER)
    }

    /// In the keeper: all is done, and another thread may fork.
    pub fn done(&self, kernel: &impl Kernel) {
        self.enter(kernel, stage::NONE);
    }

    /// There was a fork although the process does not page.
    pub fn note_before_paging(&self) {
        self.before_paging.store(true, SeqCst);
    }

    /// Whether there was one.
    pub fn was_before_paging(&self) -> bool {
        self.before_paging.load(SeqCst)
    }

    /// Every word has a state that there is.
    pub fn check(&self) {
        assert!(self.stage.load(SeqCst) <= stage::OVER);
        assert!(self.child.load(SeqCst) <= child::FAILED);
        assert!(self.evicting.load(SeqCst) <= 1);
    }

    /// In a forked child: nobody forks.
    pub fn reset_in_child(&self) {
        self.stage.store(stage::NONE, SeqCst);
    }

    /// In a forked child of a process that pages: its keeper sets it up.
    pub fn child_starts(&self) {
        self.child.store(child::STARTING, SeqCst);
    }

    /// In the child's keeper: it is served.
    pub fn child_ready(&self, kernel: &impl Kernel) {
        self.child_is(kernel, child::READY);
    }

    /// In the child's first thread: waits for its keeper so long; whether that is still at it.
    pub fn wait_child(&self, kernel: &impl Kernel, pause: Duration) -> bool {
        if self.child_is_starting() {
            kernel.wait_word(&self.child, child::STARTING, Some(pause));
        }
        self.child_is_starting()
    }

    fn child_is_starting(&self) -> bool {
        self.child.load(SeqCst) == child::STARTING
    }

    /// Forks whose shared pages are protected, so far.
    pub fn protections(&self) -> u32 {
        self.protected.load(SeqCst)
    }

    /// Waits until one more is.
    pub fn wait_protected(&self, kernel: &impl Kernel, seen: u32) {
        while self.protections() == seen {
            kernel.wait_word(&self.protected, seen, Some(LOOK));
        }
    }

    /// In a service thread: waits while pages are evicted for a fork, but not long. Where that takes much
    /// time, by a device, other threads go on. No lock of ours is held.
    pub fn hold_on(&self, kernel: &impl Kernel) {
        if self.evicting.load(SeqCst) == 1 {
            kernel.wait_word(&self.evicting, 1, Some(Duration::from_millis(5)));
        }
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
    fn child_is(&self, kernel: &impl Kernel, state: u32) {
        self.child.store(state, SeqCst);
        kernel.wake_word(&self.child, i32::MAX);
    }

    /// In the helper of a forked child that cannot be served: its program says why, and ends.
    pub fn child_fails(&self, kernel: &impl Kernel, why: String) {
        *lock(&self.failure) = Some(why);
        self.child_is(kernel, child::FAILED);
    }

    /// Why the child cannot be served, if it cannot.
    pub fn child_failure(&self) -> Option<String> {
        let failed = self.child.load(SeqCst) == child::FAILED;
        let mut failure = lock(&self.failure);
        failed.then(|| failure.take().unwrap_or_default())
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
