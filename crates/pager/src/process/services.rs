//! The service threads of a process: which are awake, and how they compete for their processors.
//!
//! Each processor has a [`Service`], and that has a [`Holder`]: the thread that serves there. A holder serves with
//! idle urgency, unless the processors are crowded. Where the system does not let it give that up, it is *stuck*, and is
//! replaced. The keeper starts another thread, which has the keeper's urgency: that takes no privilege.
//!
//! Protocol: `tenure` counts holders. The new one takes over as it begins, whether the service is awake or asleep. The
//! former one finds another count than its own, reads no more faults, finishes what it has, and ends. It may find that
//! late, so whatever it says of the service by then is void: that it is stuck, or falls asleep.

use crate::devices::processors::MAX_CPUS;
use crate::process::worker::Worker;
use ebb_engine::sync::{self, Mutex};
use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Kernel};
use ebb_sys::thread::{TaskName, Urgency};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The service of a processor.
#[derive(Default)]
pub struct Service {
    /// The holder's number in the system.
    id: AtomicU32,
    cpu: usize,
    /// The bit among those that are awake.
    bit: u64,
    /// Rises when the holder is to look whether it is awake, or replaced.
    news: AtomicU32,
    /// Holders so far, times two; odd: the last has idle urgency.
    tenure: AtomicU32,
    /// The tenure whose holder could not give up idle urgency when it should; `NOBODY`: none.
    stuck: AtomicU32,
    /// The tenure for which another holder was started.
    replaced: AtomicU32,
}

const IDLE: u32 = 1;
const HOLDER: u32 = 2;
const NOBODY: u32 = 0;

impl Service {
    /// The calling thread holds it from now on; it is not idle work because of us.
    fn take_over(&self, kernel: &impl Kernel) -> Holder<'_> {
        self.id.store(kernel.thread(), SeqCst);
        let next = |tenure: u32| (tenure & !IDLE).wrapping_add(HOLDER);
        let former = self
            .tenure
            .fetch_update(SeqCst, SeqCst, |tenure| Some(next(tenure)));
        self.tell(kernel);
        Holder {
            service: self,
            tenure: next(former.unwrap_or_else(|tenure| tenure)),
        }
    }

    /// Has the holder look, and a former one.
    fn tell(&self, kernel: &impl Kernel) {
        self.news.fetch_add(1, SeqCst);
        kernel.wake_word(&self.news, i32::MAX);
    }

    /// The holder competes if that is allowed, whatever it says of itself: it may be about to become idle work. Whether
    /// it does not stay idle work: to give that up takes CAP_SYS_NICE, or RLIMIT_NICE of 20.
    fn raise(&self, kernel: &impl Kernel) -> bool {
        let tenure = self.tenure.load(SeqCst);
        if kernel.set_urgency(self.id.load(SeqCst), Urgency::Normal) {
            self.change(tenure, tenure & !IDLE);
            return true;
        }
        // It may be refused for other reasons: there is another holder, or none of them may be idle work.
        let is_stuck = tenure & IDLE != 0 && self.tenure.load(SeqCst) == tenure;
        if is_stuck {
            self.stuck.store(tenure, SeqCst);
        }
        !is_stuck
    }

    /// On the keeper: starts another holder if this one is stuck, and none was started yet.
    fn replace_stuck(&self, start: impl FnOnce() -> bool) {
        let stuck = self.stuck.load(SeqCst);
        let is_new = stuck != NOBODY && stuck != self.replaced.load(SeqCst);
        if is_new && self.tenure.load(SeqCst) == stuck && start() {
            self.replaced.store(stuck, SeqCst);
        }
    }

    /// Unless something else did meanwhile.
    fn change(&self, from: u32, to: u32) -> bool {
        let changed = self.tenure.compare_exchange(from, to, SeqCst, SeqCst);
        changed.is_ok()
    }
}

/// The thread that serves a processor.
pub struct Holder<'a> {
    service: &'a Service,
    /// The count of holders, with this one.
    tenure: u32,
}

impl Holder<'_> {
    /// The processor.
    pub fn cpu(&self) -> usize {
        self.service.cpu
    }

    /// Whether another thread serves it by now.
    pub fn is_replaced(&self) -> bool {
        self.service.tenure.load(SeqCst) & !IDLE != self.tenure
    }

    fn is_idle(&self) -> bool {
        self.service.tenure.load(SeqCst) == self.tenure | IDLE
    }
}

