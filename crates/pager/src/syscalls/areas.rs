//! The frame of every memory call around its system call: waits, bookkeeping, registration.

use crate::map::page_map::PageNumber;
use crate::map::ranges::Attributes;
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::Outcome;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;

impl<K: Kernel> Pager<K> {
    /// Forgets what was mapped in `start..end`; no page of it is in transit, and the memory itself is
    /// gone already.
    pub(crate) fn forget(&'static self, state: &mut Locked, start: usize, end: usize) {
        let swap = self.process().map(|p| p.swap_here());
        state.pages.forget(swap, start, end);
        self.unmap_shadows(&state.ranges, start, end);
        state.ranges.remove(start, end);
        state.holders.forget((start, end));
        state.pages.give_back_tables();
    }

    /// Readies `start..end` for being dropped or replaced: waits until no page of it is in transit, and
    /// accounts for those that forked relatives keep.
    pub(crate) fn before_drop(
        &'static self,
        state: Locked,
        start: usize,
        end: usize,
    ) -> Outcome<Locked> {
        let mut state = self.settled(state, start, end)?;
        if let Some(process) = self.process() {
            process.before_drop(&mut state, start, end);
        }
        Ok(state)
    }

    /// Waits until the keeper has registered what was just mapped.
    pub(crate) fn registered(&'static self, start: usize) {
        let Some(process) = self.process() else {
            return;
        };
        if self.kernel.is_own_thread() {
            return process.register_new();
        }
        loop {
            let seen = self.registration.rounds();
            let range = self
                .kernel
                .on_own_stack(move || self.lock().ranges.find(start));
            if range.is_none_or(|r| r.attributes.registered) {
                return;
            }
            process.member.wake_self();
            self.registration.wait_round(&self.kernel, seen);
        }
    }

    /// Waits until all of `start..end` that is ours is registered: then it is alike to the kernel.
    pub(crate) fn all_registered(&'static self, start: usize, end: usize) {
        let mut at = start;
        while self.process().is_some() && at < end {
            let next = self
                .kernel
                .on_own_stack(move || self.lock().ranges.next(at, end));
            let Some(range) = next else { return };
            self.registered(range.start);
            at = range.end;
        }
    }

    /// Changes attributes; pages that may be evicted now join the queue again.
    pub(crate) fn change(
        &'static self,
        state: &mut Locked,
        start: usize,
        end: usize,
        f: impl Fn(&mut Attributes),
    ) {
        state.ranges.change(start, end, f);
        let (start, end) = (PageNumber::of(start), PageNumber::of(end));
        state.pages.requeue_resident(start, end);
    }

    /// The end of the heap, as far as this library moved it.
    pub fn known_break(&self) -> usize {
        self.heap_break.get().unwrap_or_else(|| self.asked_break())
    }

    /// The end of the heap. The program may move it by an instruction.
    pub(crate) fn asked_break(&self) -> usize {
        // SAFETY: asks for nothing.
        page_up(unsafe { self.kernel.brk(0) })
    }

    /// Starts the keeper, unless there is one.
    pub fn start_first_keeper(&'static self) {
        if self.lifecycle.claim_keeper() {
            let start = || self.lifecycle.start_keeper_or_warn(&self.kernel);
            self.kernel.on_own_stack(start);
        }
    }
}
