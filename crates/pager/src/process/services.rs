//! The service threads of a process: which are awake, and how they compete for their processors.

use crate::devices::processors::MAX_CPUS;
use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Kernel};
use ebb_sys::thread::Urgency;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A service thread.
#[derive(Default)]
pub struct Service {
    id: AtomicU32,
    cpu: AtomicUsize,
    /// 1 awake, 0 asleep.
    awake: AtomicU32,
    /// Flag: it has idle urgency.
    idle: AtomicBool,
}

impl Service {
    /// The processor that it serves.
    pub fn cpu(&self) -> usize {
        self.cpu.load(SeqCst)
    }

    /// Sleeps until woken.
    pub fn until_woken(&self, kernel: &impl Kernel) {
        kernel.follow_user();
        while self.awake.load(SeqCst) == 0 {
            kernel.wait_word(&self.awake, 0, None);
            kernel.follow_user();
        }
    }

    /// On the thread itself: serves with idle urgency, unless all `compete`.
    pub fn yields(&self, kernel: &impl Kernel, compete: &AtomicBool) {
        if self.idle.load(SeqCst) || compete.load(SeqCst) {
            return;
        }
        // Said before it is so: as idle work it may get no processor for a long time.
        self.idle.store(true, SeqCst);
        if !kernel.set_urgency(0, Urgency::Idle) {
            self.idle.store(false, SeqCst);
        }
        // The keeper may have raised the others since the look, and this one before it was lowered.
        if compete.load(SeqCst) {
            self.raise(kernel);
        }
    }

    /// Whether it does now: to give up idle urgency takes CAP_SYS_NICE, or RLIMIT_NICE of 20.
    pub fn competes(&self, kernel: &impl Kernel) -> bool {
        if self.idle.load(SeqCst) {
            self.raise(kernel);
        }
        !self.idle.load(SeqCst)
    }

    /// It competes if that is allowed, whatever it says of itself: it may be about to become idle work.
    fn raise(&self, kernel: &impl Kernel) {
        let raised = kernel.set_urgency(self.id.load(SeqCst), Urgency::Normal);
        self.idle.store(!raised, SeqCst);
    }
}

/// All service threads of a process.
pub struct Services<K: Kernel> {
    kernel: &'static K,
    threads: Vec<Service>,
    awake: AtomicUsize,
    served: AtomicU64,
    /// Flag: all compete for their processors.
    compete: AtomicBool,
    /// Faults served when one was last found to queue behind a device, and one more.
    shared: AtomicU64,
    /// Flag: all found that they can give up idle urgency.
    able: AtomicBool,
}

impl<K: Kernel> Services<K> {
    /// For the processors this process may use; nothing runs yet.
    pub fn new(kernel: &'static K, cpus: &[usize]) -> Self {
        let threads: Vec<_> = cpus
            .iter()
            .take(MAX_CPUS)
            .map(|c| Service {
                cpu: AtomicUsize::new(*c),
                ..Service::default()
            })
            .collect();
        Self {
            kernel,
            threads,
            awake: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            compete: AtomicBool::new(false),
            shared: AtomicU64::new(0),
            able: AtomicBool::new(true),
        }
    }

    /// Starts them, on a task of ours; they wait until the process is published.
    pub fn start(&self, run: Entry) -> Result<(), Errno> {
        for (i, t) in self.threads.iter().enumerate() {
            if i == 0 {
                t.awake.store(1, SeqCst);
                self.awake.store(1, SeqCst);
            }
            t.id.store(self.kernel.spawn(run, i)?, SeqCst);
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

    /// One of them, by its number.
    pub fn service(&self, index: usize) -> &Service {
        &self.threads[index]
    }

    /// On a service thread, as it begins: it is bound to its processor, and tries how it may compete.
    pub fn begin(&self, me: &Service) {
        self.kernel.bind(me.cpu());
        me.yields(self.kernel, &self.compete);
        self.able.fetch_and(me.competes(self.kernel), SeqCst);
    }

    /// On a service thread that has faults to serve: it yields its processor, unless all compete.
    pub fn serves(&self, me: &Service) {
        me.yields(self.kernel, &self.compete);
    }

    /// Counts a fault served; how many that makes.
    pub fn count_served(&self) -> u64 {
        self.served.fetch_add(1, SeqCst) + 1
    }

    /// Whether the thread of that number is one of them.
    pub fn has(&self, thread: u32) -> bool {
        self.threads.iter().any(|own| own.id.load(SeqCst) == thread)
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
        for service in &self.threads {
            service.raise(self.kernel);
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
        let asleep = |t: &&Service| t.awake.load(SeqCst) == 0;
        if let Some(service) = self.threads.iter().find(asleep) {
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

    /// Has a service thread wait for faults.
    pub fn wake(&self, service: &Service) {
        if service.awake.swap(1, SeqCst) == 0 {
            self.awake.fetch_add(1, SeqCst);
            self.kernel.wake_word(&service.awake, 1);
        }
    }

    /// Wakes those that sleep, to look at something else than faults.
    pub fn nudge(&self) {
        self.threads
            .iter()
            .for_each(|t| self.kernel.wake_word(&t.awake, 1));
    }

    /// Sleeps until woken, unless nobody else is awake; whether it did.
    pub fn fall_asleep(&self, service: &Service) -> bool {
        let sleeps = |n: usize| (n > 1).then(|| n - 1);
        if self.awake.fetch_update(SeqCst, SeqCst, sleeps).is_err() {
            return false;
        }
        service.competes(self.kernel);
        service.awake.store(0, SeqCst);
        service.until_woken(self.kernel);
        true
    }

    /// Once they are started: one is awake at least, and a thread is awake or asleep.
    pub fn check(&self) {
        if self.threads.iter().all(|t| t.id.load(SeqCst) == 0) {
            return;
        }
        let awake = self.awake.load(SeqCst);
        assert!((1..=self.threads.len()).contains(&awake), "{awake} awake");
        assert!(self.threads.iter().all(|t| t.awake.load(SeqCst) <= 1));
    }

    /// The one that serves a processor.
    pub fn on_cpu(&self, cpu: usize) -> Option<&Service> {
        self.threads.iter().find(|t| t.cpu.load(SeqCst) == cpu)
    }
}
