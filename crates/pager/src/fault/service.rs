//! Service threads: one for each processor the process may use, all reading one userfaultfd.
//!
//! Waking a thread on another core costs several times the rest of a fault, so service must run where the fault
//! happened. Each thread is bound to its processor and runs with idle urgency. A thread of the program that faults
//! gives up its processor, and the service thread there gets to run. A processor with only idle work counts as idle,
//! so the scheduler leaves the woken program thread where it was. Measured on two cores: 8.6 µs a fault, against 40
//! with an ordinary handler thread.
//!
//! Every thread that waits on the descriptor is woken by every fault. So only those whose processor has faulting
//! threads wait there; the others are *asleep* on a futex. Which processor a fault came from is sampled. One is
//! always awake.
//!
//! A thread that waits for a device serves nobody meanwhile. Where faults were found to queue behind such a wait, the
//! threads *share*: another is woken, and none falls asleep for where the faults come from. Each takes one fault at a
//! time, so that as many transfers are under way as there are threads.
//!
//! Idle urgency would starve service when other work fills the processors: the keeper watches for that, and for
//! faults that nobody serves, and then lets service compete (`Services::compete`). Threads that have nothing to do
//! compete in any case: a killed process gives its memory back only when its last thread has had a processor to end
//! on. Where a thread may not give up idle urgency, another takes its place ([`services`](crate::process::services)).

use crate::eviction::make_room::When;
use crate::fault::fault_service::FaultService;
use crate::process::services::{Holder, Services};
use crate::process::worker::{PendingFault, Worker};
use ebb_sys::paging::{Kernel, Time};
use ebb_sys::userfaultfd::{BATCH, Fault};
use std::time::Duration;

/// How long a thread waits for faults while some may come, and how often until it has nothing to do: in milliseconds.
const SHORT_WAIT: i32 = 20;
const SHORT_WAITS: u32 = 3;
/// How long one waits that has nothing to do. A fault ends the wait at once, and so does a change of user.
const LONG_WAIT: i32 = 10_000;

/// Watches where faults come from.
///
/// A thread that was sent to another processor mostly comes back by itself: who wakes it draws it to where its
/// service is. So the service thread of the other processor is woken only when faults keep coming from there. If no
/// other comes from here any more, this one leaves at once: two that are awake draw the thread to and fro, and flush
/// each other's translations.
struct Watch {
    /// The time of the last look.
    last: Time,
    /// Faults served since.
    since: u32,
    /// Rises with each look that finds a fault from elsewhere, falls with each that finds one from
    /// here.
    score: u32,
    /// Looks in a row that found one from elsewhere.
    streak: u32,
    /// The last fault served here, if nobody has looked yet where it came from.
    served: Option<Fault>,
    /// The time to go without a look when nothing comes in.
    gap: Duration,
}

impl Watch {
    /// Faults from look to look: usually, and while some come from elsewhere. A look costs half as
    /// much as a fault, and where a thread that is alone went away there is soon nothing to serve.
    const EVERY: u32 = 1024;
    const SOME: u32 = 4;
    /// After so long, whatever was served.
    const AT_LEAST: Duration = Duration::from_millis(8);
    /// From look to look while there is nothing to serve.
    const SHORTEST: Duration = Duration::from_micros(50);
    const LONGEST: Duration = Duration::from_millis(1);
    /// Points that a fault from elsewhere adds to the score, and the score that is needed. Two threads that fault in
    /// turn on two processors get there, one that was away for a moment does not.
    const ELSEWHERE: u32 = 2;
    const ENOUGH: u32 = 8;
    const LEAVE_AFTER: u32 = 4;

    fn new(now: Time) -> Self {
        Self {
            last: now,
            since: 0,
            score: 0,
            streak: 0,
            served: None,
            gap: Self::SHORTEST,
        }
    }

    /// After a fault was served: looks now and then where it came from; true: this processor has
    /// had none for a while.
    fn after<K: Kernel>(
        &mut self,
        process: &FaultService<K>,
        me: &Holder,
        fault: Fault,
        now: Time,
    ) -> bool {
        self.since += 1;
        self.served = Some(fault);
        let every = match (self.streak, self.score) {
            (0, 0) => Self::EVERY,
            (0, _) => Self::SOME,
            _ => 1,
        };
        if self.since < every && now - self.last < Self::AT_LEAST {
            return false;
        }
        self.look(process, me, now)
    }

