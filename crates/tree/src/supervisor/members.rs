//! Members: a process joins and is given a slot.

use super::joiner::{Joiner, Look};
use super::managed_process::{Joining, ManagedProcess, NO_DESCRIPTORS, Unknown};
use super::refusal::Refusal;
use super::{Supervisor, Token};
use crate::protocol;
use crate::table::{ChildSlot, Limits, SlotNumber, SlotState, StateWord, VERSION};
use ebb_sys::peer;
use ebb_sys::proc::{self, Image};
use ebb_sys::userfaultfd::Userfaultfd;
use rustix::event::epoll;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// The descriptors that a helper needs to serve its program, for one that may not open them, as it is user `uid`.
fn descriptors_of(joining: &Joining, uid: u32) -> Result<[OwnedFd; 3], Errno> {
    let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::ACCESS);
    let helper = joining.connected_pid();
    let read = |name: &str| {
        let file = File::open(format!("/proc/{helper}/{name}"));
        file.map(OwnedFd::from).map_err(errno)
    };
    let device = Userfaultfd::open_device().map_err(errno)?;
    let opened = [device.into(), read("pagemap")?, read("mem")?];
    // They may be of what it has become since it was admitted.
    match joining.is_as_it_connected(uid)? {
        true => Ok(opened),
        false => Err(Errno::ACCESS),
    }
}

impl Supervisor {
    /// Lets this process have as many descriptors as it may: a member costs six, and one that never joins two. Once the
    /// first program has started, and not before, so that it does not inherit another limit than it was given. An
    /// embedder may leave it to the first that joins.
    pub fn raise_descriptor_limit(&self) {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        if limit.current.is_some() && limit.current != limit.maximum {
            limit.current = limit.maximum;
            // Refused: then members are, when descriptors run out, with that reason.
            let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        }
    }

    /// Gives the peer, or the program whose helper it is, a slot and tells it; or says why not.
    pub(super) fn join(&mut self, joiner: &Joiner, look: Look) -> Result<SlotNumber, Refusal> {
        let Joiner {
            connection, hello, ..
        } = joiner;
        let (peer, uid) = Self::member_behind(connection)?;
        if hello.version != VERSION {
            return Err(format!(
                "its library speaks version {} and ebb {VERSION}; install the pair of one build",
                hello.version
            )
            .into());
        }
        if self.joined == 0 {
            self.raise_descriptor_limit();
        }
        let program = joiner.program.as_ref();
        let joining = look(connection, peer, program, hello.reserved.is_some());
        let joining = joining.map_err(|why| self.unknown(why, peer))?;
        self.admit(&joining, hello.reserved, (joiner.kind, uid))?;
        let pid = joining.process.pid();
        self.replace_former(pid, joining.image)?;
        let slot = self.slot_for(&joining, hello.reserved)?;
        let image = match joining.image.is_some() {
            true => joining.image,
            false => self.origin_of(slot).unwrap_or_default(),
        };
        let watched = epoll::add(
            &self.epoll,
            &joining.pidfd,
            Token::Death(slot).pack(),
            epoll::EventFlags::IN,
        );
        let helped = match &joining.helper {
            Some(helper) => self.watch_helper(slot, helper),
            None => Ok(()),
        };
        let told = watched
            .and(helped)
            .and_then(|()| self.welcome(connection, slot, (&joining, uid)));
        self.pending_children[slot.index()] = None;
        self.by_pid.insert(pid, slot);
        self.used[slot.index()] = true;
        self.joined += 1;
        self.members[slot.index()] = Some(ManagedProcess {
            process: joining.process,
            name: proc::name(pid),
            connection: None,
            pidfd: joining.pidfd,
            image,
            helper: joining.helper,
            userfaultfd: None,
            guarded_by: None,
            replaced: false,
        });
        self.measurements.forget(pid);
        self.measurements.forget(peer);
        if let Err(e) = told {
            self.reap(slot);
            return Err(format!("the answer could not be sent: {e}").into());
        }
        Ok(slot)
    }

    /// The refusal of who joins, of whom that is not known.
    fn unknown(&mut self, why: Unknown, peer: u32) -> Refusal {
        match why {
            Unknown::Exhausted => {
                self.warn_exhausted(peer);
                Refusal::quiet(NO_DESCRIPTORS)
            }
            Unknown::Short(error) => {
                let why = format!(
                    "its process cannot be looked at: {error}; free memory and start it again"
                );
                Refusal::unseen(why, error)
            }
            Unknown::Apart(why) => Refusal::quiet(why),
            Unknown::Because(why) => why.into(),
        }
    }

    /// A process that joins again has become another program: its former slot is reaped. The same program
    /// cannot join twice. Without random addresses the next program may look like the former one.
    fn replace_former(&mut self, pid: u32, image: Image) -> Result<(), Refusal> {
        if let Some(&old) = self.by_pid.get(&pid) {
            if let Some(former) = &mut self.members[old.index()] {
                let is_same = former.image == image && former.has_helper_in_it();
                if former.connection.is_some() && is_same {
                    return Err(Refusal::quiet(format!("process {pid} has joined already")));
                }
                former.replaced = true;
            }
            // Writes that its helper has begun have to be over first.
            if !self.let_helper_end(old, Duration::ZERO) {
                self.reap(old);
            }
        }
        Ok(())
    }

