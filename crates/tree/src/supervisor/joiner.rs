//! Who has said hello and asks to join.
//!
//! The kernel may lack memory for what `/proc` shows, which it charges to the memory cgroup. Nothing is known of who joins
//! then. A refusal would last: a program runs unmanaged from then on, and a forked child of one that pages is ended. So
//! such a process is looked at again at each tick, for [`PATIENCE`] at most, and waits for the answer meanwhile.
//!
//! Not here: a lack of descriptors, which lasts until a process ends (`admission`).

use super::Supervisor;
use super::managed_process::{Joining, Unknown};
use crate::protocol::Hello;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a process waits to be looked at.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is found out of a process that joins: [`Joining::of`].
pub(super) type Look = fn(&OwnedFd, u32, Option<&OwnedFd>, bool) -> Result<Joining, Unknown>;

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerKind {
    /// A process of the tree.
    Inside,
    /// One of the tree that has become another user.
    Changed,
    /// Somebody else.
    Outside,
}

/// A process that has said hello.
pub(super) struct Joiner {
    pub connection: OwnedFd,
    pub hello: Hello,
    /// The pidfd of the program, where a helper has connected.
    pub program: Option<OwnedFd>,
    pub kind: PeerKind,
    /// The time when it said so.
    pub since: Instant,
}

impl Joiner {
    /// Whether it may be looked at later.
    pub fn may_wait(&self) -> bool {
        self.since.elapsed() < PATIENCE
    }
}

impl Supervisor {
    /// It is looked at again at the next tick.
    pub(super) fn postpone(&mut self, joiner: Joiner) {
        self.postponed.push(joiner);
    }

    /// Looks again at those that could not be looked at.
    pub(super) fn answer_postponed(&mut self) {
        for joiner in std::mem::take(&mut self.postponed) {
            self.answer_hello(joiner, Joining::of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{self, JoinReply};
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

    /// This process asks to join; its end of the connection, and the supervisor's.
    fn joiner(since: Instant) -> (OwnedFd, Joiner) {
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, connection) = socketpair(unix, packets, SocketFlags::CLOEXEC, None).unwrap();
        let joiner = Joiner {
            connection,
            hello: Hello::new(std::process::id(), None),
            program: None,
            kind: PeerKind::Inside,
            since,
        };
        (ours, joiner)
    }

    fn answer(ours: &OwnedFd) -> Option<Vec<u8>> {
        let answer = protocol::receive_up_to(ours, 1024, RecvFlags::DONTWAIT);
        answer.ok().map(|(packet, _)| packet)
    }

    #[test]
    fn who_cannot_be_looked_at_for_want_of_memory_joins_later() {
        let look: Look = |_, _, _, _| Err(Errno::NOMEM.into());
        let mut supervisor = Supervisor::for_test(1000);
        let (ours, first) = joiner(Instant::now());
        supervisor.answer_hello(first, look);
        assert_eq!(answer(&ours), None, "it waits");
        supervisor.tick();
        let welcome = answer(&ours).expect("it was looked at again");
        let reply = JoinReply::decode(&welcome);
        assert!(matches!(reply, Some(JoinReply::Welcome(..))));
        // Not for ever.
        let (ours, late) = joiner(Instant::now() - PATIENCE);
        supervisor.answer_hello(late, look);
        let refused = answer(&ours).expect("it is told");
        let reply = JoinReply::decode(&refused);
        assert!(matches!(reply, Some(JoinReply::Refused(why)) if why.contains("memory")));
        assert!(supervisor.postponed.is_empty());
    }
}
