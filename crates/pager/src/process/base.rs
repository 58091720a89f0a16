//! What is known of a process from its first instruction on, paged or not: [`Base`].
//!
//! **The lock protocol.** The lock of [`State`] is held for bookkeeping and for the short memory calls that must
//! agree with it (munmap, a first touch's pages). It is never held across compression, device I/O or a wait for
//! another thread. Nor is it held, while other threads run, across a move of pages, which makes every processor flush
//! its translations. Pages worked on meanwhile are in a transit state. A thread that needs them waits, with the lock
//! dropped, until the transit ends. The holder touches no managed memory, as service of a fault needs the lock. So a
//! thread of the program takes it on a stack of ours, with its signals blocked, and has brought along all that it
//! needs. Order: the gate (keeper's work, fork), then the state, then the engine's own locks.

use crate::process::admission::Admission;
use crate::process::fork_stage::ForkStage;
use crate::process::heap_break::HeapBreak;
use crate::process::lifecycle::Lifecycle;
use crate::process::registration_requests::Registration;
use crate::process::shared_pages::SharedPages;
use crate::process::state::State;
use crate::process::transit::Transit;
use crate::process::user_changes::UserChanges;
use crate::process::vfork_calls::VforkCalls;
use ebb_engine::sync::{self, Mutex, MutexGuard};
use ebb_sys::paging::Kernel;

/// The state, locked.
pub type Locked = MutexGuard<'static, State>;

/// The library's knowledge of a process, paged or not. Each part owns its state; `kernel` is the system. In this order
/// in memory: what each process writes as it starts shares a page with what the loader writes. A test counts (`start`).
#[repr(C)]
pub struct Base<K: Kernel> {
    /// The system.
    pub kernel: K,
    /// Tree and keeper.
    pub lifecycle: Lifecycle,
    /// Calls of children that share this memory.
    pub vfork_calls: VforkCalls,
    state: Mutex<State>,
    /// Waits for pages that others move.
    pub transit: Transit,
    /// Forks.
    pub fork: ForkStage,
    /// Pages that relatives share.
    pub shared_pages: SharedPages,
    /// Memory to be registered or let go.
    pub registration: Registration,
    /// Growth before the process pages.
    pub admission: Admission,
    /// The end of the heap.
    pub heap_break: HeapBreak,
    /// Changes of the program's user.
    pub user_changes: UserChanges,
}

impl<K: Kernel> Base<K> {
    /// Nothing is known yet.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            state: Mutex::new(State::new()),
            transit: Transit::new(),
            lifecycle: Lifecycle::new(),
            fork: ForkStage::new(),
            shared_pages: SharedPages::new(),
            registration: Registration::new(),
            admission: Admission::new(),
            vfork_calls: VforkCalls::new(),
            heap_break: HeapBreak::new(),
            user_changes: UserChanges::new(),
        }
    }

    /// Whether the calling thread's memory may be paged one day.
    pub fn wanted(&self) -> bool {
        !self.kernel.is_own_thread() && self.lifecycle.may_page()
    }

    /// Milliseconds by which pages are dated.
    pub fn now_ms(&self) -> u32 {
        self.kernel.now().as_millis() as u32
    }

    /// Locks the state for a thread of ours, whose signals are blocked for good.
    #[inline]
    pub fn lock_service(&'static self) -> Locked {
        ebb_engine::locks::none_held();
        sync::lock(&self.state)
    }

    /// The same if nobody has it now.
    pub fn try_lock_service(&'static self) -> Option<Locked> {
        ebb_engine::locks::none_held();
        sync::try_lock(&self.state)
    }

    /// The invariants of every part; `state` is this one's, locked.
    pub fn check(&self, state: &State) {
        state.check(&self.shared_pages);
        self.transit.check();
        self.lifecycle.check();
        self.fork.check();
        self.admission.check();
        self.vfork_calls.check();
        self.heap_break.check();
        self.user_changes.check();
    }
}
