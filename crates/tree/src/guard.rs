//! The guard: a process of the tree's own that keeps swapped-out memory from reading as zeros.
//!
//! With the last descriptor of a userfaultfd its memory ceases to be registered, and pages that are out read
//! as zeros. A helper and the supervisor have one each. If both are killed at once (`pkill -9 ebb` names both),
//! the program would go on with zeros. So the supervisor passes a third descriptor on to the guard.
//!
//! ```text
//! supervisor   starts it when the first member pages; sends it, for each member that pages, a packet with
//!              three descriptors: userfaultfd, pidfd of the program, pidfd of the helper; and one without any when
//!              it leaves standard error, whose reader waits until nobody has it
//! guard        forgets a member when its program and its helper have ended, or the program has become another
//!              once the supervisor is gone: kills the program of each helper that is gone, and each helper that
//!              is left over: a program that is killed may hold a lock for which its helper waits
//!              ends when the supervisor and all members are gone
//! ```
//! It has a group and a name of its own, so that what is aimed at the others does not meet it.
//!
//! What it does not do: serve a fault, or know of members that joined after the supervisor's end (none can).
//! A member whose packet cannot be sent at once is sent again with the next tick.

use crate::protocol;
use crate::table::WAITS_FOR_CHILDREN;
use ebb_sys::proc;
use ebb_sys::userfaultfd::Userfaultfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::process::{Signal, pidfd_send_signal};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The packet of a member.
const MEMBER: u8 = 0;
/// The packet that standard error is to be left.
const LEAVE_STDERR: u8 = 1;

/// How long a helper has to end by itself once its program has, and it has waited for children. It cannot where the
/// program was killed within a memory call, whose lock nobody gives back.
pub(crate) const PROMPT: Duration = Duration::from_millis(250);
/// The same, however long it waits for children.
pub(crate) const GRACE: Duration = WAITS_FOR_CHILDREN.saturating_add(PROMPT);

/// Starts a process that calls [`guard`] with this socket; returns its number in the system.
pub type Launcher = Box<dyn FnMut(OwnedFd) -> io::Result<u32> + Send>;

/// The supervisor's end.
#[derive(Default)]
pub(crate) struct Guard {
    launcher: Option<Launcher>,
    running: Option<(u32, OwnedFd)>,
    /// Guards that ended so far: the number of the one that runs, or is to run.
    number: u32,
}

impl Guard {
    pub fn new(launcher: Option<Launcher>) -> Self {
        Self {
            launcher,
            running: None,
            number: 0,
        }
    }

    /// The number of the guard that runs or is to run. It changes when one ends: the next knows no member yet.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Sees whether it was killed.
    pub fn notice_end(&mut self) {
        let Some((_, socket)) = &self.running else {
            return;
        };
        let mut all = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec::default();
        if poll(&mut all, Some(&now)).is_ok_and(|ready| ready > 0) {
            self.ended();
        }
    }

    fn ended(&mut self) {
        self.running = None;
        self.number += 1;
    }

    /// The guard's process.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(pid, _)| *pid)
    }

    /// Whether a member is guarded from now on; if not, the attempt is repeated later.
    pub fn add(&mut self, memory: &Userfaultfd, program: &OwnedFd, helper: &OwnedFd) -> bool {
        if self.running.is_none()
            && let Some(launcher) = &mut self.launcher
        {
            self.running = start(launcher).ok();
            if self.running.is_none() {
                // The next attempt would be no better.
                self.launcher = None;
            }
        }
        let Some((_, socket)) = &self.running else {
            // Without it all else works.
            return true;
        };
        let fds = [memory.as_fd(), program.as_fd(), helper.as_fd()];
        match protocol::send(socket, &[MEMBER], &fds) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            Err(_) => {
                // It was killed: another takes its place, and is told of all.
                self.ended();
                false
            }
        }
    }

    /// Lines of the guard go nowhere from now on.
    pub fn leave_stderr(&self) {
        if let Some((_, socket)) = &self.running {
            // One that takes nothing is stopped or dead, and nothing can be done about that here.
            let _ = protocol::send(socket, &[LEAVE_STDERR], &[]);
        }
    }
}

