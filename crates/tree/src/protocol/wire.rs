//! Packets between member and supervisor. The first byte says what a packet is.

use super::socket::MAX_PACKET;
use crate::table::{SlotNumber, VERSION};
use crate::{MAX_DEVICES, MAX_MEMBERS};

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
pub const REFUSED: u8 = b'R';
const MESSAGE: u8 = b'M';
const POKE: u8 = b'P';
const ASK: u8 = b'A';
const DEVICES: u8 = b'D';
const USERFAULTFD: u8 = b'F';
const HELPER_EXIT: u8 = b'G';

const NO_SLOT: u32 = u32::MAX;

const _: () = assert!(MAX_MEMBERS <= u16::MAX as usize);

/// The first packet of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The version of the protocol and the table.
    pub version: u32,
    /// The number of the program, as it sees itself: another than the supervisor sees, if it lives in a pid
    /// namespace.
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
pub enum JoinReply<'a> {
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

impl<'a> JoinReply<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [WELCOME, a, b] => {
                let slot = SlotNumber::new(u16::from_le_bytes([*a, *b]) as usize)?;
                Some(JoinReply::Welcome(slot))
            }
            [REFUSED, why @ ..] => Some(JoinReply::Refused(
                std::str::from_utf8(why).unwrap_or("(unreadable)"),
            )),
            _ => None,
        }
    }
}

/// A packet of a member after its hello.
#[derive(PartialEq, Eq, Debug)]
pub enum MemberPacket<'a> {
    /// A line for the user.
    Message(&'a [u8]),
    /// Look again now.
    Poke,
    /// Send the devices of these rows, one bit each.
    Ask(u8),
    /// Keep the userfaultfd that comes with this.
    Userfaultfd,
    /// The helper ends, and why.
    HelperExit(HelperExit),
}

/// Why a helper ends while its program may live on for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelperExit {
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

/// The USERFAULTFD packet.
pub const USERFAULTFD_PACKET: [u8; 1] = [USERFAULTFD];

/// Encodes a HELPER_EXIT.
pub fn helper_exit(why: HelperExit) -> [u8; 2] {
    let why = match why {
        HelperExit::Ends => 0,
        HelperExit::Exec => 1,
        HelperExit::Unmanaged => 2,
    };
    [HELPER_EXIT, why]
}

/// Encodes an ASK.
pub fn ask(rows: u8) -> [u8; 2] {
    [ASK, rows]
}

impl<'a> MemberPacket<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [MESSAGE, text @ ..] => Some(MemberPacket::Message(text)),
            [POKE] => Some(MemberPacket::Poke),
            [ASK, rows] => Some(MemberPacket::Ask(*rows)),
            [USERFAULTFD] => Some(MemberPacket::Userfaultfd),
            [HELPER_EXIT, 0] => Some(MemberPacket::HelperExit(HelperExit::Ends)),
            [HELPER_EXIT, 1] => Some(MemberPacket::HelperExit(HelperExit::Exec)),
            [HELPER_EXIT, 2] => Some(MemberPacket::HelperExit(HelperExit::Unmanaged)),
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
