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

use crate::fork;
use crate::keeper;
use crate::map::PageNumber;
use crate::process::Process;
use crate::resolve::{Desk, UnitBuffer};
use crate::room::When;
use ebb_sys::credentials;
use ebb_sys::futex;
use ebb_sys::thread::{self, TaskName, Urgency};
use ebb_sys::userfaultfd::{BATCH, Fault};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Processors served at most; more share.
pub const MAX_CPUS: usize = 64;

#[derive(Default)]
struct Service {
    id: AtomicU32,
    cpu: AtomicUsize,
    /// 1 awake, 0 resting.
    awake: AtomicU32,
    /// Whether it has idle urgency.
    idle: AtomicBool,
}

impl Service {
    fn until_woken(&self) {
        credentials::follow();
        while self.awake.load(SeqCst) == 0 {
            futex::wait(&self.awake, 0, None, false);
            credentials::follow();
        }
    }

    /// On the thread itself: serves with idle urgency, unless all `compete`.
    fn yields(&self, compete: &AtomicBool) {
        if self.idle.load(SeqCst) || compete.load(SeqCst) {
            return;
        }
        self.idle
            .store(thread::set_urgency(0, Urgency::Idle).is_ok(), SeqCst);
        // The keeper may have raised the others since the look.
        if compete.load(SeqCst) {
            self.competes();
        }
    }

    /// Whether it does now: to give up idle urgency takes CAP_SYS_NICE, or RLIMIT_NICE of 20.
    fn competes(&self) -> bool {
        let able = |id| thread::set_urgency(id, Urgency::Normal).is_ok();
        if self.idle.swap(false, SeqCst) && !able(self.id.load(SeqCst)) {
            self.idle.store(true, SeqCst);
        }
        !self.idle.load(SeqCst)
    }
}

/// All service threads of a process.
pub struct Services {
    threads: Vec<Service>,
    awake: AtomicUsize,
    served: AtomicU64,
    /// Whether all compete for their processors.
    compete: AtomicBool,
    /// Faults served when one was last found to queue behind a device, and one more.
    shared: AtomicU64,
    /// Whether all found that they can give up idle urgency.
    able: AtomicBool,
}

impl Services {
    /// For the processors this process may use; nothing runs yet.
    pub fn new(cpus: &[usize]) -> Self {
        let threads: Vec<_> = cpus
            .iter()
            .take(MAX_CPUS)
            .map(|c| Service {
                cpu: AtomicUsize::new(*c),
                ..Service::default()
            })
            .collect();
        Self {
            threads,
            awake: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            compete: AtomicBool::new(false),
            shared: AtomicU64::new(0),
            able: AtomicBool::new(true),
        }
    }

