//! A process that has joined, and the helper that may serve it.

use crate::guard::Guard;
use crate::protocol::HelperExit;
use ebb_sys::proc::{self, Image, Process};
use ebb_sys::userfaultfd::Userfaultfd;
use ebb_sys::{peer, thread};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_send_signal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// A process that has joined.
pub(super) struct ManagedProcess {
    pub process: Process,
    /// The name when it was last seen.
    pub name: String,
    /// The connection; none once it has ended.
    pub connection: Option<OwnedFd>,
    /// Readable when the process is dead.
    pub pidfd: OwnedFd,
    pub image: Image,
    /// The process that serves it and holds the connection, if not the process itself.
    pub helper: Option<Helper>,
    /// The userfaultfd, from when it pages.
    pub userfaultfd: Option<Userfaultfd>,
    /// The number of the guard that has been told of it.
    pub guarded_by: Option<u32>,
    /// Flag: its process has joined again, as another program.
    pub replaced: bool,
}

/// The process that serves a member.
pub(super) struct Helper {
    pub pid: u32,
    /// Readable when every thread of it is gone.
    pub pidfd: OwnedFd,
    /// Flag: it is gone.
    pub ended: bool,
    /// The time when it is killed: its program is gone.
    pub due: Option<Instant>,
    /// The latest that this may come to be, for children's sake.
    pub latest: Option<Instant>,
    /// Flag: it is killed.
    pub killed: bool,
    /// The reason why it exits, if it has said so.
    pub exit: Option<HelperExit>,
}

/// A process that joins, and who serves it.
pub(super) struct Joining {
    pub process: Process,
    pub pidfd: OwnedFd,
    pub image: Image,
    pub helper: Option<Helper>,
    /// The helper as a process, and its image before its memory was looked at.
    serving: Option<(Process, Image)>,
}

/// Why that cannot be told.
pub(super) enum Unknown {
    Exhausted,
    /// The system lacks something for the look, for the moment.
    Short(Errno),
    /// Program and helper are not of one memory: the program may have become another meanwhile.
    Apart(String),
    Because(String),
}

impl From<Errno> for Unknown {
    fn from(e: Errno) -> Self {
        match e {
            Errno::MFILE | Errno::NFILE => Self::Exhausted,
            e if is_shortage(e) => Self::Short(e),
            e => Self::Because(format!("its process cannot be looked at: {e}")),
        }
    }
}

impl Joining {
    /// The process at the other end of a connection: process `peer`, or the program whose helper it is. For a forked
    /// child a slot is `reserved`.
    pub fn of(
        connection: &OwnedFd,
        peer: u32,
        program: Option<&OwnedFd>,
        reserved: bool,
    ) -> Result<Self, Unknown> {
        // Of who connected, not of another that has the number by now.
        let connected = peer::pidfd(connection.as_fd()).map_err(Errno::from)?;
        let Some(program) = program else {
            let (process, pidfd, image) = identify_by(connected, peer)?;
            return Ok(Self {
                process,
                pidfd,
                image,
                helper: Helper::simulated(peer)?,
                serving: None,
            });
        };
        let target = proc::pidfd_target(program.as_fd())?;
        let (process, pidfd, image) = identify(target.pid)?;
        let (serving, helper, served) = identify_by(connected, peer)?;
        // The numbers were read one after the other: theirs if both live now.
        if proc::pidfd_target(program.as_fd())?.pid != process.pid() {
            return Err(Errno::SRCH.into());
        }
        // Nothing tells of memory that is not to be dumped (PR_SET_DUMPABLE), where this process is not privileged. A
        // member of the same user could do as much to it without us.
        let untold = reserved && !image.is_some() && !served.is_some();
        let shared = proc::share_memory(peer, process.pid());
        let one = shared.unwrap_or_else(|| match untold {
            true => process.is_of_one_user_with(&serving),
            false => image.is_some() && served == image,
        });
        if !one || serving.pid() == process.pid() {
            let hidden = shared.is_none() && !image.is_some() && !served.is_some();
            return Err(match hidden {
                true => Unknown::Because(HIDDEN.into()),
                false => Unknown::Apart(format!(
                    "it does not share the memory of process {}",
                    process.pid()
                )),
            });
        }
        Ok(Self {
            process,
            pidfd,
            image,
            helper: Some(Helper::new(peer, helper)),
            serving: Some((serving, served)),
        })
    }

    /// The process that connected, with its image.
    fn connected(&self) -> (&Process, Image) {
        let serving = self.serving.as_ref();
        serving.map_or((&self.process, self.image), |(serving, image)| {
            (serving, *image)
        })
    }

    /// The number of the process that connected.
    pub fn connected_pid(&self) -> u32 {
        self.connected().0.pid()
    }

    /// Whether program and helper are the user who connected, and can become no other. And no program with more rights
    /// than its user's is in the memory of who connected, nor any other than at first: `/proc` would show it to whoever
    /// has the connection.
    pub fn is_as_it_connected(&self, uid: u32) -> Result<bool, Errno> {
        let (connected, image) = self.connected();
        Ok(self.process.is_user(uid)?
            && connected.is_user(uid)?
            && !connected.has_rights_of_its_file()?
            && connected.stat()?.image == image)
    }
}

impl Helper {
    fn new(pid: u32, pidfd: OwnedFd) -> Self {
        Self {
            pid,
            pidfd,
            ended: false,
            due: None,
            latest: None,
            killed: false,
            exit: None,
        }
    }

