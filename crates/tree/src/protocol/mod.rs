//! Packets between member, command and supervisor, over an abstract Unix socket that keeps packets apart
//! (SOCK_SEQPACKET). The first byte says what a packet is.
//!
//! ```text
//! member → supervisor   HELLO version pid reserved-slot   once; with the program's pidfd from a helper
//! supervisor → member   WELCOME slot settings + the table or REFUSED text, once
//! member → supervisor   MESSAGE text · POKE               any time
//!                       ASK number rows                   any time
//!                       USERFAULTFD + a userfaultfd       when it begins to page
//!                       HELPER_EXIT why                   from a helper, before it ends
//! supervisor → member   DEVICES number (row serial facts priority)* + a file and a lease area each, for an ASK
//!
//! command → supervisor  REQUEST version verb text         once
//! supervisor → command  PROGRESS text                     any time
//!                       DONE text · FAILED text           once, then it hangs up
//!                       LONG kind + a file                in place of one that is too long for a packet
//! ```
//! A member's connection stays open; its end tells the supervisor that the process has died
//! or become another program; from a helper, that the helper ends. The end of a command's takes its request back, if it is not
//! done.

mod command;
mod name;
mod request;
mod socket;
mod wire;

pub use command::{Ask, AskError, is_stopped, trees};
pub use name::ControlName;
pub(crate) use name::{CONTROL_PREFIX, address};
pub use request::{LimitChange, Reply, Request};
pub(crate) use socket::{MAX_REQUEST, hear, open, receive, receive_up_to, send};
pub use wire::HelperExit;
pub(crate) use wire::{
    GivenDevice, Hello, JoinReply, MAX_PACKET, MemberPacket, POKE_PACKET, Settings,
    USERFAULTFD_PACKET, ask, decode_devices, devices, helper_exit, message, refused, welcome,
};

#[cfg(test)]
mod tests;
