//! Making the process quiescent before a fork: nothing in transit, nothing staged, little that would be
//! duplicated.

use crate::eviction::make_room::Step;
use crate::fault::fault_service::FaultService;
use crate::fault::install::Refusals;
use crate::process::state::State;
use crate::process::transit::SHORT;
use crate::process::worker::Worker;
use crate::reclaim::hold_back::LEAST_PAGES;
use ebb_sys::paging::Kernel;
use std::time::Duration;

/// Resident pages that may be shared with a child although the budget could not hold them twice: 8 MiB, or a part of
/// a large budget, but at most a quarter of it.
const SHARED_ANYWAY: usize = 2048;

const SHARED_PART: usize = 16;

/// Whether captured pages are back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstaged {
    /// All of them.
    All,
    /// Some are in transit.
    Busy,
    /// The system has no page for one that can only be copied.
    NoPage,
}

impl<K: Kernel> FaultService<K> {
    /// Evicts what could not be duplicated within the budget. A shared page costs nothing until one side writes it,
    /// but then twice as much. It cannot leave before all unshared pages have (`sharing`). Pages swapped out at the
    /// fork come back under the budget's control, and are stored once for the parent and all children. A little is
    /// left: programs that fork only to exec come back to their pages at once.
    fn evict_before_fork(&self, worker: &mut Worker) {
        let limit = self.member.limit() as usize;
        let room = limit.saturating_sub(self.member.charged() as usize);
        let anyway = (limit / SHARED_PART).max(SHARED_ANYWAY.min(limit / 4));
        let rounds = self.base.registration.rounds();
        self.base.fork.set_evicting(self.kernel, true);
        let target = anyway.max(room);
        self.evict_down_to(target, worker);
        self.store_down_to(target, worker);
        self.base.fork.set_evicting(self.kernel, false);
        if self.base.registration.rounds() != rounds {
            // Memory registered meanwhile was counted as unmanaged before.
            self.measure(&mut self.lock());
        }
    }

    /// Pages that wait to be stored will be resident. Stores them until no more than `target` pages are both, or as many
    /// went as waited: other threads may capture more meanwhile.
    fn store_down_to(&self, target: usize, worker: &mut Worker) {
        // And in the bay that is filled.
        let waiting = self.lock().pages.staging().staged_bays() + 1;
        for _ in 0..waiting {
            let state = self.lock();
            let pages = state.pages.map().resident() + state.pages.staged_frames();
            drop(state);
            if pages <= target + LEAST_PAGES {
                return;
            }
            let step = self.swap_out_staged(worker);
            self.attend_waiting(worker);
            if step != Step::Progress {
                return;
            }
        }
    }

    /// Evicts until no more than `target` pages are resident, or as many went as were too many: other
    /// threads may bring them back meanwhile. Gives their frames back: the child has no use for them.
    fn evict_down_to(&self, target: usize, worker: &mut Worker) {
        let evicted = || self.counters().evicted.get();
        let mut enough = None;
        loop {
            let mut state = self.lock();
            while self.release_frames(&mut state) {}
            let resident = state.pages.map().resident();
            let enough = *enough.get_or_insert(evicted() + resident.saturating_sub(target) as u64);
            if resident <= target || evicted() >= enough {
                return;
            }
            drop(state);
            let step = self.evict_some(worker);
            self.attend_waiting(worker);
            if step != Step::Progress {
                return;
            }
        }
    }
}

impl<K: Kernel> FaultService<K> {
    /// One step towards quiescence, with the gate held: nothing in transit, nothing staged. Whether it is reached;
    /// `refusals`: of a page for what can only be copied back.
    pub fn quiesce(&self, worker: &mut Worker, refusals: &mut Refusals) -> bool {
        let unstaged = self.unstage(&mut self.lock());
        match unstaged {
            Unstaged::All => {
                *refusals = Refusals::default();
                return true;
            }
            Unstaged::Busy => {
                // The thread that has pages in transit may be idle work that waits for its processor.
                self.services.compete(true);
                if self.take_refusal() {
                    // Or waits for pages that only this thread gives up.
                    self.evict_some(worker);
                }
                self.kernel.sleep(SHORT);
            }
            // It is stored instead, which gives pages back.
            Unstaged::NoPage => {
                if self.swap_out_staged(worker) == Step::Full {
                    self.refused(refusals);
                }
            }
        }
        let mut state = self.lock();
        while self.release_frames(&mut state) {}
        drop(state);
        // To a service thread: this one waits for the fork.
        self.wake_again(worker);
        false
    }
}

