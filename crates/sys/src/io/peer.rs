//! The process at the other end of a Unix socket, as the kernel noted it at connect or listen.

use crate::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The process; none if that is in no PID namespace that this process sees.
    pub pid: Option<u32>,
    /// The effective user.
    pub uid: u32,
}

/// The peer of a connected socket. rustix has this too, but takes no process for an impossible one.
///
/// # Errors
/// Those of getsockopt(2).
pub fn of(socket: BorrowedFd<'_>) -> Result<Peer, Errno> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` has room for `len` bytes, and any are a valid one.
    Errno::check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        ) as libc::c_long
    })?;
    Ok(Peer {
        pid: u32::try_from(peer.pid).ok().filter(|&pid| pid > 0),
        uid: peer.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_who_made_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of(one.as_fd()).unwrap();
        let pid = Some(std::process::id());
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(peer, Peer { pid, uid });
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of(null.as_fd()), Err(Errno(libc::ENOTSOCK)));
    }
}
