//! Processes named by a pidfd.

use super::file::{Path, read};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Whether the process that a pidfd stands for has ended, with all of its threads.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut polled, Some(&Timespec::default())), Ok(n) if n > 0)
}

/// The process that a pidfd stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PidfdTarget {
    /// The number, as this process's `/proc` has it.
    pub pid: u32,
    /// The number as it sees itself: another, if it lives in a PID namespace further in.
    pub own_pid: u32,
}

/// Which process `pidfd` stands for.
///
/// # Errors
/// ESRCH if it has been reaped, or is out of sight in another PID namespace; EINVAL if it is no pidfd.
pub fn pidfd_target(pidfd: BorrowedFd<'_>) -> Result<PidfdTarget, Errno> {
    let number = pidfd.as_raw_fd();
    let file = Path::new(format_args!("/proc/thread-self/fdinfo/{number}")).open(OFlags::RDONLY)?;
    let mut buf = [0; 1024];
    PidfdTarget::parse(read(&file, &mut buf)?)
}

impl PidfdTarget {
    pub(super) fn parse(text: &[u8]) -> Result<Self, Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&pid| pid > 0);
        let pid = field("Pid:").ok_or(Errno::INVAL)?;
        // -1 or 0 where there is none.
        let pid = number(pid).ok_or(Errno::SRCH)?;
        // The namespaces from ours inwards; the line is missing where the kernel has none.
        let inner = field("NSpid:").and_then(|line| number(line.split_whitespace().next_back()?));
        let own_pid = inner.unwrap_or(pid);
        Ok(Self { pid, own_pid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_says_whose_it_is() {
        use std::os::fd::AsFd;
        let me = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        );
        let me = me.unwrap();
        let (pid, own_pid) = (std::process::id(), std::process::id());
        assert_eq!(pidfd_target(me.as_fd()), Ok(PidfdTarget { pid, own_pid }));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(pidfd_target(null.as_fd()), Err(Errno::INVAL));

        let parse = |text: &str| PidfdTarget::parse(text.as_bytes()).map(|p| (p.pid, p.own_pid));
        assert_eq!(parse("pos:\t0\nPid:\t77\nNSpid:\t77\t5\t1\n"), Ok((77, 1)));
        assert_eq!(parse("Pid:\t77\n"), Ok((77, 77)));
        assert_eq!(parse("Pid:\t-1\nNSpid:\t-1\n"), Err(Errno::SRCH));
        assert_eq!(parse("Pid:\t0\n"), Err(Errno::SRCH));
    }
}
