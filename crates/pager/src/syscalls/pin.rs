//! Memory that has to stay although the program has not locked it: needed there by the kernel or libc, or under a
//! protection key.
//!
//! - *Words that the kernel stores later* stay for good: nobody tells when it has forgotten them.
//! - *Stacks that the program brings for its threads*: libc's and the kernel's data of the thread lie on top. They stay
//!   until the thread has ended. It says itself who it is, and the keeper asks the system from time to time whether there is such a
//!   thread. To hold the top alone would be no use for the usual small stack.
//! - *Robust mutexes* stay until they are destroyed ([`holders`](crate::map::holders) has both).
//! - *Memory under a key* stays until it has none (`pkey_mprotect`, in [`mmap`](super::mmap)).
//!
//! It stays managed all the same, before the process pages as well: else it would stay for good.

#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::page_map::PageNumber;
use crate::map::ranges::Pinned;
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::Outcome;
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::mlock::pages;
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::{Break, Continue};

/// Of a stack, the part at its end that is filled: libc's and the kernel's data of a thread.
const FILLED: usize = 256 << 10;

/// The memory that was pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing: it is not managed.
    Unmanaged,
    /// Memory that is all there, as nothing leaves yet.
    Unpaged,
    /// Memory of which parts may be out.
    Paged,
}

/// A change of the holders, at an address.
#[derive(Clone, Copy)]
enum Change {
    /// A thread is to be made on a stack so long.
    AddStack(usize),
    /// The thread of a stack runs, with this number.
    Begin(u32),
    /// There is no thread on a stack.
    EndStack,
    AddMutex,
    EndMutex,
}

impl<K: Kernel> Pager<K> {
    /// Names memory that must never be paged: the kernel stores words there.
    /// Requires: the range is mapped.
    pub unsafe fn exclude(&'static self, addr: usize, len: usize) {
        let (start, end) = pages(addr, len);
        let found = match self.executor(MemoryCall::Exclude { start, end }) {
            Executor::Direct => Found::Unmanaged,
            Executor::Done(outcome) => match outcome {
                Ok(1) => Found::Paged,
                _ => Found::Unmanaged,
            },
            Executor::Here => self.pin(start, end, |p| p.for_good = true),
        };
        match found {
            Found::Unmanaged => {}
            // Once it is registered a page that is not there is a fault, which a store of the kernel's would not be.
            Found::Unpaged => _ = self.bring_in(start, end),
            Found::Paged => self.bring_in_stack(start, end),
        }
    }

    /// A thread is about to be made on a stack of the program's. True: it is to tell of itself
    /// ([`stack_begins`](Self::stack_begins)), or [`stack_is_unused`](Self::stack_is_unused) follows. Requires: the
    /// range is mapped.
    pub unsafe fn hold_stack(&'static self, addr: usize, len: usize) -> bool {
        let Some((start, end)) = self.holds_here(addr, len) else {
            return false;
        };
        let found = self.hold((start, end), addr, Change::AddStack(len));
        match found {
            Found::Unmanaged => self.stack_is_unused(addr),
            Found::Unpaged => {}
            Found::Paged => self.bring_in_stack(start, end),
        }
        found != Found::Unmanaged
    }

    /// Pins what a holder needs. That is known first: whoever ends the stay of memory looks at who else is there.
    fn hold(&'static self, (start, end): (usize, usize), addr: usize, holder: Change) -> Found {
        self.change_holders(addr, holder);
        self.pin(start, end, |p| p.held = true)
    }

    /// The pages of an area, where the calling thread may hold it. Children that share this memory have it stay for good:
    /// nobody would see them end.
    fn holds_here(&'static self, addr: usize, len: usize) -> Option<(usize, usize)> {
        if self.is_child() {
            // SAFETY: names the range only.
            unsafe { self.exclude(addr, len) };
            return None;
        }
        self.wanted().then(|| pages(addr, len))
    }

    /// The calling thread is the one that runs on a stack of the program's.
    pub fn stack_begins(&'static self, start: usize) {
        self.change_holders(start, Change::Begin(self.kernel.thread()));
    }

    /// The thread of a stack of the program's could not be made.
    pub fn stack_is_unused(&'static self, start: usize) {
        self.change_holders(start, Change::EndStack);
    }

    /// A robust mutex is about to be made. Requires: the range is mapped.
    pub unsafe fn hold_mutex(&'static self, addr: usize) {
        let len = size_of::<libc::pthread_mutex_t>();
        let Some((start, end)) = self.holds_here(addr, len) else {
            return;
        };
        let found = self.hold((start, end), addr, Change::AddMutex);
        match found {
            Found::Unmanaged => self.mutex_is_gone(addr),
            Found::Unpaged => {}
            Found::Paged => _ = self.bring_in(start, end),
        }
    }

