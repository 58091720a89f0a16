//! The packets between member and supervisor, over an abstract Unix socket that keeps
//! packets apart (SOCK_SEQPACKET). The first byte says what a packet is.
//!
//! ```text
//! member → supervisor   HELLO version pid reserved-slot   once; with the program's pidfd from a helper
//! supervisor → member   WELCOME slot + the table          or REFUSED text, once
//! member → supervisor   MESSAGE text · POKE · ASK rows    any time
//!                       FAULTS + a userfaultfd            when it begins to page
//!                       GOODBYE why                       from a helper, before it ends
//! supervisor → member   DEVICES (row serial)* + a file and a lease area each, for an ASK
//!
//! command → supervisor  REQUEST version verb text         once
//! supervisor → command  PROGRESS text                     any time
//!                       DONE text · FAILED text           once, then it hangs up
//! ```
//! A member's connection stays open; its end tells the supervisor that the process has died
//! or become another program; from a helper, that the helper ends. The end of a command's takes its request back, if it is not
//! done.

use crate::table::{SlotNumber, VERSION};
use crate::{MAX_DEVICES, MAX_SLOTS};
use ebb_sys::peer::Peer;
use ebb_sys::proc::Process;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SocketAddrUnix};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest packet between supervisor and member.
pub const MAX_PACKET: usize = 1024;
/// The longest packet from a command to the supervisor: a path, or a text.
pub const MAX_REQUEST: usize = 16 << 10;
/// The longest answer to a command: a line for each of 512 processes, of 250 bytes at most.
pub const MAX_REPLY: usize = 128 << 10;
/// The most descriptors of a packet.
pub const MAX_FDS: usize = 2 * MAX_DEVICES;

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
const REFUSED: u8 = b'R';
const MESSAGE: u8 = b'M';
const POKE: u8 = b'P';
const ASK: u8 = b'A';
const DEVICES: u8 = b'D';
const FAULTS: u8 = b'F';
const GOODBYE: u8 = b'G';
const REQUEST: u8 = b'Q';
const PROGRESS: u8 = b'.';
const DONE: u8 = b'+';
const FAILED: u8 = b'-';

const NO_SLOT: u32 = u32::MAX;

/// Every value of EBB_CONTROL begins with this.
pub const CONTROL_PREFIX: &str = "ebb-tree-";

/// The address that a value of EBB_CONTROL stands for, if it is one of ours.
pub fn address(control: &str) -> Option<SocketAddrUnix> {
    Name::parse(control)?;
    SocketAddrUnix::new_abstract_name(control.as_bytes()).ok()
}

/// A value of EBB_CONTROL, which names the supervisor's socket, and says whose it is. No file stands for
/// the name, so anybody may take it once the supervisor has gone: whoever connects looks who listens
/// ([`is_listener`](Self::is_listener)) before he says anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The process that began to listen.
    pub pid: u32,
    /// When that was started, in clock ticks since boot; 0: not known.
    pub start_time: u64,
    /// So that no two are equal.
    pub random: u64,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, start, random) = (self.pid, self.start_time, self.random);
        write!(f, "{CONTROL_PREFIX}{pid}-{start:x}-{random:016x}")
    }
}

impl Name {
    /// What `control` says.
    pub fn parse(control: &str) -> Option<Self> {
        let mut parts = control.strip_prefix(CONTROL_PREFIX)?.split('-');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let name = Self {
            pid: parts.next()?.parse().ok()?,
            start_time: hex(parts.next()?)?,
            random: hex(parts.next()?)?,
        };
        // One way to write it: what is compared is the whole.
        (name.to_string() == control).then_some(name)
    }

