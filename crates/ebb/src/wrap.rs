//! `ebb run --wrap`: for programs that another program starts, signals and ends, as a frontend of Jupyter does
//! with a kernel.
//!
//! Such a program sends signals to the process group that it has started, and `ebb` passes signals on: without
//! `--wrap` each would come twice.
//! ```text
//! group       the program leads one of its own; `ebb` passes each signal on to it
//! ebb killed  a second process of ours, which waits for the end of a pipe, kills that group
//! parent ends the group gets SIGTERM, and the tree SIGKILL if it is still there after 5 s
//! program ends the second process ends, before `ebb` looks which processes the program has left
//! ```
//!
//! Not here: passing signals on (`wait`).

use crate::ending;
use anyhow::{Context, Result};
use ebb_sys::descriptors;
use ebb_tree::Supervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, kill_process_group, pidfd_open};
use std::cell::Cell;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Names the frontend to a kernel, which ends when that is not its parent any more.
const JPY_PARENT: &str = "JPY_PARENT_PID";

/// Time that the program has after its frontend's end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A wrapped program.
pub struct Wrap {
    /// `ebb`'s parent; none if it ended before.
    parent: Option<OwnedFd>,
    /// Time at which the parent was seen to have ended, and whether all were killed since.
    ended: Cell<Option<(Instant, bool)>>,
    /// The pipe: its end makes the other process kill the group.
    pipe: PipeWriter,
    /// The other process.
    other: Child,
}

impl Wrap {
    /// Gives the program a group of its own, and starts the process that outlives `ebb`.
    ///
    /// # Errors
    /// No process can be started.
    pub fn begin(command: &mut Command) -> Result<Self> {
        command.process_group(0);
        let parent = getppid();
        let named = std::env::var(JPY_PARENT).ok();
        let named = named
            .and_then(|text| text.parse().ok())
            .and_then(Pid::from_raw);
        if named.is_some() && named == parent {
            command.env(JPY_PARENT, getpid().as_raw_nonzero().to_string());
        }
        let (read, pipe) = io::pipe().context("--wrap")?;
        let mut other = Command::new("/proc/self/exe");
        // The caller's descriptors are for the program.
        descriptors::keep_from(&mut other);
        let other = other
            .arg0("tide-wrap")
            .arg("end-group")
            .current_dir("/")
            .env_clear()
            .stdin(read)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("--wrap: cannot start ebb again")?;
        Ok(Self {
            parent: parent.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            ended: Cell::new(None),
            pipe,
            other,
        })
    }

    /// The program leads this group.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn started(&mut self, pid: u32) -> io::Result<()> {
        self.pipe.write_all(format!("{pid}\n").as_bytes())
    }

    /// Becomes readable when the parent ends, until it has.
    pub fn parent(&self) -> Option<BorrowedFd<'_>> {
        let parent = self.parent.as_ref().filter(|_| self.ended.get().is_none());
        parent.map(AsFd::as_fd)
    }

    /// Ends the program of a parent that has ended.
    pub fn look(&self, program: Pid, supervisor: &Supervisor) {
        match self.ended.get() {
            None if self.parent_has_ended() => {
                self.ended.set(Some((Instant::now(), false)));
                let _ = kill_process_group(program, Signal::TERM);
                let _ = kill_process_group(program, Signal::CONT);
            }
            Some((since, false)) if since.elapsed() > PATIENCE => {
                self.ended.set(Some((since, true)));
                let _ = kill_process_group(program, Signal::KILL);
                ending::send_all(supervisor, Signal::KILL);
            }
            _ => {}
        }
    }

    /// The program has ended by itself: processes that it left behind live on, the other process does not.
    pub fn over(self) {
        let Self {
            mut pipe,
            mut other,
            ..
        } = self;
        let _ = pipe.write_all(b"end\n");
        drop(pipe);
        // An error: whoever waits for any child has seen its end.
        let _ = other.wait();
    }

    fn parent_has_ended(&self) -> bool {
        let Some(parent) = &self.parent else {
            return false;
        };
        let mut ready = [PollFd::new(parent, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())) == Ok(1)
    }
}

/// `ebb end-group`: kills the group whose number stands in the pipe, unless the pipe says that all is over.
///
/// # Errors
/// Standard input is no such pipe.
pub fn end_group() -> Result<ExitCode> {
    let mut text = String::new();
    let told = io::stdin().read_to_string(&mut text);
    told.context("it is started by `ebb run --wrap` alone")?;
    let mut lines = text.lines();
    let group = lines
        .next()
        .and_then(|line| line.parse().ok())
        .and_then(Pid::from_raw);
    if let (Some(group), None) = (group, lines.next()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(ExitCode::SUCCESS)
}
