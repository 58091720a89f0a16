//! Admission: which processes may connect, and which of those may join.
//!
//! The socket has a name that everybody on the machine can connect to. The kernel's note of the connecting
//! process (SO_PEERCRED) decides, never the packet:
//! ```text
//! another user        told no and closed as it is accepted; it takes no place here
//! the same, of the    may join, if it descends by processes of its user from one of ours, or from a member that has
//! tree                become that user: it is given the table, descriptors of its own memory that it may not open
//!                     itself, and devices to read alone
//! our user, or root   may ask (`ebb swap`, `ebb limit`), and is given text alone
//! our user, of the    may join: it is given the table, the key, and descriptors of devices
//! tree
//! ```
//! A process is of the tree if it descends from us. Parents in `/proc` tell, as orphans of the tree become
//! our children. A process that carries on for an earlier supervisor has no descendants in the tree. There
//! a process belongs to the tree if it descends from a known one, or if the table names it as the child of
//! one. There is no secret that could be inherited instead: whoever may read a program's environment may
//! read its memory as well.
//!
//! Connections that say nothing are bounded, those from outside in number and time, so that nobody's take
//! the descriptors that members need. A process of the tree may take its time: it may have been stopped.

use super::joiner::{Joiner, Look, PeerKind};
use super::managed_process::{Joining, NO_DESCRIPTORS};
use super::refusal::Refusal;
use super::{Supervisor, Token};
use crate::protocol::{self, Hello, Reply, Request};
use crate::table::{ChildSlot, Named};
use ebb_sys::peer::{self, Peer};
use ebb_sys::proc::Process;
use ebb_sys::userfaultfd::Userfaultfd;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};
use rustix::thread::CapabilitySet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections from outside the tree that say nothing.
const MAX_OUTSIDE: usize = 16;
/// How long they may.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// The same of processes of the tree: as many as can join at a time.
const MAX_INSIDE: usize = crate::MAX_MEMBERS;
/// The same of processes of the tree that have become another user.
const MAX_CHANGED: usize = 64;
/// Generations that are looked at.
const GENERATIONS: usize = 256;
/// How often a walk is begun again because a process on its way ended.
const MAX_WALKS: usize = 16;

/// A connection that has not said anything.
pub(super) struct Handshake {
    connection: OwnedFd,
    since: Instant,
    kind: PeerKind,
}

impl PeerKind {
    /// How many connections of the kind may say nothing.
    fn most(self) -> usize {
        match self {
            Self::Inside => MAX_INSIDE,
            Self::Changed => MAX_CHANGED,
            Self::Outside => MAX_OUTSIDE,
        }
    }
}

impl Supervisor {
    /// Takes connections that wait. The rest is taken at the next turn: who connects without end has no more than his part
    /// of the supervisor's time.
    pub(super) fn accept(&mut self) {
        const AT_ONCE: usize = 64;
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match net::accept_with(&self.listener, flags) {
                Ok(connection) => self.accept_one(connection),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    if !self.refuse_one() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// No descriptor is free for the waiting connection, and left waiting it would keep the queue readable
    /// and us spinning. It gets the descriptor kept for this, and a refusal. Whether somebody waited.
    fn refuse_one(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = net::accept_with(&self.listener, flags);
        if let Ok(connection) = &connection {
            refuse(connection, NO_DESCRIPTORS);
            if let Ok(Peer {
                pid: Some(pid),
                uid,
            }) = peer::of(connection.as_fd())
                && self.is_our_user(uid)
            {
                self.warn_exhausted(pid);
            }
        }
        // The kernel wants a descriptor before it looks whether anyone waits.
        let more = connection.is_ok();
        drop(connection);
        self.spare = super::spare();
        more
    }

    /// Somebody else may have had the last descriptor as the spare one was given away.
    pub(super) fn refill_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = super::spare();
        }
    }

    /// Whether processes of this user may join.
    pub(super) fn is_our_user(&self, uid: u32) -> bool {
        uid == rustix::process::geteuid().as_raw()
    }