    /// Nothing to serve. A thread that was woken on this processor has it before this one does, and gives it back
    /// with its next fault. So the thread that was served last may be elsewhere. True: leave.
    fn nothing<K: Kernel>(&mut self, process: &FaultService<K>, me: &Holder) -> bool {
        let now = process.now();
        if self.served.is_none() || now - self.last < self.gap {
            return false;
        }
        let leave = self.look(process, me, now);
        self.gap = match self.streak {
            0 => (2 * self.gap).min(Self::LONGEST),
            _ => Self::SHORTEST,
        };
        leave
    }

    fn look<K: Kernel>(&mut self, process: &FaultService<K>, me: &Holder, now: Time) -> bool {
        let services: &Services<K> = &process.services;
        (self.since, self.last) = (0, now);
        let from = self
            .served
            .take()
            .and_then(|f| process.kernel.cpu_of(f.thread));
        let Some(there) = from
            .filter(|cpu| *cpu != me.cpu())
            .and_then(|cpu| services.on_cpu(cpu))
        else {
            self.score = self.score.saturating_sub(1);
            self.streak = 0;
            return false;
        };
        self.score += Self::ELSEWHERE;
        self.streak += 1;
        if self.score < Self::ENOUGH {
            return false;
        }
        services.wake(there);
        let leave = self.streak >= Self::LEAVE_AFTER;
        (self.score, self.streak) = (0, 0);
        leave
    }
}

/// The state of a service thread from turn to turn.
struct ServiceTurn {
    worker: Worker,
    watch: Watch,
    /// Waits in a row in which no fault came.
    quiet: u32,
    /// Flag: it has served since it last gave memory back.
    served: bool,
    /// Work since it was last found that no thread waits.
    owed: Duration,
}

impl<K: Kernel> FaultService<K> {
    /// A service thread of this index: until it is replaced.
    pub fn run_service(&self, index: usize) -> ! {
        let me = self.services.begin(index);
        let mut turn = ServiceTurn {
            worker: self.services.take_worker(),
            watch: Watch::new(self.now()),
            quiet: 0,
            served: true,
            owed: Duration::ZERO,
        };
        while !me.is_replaced() || turn.worker.deferred() > 0 {
            self.service_turn(&me, &mut turn);
        }
        self.services.leave_worker(turn.worker);
        self.kernel.end_thread()
    }

    /// One turn of a service thread: reads faults and serves them, or waits for some. One that is replaced reads none.
    fn service_turn(&self, me: &Holder, turn: &mut ServiceTurn) {
        // Faults that were put down are known to nobody else.
        self.services.until_woken(me, turn.worker.deferred() > 0);
        if me.is_replaced() {
            return self.serve_left(turn);
        }
        let mut buffer = [Fault::default(); BATCH];
        // Without asking first: a thread that was woken often faults again before this one has the
        // processor back.
        let room = if self.services.shares() { 1 } else { BATCH };
        let faults = match self.kernel.read_faults(&mut buffer[..room]) {
            Ok(faults) => faults,
            Err(e) => self.fail(&format!("reading page faults failed: {e}")),
        };
        if !faults.is_empty() {
            return self.serve_all(me, turn, faults);
        }
        turn.owed = Duration::ZERO;
        if turn.worker.deferred() > 0 {
            self.serve_left(turn);
        } else {
            self.wait_for_faults(me, turn);
        }
    }

    /// Serves what was put down for later, and what was found waiting meanwhile.
    fn serve_left(&self, turn: &mut ServiceTurn) {
        self.serve_deferred(&mut turn.worker);
        self.serve_again(&mut turn.worker);
    }

    /// No fault was there: waits for one, or falls asleep.
    fn wait_for_faults(&self, me: &Holder, turn: &mut ServiceTurn) {
        if turn.watch.nothing(self, me) && !self.services.shares() {
            return self.fall_asleep(me, turn);
        }
        let is_idle = turn.quiet >= SHORT_WAITS;
        let wait = if is_idle { LONG_WAIT } else { SHORT_WAIT };
        if self.kernel.has_faults(wait) {
            turn.quiet = 0;
            if is_idle {
                // The keeper may be about to sleep for as long.
                self.member.wake_self();
            }
            return;
        }
        turn.quiet += u32::from(!is_idle);
        if turn.quiet >= SHORT_WAITS {
            self.services.competes(me);
            self.fall_asleep(me, turn);
        }
    }

    /// Sleeps until woken, without the memory that it needs while it serves. A thread that has put faults down for
    /// later stays awake: nobody else knows of them.
    fn fall_asleep(&self, me: &Holder, turn: &mut ServiceTurn) {
        if turn.worker.deferred() == 0 {
            if std::mem::take(&mut turn.served) {
                turn.worker.give_buffer_back(self.kernel);
                self.kernel.give_stack_back();
            }
            if self.services.fall_asleep(me) {
                turn.quiet = 0;
            }
        }
    }

