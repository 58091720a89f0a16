//! Limits of the host for processes of a simulation, their processor, and the descriptors that they have there.

use ebb_sys::thread::{allowed_cpus, bind, cpu};
use std::time::Duration;

/// Seconds of a processor that a process may take.
pub const LIMIT: i64 = 60;

/// Ends this process when it has used its time.
pub fn limit_time() {
    let time = libc::timeval {
        tv_sec: LIMIT,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: one structure of ours is read.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) };
}

/// The processor of this process and what it forks. One of them runs at a time: the turn goes on faster where no other
/// processor has to be woken for it, nor has other memory cached.
pub struct Processor {
    /// The numbers of those that it may have.
    allowed: Vec<usize>,
    /// The place of its own among them.
    at: usize,
}

impl Processor {
    /// The one on which this thread runs. Where the system refuses, it runs anywhere.
    pub fn here() -> Self {
        let (allowed, here) = (allowed_cpus(), cpu());
        let at = allowed.iter().position(|&n| n == here).unwrap_or(0);
        let processor = Self { allowed, at };
        processor.stay();
        processor
    }

    /// The next one, if a run that took `time` of this one lasted much longer: another has it, too.
    pub fn leave_if_shared(&mut self, time: Duration, lasted: Duration) {
        if lasted > time + time / 4 {
            self.at = (self.at + 1) % self.allowed.len();
            self.stay();
        }
    }

    fn stay(&self) {
        let _ = bind(self.allowed[self.at]);
    }
}

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    // The folder's own is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() - 1)
}
