//! `ebb run --on-exhausted`: a command of the user's when a program of the tree is ended for memory.
//!
//! The member says so before it ends; the supervisor writes it for the user, and hands it to the command. Programs do not
//! wait for the command. `ebb` does before it ends, for [`PATIENCE`]: the command asks it for figures, and in a
//! container whose first process `ebb` is, nobody outlives it. It supervises meanwhile, and a signal that ends programs
//! ends the wait.

use crate::say;
use crate::wait::Running;
use ebb_sys::inherited::Inherited;
use ebb_sys::proc;
use ebb_tree::{Notices, OUT_OF_MEMORY, Supervisor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{self, stderr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest that `ebb` waits for commands before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// The commands that run, as pidfds.
#[derive(Clone, Default)]
pub struct Hooks(Arc<Mutex<Vec<OwnedFd>>>);

impl Hooks {
    /// Those that run still.
    fn running(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|hook| !proc::has_ended(hook));
        all
    }

    /// One without a descriptor is not waited for.
    fn add(&self, shell: &Child) {
        if let Ok(hook) = pidfd_open(Pid::from_child(shell), PidfdFlags::empty()) {
            self.running().push(hook);
        }
    }

    /// Waits for them, after the program has ended.
    ///
    /// # Errors
    /// Those of poll(2), which mean a bug.
    pub fn wait(&self, ended: &Running, supervisor: &mut Supervisor) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let running = self.running();
            if running.is_empty() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                say::line(&format!(
                    "ebb: --on-exhausted: the command still runs after {} s: it is waited for no longer",
                    PATIENCE.as_secs()
                ));
                drop(running);
                self.running().clear();
                return Ok(());
            }
            let others = [ended.as_fd(), supervisor.as_fd()];
            let all = running.iter().map(AsFd::as_fd).chain(others);
            let mut ready: Vec<_> = all
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let due =
                Timespec::try_from(left.min(supervisor.due_in())).map_err(io::Error::other)?;
            match poll(&mut ready, Some(&due)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // The supervisor may start another.
            drop(ready);
            drop(running);
            if ended.pass_on_to_all(supervisor) {
                return Ok(());
            }
            supervisor.turn()?;
            say::kept();
        }
    }
}

/// Writes the supervisor's lines, and starts the command after those that tell of such an end, with the signals that `ebb`
/// was started with.
pub fn notices(command: Option<OsString>, inherited: Inherited) -> (Notices, Hooks) {
    let all = Hooks::default();
    let hooks = all.clone();
    let notices: Notices = Box::new(move |line| {
        say::line(&format!("ebb: {line}"));
        let command = command.as_ref().filter(|_| line.contains(OUT_OF_MEMORY))?;
        let mut shell = Command::new("/bin/sh");
        inherited.restore_in(&mut shell);
        let started = shell
            .arg("-c")
            .arg(command)
            .env("EBB_PID", std::process::id().to_string())
            .env("EBB_MESSAGE", line)
            .stdin(Stdio::null())
            // Standard output is the program's.
            .stdout(stderr_again())
            .spawn();
        let said = |error: &io::Error| {
            say::line(&format!(
                "ebb: --on-exhausted: {error}: is there a /bin/sh?"
            ));
        };
        let shell = started.inspect_err(said).ok()?;
        hooks.add(&shell);
        Some(shell.id())
    });
    (notices, all)
}

fn stderr_again() -> Stdio {
    let copy = stderr().as_fd().try_clone_to_owned();
    copy.map_or_else(|_| Stdio::null(), Stdio::from)
}
