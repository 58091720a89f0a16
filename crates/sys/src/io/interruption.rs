//! An interruption: threads that wait for a descriptor are to look at something else.
//!
//! Raised by any thread with the same table of descriptors, it ends waits that are under way or begin later, until
//! one of those who waited takes it. Others may find it taken already and wait on, so it is raised as often as it takes.

use crate::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// See the module.
pub struct Interruption(OwnedFd);

impl Interruption {
    /// Not raised.
    ///
    /// # Errors
    /// The process has too many descriptors, or may make no such one.
    pub fn new() -> Result<Self, Errno> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Self).map_err(|e| Errno(e.raw_os_error()))
    }

    /// Raises it.
    pub fn raise(&self) {
        // It fails where it was raised very often already.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until `other` is readable, or this is raised, which is taken then; whether `other` is.
    pub fn wait_beside(&self, other: impl AsFd, timeout: Duration) -> bool {
        let mut both = [
            PollFd::new(&other, PollFlags::IN),
            PollFd::new(&self.0, PollFlags::IN),
        ];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // A signal ends the wait like an interruption.
        let count = poll(&mut both, Some(&timeout)).unwrap_or(0);
        let is_readable = |fd: &PollFd| count > 0 && fd.revents().contains(PollFlags::IN);
        let [others, raised] = both.each_ref().map(is_readable);
        if raised {
            let _ = read(&self.0, &mut [0; 8]);
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_ends_when_it_is_raised_or_the_other_is_readable() {
        let (interruption, other) = (Interruption::new().unwrap(), Interruption::new().unwrap());
        let began = Instant::now();
        assert!(!interruption.wait_beside(&other.0, Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| interruption.wait_beside(&other.0, LONG));
            interruption.raise();
            assert!(!waits.join().unwrap());
            // It was taken.
            assert!(!interruption.wait_beside(&other.0, Duration::from_millis(1)));
            let waits = scope.spawn(|| interruption.wait_beside(&other.0, LONG));
            other.raise();
            assert!(waits.join().unwrap());
        });
        interruption.raise();
        assert!(interruption.wait_beside(&other.0, LONG), "both at once");
        assert!(began.elapsed() < LONG);
    }
}