    /// Serves faults that were read together, and makes room ahead of need.
    fn serve_all(&self, me: &Holder, turn: &mut ServiceTurn, faults: &[Fault]) {
        self.check_origin(faults);
        turn.served = true;
        turn.quiet = 0;
        self.services.serves(me);
        self.base.fork.hold_on(self.kernel);
        let now = self.now();
        let since = now.saturating_sub(std::mem::take(&mut turn.owed));
        self.pressure.begin(faults.len(), since);
        let mut leave = false;
        for (i, &fault) in faults.iter().enumerate() {
            let pending = PendingFault {
                fault,
                since,
                is_followed: i + 1 < faults.len(),
            };
            self.serve_until_done(&mut turn.worker, pending);
            let served = self.services.count_served();
            let fails_after = self.swap_space.devices.faults().pager_after;
            assert!(fails_after != Some(served), "EBB_FAULTS asks for it");
            leave |= turn.watch.after(self, me, fault, now);
        }
        // Nobody else knows of these, and room takes its time.
        self.serve_again(&mut turn.worker);
        self.make_room_ahead(turn);
        self.serve_left(turn);
        if leave && !self.services.shares() {
            self.fall_asleep(me, turn);
        }
    }

    /// Makes room ahead of need. A thread of the program that was woken runs first. So this work is done while that has
    /// faulted again, or rests: if a fault is found right after it, the work was part of the wait. Not while a
    /// thread waits until nothing is in transit.
    fn make_room_ahead(&self, turn: &mut ServiceTurn) {
        if self.base.transit.is_closed() {
            return;
        }
        turn.owed += self.make_room(&mut turn.worker, When::Soon).work;
    }

    /// For tests: threads of ours must not fault, as they would wait for themselves.
    fn check_origin(&self, faults: &[Fault]) {
        if self.base.lifecycle.is_checking()
            && let Some(own) = faults.iter().find(|f| self.is_own(f.thread))
        {
            self.fail(&format!(
                "thread {} of ebb's own touched managed memory at {:#x}, and would wait for itself",
                own.thread, own.address
            ));
        }
    }

    /// Whether a thread is one of those that serve this process.
    fn is_own(&self, thread: u32) -> bool {
        self.base.lifecycle.is_keeper(thread) || self.services.has(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::worker::DeferredFault;
    use crate::tests::machine::{Machine, MemoryKernel};
    use ebb_tree::Config;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The kernel of one thread panics where that would sleep for ever.
    #[test]
    fn a_service_thread_that_put_a_fault_down_stays_awake() {
        let machine = Machine::on(MemoryKernel::alone_on(2), 1024, Config::default(), |_| ());
        let (process, now) = (machine.process, machine.process.now());
        let me = process.services.begin(1);
        process.services.wake(process.services.service(1));
        let mut turn = ServiceTurn {
            worker: Worker::new(machine.kernel),
            watch: Watch::new(now),
            quiet: 0,
            served: true,
            owed: Duration::ZERO,
        };
        turn.worker.defer(DeferredFault {
            pending: PendingFault::alone(Fault::default(), now),
            begin: now,
            copies: 0,
        });
        process.fall_asleep(&me, &mut turn);
        assert!(turn.worker.next_deferred().is_some());
        let sleeps = catch_unwind(AssertUnwindSafe(|| process.fall_asleep(&me, &mut turn)));
        assert!(sleeps.is_err(), "another is awake: it may sleep");
    }

    /// The thread of the program that faulted waits while this one makes room, as it has the same processor.
    #[test]
    fn work_for_room_is_part_of_the_next_wait() {
        const WORK: Duration = Duration::from_millis(5);
        let mut machine = Machine::on(MemoryKernel::alone_on(2), 1024, Config::default(), |_| ());
        let page = machine.map(1);
        machine.kernel.pass(2 * WORK);
        let process = machine.process;
        let me = process.services.begin(1);
        process.services.wake(process.services.service(1));
        let mut turn = ServiceTurn {
            worker: Worker::new(machine.kernel),
            watch: Watch::new(process.now()),
            quiet: 0,
            served: true,
            owed: WORK,
        };
        assert!(machine.kernel.touch(7, page, Some(1)).is_err(), "a fault");
        process.service_turn(&me, &mut turn);
        let waited = process.counters().psi_some_ns.get();
        assert!(waited >= WORK.as_nanos() as u64 / 2, "{waited}");
        assert!(turn.owed < WORK, "it counts once");
    }
}