impl<K: Kernel> FaultService<K> {
    /// The child's charge and credit are the parent's charge. So memory counts before that was filled since the last
    /// measurement, or before it was registered.
    pub fn count_before_fork(&self) {
        self.register_new();
        self.measure(&mut self.lock());
    }

    /// In the keeper: if a thread wants to fork, makes the process quiescent and waits until it has.
    pub fn attend_fork(&self, worker: &mut Worker) {
        let fork = &self.base.fork;
        if !fork.is_wanted() {
            return;
        }
        self.count_before_fork();
        self.evict_before_fork(worker);
        // Else the faults of many threads would hardly ever leave a moment without a transit. The forking thread
        // has all the locks of the program's that it needs by now, so no fault has to be served for it.
        // The gate first, as it is waited for.
        let _gate = self.gate();
        let closed = self.base.transit.close(self.kernel);
        let mut refusals = Refusals::default();
        while !self.quiesce(worker, &mut refusals) {
            closed.renew();
        }
        fork.quiescent(self.kernel);
        while fork.wait_over(self.kernel, Duration::from_millis(1)) {
            closed.renew();
            self.leave_with_program();
            // The forking thread has it by now, or was killed with it: whoever waited for that would see no end.
            let Some(mut state) = self.base.try_lock_service() else {
                continue;
            };
            // A service thread may have had a fault under way, or have waited long enough.
            if self.unstage(&mut state) != Unstaged::All {
                drop(state);
                self.quiesce(worker, &mut refusals);
            }
        }
        drop(closed);
        self.protect_shared(&mut self.lock());
        fork.has_protected(self.kernel);
        fork.done(self.kernel);
    }
}

impl<K: Kernel> FaultService<K> {
    /// Puts every captured page back where it was. One that kept its entry leaves by that.
    pub fn unstage(&self, state: &mut State) -> Unstaged {
        if state.pages.map().in_transit() > 0 {
            return Unstaged::Busy;
        }
        // A call that failed may have moved memory there and back, which lost its registration: nothing could be put there.
        if state.ranges.any_unsettled() {
            self.register_all(state);
        }
        while let Some(pages) = state.pages.oldest_staged() {
            let mut ends = |page| self.leaves_by_copy(state, page) || self.put_back(state, page);
            if !pages.into_iter().all(&mut ends) {
                return Unstaged::NoPage;
            }
        }
        Unstaged::All
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::machine::Machine;
    use ebb_memory_kernel::PAGE;

    /// An eviction before a fork may take seconds. What waits for the keeper does not wait for all of it.
    #[test]
    fn what_waits_for_the_keeper_is_done_between_steps_before_a_fork() {
        let mut machine = Machine::new(4096);
        let out = machine.page_out();
        let start = machine.map(2048);
        (0..2048).for_each(|i| machine.write(start + i * PAGE, 1));
        machine.parks_on_worker(7, out);
        let unregistered = machine.awaits_registration();
        machine.process.evict_down_to(1536, &mut machine.worker);
        assert!(!machine.kernel.waits(7));
        assert!(machine.kernel.is_registered(unregistered));

        machine.parks_on_worker(7, out);
        let unregistered = machine.awaits_registration();
        machine.process.evict_some(&mut machine.worker);
        machine.process.store_down_to(0, &mut machine.worker);
        assert!(!machine.kernel.waits(7));
        assert!(machine.kernel.is_registered(unregistered));
        machine.read_all();
        machine.check();
    }
}