    /// Whether the peer who listens at this name is who made it. It is if it has the number and was started
    /// then, whatever its user looks like from here: in a user namespace of the program's own they have other
    /// numbers. Else as far as can be seen: it is of user `uid`, and has the number, or is of a PID namespace
    /// further out, where numbers are others. That number is another's if the process that has it now was
    /// started at another time. If there is none, somebody carries on for the one who made the name.
    pub fn is_listener(&self, peer: Peer, uid: u32) -> bool {
        let Some(pid) = peer.pid else {
            return peer.uid == uid;
        };
        if pid != self.pid {
            return false;
        }
        match Process::open(pid) {
            Ok(process) if self.start_time != 0 => process.start_time() == self.start_time,
            _ => peer.uid == uid,
        }
    }
}

/// The first packet of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Of the protocol and the table.
    pub version: u32,
    /// Of the program, as it sees itself: another number than the supervisor sees, if it lives in a
    /// pid namespace.
    pub pid: u32,
    /// The slot its parent reserved for it.
    pub reserved: Option<SlotNumber>,
}

impl Hello {
    pub fn new(pid: u32, reserved: Option<SlotNumber>) -> Self {
        Self {
            version: VERSION,
            pid,
            reserved,
        }
    }

    pub fn encode(&self) -> [u8; 13] {
        let mut packet = [HELLO; 13];
        packet[1..5].copy_from_slice(&self.version.to_le_bytes());
        packet[5..9].copy_from_slice(&self.pid.to_le_bytes());
        let slot = self.reserved.map_or(NO_SLOT, |slot| slot.0 as u32);
        packet[9..].copy_from_slice(&slot.to_le_bytes());
        packet
    }

    pub fn decode(packet: &[u8]) -> Option<Self> {
        let [HELLO, rest @ ..] = packet else {
            return None;
        };
        let rest: &[u8; 12] = rest.try_into().ok()?;
        let word = |i: usize| u32::from_le_bytes([rest[i], rest[i + 1], rest[i + 2], rest[i + 3]]);
        let reserved = match word(8) {
            NO_SLOT => None,
            n => Some(SlotNumber::new(n as usize)?),
        };
        Some(Self {
            version: word(0),
            pid: word(4),
            reserved,
        })
    }
}

/// The supervisor's answer.
pub enum Answer<'a> {
    Welcome(SlotNumber),
    Refused(&'a str),
}

/// Encodes a WELCOME.
pub fn welcome(slot: SlotNumber) -> [u8; 3] {
    let [a, b] = slot.0.to_le_bytes();
    [WELCOME, a, b]
}

/// Encodes a REFUSED.
pub fn refused(why: &str) -> Vec<u8> {
    let mut packet = vec![REFUSED];
    packet.extend_from_slice(&why.as_bytes()[..why.len().min(MAX_PACKET - 1)]);
    packet
}

impl<'a> Answer<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [WELCOME, a, b] => {
                let slot = SlotNumber::new(u16::from_le_bytes([*a, *b]) as usize)?;
                Some(Answer::Welcome(slot))
            }
            [REFUSED, why @ ..] => Some(Answer::Refused(
                std::str::from_utf8(why).unwrap_or("(unreadable)"),
            )),
            _ => None,
        }
    }
}

/// What a member says after its hello.
#[derive(PartialEq, Eq, Debug)]
pub enum Talk<'a> {
    /// A line for the user.
    Message(&'a [u8]),
    /// Look again now.
    Poke,
    /// Send the devices of these rows, one bit each.
    Ask(u8),
    /// Keep the userfaultfd that comes with this.
    Faults,
    /// The helper ends, and why.
    Goodbye(Leaving),
}

/// Why a helper ends while its program may live on for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// The program ends.
    Ends,
    /// The program has become another, or nothing but the last steps of that are left.
    Exec,
    /// The program has never paged, and runs unmanaged from now on.
    Unmanaged,
}

/// Encodes a MESSAGE into `buf`, cut to fit.
pub fn message<'a>(text: &str, buf: &'a mut [u8; MAX_PACKET]) -> &'a [u8] {
    let n = text.len().min(MAX_PACKET - 1);
    buf[0] = MESSAGE;
    buf[1..=n].copy_from_slice(&text.as_bytes()[..n]);
    &buf[..=n]
}

