//! Packets between command and supervisor: requests and replies.
//!
//! A reply that is longer than a packet goes through a memfd: the packet says of which kind it is, and has the
//! descriptor with it. The file is sealed, so that its reader finds what was written.

use super::socket::{MAX_REPLY, receive_up_to, send};
use super::wire::REFUSED;
use crate::table::VERSION;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

const REQUEST: u8 = b'Q';
const PROGRESS: u8 = b'.';
const DONE: u8 = b'+';
const FAILED: u8 = b'-';
const LONG: u8 = b'*';
/// The longest reply.
const MAX_LONG: u64 = 64 << 20;

/// A command's request to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Swap there too: a SPEC.
    On(String),
    /// Swap there no more: a device as it is shown, or its number.
    Off(String),
    /// Which devices there are.
    Show,
    /// Which limits there are, after this change.
    Limit(LimitChange),
    /// The tree's counters so far.
    Counters,
    /// The tree's figures now.
    Stats,
}

/// Limits to be changed; what is `None` stays. Nothing at all: they are shown.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct LimitChange {
    /// The limit of this process's own; none: the whole tree's.
    pub process: Option<u32>,
    /// The budget, as the user wrote it.
    pub memory: Option<String>,
    /// The pool's limit, as the user wrote it, or "none".
    pub pool_max: Option<String>,
    /// Down to which percentage of its limit a pool is emptied.
    pub accept_percent: Option<u8>,
    /// Flag: pages may go to devices.
    pub writeback: Option<bool>,
}

impl Request {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        let (verb, text) = match self {
            Request::On(spec) => (b'+', spec.clone()),
            Request::Off(device) => (b'-', device.clone()),
            Request::Show => (b'?', String::new()),
            Request::Limit(change) => (
                b'=',
                serde_json::to_string(change).expect("plain text and numbers"),
            ),
            Request::Counters => (b'#', String::new()),
            Request::Stats => (b'%', String::new()),
        };
        let mut packet = vec![REQUEST];
        packet.extend_from_slice(&VERSION.to_le_bytes());
        packet.push(verb);
        packet.extend_from_slice(text.as_bytes());
        packet
    }

    /// The version of whoever asks, and the request if it is one.
    pub fn decode(packet: &[u8]) -> Option<(u32, Option<Self>)> {
        let [REQUEST, a, b, c, d, verb, text @ ..] = packet else {
            return None;
        };
        let text = std::str::from_utf8(text).ok()?.to_owned();
        let request = match verb {
            b'+' => Some(Request::On(text)),
            b'-' => Some(Request::Off(text)),
            b'?' => Some(Request::Show),
            b'=' => serde_json::from_str(&text).ok().map(Request::Limit),
            b'#' => Some(Request::Counters),
            b'%' => Some(Request::Stats),
            _ => None,
        };
        Some((u32::from_le_bytes([*a, *b, *c, *d]), request))
    }
}

/// A sealed file in memory.
fn in_memory(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("ebb-reply", flags)?;
    let mut file = File::from(file);
    file.write_all(bytes).map_err(|_| Errno::NOMEM)?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, all)?;
    Ok(file.into())
}

/// The packet whose text is in a file.
fn content(kind: u8, file: OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut file = File::from(file);
    let mut packet = vec![kind];
    // Its cursor stands where the writer's does.
    let rewound = file.rewind();
    let read = rewound.and_then(|()| file.take(MAX_LONG).read_to_end(&mut packet));
    read.map_err(|_| Errno::PROTO)?;
    Ok(packet)
}

/// The supervisor's reply to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It goes on; how far it is.
    Progress(String),
    /// It was done; what there is to say.
    Done(String),
    /// It was not done, and why.
    Failed(String),
}

impl Reply {
    fn parts(&self) -> (u8, &str) {
        match self {
            Reply::Progress(text) => (PROGRESS, text),
            Reply::Done(text) => (DONE, text),
            Reply::Failed(text) => (FAILED, text),
        }
    }

    /// As a packet, whole.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = self.parts();
        let mut packet = vec![kind];
        packet.extend_from_slice(text.as_bytes());
        packet
    }

    /// Sends it, without waiting.
    ///
    /// # Errors
    /// Those of sendmsg, and of making a memfd.
    pub fn send(&self, socket: impl AsFd) -> Result<(), Errno> {
        let packet = self.encode();
        if packet.len() <= MAX_REPLY {
            return send(socket, &packet, &[]);
        }
        let file = in_memory(&packet[1..])?;
        send(socket, &[LONG, packet[0]], &[file.as_fd()])
    }

    /// Receives one; none: the connection has ended.
    ///
    /// # Errors
    /// Those of recvmsg; EPROTO if it cannot be understood.
    pub fn receive(socket: impl AsFd) -> Result<Option<Self>, Errno> {
        let (packet, fds) = receive_up_to(socket, MAX_REPLY, RecvFlags::empty())?;
        if packet.is_empty() {
            return Ok(None);
        }
        let whole = match (&packet[..], fds.into_iter().next()) {
            (&[LONG, kind], Some(file)) => content(kind, file)?,
            _ => packet,
        };
        Self::decode(&whole).map(Some).ok_or(Errno::PROTO)
    }

    /// From a packet.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let (kind, text) = packet.split_first()?;
        let text = String::from_utf8_lossy(text).into_owned();
        match *kind {
            PROGRESS => Some(Reply::Progress(text)),
            DONE => Some(Reply::Done(text)),
            // A supervisor that does not know requests at all answers as to a member.
            FAILED | REFUSED => Some(Reply::Failed(text)),
            _ => None,
        }
    }
}
