//! Service threads: one for each processor the process may use, all reading one userfaultfd.
//!
//! Waking a thread on another core costs several times the rest of a fault, so service must run
//! where the fault happened. Each thread is bound to its processor and runs with idle urgency:
//! when a thread of the program faults it gives up its processor, and the service thread there is
//! the one that gets to run; and because a processor with only idle work counts as idle, the
//! scheduler leaves the woken program thread where it was instead of sending it to another core.
//! Measured on two cores: 8.6 µs a fault, against 40 with an ordinary handler thread.
//!
//! Every thread that waits on the descriptor is woken by every fault, so only those whose
//! processor has faulting threads wait there; the others are *resting* on a futex. Which processor
//! a fault came from is sampled. One is always awake.
//!
//! A thread that waits for a device serves nobody meanwhile. Where faults were found to queue behind
//! such a wait, the threads *share*: another is woken, none goes to rest for where the faults come
//! from, and each takes one fault at a time, so that as many transfers are under way as there are
//! threads.
//!
//! Idle urgency would starve service when other work fills the processors: the keeper watches for
//! that, and for faults that nobody serves, and then lets service compete (`Services::compete`).
//! Threads that have nothing to do compete in any case: a process that is killed goes, and gives
//! its memory back, only when its last thread has had a processor to end on.

use crate::eviction::make_room::When;
use crate::process::fork_stage;
use crate::process::lifecycle;
use crate::process::paging::Process;
use crate::process::services::Service;
use crate::process::services::Services;
use crate::process::worker::Worker;
use ebb_sys::fault::{BATCH, Fault};
use ebb_sys::thread::{self, Name};
use std::time::{Duration, Instant};

/// Watches where faults come from.
///
/// A thread that was sent to another processor mostly comes back by itself: who wakes it draws it
/// to where its service is. So the service thread of the other processor is woken only when faults
/// keep coming from there; if no other comes from here any more, this one leaves at once, as two
/// that are awake draw the thread to and fro, and flush each other's translations.
struct Watch {
    /// When last looked.
    last: Instant,
    /// Faults served since.
    since: u32,
    /// Rises with each look that finds a fault from elsewhere, falls with each that finds one from
    /// here.
    score: u32,
    /// Looks in a row that found one from elsewhere.
    streak: u32,
    /// The last fault served here, if nobody has looked yet where it came from.
    served: Option<Fault>,
    /// How long to go without a look when nothing comes in.
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
    /// What a fault from elsewhere adds to the score, and how high it has to be: two threads that
    /// fault in turn on two processors get there, one that was away for a moment does not.
    const ELSEWHERE: u32 = 2;
    const ENOUGH: u32 = 8;
    const LEAVE_AFTER: u32 = 4;

    fn new() -> Self {
        Self {
            last: Instant::now(),
            since: 0,
            score: 0,
            streak: 0,
            served: None,
            gap: Self::SHORTEST,
        }
    }

    /// After a fault was served: looks now and then where it came from; true: this processor has
    /// had none for a while.
    fn after(&mut self, services: &Services, me: &Service, fault: Fault, now: Instant) -> bool {
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
        self.look(services, me, now)
    }

    /// Nothing to serve. Who was woken on this processor has it before this thread does, and gives
    /// it back with its next fault: so whoever was served last may be elsewhere. True: leave.
    fn nothing(&mut self, services: &Services, me: &Service) -> bool {
        let now = Instant::now();
        if self.served.is_none() || now - self.last < self.gap {
            return false;
        }
        let leave = self.look(services, me, now);
        self.gap = match self.streak {
            0 => (2 * self.gap).min(Self::LONGEST),
            _ => Self::SHORTEST,
        };
        leave
    }

    fn look(&mut self, services: &Services, me: &Service, now: Instant) -> bool {
        (self.since, self.last) = (0, now);
        let from = self.served.take().and_then(|f| thread::cpu_of(f.thread));
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

pub extern "C" fn run(index: usize) -> ! {
    thread::set_name(Name::Service);
    let process = loop {
        match Process::current() {
            Some(p) => break p,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    };
    let services = &process.services;
    let me = services.service(index);
    services.begin(me);
    let checking = lifecycle::checking();
    let fails_after = process.swap_space.devices.faults().pager_after;
    let mut worker = Worker::new();
    let mut watch = Watch::new();
    let mut quiet = 0;
    loop {
        me.until_woken();
        let mut buffer = [Fault::default(); BATCH];
        // Without asking first: who was woken often faults again before this thread has the
        // processor back.
        let room = if services.shares() { 1 } else { BATCH };
        let faults = match process.fault.read(&mut buffer[..room]) {
            Ok(faults) => faults,
            Err(e) => process.fail(&format!("reading page faults failed: {e}")),
        };
        if faults.is_empty() && !worker.deferred.is_empty() {
            worker.more = false;
            process.serve_deferred(&mut worker);
            process.serve_again(&mut worker);
            continue;
        }
        if faults.is_empty() {
            if watch.nothing(services, me) && !services.shares() {
                services.rest(me);
                continue;
            }
            if process.fault.wait(20) {
                quiet = 0;
                continue;
            }
            quiet += 1;
            me.competes();
            if quiet >= 3 {
                quiet = 0;
                services.rest(me);
            }
            continue;
        }
        if checking && let Some(own) = faults.iter().find(|f| process.is_own(f.thread)) {
            process.fail(&format!(
                "thread {} of ebb's own touched managed memory at {:#x}, and would wait for itself",
                own.thread, own.address
            ));
        }
        services.serves(me);
        fork_stage::hold_on();
        let now = Instant::now();
        let mut leave = false;
        for (i, &fault) in faults.iter().enumerate() {
            worker.more = i + 1 < faults.len();
            process.serve_until_done(&mut worker, fault, now);
            let served = services.count_served();
            assert!(fails_after != Some(served), "EBB_FAULTS asks for it");
            leave |= watch.after(services, me, fault, now);
        }
        process.make_room(&mut worker, When::Soon);
        process.serve_deferred(&mut worker);
        process.serve_again(&mut worker);
        if leave && !services.shares() {
            services.rest(me);
        }
    }
}

impl Process {
    /// Whether a thread is one of those that serve this process.
    fn is_own(&self, thread: u32) -> bool {
        lifecycle::is_keeper(thread) || self.services.has(thread)
    }
}
