//! Starts the command and stands in for it:
//!
//! - signals sent to `ebb` reach the program, but those that are a process's own matter (`signalfd::passed_on`);
//! - a stop of the program stops `ebb`, if it is one that a shell is to notice (`Running::stops_with`);
//! - orphans of the tree are reaped;
//! - the program's end becomes ours: its exit status, or its signal.
//!
//! The program starts in our process group, so terminal keys reach it directly and are not forwarded a second
//! time. One that has left the group, as `timeout` does, gets them from `ebb`, and so does the group that it leads. `wrap`
//! is for programs that another program starts. A hang-up comes to the leader of a session alone, so one
//! passes it on. The supervisor gets its turns in between. A program that
//! was told to end and does not is the matter of `ending`.

use crate::ending::{self, Told};
use crate::wrap::Wrap;
use ebb_sys::signalfd::{self, Received, Signals};
use ebb_tree::{ANY_CHILD, Supervisor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, getppid, getsid, kill_process, wait,
};
use rustix::termios::tcgetpgrp;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, ExitCode};

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

impl End {
    /// As shells report it.
    pub fn status(self) -> u8 {
        match self {
            End::Exited(status) => status,
            End::Killed(signal) => 128 + signal,
        }
    }

    /// Ends this process as the program has ended; returns where that is to exit with a status. A shell stops a script
    /// if SIGINT has killed its child, not if that exits with 130. A service of systemd is expected to die of the
    /// SIGTERM that it was sent.
    ///
    /// After SIGKILL, which ends for memory are, it exits: else `ebb` would seem to have been killed itself, and to have
    /// left its tree alone.
    pub fn repeat(self) -> ExitCode {
        if let End::Killed(signal) = self
            && i32::from(signal) != libc::SIGKILL
        {
            signalfd::die_of(signal.into());
        }
        self.status().into()
    }
}

/// The running program.
pub struct Running {
    pid: Pid,
    signals: Signals,
    wrap: Option<Wrap>,
}

/// Signals that are taken and go no further. SIGCHLD ends a wait. SIGTTOU would stop `ebb` for a line on a terminal where a
/// shell under it has another group in the foreground (`stty tostop`); blocked it does not come.
const UNHEEDED: [i32; 2] = [libc::SIGCHLD, libc::SIGTTOU];

/// Blocks the signals to forward, and those unheeded. Before any thread is started: they inherit the mask.
///
/// # Errors
/// Those of signalfd(2).
pub fn prepare() -> io::Result<Signals> {
    let all: Vec<i32> = signalfd::passed_on().chain(UNHEEDED).collect();
    Signals::block(&all)
}

/// The system sends these to the program as well, if that is in our process group, or for what `ebb` itself has used up.
/// All others are the program's, as that of a timer that was set before `ebb` took its starter's place.
fn is_ours(signal: i32) -> bool {
    is_key(signal) || is_hang_up(signal) || [libc::SIGXCPU, libc::SIGXFSZ].contains(&signal)
}

/// A terminal sends these to its foreground group: for keys, and once it has another size.
fn is_key(signal: i32) -> bool {
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGWINCH].contains(&signal)
}

/// Takes children that have ended: orphans of the tree, and commands that `ebb` has started.
pub fn reap_children() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG | ANY_CHILD) {}
}

/// A terminal that is gone sends these, one after the other.
fn is_hang_up(signal: i32) -> bool {
    [libc::SIGHUP, libc::SIGCONT].contains(&signal)
}

impl AsFd for Running {
    /// Readable when a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Running {
    /// Starts `command` with the signals that `ebb` was started with, and without the standard streams that it lacked.
    ///
    /// # Errors
    /// Those of fork and exec.
    pub fn start(
        mut command: Command,
        signals: Signals,
        mut wrap: Option<Wrap>,
    ) -> io::Result<Self> {
        signals.inherited().restore_all_in(&mut command);
        let child = command.spawn()?;
        if let Some(wrap) = &mut wrap {
            wrap.started(child.id())?;
        }
        Ok(Self {
            pid: Pid::from_child(&child),
            signals,
            wrap,
        })
    }

    /// Supervises until the program has ended, and calls `after` each of the supervisor's turns.
    ///
    /// # Errors
    /// Those of poll(2) and wait(2), which mean a bug.
    pub fn wait(
        &mut self,
        supervisor: &mut Supervisor,
        after: impl FnMut(&mut Supervisor),
    ) -> io::Result<End> {
        let end = self.until_end(supervisor, after);
        if let Some(wrap) = self.wrap.take() {
            wrap.over();
        }
        end
    }