    /// That of process `peer` in a simulation, where both are parts of one process; none otherwise.
    fn simulated(peer: u32) -> Result<Option<Self>, Errno> {
        #[cfg(debug_assertions)]
        if let Some(helpers) = crate::waits::helpers() {
            return Ok(Some(Self::new((helpers.of)(peer), open_pidfd(peer)?)));
        }
        let _ = peer;
        Ok(None)
    }

    /// Whether there is a helper of this number; also where that cannot be told.
    pub fn lives(pid: u32) -> bool {
        match Self::simulated(pid) {
            Ok(Some(helper)) => !helper.is_gone(),
            _ => match open_pidfd(pid) {
                Ok(pidfd) => !proc::has_ended(&pidfd),
                Err(error) => is_shortage(error),
            },
        }
    }

    /// Whether every thread of it is gone.
    pub fn is_gone(&self) -> bool {
        #[cfg(debug_assertions)]
        if let Some(helpers) = crate::waits::helpers() {
            return !(helpers.live)(self.pid);
        }
        proc::has_ended(&self.pidfd)
    }

    /// Ends it, whatever it does. It is reaped when it is gone.
    pub fn kill(&mut self) {
        if std::mem::replace(&mut self.killed, true) {
            return;
        }
        #[cfg(debug_assertions)]
        if let Some(helpers) = crate::waits::helpers() {
            return (helpers.kill)(self.pid);
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // The memory goes with the last of its threads, and one of idle urgency gets no processor where others want
        // them all. After the signal: none makes itself idle any more.
        if !proc::has_ended(&self.pidfd) {
            thread::compete(self.pid);
        }
    }

    /// Whether its time to end is over.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.ended && self.due.is_some_and(|due| now >= due)
    }
}

impl ManagedProcess {
    /// The name now. A process that was killed may be gone before its last message is read: then it is the name that
    /// it had.
    pub fn name(&mut self) -> &str {
        if let Some(name) = proc::name_if_there(self.process.pid()) {
            self.name = name;
        }
        &self.name
    }

    /// Tells the guard that runs of a member that pages and has a helper, unless it knows.
    pub fn be_guarded(&mut self, guard: &mut Guard) {
        if let (Some(memory), Some(helper)) = (&self.userfaultfd, &self.helper)
            && self.guarded_by != Some(guard.number())
            && guard.add(memory, &self.pidfd, &helper.pidfd)
        {
            self.guarded_by = Some(guard.number());
        }
    }

    /// Whether the process is dead or has become another program.
    pub fn program_is_gone(&self) -> bool {
        #[cfg(debug_assertions)]
        if let Some(helpers) = crate::waits::helpers()
            && !(helpers.program_lives)(self.process.pid())
        {
            return true;
        }
        self.replaced
            || proc::has_ended(&self.pidfd)
            || self
                .userfaultfd
                .as_ref()
                .is_some_and(|memory| !memory.is_used())
            || self
                .process
                .stat()
                .is_ok_and(|stat| stat.image.is_some() && stat.image != self.image)
    }

    /// Whether it is this user, or can be again, and did not come by that by another program than it joined with.
    pub fn has_user(&self, user: u32) -> Result<bool, Errno> {
        let has = self.process.has_user(user)?;
        // After the users: what runs the same program now did so then.
        let image = self.process.stat()?.image;
        Ok(has
            && match image.is_some() && self.image.is_some() {
                true => image == self.image,
                // Nothing tells. A program that has its user by its file is somebody else's yet.
                false => self.process.is_user(user)?,
            })
    }

    /// Whether its helper, if it ever had one, still lives in its memory.
    pub fn has_helper_in_it(&self) -> bool {
        self.helper
            .as_ref()
            .is_none_or(|helper| !helper.ended && self.process.lives_in(helper.pid))
    }

    /// The helper, if it lives.
    pub fn living_helper(&self) -> Option<&Helper> {
        self.helper.as_ref().filter(|helper| !helper.ended)
    }
}

fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Descriptors of one process, bound to it for good: opened by number, then confirmed by a
/// read from the first that the process was still there.
pub(super) fn identify(pid: u32) -> Result<(Process, OwnedFd, Image), Errno> {
    let process = Process::open(pid)?;
    let pidfd = open_pidfd(pid)?;
    let image = process.stat()?.image;
    Ok((process, pidfd, image))
}

/// Whether a process could not be looked at because the system lacks something for that: nothing is known of it then. The
/// kernel charges what it shows in `/proc`, and pidfds, to the memory cgroup.
pub(super) fn is_shortage(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR
    )
}

/// The same of a process that a pidfd stands for, by the number that it had when last seen.
fn identify_by(pidfd: OwnedFd, pid: u32) -> Result<(Process, OwnedFd, Image), Errno> {
    let process = Process::open(pid)?;
    let image = process.stat()?.image;
    // The number is its own, so it was as the files were opened.
    match proc::pidfd_target(pidfd.as_fd())?.pid == pid {
        true => Ok((process, pidfd, image)),
        false => Err(Errno::SRCH),
    }
}

/// Why nothing can be told of a process of the same user.
pub const HIDDEN: &str = "it hides its memory (PR_SET_DUMPABLE), or its file may not be read";
/// The refusal for a process for which no descriptor is left.
pub(super) const NO_DESCRIPTORS: &str = "`ebb run` is out of descriptors; raise `ulimit -n`";
