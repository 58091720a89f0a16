//! Signals as events: blocked for the process and read from a descriptor, so that a
//! supervisor can wait for signals, children and sockets in one `poll`.
//!
//! Does not decide what to do with a signal, and installs no handler.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A signal that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The number.
    pub signal: i32,
    /// Flag: the kernel sent it: a terminal key, a hang-up. It then went to the whole foreground process group, not
    /// to this process alone.
    pub from_kernel: bool,
}

/// A set of signals, blocked since `block` and read one by one.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
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
        Ok(Self { fd, before })
    }

    /// The next pending signal, if any; never waits.
    pub fn take(&self) -> Option<Received> {
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
        Some(Received {
            signal: info.ssi_signo as i32,
            from_kernel: info.ssi_code == libc::SI_KERNEL,
        })
    }

    /// Lets the program that `command` starts run with the mask this process was started
    /// with, not with ours.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: the closure calls only pthread_sigmask, which is async-signal-safe, on a
        // set it owns.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
