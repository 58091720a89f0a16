//! The process at the other end of a Unix socket, as the kernel noted it at connect or listen.

use crate::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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
    // SAFETY: any bytes are a valid one.
    unsafe { option(socket, libc::SO_PEERCRED, &mut peer)? };
    Ok(Peer {
        pid: u32::try_from(peer.pid).ok().filter(|&pid| pid > 0),
        uid: peer.uid,
    })
}

/// The process itself, which its number names only while it lives.
///
/// # Errors
/// Those of getsockopt(2). Kernels before 6.16 know none of a process that was reaped.
pub fn pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    const SO_PEERPIDFD: i32 = 77;
    let mut fd = -1;
    // SAFETY: a number.
    unsafe { option(socket, SO_PEERPIDFD, &mut fd)? };
    // SAFETY: it is new, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads an option of a socket.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn option<T>(socket: BorrowedFd<'_>, name: i32, value: &mut T) -> Result<(), Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, at) = (socket.as_raw_fd(), std::ptr::from_mut(value).cast());
    // SAFETY: `value` has room for `len` bytes; the caller answers for what they are.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, at, &raw mut len) };
    Errno::check(got.into())
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
        let itself = pidfd(one.as_fd()).unwrap();
        let target = crate::proc::pidfd_target(itself.as_fd());
        assert_eq!(target.map(|target| Some(target.pid)), Ok(pid));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of(null.as_fd()), Err(Errno(libc::ENOTSOCK)));
    }
}