    fn until_end(
        &self,
        supervisor: &mut Supervisor,
        mut after: impl FnMut(&mut Supervisor),
    ) -> io::Result<End> {
        let mut told = Told::default();
        loop {
            if let Some(end) = self.reap()? {
                return Ok(end);
            }
            let due = told.due_in();
            let due = due.map_or(supervisor.due_in(), |due| due.min(supervisor.due_in()));
            // The supervisor measures more often than whole milliseconds can express.
            let due = Timespec::try_from(due).map_err(io::Error::other)?;
            let mut ready = vec![
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(supervisor.as_fd(), PollFlags::IN),
            ];
            let parent = self.wrap.as_ref().and_then(Wrap::parent);
            ready.extend(parent.map(|parent| PollFd::from_borrowed_fd(parent, PollFlags::IN)));
            match poll(&mut ready, Some(&due)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(wrap) = &self.wrap {
                wrap.look(self.pid, supervisor);
            }
            while let Some(received) = self.signals.take() {
                self.pass_on(received, &mut told, supervisor);
            }
            told.look(supervisor);
            supervisor.turn()?;
            after(supervisor);
        }
    }

    fn pass_on(&self, received: Received, told: &mut Told, supervisor: &Supervisor) {
        let signal = received.signal;
        if UNHEEDED.contains(&signal) {
            return;
        }
        let ends = ending::ends(signal);
        if ends && told.is_forced(signal, supervisor) {
            return;
        }
        // A wrapped program is in no foreground group: terminal keys do not reach it.
        let ours_alone = || self.wrap.is_some() || self.is_told_alone(signal);
        if !received.from_kernel || !is_ours(signal) || ours_alone() {
            self.forward(received);
        }
        if ends {
            told.sent(self.pid, signal);
        }
    }

    /// After the program has ended: signals that end programs go to all processes that are left. Whether one came.
    pub fn pass_on_to_all(&self, supervisor: &Supervisor) -> bool {
        let mut came = false;
        while let Some(received) = self.signals.take() {
            if ending::ends(received.signal)
                && let Some(signal) = Signal::from_named_raw(received.signal)
            {
                ending::send_all(supervisor, signal);
                ending::send_all(supervisor, Signal::CONT);
                came = true;
            }
        }
        came
    }

    /// Whether the kernel tells this process of what a terminal does, and not the program.
    fn is_told_alone(&self, signal: i32) -> bool {
        let has_left = || getpgid(Some(self.pid)) != Ok(getpgrp());
        let leads_session = || getsid(None) == Ok(getpid());
        is_key(signal) && has_left() || is_hang_up(signal) && (leads_session() || has_left())
    }

    fn forward(&self, received: Received) {
        let pid = self.pid.as_raw_nonzero().get();
        // A key is for a whole group, and so is what takes a stop by a key back.
        let is_for_all =
            received.from_kernel && is_key(received.signal) || received.signal == libc::SIGCONT;
        let leads = || getpgid(Some(self.pid)) == Ok(self.pid);
        let to_group = self.wrap.is_some() || is_for_all && leads();
        // Gone already: its end is about to be seen.
        let _ = signalfd::pass_on(received, pid, to_group);
    }

    /// Whether `ebb` stops with the program, which this signal has stopped. Only a shell with job control knows what to
    /// do with a stopped `ebb`.
    ///
    /// SIGTSTP, SIGTTIN and SIGTTOU are such a shell's matter. SIGSTOP may be anybody's (`cpulimit`), who continues
    /// the program alone later. But a program may also stop itself so, and the shell waits for it in the foreground.
    fn stops_with(&self, signal: i32) -> bool {
        // Not kept: a supervisor that stays behind would keep whoever reads the terminal waiting.
        let Ok(terminal) = std::fs::File::open("/dev/tty") else {
            return false;
        };
        let is_job = || getpgid(getppid()) != Ok(getpgrp());
        let in_foreground = || {
            let group = tcgetpgrp(&terminal);
            group.is_ok() && group == getpgid(Some(self.pid))
        };
        signal != libc::SIGSTOP || is_job() && in_foreground()
    }

    /// Takes every child that ended or stopped.
    fn reap(&self) -> io::Result<Option<End>> {
        loop {
            let how = WaitOptions::NOHANG | WaitOptions::UNTRACED | ANY_CHILD;
            let (pid, status) = match wait(how) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if pid != self.pid {
                continue;
            }
            if let Some(status) = status.exit_status() {
                return Ok(Some(End::Exited(status as u8)));
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Some(End::Killed(signal as u8)));
            }
            if status
                .stopping_signal()
                .is_some_and(|by| self.stops_with(by))
            {
                // We run again: somebody continued us, perhaps us alone, and that is passed on.
                let _ = kill_process(getpid(), Signal::STOP);
            }
        }
    }
}
