//! Commands that have asked for something and wait for the reply.

use crate::protocol::Reply;
use rustix::event::epoll;
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

/// Tells a command; one that does not listen is no matter of ours.
pub(super) fn answer(client: &OwnedFd, reply: Reply) {
    let _ = reply.send(client);
}
