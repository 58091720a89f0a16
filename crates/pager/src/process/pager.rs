//! The pager as a value: [`Pager`] from the first instruction of the process on, and [`Process`] as long as
//! the process pages.
//!
//! **The lock protocol.** The lock of [`State`] is held for bookkeeping and for the short memory calls that must
//! agree with it (munmap, a first touch's pages). It is never held across compression, device I/O or a wait for
//! another thread. Nor is it held, while other threads run, across a move of pages, which makes every processor flush
//! its translations. Pages worked on meanwhile are in a transit state. A thread that needs them waits, with the lock
//! dropped, until the transit ends. The holder touches no managed memory, as service of a fault needs the lock. So a
//! thread of the program takes it on a stack of ours, with its signals blocked, and has brought along all that it
//! needs. Order: `Process::gate` (keeper's work, fork), then the state, then the engine's own locks.

use crate::budget::pool_split::Costs;
use crate::devices::swap_space::SwapSpace;
use crate::map::page_map::{Page, PageNumber};
use crate::process::counters::{Growth, Registration, UserChanges};
use crate::process::fork_stage::ForkStage;
use crate::process::lifecycle::Lifecycle;
use crate::process::outcome::{Outcome, RETRY};
use crate::process::refusal::Refusal;
use crate::process::services::Services;
use crate::process::shared_pages::SharedPages;
use crate::process::state::State;
use crate::process::vfork_calls::VforkCalls;
use crate::reclaim::copy_score::CopyScore;
use crate::reclaim::shortage::Shortage;
use ebb_engine::counters::Counters;
use ebb_engine::swap::Swap;
use ebb_engine::{Cpu, PAGE_SIZE};
use ebb_sys::memory;
use ebb_sys::paging::{Kernel, Time};
use ebb_tree::{ChildSlot, Member};
use std::cell::UnsafeCell;
use std::ops::ControlFlow::{Break, Continue};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, Ordering::SeqCst,
};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The state, locked.
pub type Locked = MutexGuard<'static, State>;

/// The library's knowledge of a process, paged or not.
pub struct Pager<K: Kernel> {
    /// The system.
    pub kernel: K,
    state: Mutex<State>,
    /// Changes whenever a transit ends while somebody waits.
    transit: AtomicU32,
    transit_waiters: AtomicU32,
    /// Null while the process does not page.
    process: AtomicPtr<Process<K>>,
    /// In a forked child, until its keeper takes it: the parent's process.
    inherited: AtomicPtr<Process<K>>,
    /// Held by a forking thread across the fork.
    pub held: HeldInFork,
    /// Tree and keeper.
    pub lifecycle: Lifecycle,
    /// Forks.
    pub fork: ForkStage,
    /// Pages that relatives share.
    pub shared_pages: SharedPages,
    /// Memory to be registered or let go.
    pub registration: Registration,
    /// Growth before the process pages.
    pub growth: Growth,
    /// Calls of children that share this memory.
    pub vfork_calls: VforkCalls,
    /// The end of the heap, once the program asked for it; 0 before.
    pub heap_break: AtomicUsize,
    /// Changes of the program's user.
    pub user_changes: UserChanges,
}

/// The state's lock, and the slot of the child, across a fork.
pub struct HeldInFork(UnsafeCell<Option<(Locked, Option<ChildSlot>)>>);
// SAFETY: only the thread that holds the state's lock, which is inside, touches it.
unsafe impl Sync for HeldInFork {}

impl HeldInFork {
    /// Keeps the lock until [`take`](Self::take).
    ///
    /// # Safety
    /// It is the state's.
    pub unsafe fn keep(&self, locked: Locked, slot: Option<ChildSlot>) {
        // SAFETY: the caller holds the lock.
        unsafe { *self.0.get() = Some((locked, slot)) };
    }

    /// The lock again; none if nothing is kept.
    ///
    /// # Safety
    /// This thread kept it, or nothing is kept.
    pub unsafe fn take(&self) -> Option<(Locked, Option<ChildSlot>)> {
        // SAFETY: this thread holds the lock, by the caller's contract.
        unsafe { (*self.0.get()).take() }
    }
}

