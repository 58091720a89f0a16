//! The signal mask that this process was started with, and the signals that it ignored. It changes both for itself;
//! programs that it starts are to have them as they were.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and gives a child the default. So a function that the C library calls
//! earlier notes it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Flag: the process was started with SIGPIPE ignored, as systemd does.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

#[unsafe(link_section = ".text.startup")]
extern "C" fn note() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Relaxed);
}

// SAFETY: a pointer to a function of this kind is what the section is made of. Nothing has to be set up for it: it makes
// one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks only; on success `now` is filled.
    unsafe {
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
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

    /// Lets the program that `command` starts have it.
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
