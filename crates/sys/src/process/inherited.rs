//! The signal mask that this process was started with, the signals that it ignored, and the standard streams that it
//! lacked. It changes them for itself; programs that it starts are to have them as they were.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and gives a child the default. It opens `/dev/null` in place of streams
//! that are closed. So a function that the C library calls earlier notes both.

use crate::kernel::signal::set_action;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Flag: the process was started with SIGPIPE ignored, as systemd does.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

/// Flags: the process was started without standard input, output, or error.
static LACKS_STREAM: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[unsafe(link_section = ".text.startup")]
extern "C" fn note() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Relaxed);
    for (fd, lacks) in (0..).zip(&LACKS_STREAM) {
        lacks.store(fcntl_getfd(standard(fd)).is_err(), Relaxed);
    }
}

// SAFETY: a pointer to a function of this kind is what the section is made of. Nothing has to be set up for it: it makes
// system calls alone.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// By the system call: the library has this code too, where libc's name may lead to the program, which has not begun.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks only.
    unsafe { set_action(signal, None) }.handler == libc::SIG_IGN
}

/// A standard stream, for calls that fail where it is closed.
fn standard(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: not -1. Nothing of ours has this number.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A signal mask, whether SIGPIPE and SIGCHLD are ignored, and the limit of descriptors.
#[derive(Clone, Copy)]
pub struct Inherited {
    mask: libc::sigset_t,
    ignores_pipe: bool,
    ignores_child: bool,
    files: Rlimit,
}

impl Inherited {
    /// With this mask; and children tell of their end from now on, whatever the starter of this process wanted.
    pub(crate) fn take(mask: libc::sigset_t) -> Self {
        let ignores_child = is_ignored(libc::SIGCHLD);
        if ignores_child {
            // SAFETY: the default has no handler.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        Self {
            mask,
            ignores_pipe: IGNORES_PIPE.load(Relaxed),
            ignores_child,
            files: getrlimit(Resource::Nofile),
        }
    }

    /// Lets the program that `command` starts have these, and none of the standard streams that this process was started
    /// without.
    pub fn restore_all_in(&self, command: &mut Command) {
        let lacks = LACKS_STREAM.each_ref().map(|lacks| lacks.load(Relaxed));
        // SAFETY: the closure makes system calls and touches no memory but its own.
        unsafe {
            command.pre_exec(move || {
                for (fd, _) in (0..).zip(lacks).filter(|(_, lacks)| *lacks) {
                    let _ = fcntl_setfd(standard(fd), FdFlags::CLOEXEC);
                }
                Ok(())
            });
        }
        self.restore_in(command);
    }

    /// Lets the program that `command` starts have these. Its standard streams are another matter.
    pub fn restore_in(&self, command: &mut Command) {
        let Self {
            mask,
            ignores_pipe,
            ignores_child,
            files,
        } = *self;
        // SAFETY: the closure calls only signal, setrlimit and pthread_sigmask, which are async-signal-safe, with what it
        // owns.
        unsafe {
            command.pre_exec(move || {
                for (signal, ignored) in [
                    (libc::SIGPIPE, ignores_pipe),
                    (libc::SIGCHLD, ignores_child),
                ] {
                    if ignored {
                        libc::signal(signal, libc::SIG_IGN);
                    }
                }
                // Refused only if the limit was lowered since: then that one stays.
                let _ = setrlimit(Resource::Nofile, files);
                match libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut()) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
    }
}