/// A process that pages: what its threads of ours share.
pub struct Process<K: Kernel> {
    /// The pager that it is part of.
    pub pager: &'static Pager<K>,
    /// The system.
    pub kernel: &'static K,
    /// Its place in the process tree: budget, counters, devices.
    pub member: &'static Member,
    /// Its swap space.
    pub swap: &'static Swap,
    /// The same with the files behind it.
    pub swap_space: &'static SwapSpace,
    /// The service threads.
    pub services: Services<K>,
    /// Held by the keeper while it works in the engine, and by a fork.
    pub gate: Mutex<()>,
    /// Pages may be shared copy-on-write with a forked relative: they refuse to be moved until
    /// one side has written them.
    pub forked: AtomicBool,
    /// How worth it clean copies proved.
    pub keeping: CopyScore,
    /// The costs of faults.
    pub costs: Costs,
    /// How long there has been no room.
    pub shortage: Shortage,
    /// The keeper was told that the pool is nearly full, and has not looked yet.
    pub behind: AtomicBool,
    /// The system had no page for us, and the keeper has not seen it yet.
    pub system_refused: AtomicBool,
    /// The supervisor has a second descriptor of our userfaultfd.
    pub has_sent_userfaultfd: AtomicBool,
    /// A bay kept its executable protection: the kernel refuses to split a mapping of a process with too many.
    pub kept_executable: AtomicBool,
    /// A test has the system refuse.
    pub refusal: Option<Refusal>,
}

/// Longer than a transit takes that has a processor.
const LONG: Duration = Duration::from_millis(1);

impl<K: Kernel> Pager<K> {
    /// Nothing is known yet.
    pub const fn new(kernel: K) -> Self {
        Self {
            kernel,
            state: Mutex::new(State::new()),
            transit: AtomicU32::new(0),
            transit_waiters: AtomicU32::new(0),
            process: AtomicPtr::new(null_mut()),
            inherited: AtomicPtr::new(null_mut()),
            held: HeldInFork(UnsafeCell::new(None)),
            lifecycle: Lifecycle::new(),
            fork: ForkStage::new(),
            shared_pages: SharedPages::new(),
            registration: Registration::new(),
            growth: Growth::new(),
            vfork_calls: VforkCalls::new(),
            heap_break: AtomicUsize::new(0),
            user_changes: UserChanges::new(),
        }
    }

