//! Packets between member and supervisor. The first byte says what a packet is.

use crate::table::{ChildSlot, Config, SlotNumber, VERSION};
use crate::{Facts, MAX_DEVICES, MAX_MEMBERS};

/// The longest packet between supervisor and member.
pub const MAX_PACKET: usize = 1024;

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
    pub reserved: Option<ChildSlot>,
}

impl Hello {
    pub fn new(pid: u32, reserved: Option<ChildSlot>) -> Self {
        Self {
            version: VERSION,
            pid,
            reserved,
        }
    }

    pub fn encode(&self) -> [u8; 17] {
        let mut packet = [HELLO; 17];
        packet[1..5].copy_from_slice(&self.version.to_le_bytes());
        packet[5..9].copy_from_slice(&self.pid.to_le_bytes());
        let (slot, taken) = self
            .reserved
            .map_or((NO_SLOT, 0), |child| (child.slot.0 as u32, child.taken));
        packet[9..13].copy_from_slice(&slot.to_le_bytes());
        packet[13..].copy_from_slice(&taken.to_le_bytes());
        packet
    }

    pub fn decode(packet: &[u8]) -> Option<Self> {
        let [HELLO, rest @ ..] = packet else {
            return None;
        };
        let version = u32::from_le_bytes(*rest.first_chunk()?);
        let Ok(rest) = <&[u8; 16]>::try_from(rest) else {
            // Another build's may have another length, and is to be told why it is refused.
            return (version != VERSION).then_some(Self {
                version,
                pid: 0,
                reserved: None,
            });
        };
        let word = |i: usize| u32::from_le_bytes([rest[i], rest[i + 1], rest[i + 2], rest[i + 3]]);
        let reserved = match word(8) {
            NO_SLOT if word(12) == 0 => None,
            n => Some(ChildSlot {
                slot: SlotNumber::new(n as usize)?,
                taken: word(12),
            }),
        };
        Some(Self {
            version,
            pid: word(4),
            reserved,
        })
    }
}

/// Whether a packet that begins so may bring a descriptor to the supervisor.
pub fn brings_descriptor(kind: u8) -> bool {
    matches!(kind, HELLO | USERFAULTFD)
}

/// Settings of a run that do not change. A member believes them of nobody but the supervisor: whoever writes the table
/// could have others do without encryption, or keep descriptors that write as they give up root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub config: Config,
    /// The tree's user.
    pub user: u32,
    /// Flag: children of members that became another user can be served.
    pub serves_other_users: bool,
}

/// The supervisor's answer.
pub enum JoinReply<'a> {
    Welcome(SlotNumber, Settings),
    Refused(&'a str),
}

/// Encodes a WELCOME.
pub fn welcome(slot: SlotNumber, settings: &Settings) -> [u8; 16] {
    let mut packet = [WELCOME; 16];
    packet[1..3].copy_from_slice(&slot.0.to_le_bytes());
    packet[3..11].copy_from_slice(&settings.config.pack().to_le_bytes());
    packet[11..15].copy_from_slice(&settings.user.to_le_bytes());
    packet[15] = settings.serves_other_users.into();
    packet
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
            [WELCOME, rest @ ..] => {
                let (slot, rest) = rest.split_first_chunk()?;
                let (config, rest) = rest.split_first_chunk()?;
                let (user, rest) = rest.split_first_chunk()?;
                let &[others] = rest else { return None };
                let settings = Settings {
                    config: Config::unpack(u64::from_le_bytes(*config)),
                    user: u32::from_le_bytes(*user),
                    serves_other_users: others == 1,
                };
                let slot = SlotNumber::new(u16::from_le_bytes(*slot) as usize)?;
                Some(JoinReply::Welcome(slot, settings))
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
    /// Send the devices of these rows, one bit each, in an answer of this number.
    Ask(u32, u8),
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
pub fn ask(number: u32, rows: u8) -> [u8; 6] {
    let [a, b, c, d] = number.to_le_bytes();
    [ASK, a, b, c, d, rows]
}

impl<'a> MemberPacket<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [MESSAGE, text @ ..] => Some(MemberPacket::Message(text)),
            [POKE] => Some(MemberPacket::Poke),
            &[ASK, a, b, c, d, rows] => {
                Some(MemberPacket::Ask(u32::from_le_bytes([a, b, c, d]), rows))
            }
            [USERFAULTFD] => Some(MemberPacket::Userfaultfd),
            [HELPER_EXIT, 0] => Some(MemberPacket::HelperExit(HelperExit::Ends)),
            [HELPER_EXIT, 1] => Some(MemberPacket::HelperExit(HelperExit::Exec)),
            [HELPER_EXIT, 2] => Some(MemberPacket::HelperExit(HelperExit::Unmanaged)),
            _ => None,
        }
    }
}

/// A device in a DEVICES packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenDevice {
    /// The row in the table.
    pub row: usize,
    pub serial: u64,
    pub facts: Facts,
    /// Higher is used first.
    pub priority: Option<i16>,
}

impl GivenDevice {
    /// Bytes in the packet.
    const LEN: usize = 37;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [self.row as u8; Self::LEN];
        bytes[1..9].copy_from_slice(&self.serial.to_le_bytes());
        for (bytes, word) in bytes[9..].chunks_mut(8).zip(self.facts.to_words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // Bit 16: given; low 16 bits: the priority.
        let priority = self.priority.map_or(0, |p| 1 << 16 | p as u16 as u32);
        bytes[33..].copy_from_slice(&priority.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (row, words) = bytes.split_first()?;
        let (words, priority) = words.as_chunks::<8>();
        let [serial, facts @ ..] = <[_; 4]>::try_from(words).ok()?.map(u64::from_le_bytes);
        let priority = u32::from_le_bytes(priority.try_into().ok()?);
        ((*row as usize) < MAX_DEVICES).then_some(Self {
            row: *row as usize,
            serial,
            facts: Facts::from_words(facts),
            priority: (priority >> 16 & 1 == 1).then_some(priority as u16 as i16),
        })
    }
}

const _: () = assert!(5 + MAX_DEVICES * GivenDevice::LEN <= MAX_PACKET);

/// Encodes a DEVICES, the answer to the ASK of this number.
pub fn devices(number: u32, given: &[GivenDevice]) -> Vec<u8> {
    let mut packet = vec![DEVICES];
    packet.extend_from_slice(&number.to_le_bytes());
    packet.extend(given.iter().flat_map(GivenDevice::encode));
    packet
}

/// Decodes a DEVICES.
pub fn decode_devices(packet: &[u8]) -> Option<(u32, Vec<GivenDevice>)> {
    let [DEVICES, rest @ ..] = packet else {
        return None;
    };
    let (number, rest) = rest.split_first_chunk()?;
    let (given, rest) = rest.as_chunks();
    if !rest.is_empty() || given.len() > MAX_DEVICES {
        return None;
    }
    let given: Option<_> = given.iter().map(GivenDevice::decode).collect();
    Some((u32::from_le_bytes(*number), given?))
}
