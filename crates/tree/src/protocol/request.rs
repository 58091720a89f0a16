//! Packets between command and supervisor: requests and replies.

use super::socket::MAX_REPLY;
use super::wire::REFUSED;
use crate::table::VERSION;

const REQUEST: u8 = b'Q';
const PROGRESS: u8 = b'.';
const DONE: u8 = b'+';
const FAILED: u8 = b'-';

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
