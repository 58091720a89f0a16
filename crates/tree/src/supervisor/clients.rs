//! Commands that have asked for something and wait for the reply.

use crate::protocol::Reply;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::os::fd::OwnedFd;

/// Hears of a command that goes away before it is answered; one that cannot be listened to is refused.
pub(super) fn watch_client(epoll: &OwnedFd, client: &OwnedFd, token: epoll::EventData) -> bool {
    let added = epoll::add(epoll, client, token, epoll::EventFlags::IN).is_ok();
    if !added {
        let why = "the kernel has no memory for it: free some and ask again";
        answer(client, Reply::Failed(why.into()));
    }
    added
}

/// Tells a command how far it is, unless it has not read for a while: the answer is to find room.
pub(super) fn progress(client: &OwnedFd, text: String) {
    // A socket is ready for more as long as a quarter of what it may hold waits.
    if state(client, PollFlags::OUT).contains(PollFlags::OUT) {
        answer(client, Reply::Progress(text));
    }
}

/// Whether a command has gone away.
pub(super) fn is_gone(client: &OwnedFd) -> bool {
    state(client, PollFlags::RDHUP).intersects(PollFlags::RDHUP | PollFlags::HUP)
}

fn state(client: &OwnedFd, asked: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(client, asked)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(1) => fds[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// Tells a command; one that does not listen is no matter of ours.
pub(super) fn answer(client: &OwnedFd, reply: Reply) {
    let _ = reply.send(client);
}