    /// A mutex was destroyed, a robust one perhaps.
    pub fn mutex_is_gone(&'static self, addr: usize) {
        self.change_holders(addr, Change::EndMutex);
    }

    fn change_holders(&'static self, addr: usize, change: Change) {
        if !self.wanted() || self.is_child() {
            return;
        }
        self.kernel.on_own_stack(move || {
            let mut state = self.lock();
            let holders = &mut state.holders;
            match change {
                Change::AddStack(len) => holders.add_stack(addr, addr + len),
                Change::Begin(thread) => holders.begin(addr, thread),
                Change::EndStack => holders.end_stack(addr, None),
                Change::AddMutex => holders.add_mutex(addr),
                Change::EndMutex => holders.end_mutex(addr),
            }
            if self.process().is_none() {
                self.let_gone_go(&mut state);
            }
        });
    }

    /// In the keeper: memory whose holders are gone may leave from now on.
    pub fn end_holders(&'static self) {
        let mut last = 0;
        loop {
            let next = self.lock().holders.next_thread(last);
            let Some((start, thread)) = next else { break };
            if !self.kernel.thread_lives(thread) {
                self.lock().holders.end_stack(start, Some(thread));
            }
            last = start;
        }
        self.let_gone_go(&mut self.lock());
    }

    /// Memory that nobody holds any more is pinned no more. In a process that pages the keeper does it.
    fn let_gone_go(&'static self, state: &mut Locked) {
        while let Some((start, end)) = state.holders.take_gone() {
            let (start, end) = pages(start, end - start);
            self.hold_pages(state, (start, end), false);
            let mut at = start;
            while let Some((from, to)) = state.holders.next_held((at, end)) {
                self.hold_pages(state, pages(from, to - from), true);
                at = to;
            }
            if let Some(process) = self.process() {
                process.protect_unpinned(state, (start, end));
            }
        }
    }

    fn hold_pages(&'static self, state: &mut Locked, (start, end): (usize, usize), held: bool) {
        self.change(state, start, end, |a| a.pinned.held = held);
    }

    /// All of a stack is there, and may be written without service. Not pages that nobody has touched: there may be no
    /// room for as many.
    fn bring_in_stack(&'static self, start: usize, end: usize) {
        let last = start.max(end.saturating_sub(FILLED));
        if !self.bring_in(last, end) {
            // The program has guards among them.
            for page in (last..end).step_by(PAGE_SIZE) {
                self.bring_in(page, page + PAGE_SIZE);
            }
        }
        if !self.is_child() {
            self.bring_in_known(start, last);
        }
    }

    /// All of it is there, and may be written without service. False: not all, as some may not be written.
    fn bring_in(&self, start: usize, end: usize) -> bool {
        // SAFETY: populating changes no content.
        let populated = unsafe {
            self.kernel
                .madvise(start, end - start, libc::MADV_POPULATE_WRITE)
        };
        populated.is_ok()
    }

    /// The same of pages that hold something, here or elsewhere.
    fn bring_in_known(&'static self, start: usize, end: usize) {
        let mut at = start;
        while at < end
            && let Some(known) = self.kernel.on_own_stack(move || self.first_known(at, end))
        {
            self.bring_in(known.0, known.1);
            at = known.1;
        }
    }

    /// The first run of pages between these addresses that hold something.
    fn first_known(&'static self, start: usize, end: usize) -> Option<(usize, usize)> {
        let mut run: Option<(usize, usize)> = None;
        let (first, last) = (PageNumber::of(start), PageNumber::of(end));
        self.lock().pages.map().each(first, last, |number, _| {
            let page = number.address();
            let (from, to) = run.unwrap_or((page, page));
            if to != page {
                return Break(());
            }
            run = Some((from, to + PAGE_SIZE));
            Continue(())
        });
        run
    }

    fn pin(&'static self, start: usize, end: usize, reason: fn(&mut Pinned)) -> Found {
        let pinned = self
            .kernel
            .on_own_stack(move || self.pin_locked(start, end, reason));
        pinned.unwrap_or(Found::Unmanaged)
    }

    /// Nothing of an area leaves from now on. Pages that are out still have to be brought in.
    pub(crate) fn pin_locked(
        &'static self,
        start: usize,
        end: usize,
        reason: fn(&mut Pinned),
    ) -> Outcome<Found> {
        let mut state = self.lock();
        if !state.ranges.overlaps(start, end) {
            return Ok(Found::Unmanaged);
        }
        // Pages that are being captured are moved.
        state = self.settled(state, start, end)?;
        self.change(&mut state, start, end, |a| reason(&mut a.pinned));
        // With the lock held: the process may begin to page any time.
        match self.process().is_some() || state.ranges.has_copies(start, end) {
            true => Ok(Found::Paged),
            false => Ok(Found::Unpaged),
        }
    }
}