/// All service threads of a process.
pub struct Services<K: Kernel> {
    kernel: &'static K,
    services: Vec<Service>,
    /// The services that are awake, one bit each.
    awake: AtomicU64,
    served: AtomicU64,
    /// Flag: all compete for their processors.
    compete: AtomicBool,
    /// Faults served when one was last found to queue behind a device, and one more.
    shared: AtomicU64,
    /// Flag: threads can give up idle urgency, as far as is known.
    able: AtomicBool,
    /// Workers of threads that have ended. Idle work is not to unmap their buffers, with locks that others need.
    workers: Mutex<Vec<Worker>>,
}

impl<K: Kernel> Services<K> {
    /// For the processors this process may use; nothing runs yet.
    pub fn new(kernel: &'static K, cpus: &[usize]) -> Self {
        const { assert!(MAX_CPUS <= u64::BITS as usize) };
        let services = cpus.iter().take(MAX_CPUS).enumerate();
        Self {
            kernel,
            services: services
                .map(|(i, cpu)| Service {
                    cpu: *cpu,
                    bit: 1 << i,
                    ..Service::default()
                })
                .collect(),
            awake: AtomicU64::new(1),
            served: AtomicU64::new(0),
            compete: AtomicBool::new(false),
            shared: AtomicU64::new(0),
            able: AtomicBool::new(true),
            workers: Mutex::new(Vec::new()),
        }
    }

    /// Starts a thread for each, on a task of ours; they wait until the process is published.
    pub fn start(&self, run: Entry) -> Result<(), Errno> {
        const PATIENCE: Duration = Duration::from_secs(5);
        for (i, service) in self.services.iter().enumerate() {
            let id = self.kernel.spawn(run, i, PATIENCE)?;
            service.id.store(id, SeqCst);
        }
        Ok(())
    }

    /// On the keeper: starts a thread in the place of each that is stuck. Where the system has none now, it stays so.
    pub fn replace_stuck(&self, run: Entry) {
        for (i, service) in self.services.iter().enumerate() {
            service.replace_stuck(|| self.kernel.spawn(run, i, Duration::ZERO).is_ok());
        }
    }

    /// On a service thread, as it begins: the worker of one that has ended, or a new one.
    pub fn take_worker(&self) -> Worker {
        let left = sync::lock(&self.workers).pop();
        left.unwrap_or_else(|| Worker::new(self.kernel))
    }

    /// On a service thread, as it ends: another may have its worker, which has nothing to serve.
    pub fn leave_worker(&self, worker: Worker) {
        debug_assert!(worker.is_free());
        sync::lock(&self.workers).push(worker);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.services.len()
    }

    /// Faults served so far.
    pub fn served(&self) -> u64 {
        self.served.load(SeqCst)
    }