fn start(launcher: &mut Launcher) -> io::Result<(u32, OwnedFd)> {
    let (ours, theirs) = net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((launcher(theirs)?, ours))
}

/// A member, as the guard knows it.
struct Guarded {
    memory: Userfaultfd,
    program: OwnedFd,
    helper: OwnedFd,
    helper_ended: bool,
    program_ended: bool,
    /// The program has ended without a supervisor: the helper is killed then.
    helper_due: Option<Instant>,
    /// Flag: the program is being killed: the memory is held until it is dead.
    killed: bool,
}

impl Guarded {
    fn from(fds: Vec<OwnedFd>) -> Option<Self> {
        let [memory, program, helper] = fds.try_into().ok()?;
        Some(Self {
            memory: Userfaultfd::from(memory),
            program,
            helper,
            helper_ended: false,
            program_ended: false,
            helper_due: None,
            killed: false,
        })
    }

    /// Sees who of the two has ended, and what is to be done about it; whether it is still to be guarded.
    fn attend(&mut self, supervised: bool) -> bool {
        self.program_ended |= proc::has_ended(&self.program);
        self.helper_ended |= proc::has_ended(&self.helper);
        match (self.program_ended, self.helper_ended) {
            (true, true) => false,
            (true, false) => {
                if !supervised {
                    self.end_helper();
                }
                true
            }
            (false, false) => true,
            (false, true) => {
                let in_use = self.memory.is_used();
                if in_use && !supervised && !self.killed {
                    self.killed = true;
                    self.end();
                }
                in_use
            }
        }
    }

    /// The helper has a moment to end by itself.
    fn end_helper(&mut self) {
        let now = Instant::now();
        let due = *self.helper_due.get_or_insert(now + GRACE);
        if due <= now {
            // It has ended just now, or is killed.
            let _ = pidfd_send_signal(&self.helper, Signal::KILL);
            self.helper_due = Some(now + GRACE);
        }
    }

    /// Kills the program: its helper is gone, and nobody can bring back what is out.
    fn end(&self) {
        let name = proc::pidfd_target(self.program.as_fd())
            .map(|process| format!("{} [{}]", proc::name(process.pid), process.pid));
        if pidfd_send_signal(&self.program, Signal::KILL).is_ok() {
            let name = name.unwrap_or_else(|_| "a process".into());
            // Standard error may be gone as well.
            let _ = writeln!(
                io::stderr(),
                "ebb: {name} is ended: `ebb run` and the process of ours that served its memory are gone, and \
                 nobody can bring back what was swapped out; look for who killed them"
            );
        }
    }
}

/// Guards the members that come by `supervisor`, until that and all of them are gone.
///
/// # Errors
/// Those of poll(2); none is expected.
pub fn guard(supervisor: OwnedFd) -> io::Result<()> {
    let mut supervisor = Some(supervisor);
    let mut members: Vec<Guarded> = Vec::new();
    while supervisor.is_some() || !members.is_empty() {
        wait(supervisor.as_ref(), &members)?;
        while let Some(socket) = &supervisor {
            match protocol::receive_up_to(socket, 1, net::RecvFlags::DONTWAIT) {
                Ok((packet, _)) if packet == [LEAVE_STDERR] => leave_stderr(),
                Ok((packet, fds)) if !packet.is_empty() => members.extend(Guarded::from(fds)),
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => supervisor = None,
            }
        }
        members.retain_mut(|member| member.attend(supervisor.is_some()));
    }
    Ok(())
}

fn leave_stderr() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(null);
    }
}

/// Waits until the supervisor says something, somebody ends, or a helper is due.
fn wait(supervisor: Option<&OwnedFd>, members: &[Guarded]) -> io::Result<()> {
    let helpers = members.iter().filter(|member| !member.helper_ended);
    let programs = members.iter().filter(|member| !member.program_ended);
    let mut all: Vec<PollFd<'_>> = supervisor
        .into_iter()
        .chain(programs.map(|member| &member.program))
        .chain(helpers.map(|member| &member.helper))
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let due = members.iter().filter_map(|member| member.helper_due).min();
    let until_due = due.and_then(|due| {
        let left = due.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    });
    match poll(&mut all, until_due.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