/// The POKE packet.
pub const POKE_PACKET: [u8; 1] = [POKE];

/// The FAULTS packet.
pub const FAULTS_PACKET: [u8; 1] = [FAULTS];

/// Encodes a GOODBYE.
pub fn goodbye(why: Leaving) -> [u8; 2] {
    let why = match why {
        Leaving::Ends => 0,
        Leaving::Exec => 1,
        Leaving::Unmanaged => 2,
    };
    [GOODBYE, why]
}

/// Encodes an ASK.
pub fn ask(rows: u8) -> [u8; 2] {
    [ASK, rows]
}

impl<'a> Talk<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [MESSAGE, text @ ..] => Some(Talk::Message(text)),
            [POKE] => Some(Talk::Poke),
            [ASK, rows] => Some(Talk::Ask(*rows)),
            [FAULTS] => Some(Talk::Faults),
            [GOODBYE, 0] => Some(Talk::Goodbye(Leaving::Ends)),
            [GOODBYE, 1] => Some(Talk::Goodbye(Leaving::Exec)),
            [GOODBYE, 2] => Some(Talk::Goodbye(Leaving::Unmanaged)),
            _ => None,
        }
    }
}

/// Bytes of a device in a DEVICES packet.
const NAMED: usize = 9;

/// Encodes a DEVICES: row and serial number of each.
pub fn devices(named: &[(usize, u64)]) -> Vec<u8> {
    let mut packet = vec![DEVICES];
    for &(row, serial) in named {
        packet.push(row as u8);
        packet.extend_from_slice(&serial.to_le_bytes());
    }
    packet
}

/// Decodes a DEVICES.
pub fn decode_devices(packet: &[u8]) -> Option<Vec<(usize, u64)>> {
    let [DEVICES, rest @ ..] = packet else {
        return None;
    };
    let (named, rest) = rest.as_chunks::<NAMED>();
    if !rest.is_empty() || named.len() > MAX_DEVICES {
        return None;
    }
    let device = |&[row, a, b, c, d, e, f, g, h]: &[u8; NAMED]| {
        let serial = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        ((row as usize) < MAX_DEVICES).then_some((row as usize, serial))
    };
    named.iter().map(device).collect()
}

/// What a command asks of the supervisor.
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
    /// What the tree has done so far.
    Counters,
}

/// Limits to be changed; what is `None` stays. Nothing at all: they are shown.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct LimitChange {
    /// This process's own; none: the whole tree's.
    pub process: Option<u32>,
    /// The budget, as the user wrote it.
    pub memory: Option<String>,
    /// The pool's limit, as the user wrote it, or "none".
    pub pool_max: Option<String>,
    /// Down to which percentage of its limit a pool is emptied.
    pub accept_percent: Option<u8>,
    /// Whether pages may go to devices.
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
            _ => None,
        };
        Some((u32::from_le_bytes([*a, *b, *c, *d]), request))
    }
}

/// What the supervisor answers a command.
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
    /// As a packet, cut to fit.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Reply::Progress(text) => (PROGRESS, text),
            Reply::Done(text) => (DONE, text),
            Reply::Failed(text) => (FAILED, text),
        };
        let mut packet = vec![kind];
        packet.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_REPLY - 1)]);
        packet
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