    /// The process, if it pages.
    #[inline]
    pub fn process(&self) -> Option<&'static Process<K>> {
        // SAFETY: set once from a leaked box, never freed.
        unsafe { self.process.load(Ordering::Acquire).as_ref() }
    }

    /// Whether this process pages.
    pub fn pages(&self) -> bool {
        self.process().is_some()
    }

    /// The process pages from now on.
    pub fn publish(&self, process: Box<Process<K>>) -> &'static Process<K> {
        let leaked = Box::leak(process);
        self.process.store(leaked, Ordering::Release);
        leaked
    }

    /// In a new keeper: the parent's process, if this is a forked child that must take over from it.
    pub fn take_inherited(&self) -> Option<&'static Process<K>> {
        // SAFETY: leaked when it was published, in the parent's past and so in ours.
        unsafe { self.inherited.swap(null_mut(), SeqCst).as_ref() }
    }

    /// In a forked child of a process that pages: it does not page before it has set up its own.
    pub fn inherit_process(&self) {
        let parent = self.process.swap(null_mut(), SeqCst);
        self.inherited.store(parent, SeqCst);
    }

    /// The membership of this process, once it has joined its tree.
    pub fn member(&self) -> Option<&'static Member> {
        let paging = self.process().map(|process| process.member);
        paging.or_else(|| self.fork.watching())
    }

    /// Whether the calling thread's memory may be paged one day.
    pub fn wanted(&self) -> bool {
        !self.kernel.is_own_thread() && self.lifecycle.may_page()
    }

    /// Milliseconds by which pages are dated.
    pub fn now_ms(&self) -> u32 {
        self.kernel.now().as_millis() as u32
    }

    /// The processor the caller runs on.
    pub fn cpu(&self) -> Cpu {
        crate::devices::processors::number(self.kernel.cpu())
    }

    /// Locks the state for a thread of the program, on a stack of ours.
    pub fn lock(&'static self) -> Locked {
        let own = self.kernel.is_on_own_stack() || self.kernel.is_own_thread();
        debug_assert!(own || !self.pages());
        self.lock_service()
    }

    /// Locks the state for a thread of ours, whose signals are blocked for good.
    #[inline]
    pub fn lock_service(&'static self) -> Locked {
        ebb_engine::locks::none_held();
        match self.state.lock() {
            Ok(g) => g,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// The same if nobody has it now.
    pub fn try_lock_service(&'static self) -> Option<Locked> {
        ebb_engine::locks::none_held();
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits, with the lock dropped, until no page of `start..end` is in transit; returns it locked again.
    ///
    /// # Errors
    /// [`RETRY`], on a thread of ours, which must not wait for others.
    pub fn settled(&'static self, state: Locked, start: usize, end: usize) -> Outcome<Locked> {
        self.all_settled(state, &[(start, end)])
    }

    /// The same for several areas (start and end) at once.
    pub fn all_settled(
        &'static self,
        mut state: Locked,
        areas: &[(usize, usize)],
    ) -> Outcome<Locked> {
        let mut waited = false;
        while areas.iter().any(|area| is_in_transit(&state, *area)) {
            if self.kernel.is_own_thread() {
                return Err(RETRY);
            }
            self.transit_waiters.fetch_add(1, SeqCst);
            let seen = self.transit.load(SeqCst);
            drop(state);
            if waited && let Some(process) = self.process() {
                // The thread that has the pages may wait for its processor: service is idle work, and the
                // thread that it woke may be using it. The keeper takes this back.
                process.services.compete(true);
            }
            self.kernel.wait_word(&self.transit, seen, Some(LONG));
            waited = true;
            self.transit_waiters.fetch_sub(1, SeqCst);
            state = self.lock();
        }
        Ok(state)
    }

    /// A transit ended; called with the lock held.
    #[inline]
    pub fn transit_ended(&self) {
        if self.transit_waiters.load(SeqCst) > 0 {
            self.transit.fetch_add(1, SeqCst);
            self.kernel.wake_word(&self.transit, i32::MAX);
        }
    }

    /// Memory of the engine is about to be given back to the system.
    pub fn before_give_back(&self, bytes: &[u8]) {
        if !self.shared_pages.has_relatives() {
            return;
        }
        let Some(process) = self.process() else {
            return;
        };
        let start = memory::page_up(bytes.as_ptr() as usize);
        let end = (bytes.as_ptr() as usize + bytes.len()) & !(PAGE_SIZE - 1);
        if start >= end {
            return;
        }
        if self.kernel.is_own_thread() {
            let rollups = process.member.rollups();
            let pages = self.kernel.shared(start, end) as i64;
            self.shared_pages.give_back(pages, rollups);
        } else {
            // It has another descriptor table: the supervisor is to find out.
            process.member.doubt(((end - start) / PAGE_SIZE) as u64);
        }
    }
}

fn is_in_transit(state: &State, (start, end): (usize, usize)) -> bool {
    if state.map.in_transit() == 0 {
        return false;
    }
    let mut busy = false;
    let (start, end) = (PageNumber::of(start), PageNumber::of(end));
    state.map.each(start, end, |_, page| {
        busy |= matches!(page, Page::Loading(_) | Page::Storing(_));
        if busy { Break(()) } else { Continue(()) }
    });
    busy
}

impl<K: Kernel> Process<K> {
    /// The counters of this process, in the tree's shared memory.
    pub fn counters(&self) -> &Counters {
        self.member.counters()
    }

    /// The time now.
    #[inline(always)]
    pub fn now(&self) -> Time {
        self.kernel.now()
    }

    /// The processor the caller runs on.
    #[inline]
    pub fn cpu(&self) -> Cpu {
        self.pager.cpu()
    }

    /// Locks the state, on a thread of ours.
    #[inline]
    pub fn lock(&self) -> Locked {
        self.pager.lock_service()
    }

    /// Keeps forks and the keeper's work in the engine apart.
    pub fn gate(&self) -> MutexGuard<'_, ()> {
        ebb_engine::locks::none_held();
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate, if nobody has it.
    pub fn try_gate(&self) -> Option<MutexGuard<'_, ()>> {
        ebb_engine::locks::none_held();
        match self.gate.try_lock() {
            Ok(gate) => Some(gate),
            Err(TryLockError::Poisoned(gate)) => Some(gate.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Pages of memory in use that the pager knows of, the engine's included.
    pub fn used(&self, state: &State) -> i64 {
        state.used(self.swap) + self.pager.shared_pages.given_back()
    }
}
