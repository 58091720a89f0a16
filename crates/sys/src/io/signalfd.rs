//! Signals as events: blocked for the process and read from a descriptor, so that a
//! supervisor can wait for signals, children and sockets in one `poll`.
//!
//! Does not decide what to do with a signal, and installs no handler.

use crate::inherited::Inherited;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The number.
    pub signal: i32,
    /// Flag: the kernel sent it: a terminal key, a hang-up.
    pub from_kernel: bool,
    /// The word that came with it, of `sigqueue(3)`.
    pub value: Option<u64>,
}

/// A set of signals, blocked since `block` and read one by one.
pub struct Signals {
    fd: OwnedFd,
    before: Inherited,
}

impl Signals {
    /// Blocks `signals` for this thread, and so for every thread it starts later: call it
    /// before any other thread exists.
    ///
    /// # Errors
    /// Those of signalfd(2); an unknown signal number is `InvalidInput`.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set it is given; it cannot fail on valid memory.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for &signal in signals {
            // SAFETY: `set` is an initialised set.
            if unsafe { libc::sigaddset(&mut set, signal) } != 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        // SAFETY: both sets are valid; on success the kernel has filled `before`.
        let before = unsafe {
            let errno = libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr());
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            before.assume_init()
        };
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just returned this descriptor, nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let before = Inherited::take(before);
        Ok(Self { fd, before })
    }

    /// The next pending signal, if any; never waits. Those that this process brought upon itself (SIGXFSZ) are none.
    pub fn take(&self) -> Option<Received> {
        loop {
            let (received, sender) = self.read()?;
            if sender != std::process::id() {
                return Some(received);
            }
        }
    }

    /// A signal, and the process that sent it.
    fn read(&self) -> Option<(Received, u32)> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long; a full read initialises all of it, and
        // any bit pattern is a valid signalfd_siginfo.
        let info = unsafe {
            if libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) != size as isize {
                return None;
            }
            info.assume_init()
        };
        let received = Received {
            signal: info.ssi_signo as i32,
            from_kernel: info.ssi_code == libc::SI_KERNEL,
            value: (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr),
        };
        Some((received, info.ssi_pid))
    }

    /// The signals as they were before.
    pub fn inherited(&self) -> Inherited {
        self.before
    }
}

/// Signals that are a process's own matter: its own faults, those that cannot be caught, news of its children and of
/// its place among the jobs of a terminal.
const OWN: [i32; 14] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
    libc::SIGPIPE,
    libc::SIGSTKFLT,
    libc::SIGCHLD,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// All other signals: those that a process that stands for another passes on.
pub fn passed_on() -> impl Iterator<Item = i32> {
    // Between them are those that the C library keeps for itself.
    let plain = (1..libc::SIGSYS).filter(|signal| !OWN.contains(signal));
    plain.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Sends what was received to the process `pid`, or to the process group of that number.
///
/// # Errors
/// Those of kill(2) and sigqueue(3).
pub fn pass_on(received: Received, pid: i32, to_group: bool) -> io::Result<()> {
    let signal = received.signal;
    // SAFETY: sending a signal touches no memory of ours.
    let sent = unsafe {
        match received.value {
            Some(value) if !to_group => {
                let sival_ptr = std::ptr::without_provenance_mut(value as usize);
                libc::sigqueue(pid, signal, libc::sigval { sival_ptr })
            }
            _ => libc::kill(if to_group { -pid } else { pid }, signal),
        }
    };
    match sent {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process by a signal that has ended another. It returns where that cannot be: the first process of a PID
/// namespace has no default actions. No core is written: it would be one of this process, and tell nothing.
pub fn die_of(signal: i32) {
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return;
    }
    let set = only(signal);
    // SAFETY: the default action has no handler, and the set is initialised.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Stops this process by a signal that it has blocked, as the default action does. It returns once the process is
/// continued, and at once where no shell could continue it.
pub fn stop_by(signal: i32) {
    let set = only(signal);
    // SAFETY: the default action has no handler, and the set is initialised.
    unsafe {
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// The set of this signal alone.
fn only(signal: i32) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given; it cannot fail on valid memory.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_dies_of_a_signal_that_it_blocks() {
        for signal in [libc::SIGINT, libc::SIGSEGV, libc::SIGRTMIN() + 3] {
            let mut status = 0;
            // SAFETY: the child has one thread and makes system calls alone; `status` is there to be written.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    let _signals = Signals::block(&[signal]);
                    die_of(signal);
                    libc::_exit(7);
                }
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            let died = libc::WIFSIGNALED(status) && !libc::WCOREDUMP(status);
            assert!(died && libc::WTERMSIG(status) == signal, "{status:#x}");
        }
    }
    #[test]
    fn a_process_stops_by_a_signal_that_it_blocks_and_goes_on_blocking_it() {
        let mut status = 0;
        // SAFETY: the child has one thread and makes system calls alone; `status` is there to be written.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // Its parent is of another group: a shell, as it were.
                libc::setpgid(0, 0);
                let signals = Signals::block(&[libc::SIGTSTP]);
                stop_by(libc::SIGTSTP);
                libc::raise(libc::SIGTSTP);
                libc::_exit(if signals.is_ok() { 7 } else { 8 });
            }
            assert_eq!(libc::waitpid(child, &mut status, libc::WUNTRACED), child);
            let stopped = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTSTP;
            libc::kill(child, libc::SIGCONT);
            assert!(stopped, "{status:#x}");
            assert_eq!(libc::waitpid(child, &mut status, libc::WUNTRACED), child);
        }
        let exited = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7;
        assert!(exited, "{status:#x}");
    }
}