/// Receives one packet of a member or for one, and the descriptors with it, close-on-exec. An empty
/// one: the end.
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
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut packet = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut iov = [IoSliceMut::new(&mut packet)];
        match net::recvmsg(&socket, &mut iov, &mut control, flags) {
            Err(Errno::INTR) => {}
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

const _: () = assert!(MAX_SLOTS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_carry_everything() {
        for reserved in [None, SlotNumber::new(0), SlotNumber::new(511)] {
            let hello = Hello {
                version: 3,
                pid: 77,
                reserved,
            };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        let slot = SlotNumber::new(300).unwrap();
        match Answer::decode(&welcome(slot)) {
            Some(Answer::Welcome(welcomed)) => assert_eq!(welcomed, slot),
            _ => panic!("not a welcome"),
        }
        match Answer::decode(&refused("no room")) {
            Some(Answer::Refused(why)) => assert_eq!(why, "no room"),
            _ => panic!("not a refusal"),
        }
        let mut buf = [0; MAX_PACKET];
        let long = "x".repeat(2000);
        let packet = message(&long, &mut buf);
        assert_eq!(
            Talk::decode(packet),
            Some(Talk::Message(&long.as_bytes()[..1023]))
        );
        assert_eq!(Talk::decode(&POKE_PACKET), Some(Talk::Poke));
        assert_eq!(Talk::decode(&ask(0x81)), Some(Talk::Ask(0x81)));
        assert_eq!(Talk::decode(&FAULTS_PACKET), Some(Talk::Faults));
        for why in [Leaving::Ends, Leaving::Exec, Leaving::Unmanaged] {
            assert_eq!(Talk::decode(&goodbye(why)), Some(Talk::Goodbye(why)));
        }
        for named in [vec![], vec![(0, 1), (7, u64::MAX)]] {
            assert_eq!(decode_devices(&devices(&named)), Some(named));
        }
        for request in [
            Request::On("/a:1G,prio=3".into()),
            Request::Off("7".into()),
            Request::Show,
            Request::Counters,
            Request::Limit(LimitChange::default()),
            Request::Limit(LimitChange {
                process: Some(7),
                memory: Some("1G".into()),
                pool_max: Some("none".into()),
                accept_percent: Some(50),
                writeback: Some(false),
            }),
        ] {
            let decoded = Request::decode(&request.encode());
            assert_eq!(decoded, Some((VERSION, Some(request))));
        }
        for reply in [Reply::Progress, Reply::Done, Reply::Failed] {
            let reply = reply("text".into());
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn a_name_is_believed_if_its_maker_listens() {
        let us = Process::open(std::process::id()).unwrap();
        let name = Name {
            pid: us.pid(),
            start_time: us.start_time(),
            random: 7,
        };
        assert_eq!(Name::parse(&name.to_string()), Some(name));
        for wrong in [
            "",
            "ebb-tree-",
            "ebb-tree-1-2",
            "ebb-tree-1-2-3",
            "../../etc",
        ] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
        let pid = Some(us.pid());
        let ours = Peer { pid, uid: 7 };
        assert!(name.is_listener(ours, 7));
        // Out of sight.
        assert!(name.is_listener(Peer { pid: None, ..ours }, 7));
        assert!(!name.is_listener(Peer { pid: None, ..ours }, 8));
        assert!(name.is_listener(ours, 8), "seen from a user namespace");
        let timeless = Name {
            start_time: 0,
            ..name
        };
        assert!(timeless.is_listener(ours, 7));
        assert!(!timeless.is_listener(ours, 8), "another user's, perhaps");
        let other = Some(us.pid() + 1);
        assert!(
            !name.is_listener(Peer { pid: other, ..ours }, 7),
            "another process"
        );
        let reborn = Name {
            start_time: us.start_time() - 1,
            ..name
        };
        assert!(!reborn.is_listener(ours, 7), "it has the number by now");
        // Its maker has ended, and another carries on.
        let (gone, pid) = (
            Name {
                pid: u32::MAX >> 1,
                ..name
            },
            Some(u32::MAX >> 1),
        );
        assert!(gone.is_listener(Peer { pid, ..ours }, 7));
        assert!(!gone.is_listener(Peer { pid, ..ours }, 8), "another user's");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something_or_nothing(
            packet in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = (Hello::decode(&packet), Answer::decode(&packet), Talk::decode(&packet));
            let _ = (decode_devices(&packet), Request::decode(&packet), Reply::decode(&packet));
        }
    }
}
