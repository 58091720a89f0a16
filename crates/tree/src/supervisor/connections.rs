//! The connections of members: their packets, and their ends.

use super::orphan_memory::{self, Given};
use super::{Supervisor, Token};
use crate::protocol::{self, MAX_PACKET, MemberPacket};
use crate::table::SlotNumber;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

impl Supervisor {
    /// From now on the member is heard on this connection.
    pub(super) fn add_connection(&mut self, slot: SlotNumber, connection: OwnedFd) {
        let added = epoll::add(
            &self.epoll,
            &connection,
            Token::Connection(slot).pack(),
            epoll::EventFlags::IN,
        );
        if let (Ok(()), Some(member)) = (added, &mut self.members[slot.index()]) {
            member.connection = Some(connection);
        }
        // Its memory was counted as nobody's until now.
        self.due = Instant::now();
    }

    /// The connection to a member, if it has not ended.
    pub(super) fn connection(&self, slot: SlotNumber) -> Option<&OwnedFd> {
        self.members[slot.index()].as_ref()?.connection.as_ref()
    }

    /// Takes a member's last words. Somebody else may have its connection, and speak without end.
    pub(super) fn receive_last_of(&mut self, slot: SlotNumber) {
        const ROUNDS: usize = 16;
        let mut rounds = 0..ROUNDS;
        while self.receive_from(slot) && rounds.next().is_some() {}
    }

    /// A member said something, or its connection ended. Whether there may be more.
    pub(super) fn receive_from(&mut self, slot: SlotNumber) -> bool {
        // Bounded, so that one talkative member does not keep the tick from its time.
        for _ in 0..64 {
            let Some(member) = &mut self.members[slot.index()] else {
                return false;
            };
            let Some(connection) = &member.connection else {
                return false;
            };
            match protocol::hear(connection, MAX_PACKET) {
                Err(Errno::AGAIN) => return false,
                // It has died without reading all that we sent; what it sent is behind this.
                Err(Errno::CONNRESET) => {}
                Ok((packet, _)) if packet.is_empty() => {
                    self.connection_ended(slot);
                    return false;
                }
                Err(_) => {
                    self.connection_ended(slot);
                    return false;
                }
                Ok((packet, descriptor)) => match MemberPacket::decode(&packet) {
                    Some(MemberPacket::Poke) => self.member_poked(slot),
                    Some(MemberPacket::Userfaultfd) => self.userfaultfd_came(slot, descriptor),
                    Some(MemberPacket::Ask(number, rows)) => {
                        self.send_devices(slot, number, rows);
                    }
                    Some(MemberPacket::HelperExit(why)) => self.helper_exit(slot, why),
                    Some(MemberPacket::Message(text)) => {
                        let pid = member.process.pid();
                        let text: String = String::from_utf8_lossy(text)
                            .chars()
                            .map(|c| if c.is_control() { ' ' } else { c })
                            .collect();
                        let line = format!("{}[{pid}]: {text}", member.name());
                        self.notice(&line);
                    }
                    None => {}
                },
            }
        }
        true
    }

    /// The connection to a member has ended.
    fn connection_ended(&mut self, slot: SlotNumber) {
        let member = self.members[slot.index()].as_mut();
        if let Some(connection) = member.and_then(|member| member.connection.take()) {
            // A process from which this one took over may have it too.
            let _ = epoll::delete(&self.epoll, &connection);
        }
        let _ = self.check_left(slot);
    }

    /// A member gave the descriptor of its memory, unless that was lost on its way.
    fn userfaultfd_came(&mut self, slot: SlotNumber, descriptor: Option<OwnedFd>) {
        let Some(member) = &mut self.members[slot.index()] else {
            return;
        };
        match descriptor.map_or(Given::TooMany, orphan_memory::take) {
            Given::Kept(userfaultfd) => {
                member.userfaultfd = Some(userfaultfd);
                member.be_guarded(&mut self.guard);
            }
            Given::TooMany => {
                member.userfaultfd = None;
                let pid = member.process.pid();
                self.warn_unkept(pid);
            }
            Given::Unfit => member.userfaultfd = None,
        }
    }

    /// A member has something new: it charges for itself from now on, perhaps.
    fn member_poked(&mut self, slot: SlotNumber) {
        self.due = Instant::now();
        // Pages shared with relatives that page already are charged twice, unless its charge is a copy of
        // its parent's and was credited with that.
        let slot = self.table.slot(slot);
        if slot.credit.load(SeqCst) == 0 && slot.charged.load(SeqCst) > 0 {
            self.measurements.measure_sharing_soon();
        }
    }
}