    /// Somebody has connected.
    fn accept_one(&mut self, connection: OwnedFd) {
        let Ok(peer) = peer::of(connection.as_fd()) else {
            return;
        };
        let unserved = !self.is_our_user(peer.uid) && !self.settings.serves_other_users;
        if unserved && !self.warned_other_user && matches!(self.is_inside(&peer), Ok(true)) {
            self.warn_other_user(peer.uid);
        }
        let inside = || self.is_inside(&peer);
        let kind = match self.is_our_user(peer.uid) {
            // A process that joins is looked at once more.
            true if matches!(inside(), Ok(true)) => PeerKind::Inside,
            true => PeerKind::Outside,
            false if self.settings.serves_other_users => match inside() {
                Ok(true) => PeerKind::Changed,
                _ if peer.uid == 0 => PeerKind::Outside,
                Ok(false) => return refuse(&connection, &other_user(peer.uid)),
                // It is looked at once more.
                Err(refusal) if refusal.passes => PeerKind::Changed,
                Err(refusal) => return refuse(&connection, &refusal.why),
            },
            false if peer.uid == 0 => PeerKind::Outside,
            false => return refuse(&connection, &other_user(peer.uid)),
        };
        self.bound_handshakes(kind);
        let n = self.next_handshake;
        self.next_handshake = n.wrapping_add(1);
        let token = Token::Handshake(n).pack();
        if epoll::add(&self.epoll, &connection, token, epoll::EventFlags::IN).is_ok() {
            let since = Instant::now();
            self.handshakes.insert(
                n,
                Handshake {
                    connection,
                    since,
                    kind,
                },
            );
        }
    }

    fn is_inside(&self, peer: &Peer) -> Result<bool, Refusal> {
        peer.pid.map_or(Ok(false), |pid| self.descends(pid))
    }

    /// If as many say nothing as may, the oldest has to go, unless it has spoken and nobody has heard it yet.
    fn bound_handshakes(&mut self, kind: PeerKind) {
        let alike = || self.handshakes.iter().filter(|(_, g)| g.kind == kind);
        if alike().count() >= kind.most()
            && let Some(&oldest) = alike().min_by_key(|(_, g)| g.since).map(|(n, _)| n)
        {
            self.on_first_packet(oldest);
        }
    }

    /// Closes connections from outside that have said nothing for long. One that has spoken is heard: this process may
    /// have stood still meanwhile.
    pub(super) fn drop_silent_handshakes(&mut self) {
        let waits =
            |g: &Handshake| g.kind == PeerKind::Inside || g.since.elapsed() < HANDSHAKE_TIMEOUT;
        let due = self.handshakes.iter().filter(|(_, g)| !waits(g));
        let due: Vec<u32> = due.map(|(&n, _)| n).collect();
        due.into_iter().for_each(|n| self.on_first_packet(n));
    }

    /// A connection that has not said anything has something to read, or ended.
    pub(super) fn on_first_packet(&mut self, n: u32) {
        let Some(handshake) = self.handshakes.remove(&n) else {
            return;
        };
        let connection = handshake.connection;
        // A process from which this one took over may have it too.
        let _ = epoll::delete(&self.epoll, &connection);
        let Ok((packet, program)) = protocol::hear(&connection, protocol::MAX_REQUEST) else {
            return;
        };
        if let Some((version, request)) = Request::decode(&packet) {
            return self.serve(connection, version, request);
        }
        let Some(hello) = Hello::decode(&packet) else {
            return;
        };
        let joiner = Joiner {
            connection,
            hello,
            program,
            kind: handshake.kind,
            since: Instant::now(),
        };
        self.answer_hello(joiner, Joining::of);
    }

    /// Who has said hello joins, is refused, or is looked at again later.
    pub(super) fn answer_hello(&mut self, joiner: Joiner, look: Look) {
        let refusal = match self.join(&joiner, look) {
            Ok(slot) => return self.add_connection(slot, joiner.connection),
            Err(refusal) if refusal.passes && joiner.may_wait() => {
                return self.postpone(joiner);
            }
            Err(refusal) => refusal,
        };
        if joiner.kind == PeerKind::Changed
            && let Ok(peer) = peer::of(joiner.connection.as_fd())
        {
            self.warn_other_user(peer.uid);
        }
        // Before the answer: who has it goes on, and may end.
        self.warn_refused(&joiner, &refusal);
        // If the peer is gone already there is nobody to tell.
        refuse(&joiner.connection, &refusal.why);
    }