    /// On a service thread, as it begins: it is bound to its processor. The first one tries how it may compete.
    pub fn begin(&self, index: usize) -> Holder<'_> {
        let holder = self.services[index].take_over(self.kernel);
        self.kernel.bind(holder.cpu());
        self.kernel.name_thread(TaskName::Service);
        if index == 0 && holder.tenure == HOLDER {
            self.serves(&holder);
            self.competes(&holder);
        }
        holder
    }

    /// Follows the program's user, and sleeps until woken or replaced; not if it is `busy`.
    pub fn until_woken(&self, holder: &Holder, busy: bool) {
        let service = holder.service;
        loop {
            let seen = service.news.load(SeqCst);
            self.kernel.follow_user();
            if busy || self.is_awake(service) || holder.is_replaced() {
                return;
            }
            self.kernel.wait_word(&service.news, seen, None);
        }
    }

    fn is_awake(&self, service: &Service) -> bool {
        self.awake.load(SeqCst) & service.bit != 0
    }

    /// On a service thread that has faults to serve: it serves with idle urgency, unless all compete.
    pub fn serves(&self, me: &Holder) {
        if self.compete.load(SeqCst) {
            return;
        }
        // Said before it is so: as idle work it may get no processor for a long time.
        let (normal, idle) = (me.tenure, me.tenure | IDLE);
        if !me.service.change(normal, idle) {
            return;
        }
        if !self.kernel.set_urgency(0, Urgency::Idle) {
            me.service.change(idle, normal);
        }
        // The keeper may have raised the others since the look, and this one before it was lowered.
        if self.compete.load(SeqCst) {
            self.raise(me.service);
        }
    }

    /// On a service thread that has nothing to serve: it competes.
    pub fn competes(&self, me: &Holder) {
        if me.is_idle() {
            self.raise(me.service);
        }
    }

    fn raise(&self, service: &Service) {
        self.able.fetch_and(service.raise(self.kernel), SeqCst);
    }

    /// Counts a fault served; how many that makes.
    pub fn count_served(&self) -> u64 {
        self.served.fetch_add(1, SeqCst) + 1
    }

    /// Whether the thread of that number holds one of them.
    pub fn has(&self, thread: u32) -> bool {
        self.services
            .iter()
            .any(|own| own.id.load(SeqCst) == thread)
    }

    /// Lets the service threads compete for their processors like any other thread, or be idle
    /// work again. Idle urgency keeps woken threads where they are, but starves where other work
    /// fills the processors; there no thread would be sent elsewhere anyway.
    pub fn compete(&self, on: bool) {
        if !self.compete.swap(on, SeqCst) && on {
            self.rescue();
        }
    }

    /// All compete, whatever was known of them: one that became idle work as they were raised waits for its processor.
    pub fn rescue(&self) {
        self.compete.store(true, SeqCst);
        self.services.iter().for_each(|service| self.raise(service));
    }

    /// Whether a thread that has idle urgency can give it up at once. Where not, the program may keep it from its
    /// processor, and nobody's work may wait for it.
    pub fn can_compete(&self) -> bool {
        self.able.load(SeqCst)
    }

    /// A fault queued behind one that waited for a device.
    pub fn share(&self) {
        self.shared.store(self.served() + 1, SeqCst);
        if let Some(service) = self.services.iter().find(|s| !self.is_awake(s)) {
            self.wake(service);
        }
    }

    /// Whether one did lately.
    pub fn shares(&self) -> bool {
        /// Faults.
        const LATELY: u64 = 256;
        let shared = self.shared.load(SeqCst);
        shared > 0 && self.served() < shared + LATELY
    }

    /// Has a service wait for faults.
    pub fn wake(&self, service: &Service) {
        if self.awake.fetch_or(service.bit, SeqCst) & service.bit == 0 {
            service.tell(self.kernel);
        }
    }

    /// Has the threads that sleep look at something else than faults.
    pub fn nudge(&self) {
        self.services.iter().for_each(|s| s.tell(self.kernel));
    }

    /// Sleeps until woken or replaced, unless no other is awake; whether it did.
    pub fn fall_asleep(&self, me: &Holder) -> bool {
        let bit = me.service.bit;
        let sleeps = |awake: u64| (awake & !bit != 0).then_some(awake & !bit);
        if self.awake.fetch_update(SeqCst, SeqCst, sleeps).is_err() {
            return false;
        }
        // The new holder took over a service that was awake, and may have faults in hand.
        if me.is_replaced() {
            self.wake(me.service);
        }
        self.competes(me);
        self.until_woken(me, false);
        true
    }

    /// Of the services there are, one is awake at least.
    pub fn check(&self) {
        let awake = self.awake.load(SeqCst);
        let all = self.services.iter().fold(0, |all, s| all | s.bit);
        assert!(awake != 0 && awake & !all == 0, "{awake:b} of {all:b}");
    }

    /// The one that serves a processor.
    pub fn on_cpu(&self, cpu: usize) -> Option<&Service> {
        self.services.iter().find(|s| s.cpu == cpu)
    }

    /// One of them, by its number.
    #[cfg(test)]
    pub fn service(&self, index: usize) -> &Service {
        &self.services[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::machine::MemoryKernel;

    #[test]
    fn a_former_holder_puts_nobody_to_sleep() {
        let kernel: &'static MemoryKernel = Box::leak(Box::new(MemoryKernel::alone_on(2)));
        let services = Services::new(kernel, &[0, 1]);
        services.wake(services.service(1));
        let former = services.begin(0);
        let holder = services.begin(0);
        assert!(former.is_replaced() && !holder.is_replaced());
        assert!(services.fall_asleep(&former), "it may end");
        assert!(services.is_awake(holder.service));
        assert!(services.is_awake(services.service(1)));
        services.check();
    }

    /// One is enough, however often the holder is asked to compete before the new one has had a processor.
    #[test]
    fn a_stuck_holder_is_replaced_once() {
        let kernel: &'static MemoryKernel = Box::leak(Box::new(MemoryKernel::alone_on(1)));
        let services = Services::new(kernel, &[0]);
        let service = services.service(0);
        let holder = services.begin(0);
        let mut started = 0;
        let mut look = || {
            service.replace_stuck(|| {
                started += 1;
                true
            });
            started
        };
        assert_eq!(look(), 0, "it is not stuck");
        service.stuck.store(holder.tenure, SeqCst);
        assert_eq!([look(), look()], [1, 1]);
        service.stuck.store(holder.tenure, SeqCst);
        assert_eq!(look(), 1, "it is known");
        services.begin(0);
        service.stuck.store(holder.tenure, SeqCst);
        assert_eq!(look(), 1, "said too late");
    }
}