    /// Whether a member is of the user whose tree this is, or can be again, and connected as that. Who joined as another
    /// user is none of ours, whatever program it executes.
    ///
    /// # Errors
    /// It is gone, or `/proc` cannot be read: for want of descriptors, say.
    pub(super) fn is_of_our_user(&self, slot: SlotNumber) -> Result<bool, Errno> {
        let member = self.members[slot.index()].as_ref().ok_or(Errno::SRCH)?;
        let connection = member.connection.as_ref().ok_or(Errno::SRCH)?;
        let connected_as = peer::of(connection.as_fd())?.uid;
        Ok(self.is_our_user(connected_as) && member.has_user(connected_as)?)
    }

    /// A slot for who joins: the one reserved for it, or a free one. Its limits are set.
    fn slot_for(
        &mut self,
        joining: &Joining,
        reserved: Option<ChildSlot>,
    ) -> Result<SlotNumber, Refusal> {
        if let Some(child) = reserved {
            // Such a child is ended, and says so itself, if it pages.
            let slot = self.claim(child, joining.image).map_err(Refusal::quiet)?;
            // Its parent has copied them: they are here before this, from the first page on.
            let limits = self.table.slot(slot).limits.get();
            if limits != Limits::default() {
                self.own_limits.give(&joining.process, limits);
            }
            return Ok(slot);
        }
        let slot = self.table.take_slot(StateWord::of(SlotState::Joined));
        let Some(slot) = slot else {
            self.warn_crowded(joining.process.pid(), "runs unmanaged");
            return Err(Refusal::quiet(
                "every place for a process is taken; run fewer at a time",
            ));
        };
        self.table
            .slot(slot)
            .family
            .store(self.family_of(joining.image), SeqCst);
        let limits = self.own_limits.begin(&joining.process);
        self.table.slot(slot).limits.set(limits);
        Ok(slot)
    }

    /// The image of the parent of the child that a slot is reserved for, if it is known.
    fn origin_of(&self, slot: SlotNumber) -> Option<Image> {
        let expected = self.pending_children[slot.index()].as_ref();
        expected.and_then(|e| e.origin.image)
    }

    /// The slot that the peer's parent reserved for it.
    fn claim(&mut self, child: ChildSlot, image: Image) -> Result<SlotNumber, String> {
        let slot = child.slot;
        let is_reserved = self.table.state(slot).state == SlotState::Reserved;
        if self.members[slot.index()].is_some() || !is_reserved || !self.table.is_kept(child) {
            return Err(format!("slot {slot} is not reserved for it"));
        }
        self.track_child(slot);
        // Where the image is not shown its user is the parent's.
        let expected = self.origin_of(slot).filter(|_| image.is_some());
        if expected.is_some_and(|expected| expected != image) {
            return Err(format!("slot {slot} is reserved for another program"));
        }
        // A child of a process that pages has been charged from before it was born.
        let pages = self.table.state(slot).is_charging();
        let state = if pages {
            SlotState::Paging
        } else {
            SlotState::Joined
        };
        self.table.set_state(slot, StateWord::of(state));
        Ok(slot)
    }

    /// A peer of another user gets with it what it cannot open itself: a way to open a userfaultfd, and its memory.
    fn welcome(
        &self,
        connection: &OwnedFd,
        slot: SlotNumber,
        (joining, uid): (&Joining, u32),
    ) -> Result<(), Errno> {
        let packet = protocol::welcome(slot, &self.settings);
        if self.is_our_user(uid) {
            return protocol::send(connection, &packet, &[self.table_fd.as_fd()]);
        }
        let [faults, pages, memory] = descriptors_of(joining, uid)?;
        let fds = [&self.table_fd, &faults, &pages, &memory].map(AsFd::as_fd);
        protocol::send(connection, &packet, &fds)
    }

    /// The family of a process that joins with this image. It is its relatives' family, if a process that
    /// does not page forked it, or if it forked some itself.
    pub(super) fn family_of(&self, image: Image) -> u64 {
        let mut members = SlotNumber::all().zip(&self.members);
        let relative = members.find(|(_, member)| {
            member
                .as_ref()
                .is_some_and(|member| image.is_some() && member.image == image)
        });
        relative.map_or_else(
            || self.table.next_family.fetch_add(1, SeqCst) + 1,
            |(n, _)| self.table.slot(n).family.load(SeqCst),
        )
    }

    /// Live slots of a family.
    pub(super) fn family(&self, family: u64) -> impl Iterator<Item = SlotNumber> + '_ {
        let slots = self.table.taken().map(|(n, _)| n);
        slots.filter(move |&n| self.table.slot(n).family.load(SeqCst) == family)
    }
}
