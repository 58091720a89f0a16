//! Serving a fault until it is served, or put down for later because nothing can be evicted.

use crate::eviction::make_room::{Step, When};
use crate::fault::fault_service::FaultService;
use crate::fault::install::Refusals;
use crate::fault::resolve::Served;
use crate::map::page_map::UNIT;
use crate::process::transit::SHORT;
use crate::process::worker::{DeferredFault, PendingFault, Worker};
use crate::reclaim::attempts::Waiter;
use ebb_engine::PAGE_SIZE;
use ebb_sys::paging::Kernel;
use std::time::Duration;

impl<K: Kernel> FaultService<K> {
    /// Serves a fault, making room as often as it takes; or puts it down for later, if there is none and
    /// others wait to be served.
    pub fn serve_until_done(&self, worker: &mut Worker, pending: PendingFault) {
        self.serve_on(worker, pending, None);
    }

    /// Tries again what was put down for later, once each.
    pub fn serve_deferred(&self, worker: &mut Worker) {
        for _ in 0..worker.deferred() {
            if let Some(stuck) = worker.next_deferred() {
                self.serve_on(worker, stuck.pending, Some(stuck));
            }
        }
    }

    fn serve_on(&self, worker: &mut Worker, pending: PendingFault, stuck: Option<DeferredFault>) {
        if let Some(stuck) = self.serve_unless_stuck(worker, pending, stuck) {
            worker.defer(stuck);
        }
    }

    /// The same; what is to be served later.
    fn serve_unless_stuck(
        &self,
        worker: &mut Worker,
        mut pending: PendingFault,
        mut stuck: Option<DeferredFault>,
    ) -> Option<DeferredFault> {
        let mut refusals = Refusals::default();
        let mut direct = stuck.is_some();
        let mut made_room = false;
        loop {
            // That is not what the fault costs.
            pending.since += self.waits_while_closed();
            match self.serve(worker, &pending) {
                Served::Done => return None,
                Served::NoPage => {
                    self.refused(&mut refusals);
                    continue;
                }
                Served::NoRoom => refusals = Refusals::default(),
            }
            if !std::mem::replace(&mut direct, true) {
                self.counters().allocstall.add(1);
            }
            let wanted = self.now();
            let made = self.make_room(worker, When::Now(pending.waiter()));
            if made.was_hard {
                self.wanted_room(wanted);
            }
            match made.step {
                // The room is this fault's, not that of the next one that is read. Once: others have to get on.
                Step::Progress | Step::Enough
                    if stuck.is_none() || !std::mem::replace(&mut made_room, true) =>
                {
                    continue;
                }
                Step::Progress | Step::Enough => {}
                Step::Full | Step::Nothing if self.shrinks_pool() => continue,
                Step::Full | Step::Nothing => {}
            }
            let waits = stuck.get_or_insert_with(|| {
                self.counters().stall.add(1);
                DeferredFault {
                    pending,
                    begin: wanted,
                    copies: 0,
                }
            });
            self.waits_for_others();
            waits.copies = self.evict_shared(self.now() - waits.begin, waits.copies);
            self.kernel.follow_user();
            self.wanted_room(wanted);
            // They may be older, and what they are brought is not to be taken from them meanwhile. Those of this
            // thread nobody else knows of.
            if pending.is_followed || !worker.is_free() || self.kernel.has_faults(0) {
                return stuck;
            }
        }
    }

    /// A thread that needs a moment without transits has it before another fault begins. The time that this took.
    fn waits_while_closed(&self) -> Duration {
        let transit = &self.base.transit;
        match transit.is_closed() {
            true => transit.wait_open(self.kernel, Duration::MAX),
            false => Duration::ZERO,
        }
    }

    /// Pages of the pool may go to a device, all the more if nothing else is left. But not while a fork has the gate:
    /// it may be this fault that it waits for.
    fn shrinks_pool(&self) -> bool {
        let Some(_gate) = self.try_gate() else {
            return false;
        };
        let bytes = (8 * UNIT * PAGE_SIZE) as u64;
        self.swap.shrink_pool(self.cpu(), bytes) > 0
    }

    /// Nothing to evict here, or nowhere to put it: others may have cold memory.
    fn waits_for_others(&self) {
        self.lock().pages.try_refused_of_stuck();
        let seen = self.member.wait(0, Some(Duration::ZERO));
        self.member.ask_reclaim(256);
        // A process that is asked hears of that too: no news of room.
        let wait = |most| self.member.wait(seen, Some(most));
        self.kernel
            .wait_for_news(seen, Duration::from_millis(1), wait);
        if !self.has_room(&mut self.lock(), 1) {
            self.kernel.sleep(Duration::from_micros(500));
        }
    }

    /// Serves the faults whose page was in transit when they came. The thread that ends a transit gets them on its
    /// worker, and must call this or `wake_again`: nobody else will.
    pub fn serve_again(&self, worker: &mut Worker) {
        while let Some(fault) = worker.next_unparked() {
            self.serve_until_done(worker, PendingFault::alone(fault, self.now()));
        }
    }

    /// Lets them come once more instead, to a service thread: for the keeper, which serves none. It must not wait for
    /// memory that it alone gives up.
    pub fn wake_again(&self, worker: &mut Worker) {
        while let Some(fault) = worker.next_unparked() {
            self.wake_unserved(Waiter::of(&fault));
        }
    }

    /// In the keeper, after each step of an eviction that may be long: does what others wait for and nobody else
    /// can do. Faults whose transit the step ended come once more, and awaited memory is registered.
    #[inline(never)] // Called from many places of the keeper.
    pub fn attend_waiting(&self, worker: &mut Worker) {
        self.wake_again(worker);
        // A memory call waits for the end of all transits, and this thread has none just now.
        self.base.transit.wait_open(self.kernel, SHORT);
        if self.base.registration.is_awaited() {
            self.register_new();
        }
    }

    /// Wakes a thread whose fault is to come once more. The page may be there by then: it never comes, and its thread
    /// would hold its pages for ever if it counted as one that waits.
    pub fn wake_unserved(&self, waiter: Waiter) {
        let now = self.now();
        self.lock().pages.served(waiter, now);
        self.stops_waiting(now);
        self.wake(waiter.page, 1);
    }
}
