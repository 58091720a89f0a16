//! Sending and receiving packets, with descriptors.

use super::wire::{MAX_PACKET, brings_descriptor};
use crate::MAX_DEVICES;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// The longest packet from a command to the supervisor: a path, or a text.
pub const MAX_REQUEST: usize = 16 << 10;
/// The longest packet to a command. A longer answer goes through a file in memory.
pub const MAX_REPLY: usize = 64 << 10;
/// The most descriptors of a packet.
pub const MAX_FDS: usize = 2 * MAX_DEVICES;

/// A socket of packets, close-on-exec.
///
/// # Errors
/// Those of socket(2).
pub fn open(more: SocketFlags) -> Result<OwnedFd, Errno> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    net::socket_with(unix, packets, SocketFlags::CLOEXEC | more, None)
}

/// Receives one packet for a member, and the descriptors with it, close-on-exec. An empty one: the end.
///
/// # Errors
/// Those of recvmsg; EAGAIN if the socket's time limit is over.
pub fn receive(socket: impl AsFd) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    receive_up_to(socket, MAX_PACKET, RecvFlags::empty())
}

/// The same for packets of up to `most` bytes; a longer one is cut.
///
/// # Errors
/// As above.
pub fn receive_up_to(
    socket: impl AsFd,
    most: usize,
    flags: RecvFlags,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    receive_with(socket, most, flags, true)
}

/// In the supervisor: a packet of whoever connected, without a wait, and the descriptor that comes with one of its kind.
/// Those that come with others are not received. Closing one would wait for whoever serves its file (FUSE), and sender
/// and server may be one.
///
/// # Errors
/// As above.
pub fn hear(socket: impl AsFd, most: usize) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut kind = [0];
    let (got, _) = net::recv(&socket, &mut kind, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let descriptors = got > 0 && brings_descriptor(kind[0]);
    let (packet, fds) = receive_with(&socket, most, RecvFlags::DONTWAIT, descriptors)?;
    Ok((packet, fds.into_iter().next()))
}

/// Receives a packet, with `descriptors` or without.
fn receive_with(
    socket: impl AsFd,
    most: usize,
    mut flags: RecvFlags,
    descriptors: bool,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    flags |= RecvFlags::CMSG_CLOEXEC;
    let mut packet = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let room = if descriptors { space.len() } else { 0 };
    let mut control = net::RecvAncillaryBuffer::new(&mut space[..room]);
    let begin = Instant::now();
    let got = loop {
        let mut iov = [IoSliceMut::new(&mut packet)];
        match net::recvmsg(&socket, &mut iov, &mut control, flags) {
            // The next call has all of the time limit again.
            Err(Errno::INTR) => {
                let limit = sockopt::socket_timeout(&socket, sockopt::Timeout::Recv)?;
                if limit.is_some_and(|limit| begin.elapsed() >= limit) {
                    // It may have come with the signal.
                    flags |= RecvFlags::DONTWAIT;
                }
            }
            Err(e) => return Err(e),
            Ok(got) => break got,
        }
    };
    let mut fds = Vec::with_capacity(MAX_FDS);
    for message in control.drain() {
        if let net::RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    packet.truncate(got.bytes);
    Ok((packet, fds))
}

/// Sends one packet with descriptors, without waiting.
///
/// # Errors
/// Those of sendmsg.
pub fn send(socket: impl AsFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(net::SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).map(|_| ())
}
