//! One thread that plays all parts in turn: the program's threads, service, the keeper. So a test is the same on
//! every run.

use crate::threads::{Call, Disturbance, Event, Threads};
use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Time};
use ebb_sys::thread::Urgency;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// See the module.
pub struct Alone {
    /// Processors.
    pub processors: usize,
    ns: AtomicU64,
    /// Flag: the calling thread is one of the pager's.
    pub is_own: AtomicBool,
    /// Pages that the system will still refuse.
    pub refuses: AtomicU32,
    /// Runs while a thread of the program waits: the keeper's turn.
    pub while_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Runs while a call of the program's waits for a page: service. Without it such calls leave pages as they are.
    pub while_faulting: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Alone {
    fn default() -> Self {
        Self {
            processors: 1,
            ns: AtomicU64::new(1_000_000_000),
            is_own: AtomicBool::new(true),
            refuses: AtomicU32::new(0),
            while_waiting: OnceLock::new(),
            while_faulting: OnceLock::new(),
        }
    }
}

impl Alone {
    /// Lets so much time pass.
    pub fn pass(&self, time: Duration) {
        self.ns.fetch_add(time.as_nanos() as u64, SeqCst);
    }
}

impl Threads for Alone {
    fn now(&self) -> Time {
        Duration::from_nanos(self.ns.fetch_add(100, SeqCst))
    }
    fn sleep(&self, time: Duration) {
        self.pass(time);
    }
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        if word.load(SeqCst) == seen {
            self.pass(timeout.expect("nobody else could wake it"));
            if !self.is_own.swap(true, SeqCst) {
                self.while_waiting.get().iter().for_each(|turn| turn());
                self.is_own.store(false, SeqCst);
            }
        }
    }
    fn wake_word(&self, _: &AtomicU32, _: i32) {}
    fn wait_for_news(
        &self,
        _: u32,
        timeout: Duration,
        mut wait: impl FnMut(Duration) -> u32,
    ) -> u32 {
        self.pass(timeout);
        wait(Duration::ZERO)
    }
    fn wait_event(&self, event: Event, timeout: Option<Duration>) -> bool {
        if let (Event::Page(_), Some(serve)) = (event, self.while_faulting.get()) {
            let was_own = self.is_own.swap(true, SeqCst);
            serve();
            self.is_own.store(was_own, SeqCst);
            return true;
        }
        self.pass(timeout.expect("nobody else could end the wait"));
        false
    }
    fn notify(&self, _: Event) {}
    fn strikes(&self, disturbance: Disturbance, call: Call) -> bool {
        let refuse = |left: u32| left.checked_sub(1);
        (disturbance, call) == (Disturbance::NoPage, Call::Copy)
            && self.refuses.fetch_update(SeqCst, SeqCst, refuse).is_ok()
    }
    fn can_wait(&self) -> bool {
        self.while_faulting.get().is_some()
    }
    fn thread(&self) -> u32 {
        1
    }
    fn process(&self) -> u32 {
        1
    }
    fn is_own_thread(&self) -> bool {
        self.is_own.load(SeqCst)
    }
    fn cpu(&self) -> usize {
        0
    }
    fn cpu_of(&self, _: u32) -> Option<usize> {
        Some(0)
    }
    fn processors(&self) -> usize {
        self.processors
    }
    fn spawn(&self, _: Entry, index: usize) -> Result<u32, Errno> {
        Ok(100 + index as u32)
    }
    fn set_urgency(&self, _: u32, _: Urgency) -> bool {
        true
    }
    fn end_thread(&self) -> ! {
        panic!("a thread ends")
    }
    fn start_helper(&self, _: Entry) -> Result<(), Errno> {
        Ok(())
    }
    fn end_helper(&self) -> ! {
        panic!("the helper ends")
    }
    fn kill_program(&self) {
        panic!("the program is killed")
    }
    fn die(&self) -> ! {
        panic!("the program dies")
    }
    fn say(&self, _: &[u8]) {}
}
