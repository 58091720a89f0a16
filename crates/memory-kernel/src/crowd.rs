//! Threads of the host that run side by side: where they meet, ThreadSanitizer sees it.
//!
//! A thread is the program's unless this starts it. Nothing goes wrong by chance, and no run is like another.

use crate::threads::{Event, Threads};
use ebb_sys::paging::{Entry, Time};
use ebb_sys::thread::Urgency;
use ebb_sys::{Errno, futex};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// See the module.
pub struct Crowd {
    begun: Instant,
    /// Events that nobody has waited for yet.
    pending: Mutex<Vec<Event>>,
    happened: Condvar,
}

/// The calling thread.
#[derive(Clone, Copy)]
struct Me {
    number: u32,
    is_own: bool,
}

/// Processors.
const PROCESSORS: u32 = 2;

thread_local! {
    static ME: Cell<Option<Me>> = const { Cell::new(None) };
}

fn me() -> Me {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    ME.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Relaxed);
        let is_own = false;
        ME.set(Some(Me { number, is_own }));
        Me { number, is_own }
    })
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            pending: Mutex::default(),
            happened: Condvar::new(),
        }
    }
}

impl Crowd {
    fn pending(&self) -> MutexGuard<'_, Vec<Event>> {
        self.pending.lock().expect("no panic is survived")
    }

    fn start(&self, entry: Entry, index: usize) -> u32 {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let number = me().number;
            let is_own = true;
            ME.set(Some(Me { number, is_own }));
            tell.send(number).expect("the starter waits");
            entry(index)
        });
        told.recv().expect("the thread begins")
    }
}

impl Threads for Crowd {
    fn now(&self) -> Time {
        Duration::from_secs(1) + self.begun.elapsed()
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        futex::wait(word, seen, timeout, false);
    }
    fn wake_word(&self, word: &AtomicU32, count: i32) {
        futex::wake(word, count, false);
    }
    fn wait_for_news(
        &self,
        _: u32,
        timeout: Duration,
        mut wait: impl FnMut(Duration) -> u32,
    ) -> u32 {
        wait(timeout)
    }
    fn wait_event(&self, event: Event, timeout: Option<Duration>) -> bool {
        let end = timeout.map(|time| Instant::now() + time);
        let mut pending = self.pending();
        loop {
            if let Some(at) = pending.iter().position(|p| *p == event) {
                pending.swap_remove(at);
                return true;
            }
            let left = end.map_or(Duration::MAX, |end| end - Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.happened.wait_timeout(pending, left);
            pending = woken.expect("no panic is survived").0;
        }
    }
    fn notify(&self, event: Event) {
        let mut pending = self.pending();
        if !pending.contains(&event) {
            pending.push(event);
        }
        self.happened.notify_all();
    }
    fn can_wait(&self) -> bool {
        true
    }
    fn thread(&self) -> u32 {
        me().number
    }
    fn process(&self) -> u32 {
        std::process::id()
    }
    fn is_own_thread(&self) -> bool {
        me().is_own
    }
    fn cpu(&self) -> usize {
        (me().number % PROCESSORS) as usize
    }
    fn cpu_of(&self, thread: u32) -> Option<usize> {
        Some((thread % PROCESSORS) as usize)
    }
    fn processors(&self) -> usize {
        PROCESSORS as usize
    }
    fn spawn(&self, entry: Entry, index: usize) -> Result<u32, Errno> {
        Ok(self.start(entry, index))
    }
    fn set_urgency(&self, _: u32, _: Urgency) -> bool {
        true
    }
    fn end_thread(&self) -> ! {
        // An entry never returns, and nothing unwinds through it.
        loop {
            std::thread::park();
        }
    }
    fn start_helper(&self, entry: Entry) -> Result<(), Errno> {
        self.start(entry, 0);
        Ok(())
    }
    fn end_helper(&self) -> ! {
        self.end_thread()
    }
    fn kill_program(&self) {
        std::process::abort()
    }
    fn die(&self) -> ! {
        std::process::abort()
    }
    fn say(&self, line: &[u8]) {
        eprintln!("{}", String::from_utf8_lossy(line));
    }
}
