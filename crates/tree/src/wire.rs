//! The packets between member and supervisor, over an abstract Unix socket that keeps
//! packets apart (SOCK_SEQPACKET). The first byte says what a packet is.
//!
//! ```text
//! member → supervisor   HELLO version pid reserved-slot   once
//! supervisor → member   WELCOME slot key + descriptors    or REFUSED text, once
//! member → supervisor   MESSAGE text · POKE               any time
//! ```
//! Descriptors of a WELCOME: the table, then for each device its file and its lease area.
//! The connection stays open; its end tells the supervisor that the process has died or
//! become another program.

use crate::table::{SlotNumber, VERSION};
use crate::{MAX_DEVICES, MAX_SLOTS};
use rustix::net::SocketAddrUnix;

/// Bytes of the key that encrypts what goes to devices.
pub const KEY_BYTES: usize = 64;
/// The longest packet.
pub const MAX_PACKET: usize = 1024;
/// The most descriptors of a packet.
pub const MAX_FDS: usize = 1 + 2 * MAX_DEVICES;

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
const REFUSED: u8 = b'R';
const MESSAGE: u8 = b'M';
const POKE: u8 = b'P';

const NO_SLOT: u32 = u32::MAX;

/// Every value of EBB_CONTROL begins with this.
pub const CONTROL_PREFIX: &str = "ebb-tree-";

/// The address that a value of EBB_CONTROL stands for, if it is one of ours.
pub fn address(control: &str) -> Option<SocketAddrUnix> {
    let ours = control.starts_with(CONTROL_PREFIX)
        && control.len() <= 100
        && control
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-');
    ours.then(|| SocketAddrUnix::new_abstract_name(control.as_bytes()).ok())
        .flatten()
}

/// The first packet of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Of the protocol and the table.
    pub version: u32,
    /// As the process itself sees it: another than the supervisor sees, if it lives in a
    /// pid namespace.
    pub pid: u32,
    /// The slot its parent reserved for it.
    pub reserved: Option<SlotNumber>,
}

impl Hello {
    pub fn new(reserved: Option<SlotNumber>) -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
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
    Welcome {
        slot: SlotNumber,
        key: [u8; KEY_BYTES],
    },
    Refused(&'a str),
}

/// Encodes a WELCOME.
pub fn welcome(slot: SlotNumber, key: &[u8; KEY_BYTES]) -> [u8; 3 + KEY_BYTES] {
    let mut packet = [WELCOME; 3 + KEY_BYTES];
    packet[1..3].copy_from_slice(&slot.0.to_le_bytes());
    packet[3..].copy_from_slice(key);
    packet
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
            [WELCOME, a, b, key @ ..] => Some(Answer::Welcome {
                slot: SlotNumber::new(u16::from_le_bytes([*a, *b]) as usize)?,
                key: key.try_into().ok()?,
            }),
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

impl<'a> Talk<'a> {
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        match packet {
            [MESSAGE, text @ ..] => Some(Talk::Message(text)),
            [POKE] => Some(Talk::Poke),
            _ => None,
        }
    }
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
        let key = std::array::from_fn(|i| i as u8);
        match Answer::decode(&welcome(slot, &key)) {
            Some(Answer::Welcome { slot: s, key: k }) => assert_eq!((s, k), (slot, key)),
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
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something_or_nothing(
            packet in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = (Hello::decode(&packet), Answer::decode(&packet), Talk::decode(&packet));
        }
    }
}
