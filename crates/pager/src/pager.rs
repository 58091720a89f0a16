//! The pager as a value: [`Pager`], from the first instruction of the process on.
//!
//! It has a [`Base`] from the beginning, and a [`FaultService`] with all layers under that as long as the process
//! pages (`process::context` names them). It adds what takes both: waits of the program's threads, and how the
//! process ends. The memory calls (`syscalls`), forks (`fork`) and the keeper (`keeper`) are its methods.

use crate::fault::fault_service::FaultService;
use crate::map::page_map::{Page, PageNumber};
use crate::process::base::{Base, Locked};
use crate::process::failure::described;
use crate::process::outcome::{Outcome, RETRY};
use crate::process::state::State;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory;
use ebb_sys::paging::Kernel;
use ebb_tree::{ChildSlot, HelperExit, Member};
use std::cell::UnsafeCell;
use std::ops::ControlFlow::{Break, Continue};
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering, Ordering::SeqCst};
use std::time::Duration;

/// The pager of a process, paged or not.
pub struct Pager<K: Kernel> {
    base: Base<K>,
    /// Null while the process does not page.
    process: AtomicPtr<FaultService<K>>,
    /// The parent's process, in a forked child until its keeper takes it.
    inherited: AtomicPtr<FaultService<K>>,
    /// Held by a forking thread across the fork.
    held: HeldInFork,
}

impl<K: Kernel> Deref for Pager<K> {
    type Target = Base<K>;

    #[inline(always)]
    fn deref(&self) -> &Base<K> {
        &self.base
    }
}

/// The state's lock, and the slot of the child, across a fork.
struct HeldInFork(UnsafeCell<Option<(Locked, Option<ChildSlot>)>>);
// SAFETY: only the thread that holds the state's lock, which is inside, touches it.
unsafe impl Sync for HeldInFork {}

/// Longer than a transit takes that has a processor.
const LONG: Duration = Duration::from_millis(1);
/// Waits for the end of a transit, where one after another begins in the areas.
const MANY: u32 = 16;

impl<K: Kernel> Pager<K> {
    /// Nothing is known yet.
    pub const fn new(kernel: K) -> Self {
        Self {
            base: Base::new(kernel),
            process: AtomicPtr::new(null_mut()),
            inherited: AtomicPtr::new(null_mut()),
            held: HeldInFork(UnsafeCell::new(None)),
        }
    }

    /// What is known whether it pages or not.
    pub fn base(&'static self) -> &'static Base<K> {
        &self.base
    }

    /// The fault service, with all layers under it, if the process pages.
    #[inline]
    pub fn process(&self) -> Option<&'static FaultService<K>> {
        // SAFETY: set once from a leaked box, never freed.
        unsafe { self.process.load(Ordering::Acquire).as_ref() }
    }

    /// The invariants of every part; `state` is this one's, locked.
    #[cfg(test)]
    pub fn check(&self, state: &State) {
        match self.process() {
            Some(process) => process.check(state),
            None => self.base.check(state),
        }
    }

    /// Whether this process pages.
    pub fn pages(&self) -> bool {
        self.process().is_some()
    }

    /// The process pages from now on.
    pub fn publish(&self, process: &'static FaultService<K>) {
        let process = std::ptr::from_ref(process).cast_mut();
        self.process.store(process, Ordering::Release);
    }

    /// In a new keeper: the parent's process, if this is a forked child that must take over from it.
    pub fn take_inherited(&self) -> Option<&'static FaultService<K>> {
        // SAFETY: leaked when it was published, in the parent's past and so in ours.
        unsafe { self.inherited.swap(null_mut(), SeqCst).as_ref() }
    }

    /// In a forked child of a process that pages: it does not page before it has set up its own.
    pub fn inherit_process(&self) {
        let parent = self.process.swap(null_mut(), SeqCst);
        self.inherited.store(parent, SeqCst);
    }

    /// Keeps the lock across a fork, until [`take_held`](Self::take_held).
    ///
    /// # Safety
    /// It is the state's.
    pub unsafe fn hold_in_fork(&self, locked: Locked, slot: Option<ChildSlot>) {
        // SAFETY: the caller holds the lock.
        unsafe { *self.held.0.get() = Some((locked, slot)) };
    }

    /// The lock again; none if nothing is kept.
    ///
    /// # Safety
    /// This thread kept it, or nothing is kept.
    pub unsafe fn take_held(&self) -> Option<(Locked, Option<ChildSlot>)> {
        // SAFETY: this thread holds the lock, by the caller's contract.
        unsafe { (*self.held.0.get()).take() }
    }

    /// The membership of this process, once it has joined its tree.
    pub fn member(&self) -> Option<&'static Member> {
        let paging = self.process().map(|process| process.member);
        paging.or_else(|| self.fork.watching())
    }

    /// Locks the state for a thread of the program, on a stack of ours.
    pub fn lock(&'static self) -> Locked {
        let own = self.kernel.is_on_own_stack() || self.kernel.is_own_thread();
        debug_assert!(own || !self.pages());
        self.lock_service()
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
        let (mut waited, mut ends) = (false, 0);
        let mut closed = None;
        while areas.iter().any(|area| is_in_transit(&state, *area)) {
            if self.kernel.is_own_thread() {
                return Err(RETRY);
            }
            if waited && let Some(process) = self.process() {
                // The thread that has the pages may wait for its processor: service is idle work, and the
                // thread that it woke may be using it. The keeper takes this back.
                process.services.compete(true);
            }
            if ends >= MANY {
                // Other threads fault in these areas all the time: from now on none of that begins.
                closed
                    .get_or_insert_with(|| self.transit.close(&self.kernel))
                    .renew();
            }
            let ended = self.transit.wait(&self.kernel, || drop(state), LONG);
            (waited, ends) = (true, ends + u32::from(ended));
            state = self.lock();
        }
        Ok(state)
    }

    /// A service thread of this index. It begins when the process pages.
    pub fn run_service(&self, index: usize) -> ! {
        loop {
            match self.process() {
                Some(process) => process.run_service(index),
                None => self.kernel.sleep(Duration::from_micros(50)),
            }
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

    /// From now on a panic ends the process as any failure does. Under the lock, so that no fork copies the lock of
    /// Rust's library as it is held.
    pub fn end_on_panic(&'static self) {
        let _state = self.lock();
        std::panic::set_hook(Box::new(|panic| self.end(self.member(), &described(panic))));
    }

    /// On a task of ours: the helper ends, as there is no program any more, or none that it could serve.
    pub fn leave(&self, member: Option<&Member>, why: HelperExit) -> ! {
        match self.process() {
            Some(process) => process.leave(why),
            None => self.base.leave(member, why),
        }
    }

    /// Says why and ends the process, or the child of `vfork` that calls.
    pub fn end(&self, member: Option<&Member>, why: &str) -> ! {
        self.base.kill(member, why);
        self.leave(member, HelperExit::Ends)
    }

    /// Ends with the program, if that has ended or has become another.
    pub fn leave_with_program(&self, member: &Member) {
        match self.process() {
            Some(process) => process.leave_with_program(),
            None => self.base.leave_with_program(member),
        }
    }
}

/// Whether a page of an area is in transit.
pub fn is_in_transit(state: &State, (start, end): (usize, usize)) -> bool {
    if state.pages.map().in_transit() == 0 {
        return false;
    }
    let mut busy = false;
    let (start, end) = (PageNumber::of(start), PageNumber::of(end));
    state.pages.map().each(start, end, |_, page| {
        busy |= matches!(page, Page::Loading(_) | Page::Storing(_));
        if busy { Break(()) } else { Continue(()) }
    });
    busy
}