    /// Processes of the tree are of a user that cannot join: once, what becomes of them.
    fn warn_other_user(&mut self, uid: u32) {
        if !std::mem::replace(&mut self.warned_other_user, true) {
            self.notice(&format!(
                "processes of user {uid} run unmanaged, their memory stays in RAM: the tree is another user's; start \
                 `ebb run` as user {uid}, or as root with CAP_SYS_PTRACE and /dev/userfaultfd"
            ));
        }
    }

    /// The process behind a connection, and its user, which may still be one that cannot join.
    pub(super) fn member_behind(connection: &OwnedFd) -> Result<(u32, u32), String> {
        let peer = peer::of(connection.as_fd()).map_err(|e| e.to_string())?;
        let pid = peer.pid.ok_or("its process is out of sight")?;
        Ok((pid, peer.uid))
    }

    /// Whether a process of this other user may join: it descends, by processes of that user, from a member that has
    /// become that user, or from a process of the tree and of our user. That one started its child as root, which gave
    /// that up, perhaps with an exec. Nobody becomes a user that may join by running a program of that user's.
    ///
    /// A process keeps its number, and a connection its user, as it executes a program that has more rights than who
    /// runs it. So it has to be that user yet.
    fn admit_changed(&self, joining: &Joining, uid: u32) -> Result<(), Refusal> {
        let us = rustix::process::geteuid().as_raw();
        let pid = joining.process.pid();
        match joining.is_as_it_connected(uid) {
            Ok(true) => {}
            Ok(false) => {
                return Err(format!(
                    "process {pid} is not what it was as it connected, as user {uid}: its program has other rights"
                )
                .into());
            }
            Err(error) => return Err(cannot_tell(pid, error)),
        }
        let admits = |above: &Process| {
            if above.has_user(us)? && self.ascends_to_us(above.pid())? {
                return Ok(Some(true));
            }
            match above.has_user(uid)? {
                true if self.is_member(above) => Ok(Some(true)),
                true => Ok(None),
                false => Ok(Some(false)),
            }
        };
        match ascend(|| joining.process.parent(), admits) {
            Ok(true) => Ok(()),
            Ok(false) => Err(other_user(uid).into()),
            Err(error) => Err(cannot_tell(pid, error)),
        }
    }

    /// Whether who joins, as user `uid`, is of the tree, though its connection was not from inside; or why it may
    /// not. A helper that is takes its program along: nobody shares memory with a process that did not come of it,
    /// or of which it did not come.
    pub(super) fn admit(
        &self,
        joining: &Joining,
        reserved: Option<ChildSlot>,
        (kind, uid): (PeerKind, u32),
    ) -> Result<(), Refusal> {
        if !self.is_our_user(uid) {
            return match kind {
                PeerKind::Changed => self.admit_changed(joining, uid),
                PeerKind::Inside | PeerKind::Outside => Err(other_user(uid).into()),
            };
        }
        let inside = kind == PeerKind::Inside;
        let pid = joining.process.pid();
        // Nobody else can write to the table.
        let named = reserved.is_some_and(|ChildSlot { slot, taken }| {
            self.table.slot(slot).named(taken) == Named::Pid(pid)
        });
        if inside || named || self.descends(pid)? {
            return Ok(());
        }
        Err(format!(
            "process {pid} is not of this tree: only what `ebb run` started, and what that starts, can join"
        )
        .into())
    }

    /// Whether a process is ours, or descends from us or from one that is known to be of the tree; or why that cannot
    /// be told.
    fn descends(&self, pid: u32) -> Result<bool, Refusal> {
        self.ascends_to_us(pid)
            .map_err(|error| cannot_tell(pid, error))
    }

    fn ascends_to_us(&self, pid: u32) -> Result<bool, Errno> {
        let us = std::process::id();
        let is_of_tree = |process: &Process| process.pid() == us || self.is_known(process);
        ascend(
            || Process::open(pid).map(Some),
            |process| Ok(is_of_tree(process).then_some(true)),
        )
    }

    fn is_known(&self, process: &Process) -> bool {
        let start = self.measurements.start_of_unmanaged(process.pid());
        start == Some(process.start_time()) || self.is_member(process)
    }