    /// Starts them, on a task of ours; they wait until the process is published.
    pub fn start(&self) -> Result<(), ebb_sys::Errno> {
        for (i, t) in self.threads.iter().enumerate() {
            if i == 0 {
                t.awake.store(1, SeqCst);
                self.awake.store(1, SeqCst);
            }
            t.id.store(thread::spawn(run, i)?, SeqCst);
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Faults served so far.
    pub fn served(&self) -> u64 {
        self.served.load(SeqCst)
    }

    /// Lets the service threads compete for their processors like any other thread, or be idle
    /// work again. Idle urgency keeps woken threads where they are, but starves where other work
    /// fills the processors; there no thread would be sent elsewhere anyway.
    pub fn compete(&self, on: bool) {
        if !self.compete.swap(on, SeqCst) && on {
            for service in &self.threads {
                service.competes();
            }
        }
    }

    /// Whether `compete` helps: where it does not, nobody's work may wait for a service thread that
    /// the program can keep from its processor.
    pub fn can_compete(&self) -> bool {
        self.able.load(SeqCst)
    }

    /// A fault queued behind one that waited for a device.
    pub fn share(&self) {
        self.shared.store(self.served() + 1, SeqCst);
        let resting = |t: &&Service| t.awake.load(SeqCst) == 0;
        if let Some(service) = self.threads.iter().find(resting) {
            self.wake(service);
        }
    }

    /// Whether one did lately.
    fn shares(&self) -> bool {
        /// Faults.
        const LATELY: u64 = 256;
        let shared = self.shared.load(SeqCst);
        shared > 0 && self.served() < shared + LATELY
    }

    fn wake(&self, service: &Service) {
        if service.awake.swap(1, SeqCst) == 0 {
            self.awake.fetch_add(1, SeqCst);
            futex::wake(&service.awake, 1, false);
        }
    }

    /// Wakes those that rest, to look at something else than faults.
    pub fn nudge(&self) {
        self.threads
            .iter()
            .for_each(|t| futex::wake(&t.awake, 1, false));
    }

    /// Rests until woken, unless nobody else is awake.
    fn rest(&self, service: &Service) {
        if self
            .awake
            .fetch_update(SeqCst, SeqCst, |n| (n > 1).then(|| n - 1))
            .is_err()
        {
            return;
        }
        service.competes();
        service.awake.store(0, SeqCst);
        service.until_woken();
    }

    fn on_cpu(&self, cpu: usize) -> Option<&Service> {
        self.threads.iter().find(|t| t.cpu.load(SeqCst) == cpu)
    }
}

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
            .filter(|cpu| *cpu != me.cpu.load(SeqCst))
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

extern "C" fn run(index: usize) -> ! {
    thread::set_name(TaskName::Service);
    let process = loop {
        match Process::current() {
            Some(p) => break p,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    };
    let services = &process.services;
    let me = &services.threads[index];
    let _ = thread::bind(me.cpu.load(SeqCst));
    me.yields(&services.compete);
    services.able.fetch_and(me.competes(), SeqCst);
    let checking = keeper::checking();
    let fails_after = process.embedded.devices.faults().pager_after;
    let mut desk = Desk::new();
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
        if faults.is_empty() && !desk.stuck.is_empty() {
            desk.more = false;
            process.serve_stuck(&mut desk);
            process.serve_again(&mut desk);
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
        me.yields(&services.compete);
        fork::hold_on();
        let now = Instant::now();
        let mut leave = false;
        for (i, &fault) in faults.iter().enumerate() {
            desk.more = i + 1 < faults.len();
            process.serve_fully(&mut desk, fault, now);
            let served = services.served.fetch_add(1, SeqCst) + 1;
            assert!(fails_after != Some(served), "EBB_FAULTS asks for it");
            leave |= watch.after(services, me, fault, now);
        }
        process.make_room(&mut desk, When::Soon);
        process.serve_stuck(&mut desk);
        process.serve_again(&mut desk);
        if leave && !services.shares() {
            services.rest(me);
        }
    }
}

impl Desk {
    /// With a buffer that takes memory as it is used: many a process of a tree has few faults.
    pub fn new() -> Self {
        let zero = vec![0u8; size_of::<UnitBuffer>() + 4096].leak();
        let at = zero.as_ptr().align_offset(4096);
        let buffer = zero[at..at + size_of::<UnitBuffer>()]
            .as_mut_ptr()
            .cast::<UnitBuffer>();
        Self {
            // SAFETY: aligned, initialised, leaked, and handed out once.
            buffer: unsafe { &mut *buffer },
            again: Vec::with_capacity(64),
            stuck: VecDeque::with_capacity(64),
            more: false,
            since: Instant::now(),
            waiter: None,
            hard: false,
        }
    }
}

impl Process {
    /// Serves the faults whose page was in transit when they came. Whoever ends a transit gets
    /// them on its desk, and must call this: nobody else will.
    pub fn serve_again(&self, desk: &mut Desk) {
        while let Some(fault) = desk.again.pop() {
            self.serve_fully(desk, fault, Instant::now());
        }
    }

    /// Lets them come once more instead, to a service thread: for who must not wait meanwhile.
    pub fn wake_again(&self, desk: &mut Desk) {
        for fault in desk.again.drain(..) {
            self.wake(PageNumber::of(fault.address), 1);
        }
    }

    /// Whether a thread is one of those that serve this process.
    fn is_own(&self, thread: u32) -> bool {
        let mut service = self.services.threads.iter();
        keeper::is(thread) || service.any(|own| own.id.load(SeqCst) == thread)
    }
}