    fn is_member(&self, process: &Process) -> bool {
        let slot = self.by_pid.get(&process.pid());
        let member = slot.and_then(|slot| self.members[slot.index()].as_ref());
        member.is_some_and(|member| member.process.start_time() == process.start_time())
    }

    /// Whether who has connected may ask for changes.
    pub(super) fn may_ask(&self, client: &OwnedFd) -> Result<(), Reply> {
        let ours = peer::of(client.as_fd()).is_ok_and(|p| self.is_our_user(p.uid) || p.uid == 0);
        ours.then_some(()).ok_or_else(|| {
            Reply::Failed("the tree is another user's: ask as that one, or as root".into())
        })
    }
}

/// Whether children of members that became another user can be served: they are given descriptors that only root, with
/// the right to look into processes of others, can open.
pub(super) fn serves_other_users() -> bool {
    rustix::process::geteuid().is_root()
        && rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
        && Userfaultfd::open_device().is_ok()
}

/// What `decide` says of the first process, from `first` on upwards, of which it says something; false if it says
/// nothing of any. A process that ends on the way leaves its children to another, so the walk begins again.
///
/// # Errors
/// No walk came to an end: the first process is gone, or EMFILE.
fn ascend(
    first: impl Fn() -> Result<Option<Process>, Errno>,
    decide: impl Fn(&Process) -> Result<Option<bool>, Errno>,
) -> Result<bool, Errno> {
    let walk = || -> Result<bool, Errno> {
        let mut next = first()?;
        for _ in 0..GENERATIONS {
            let Some(process) = next else {
                break;
            };
            if let Some(decided) = decide(&process)? {
                return Ok(decided);
            }
            next = process.parent()?;
        }
        Ok(false)
    };
    let mut left = MAX_WALKS;
    loop {
        left -= 1;
        match walk() {
            Err(_) if left > 0 => {}
            result => return result,
        }
    }
}

/// A refusal that says no more than it knows: of a process that is of the tree, "another user's" would mislead.
fn cannot_tell(pid: u32, error: Errno) -> Refusal {
    match error {
        Errno::MFILE | Errno::NFILE => NO_DESCRIPTORS.to_owned().into(),
        error => {
            let why = format!(
                "cannot tell whether process {pid} is of this tree: {error}; start it again"
            );
            Refusal::unseen(why, error)
        }
    }
}

fn other_user(uid: u32) -> String {
    let us = rustix::process::geteuid().as_raw();
    format!("the tree is of user {us}, not of user {uid}: act as user {us}")
}

/// Says no to who has connected.
fn refuse(connection: &OwnedFd, why: &str) {
    // A hello left unread would turn our answer into a reset.
    let _ = net::recv(connection, &mut [0; 64], RecvFlags::DONTWAIT);
    let _ = net::send(connection, &protocol::refused(why), SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_walk_that_cannot_be_made_is_no_answer() {
        let walks = Cell::new(0);
        let fails = |times: usize| {
            walks.set(0);
            let first = || {
                walks.set(walks.get() + 1);
                match walks.get() > times {
                    true => Process::open(std::process::id()).map(Some),
                    false => Err(Errno::MFILE),
                }
            };
            ascend(first, |_| Ok(Some(true)))
        };
        assert_eq!((fails(0), walks.get()), (Ok(true), 1));
        assert_eq!((fails(3), walks.get()), (Ok(true), 4));
        assert_eq!(
            (fails(usize::MAX), walks.get()),
            (Err(Errno::MFILE), MAX_WALKS)
        );
        assert_eq!(cannot_tell(7, Errno::MFILE).why, NO_DESCRIPTORS);
        let gone = cannot_tell(7, Errno::SRCH);
        assert!(gone.why.contains("whether process 7 is of this tree"));
        assert!(!gone.passes && cannot_tell(7, Errno::NOMEM).passes);
    }

    /// Without one nobody could be refused any more, and whoever waits would keep the queue readable for ever.
    #[test]
    fn a_spare_descriptor_that_others_took_is_there_again_after_a_tick() {
        let mut supervisor = Supervisor::for_test(1000);
        supervisor.spare = None;
        supervisor.tick();
        assert!(supervisor.spare.is_some());
    }
}
