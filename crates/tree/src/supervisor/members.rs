//! Who is in the tree: joining, dying, becoming another program, being forked.
//!
//! # When a process has left
//! - **Death**: its pidfd is readable, which is when every thread of it is gone and no write
//!   of it is in flight any more. The end of its connection alone does not say that: the
//!   thread that held it may die before one that is writing to a device.
//! - **With a helper** (`helpers`): both of them, the one and the other.
//! - **Exec**: the connection has ended, and the process lives on with another program image
//!   (addresses drawn anew), or nobody uses the memory any more that it paged (a program that may
//!   not be read shows no addresses; no write of a thread that has let its memory go is in flight),
//!   or it has joined a second time.
//!
//! # Reserved slots
//! A reserved slot holds leases for a child that may not have joined yet. It is given up only
//! when the child is known to be dead or to have become another program; or when the parent
//! has left, or has forked (perhaps in vain), without saying which process the child is, and no process
//! can be it: one that is not known otherwise, has the parent's image, as a forked child has whatever its
//! pid is, was not there before the slot was reserved, and is a child of the parent while that lives.

use super::admission::NO_DESCRIPTORS;
use super::helpers::{GRACE, Helper, Joining, Unknown};
use super::{Supervisor, Token, orphan_memory};
use crate::protocol::{self, Hello, MemberPacket};
use crate::table::Limits;
use crate::table::{Named, SlotNumber, SlotState, StateWord, VERSION};
use ebb_sys::clock;
use ebb_sys::proc::{self, Image, Process};
use ebb_sys::userfaultfd::Userfaultfd;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// A process that has joined.
pub(super) struct ManagedProcess {
    pub process: Process,
    /// None once it has ended.
    pub connection: Option<OwnedFd>,
    /// Readable when the process is dead.
    pub pidfd: OwnedFd,
    pub image: Image,
    /// Who serves it and holds the connection, if not the process itself.
    pub helper: Option<Helper>,
    /// It sees other pids than we do, so those it writes into the table mean nothing to us.
    foreign: bool,
    /// Its userfaultfd, from when it pages.
    pub userfaultfd: Option<Userfaultfd>,
}

/// What a forked child has in common with its parent.
#[derive(Clone, Copy, Default)]
struct Origin {
    /// The same until the child execs. None: the parent is not known.
    image: Option<Image>,
    foreign: bool,
    /// The parent's; the child's is not before it.
    start_time: u64,
}

/// A child that a reserved slot is for.
pub(super) struct PendingChild {
    /// Which taking of the slot this is about.
    taken: u32,
    /// The slot was not reserved yet at that time: `clock::ticks`.
    after: u64,
    origin: Origin,
    child: Option<(Process, OwnedFd)>,
}

/// A process that may be a child for which a slot is reserved.
struct Candidate {
    image: Image,
    parent: u32,
    start_time: u64,
}

impl PendingChild {
    fn of(taken: u32, after: u64, origin: Origin) -> Self {
        Self {
            taken,
            after,
            origin,
            child: None,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.process().map(Process::pid)
    }

    pub fn process(&self) -> Option<&Process> {
        self.child.as_ref().map(|(process, _)| process)
    }
}

fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Descriptors of one process, bound to it for good: opened by number, then confirmed by a
/// read from the first that the process was still there.
pub(super) fn identify(pid: u32) -> Result<(Process, OwnedFd, Image), Errno> {
    let process = Process::open(pid)?;
    let pidfd = open_pidfd(pid)?;
    let image = process.stat()?.image;
    Ok((process, pidfd, image))
}

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

    /// A member costs six descriptors here. Raised when the first one joins, and not before,
    /// so that the program does not inherit another limit than it was given.
    fn raise_descriptor_limit(&self) {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let wanted = 8 * crate::MAX_SLOTS as u64;
        if limit.current.is_some_and(|now| now < wanted) {
            limit.current = Some(limit.maximum.map_or(wanted, |max| max.min(wanted)));
            // Refused: then members are, when descriptors run out, with that reason.
            let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        }
    }

    /// Gives the peer, or the program whose helper it is, a slot and tells it; or says why not.
    pub(super) fn join(
        &mut self,
        connection: &OwnedFd,
        hello: &Hello,
        program: Option<&OwnedFd>,
        inside: bool,
    ) -> Result<SlotNumber, String> {
        let peer = self.member_behind(connection)?;
        if hello.version != VERSION {
            return Err(format!(
                "its library speaks version {} and ebb {VERSION}; install the pair of one build",
                hello.version
            ));
        }
        if self.joined == 0 {
            self.raise_descriptor_limit();
        }
        let joining = Joining::of(peer, program).map_err(|why| match why {
            Unknown::Exhausted => {
                self.warn_exhausted(peer);
                NO_DESCRIPTORS.into()
            }
            Unknown::Because(why) => why,
        })?;
        self.admit(&joining, hello.reserved, inside)?;
        let pid = joining.process.pid();
        if let Some(&old) = self.by_pid.get(&pid) {
            let same = self.members[old.index()]
                .as_ref()
                .is_some_and(|member| member.connection.is_some() && member.image == joining.image);
            if same {
                return Err(format!("process {pid} has joined already"));
            }
            // What its helper has begun to write has to be over first.
            if !self.let_helper_end(old, Duration::ZERO) {
                self.reap(old);
            }
        }
        let slot = self.slot_for(&joining, hello.reserved)?;
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
            .and_then(|()| self.welcome(connection, slot));
        self.pending_children[slot.index()] = None;
        self.by_pid.insert(pid, slot);
        self.used[slot.index()] = true;
        self.joined += 1;
        self.members[slot.index()] = Some(ManagedProcess {
            process: joining.process,
            connection: None,
            pidfd: joining.pidfd,
            image: joining.image,
            helper: joining.helper,
            foreign: hello.pid != pid,
            userfaultfd: None,
        });
        self.measurements.forget(pid);
        self.measurements.forget(peer);
        if let Err(e) = told {
            self.reap(slot);
            return Err(format!("the answer could not be sent: {e}"));
        }
        Ok(slot)
    }

    /// Whether a member is of the user whose tree this is, or can be again.
    pub(super) fn is_of_our_user(&self, slot: SlotNumber) -> bool {
        let us = rustix::process::geteuid().as_raw();
        let member = self.members[slot.index()].as_ref();
        member.is_some_and(|member| member.process.has_user(us).unwrap_or(false))
    }

    /// A slot for who joins: the one reserved for it, or a free one. Its limits are set.
    fn slot_for(
        &mut self,
        joining: &Joining,
        reserved: Option<SlotNumber>,
    ) -> Result<SlotNumber, String> {
        if let Some(slot) = reserved {
            let slot = self.claim(slot, joining.image)?;
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
            return Err("every place for a process is taken; run fewer at a time".into());
        };
        self.table
            .slot(slot)
            .family
            .store(self.family_of(joining.image), SeqCst);
        let limits = self.own_limits.begin(&joining.process);
        self.table.slot(slot).limits.set(limits);
        Ok(slot)
    }

    /// The slot that the peer's parent reserved for it.
    fn claim(&mut self, slot: SlotNumber, image: Image) -> Result<SlotNumber, String> {
        let taken = self.members[slot.index()].is_some();
        if taken || self.table.state(slot).state != SlotState::Reserved {
            return Err(format!("slot {slot} is not reserved for it"));
        }
        self.track_child(slot);
        let expected = self.pending_children[slot.index()]
            .as_ref()
            .and_then(|e| e.origin.image);
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

    fn welcome(&self, connection: &OwnedFd, slot: SlotNumber) -> Result<(), Errno> {
        let packet = protocol::welcome(slot);
        protocol::send(connection, &packet, &[self.table_fd.as_fd()])
    }

    /// The connection to a member, if it has not ended.
    pub(super) fn connection(&self, slot: SlotNumber) -> Option<&OwnedFd> {
        self.members[slot.index()].as_ref()?.connection.as_ref()
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
            match protocol::receive(connection) {
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
                Ok((packet, fds)) => match MemberPacket::decode(&packet) {
                    Some(MemberPacket::Poke) => self.member_poked(slot),
                    Some(MemberPacket::Userfaultfd) => {
                        let kept = fds.into_iter().next().filter(orphan_memory::can_keep);
                        member.userfaultfd = kept.map(Userfaultfd::from);
                        if member.userfaultfd.is_none() {
                            let pid = member.process.pid();
                            self.warn_unkept(pid);
                        }
                    }
                    Some(MemberPacket::Ask(rows)) => self.send_devices(slot, rows),
                    Some(MemberPacket::HelperExit(why)) => self.helper_exit(slot, why),
                    Some(MemberPacket::Message(text)) => {
                        let pid = member.process.pid();
                        let text: String = String::from_utf8_lossy(text)
                            .chars()
                            .map(|c| if c.is_control() { ' ' } else { c })
                            .collect();
                        self.notice(&format!("{}[{pid}]: {text}", proc::name(pid)));
                    }
                    None => {}
                },
            }
        }
        true
    }

    /// The connection to a member has ended.
    fn connection_ended(&mut self, slot: SlotNumber) {
        if let Some(member) = &mut self.members[slot.index()] {
            member.connection = None;
        }
        let _ = self.check_left(slot);
    }

    /// A member has something new: it charges for itself from now on, perhaps.
    fn member_poked(&mut self, slot: SlotNumber) {
        self.due = Instant::now();
        // What it shares with relatives that page already is charged twice, unless its charge is
        // a copy of its parent's and was credited with that.
        let slot = self.table.slot(slot);
        if slot.credit.load(SeqCst) == 0 && slot.charged.load(SeqCst) > 0 {
            self.measurements.measure_sharing_soon();
        }
    }

    /// Every thread of the process is gone.
    pub(super) fn died(&mut self, slot: SlotNumber) {
        // Its last words may still be waiting.
        while self.receive_from(slot) {}
        // Unless that ended it, and another has the slot since.
        if let Some(member) = &self.members[slot.index()]
            && proc::has_ended(&member.pidfd)
        {
            self.own_limits.forget(&member.process);
            if !self.let_helper_end(slot, GRACE) {
                self.reap(slot);
            }
        }
    }

    /// The connection has ended: has the process become another program, and is its helper gone, if it had
    /// one? If it is only dying, its pidfd will say so. Whether it has left.
    pub(super) fn check_left(&mut self, slot: SlotNumber) -> bool {
        let left = self.members[slot.index()].as_ref().is_some_and(|member| {
            member.connection.is_none()
                && member.living_helper().is_none()
                && member.program_is_gone()
        });
        if left {
            self.member_left(slot);
        }
        left
    }

    /// The member is none any more, and its process may live on: it is measured like any other from now on.
    pub(super) fn member_left(&mut self, slot: SlotNumber) {
        self.reap(slot);
        self.measurements.walk_soon();
        self.due = Instant::now();
    }

    /// Takes back all that belongs to a slot, whose process is no more, and frees it.
    pub(super) fn reap(&mut self, slot: SlotNumber) {
        let origin = self.origin(slot);
        if let Some(member) = self.members[slot.index()].take() {
            let pid = member.process.pid();
            if self.by_pid.get(&pid) == Some(&slot) {
                self.by_pid.remove(&pid);
            }
            if let Some(helper) = &member.helper
                && self.helpers.get(&helper.pid) == Some(&slot)
            {
                self.helpers.remove(&helper.pid);
            }
            if let Some(userfaultfd) = member.userfaultfd {
                self.keep_orphan_memory(pid, userfaultfd);
            }
        }
        self.pending_children[slot.index()] = None;
        self.used[slot.index()] = true;

        // Children it reserved slots for are on their own now; what we know of them, we
        // know through it.
        let reserved: Vec<SlotNumber> = self
            .table
            .taken()
            .filter(|(_, word)| word.state == SlotState::Reserved && word.parent == Some(slot))
            .map(|(child, _)| child)
            .collect();
        for child in reserved {
            let StateWord { taken, charges, .. } = self.table.state(child);
            let entry = &mut self.pending_children[child.index()];
            if entry.as_ref().is_none_or(|e| e.taken != taken) {
                *entry = Some(PendingChild::of(taken, self.looked, origin));
            }
            self.table
                .set_state(child, StateWord::reserved(None, charges));
        }

        for leases in self.each_leases() {
            leases.reap(slot.index());
        }
        self.forget_shares(slot);
        let shared = self.table.slot(slot);
        let family = shared.family.swap(0, SeqCst);
        let credit = shared.credit.load(SeqCst);
        let charged = self.table.clear_charges(None, slot);
        self.lose_credit(family, charged - credit);
        shared.done.store(shared.begun.load(SeqCst), SeqCst);
        shared.coldest.store(0, SeqCst);
        shared.request.store(0, SeqCst);
        shared.pool.store(0, SeqCst);
        self.table.waiters.0[slot.index() / 64].fetch_and(!(1 << (slot.index() % 64)), SeqCst);
        self.table.set_state(slot, StateWord::FREE);
        self.drifted = true;
        self.table.wake_waiters();
        self.due = Instant::now();
    }

    /// A member of a family is gone: pages that the others share with it alone are now theirs
    /// to pay for. Which those are is not known until they are measured again, so all of
    /// its uncredited charge is assumed.
    fn lose_credit(&mut self, family: u64, pages: i64) {
        if family == 0 {
            return;
        }
        // How much of that was shared with it alone is not known until then.
        self.table.suspected.store(-1, SeqCst);
        self.table.take_credit(self.family(family), pages);
        // Those that are left may be alone now, and look.
        self.family(family).for_each(|n| self.table.wake(n));
        self.measurements.measure_sharing_soon();
    }

    /// The family of a process that joins with this image: that of its relatives, if it was forked
    /// by a process that does not page, or forked some itself.
    fn family_of(&self, image: Image) -> u64 {
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
    fn family(&self, family: u64) -> impl Iterator<Item = SlotNumber> + '_ {
        let slots = self.table.taken().map(|(n, _)| n);
        slots.filter(move |&n| self.table.slot(n).family.load(SeqCst) == family)
    }

    /// What a child forked by the process of a slot has in common with it.
    fn origin(&self, slot: SlotNumber) -> Origin {
        if let Some(member) = &self.members[slot.index()] {
            return Origin {
                image: Some(member.image),
                foreign: member.foreign,
                start_time: member.process.start_time(),
            };
        }
        self.pending_children[slot.index()]
            .as_ref()
            .map_or(Origin::default(), |e| e.origin)
    }

    /// Begins to keep an eye on a reserved slot, while what is known of the parent is known.
    /// The parent may be a reserved child itself.
    fn track_child(&mut self, slot: SlotNumber) {
        let StateWord { taken, parent, .. } = self.table.state(slot);
        if self.pending_children[slot.index()]
            .as_ref()
            .is_some_and(|e| e.taken == taken)
        {
            return;
        }
        // Marked first: a broken table may name slots in a circle.
        let after = self.looked;
        self.pending_children[slot.index()] =
            Some(PendingChild::of(taken, after, Origin::default()));
        if let Some(parent) = parent {
            if self.table.state(parent).state == SlotState::Reserved {
                self.track_child(parent);
            }
            self.pending_children[slot.index()] =
                Some(PendingChild::of(taken, after, self.origin(parent)));
        }
    }

    /// Looks after reserved slots, and after processes whose connection has ended.
    pub(super) fn check_slots(&mut self) {
        let now = clock::ticks();
        let mut nameless = Vec::new();
        for n in SlotNumber::all() {
            let word = self.table.state(n);
            match word.state {
                // A child that cannot reach us (from another network namespace) took its place by itself.
                SlotState::Joined | SlotState::Paging if self.members[n.index()].is_none() => {
                    self.track_child(n);
                    if matches!(self.look_at_child(n), Child::Gone) {
                        self.reap(n);
                    }
                }
                SlotState::Joined | SlotState::Paging => drop(self.check_left(n)),
                SlotState::Free => self.pending_children[n.index()] = None,
                SlotState::Reserved => {
                    self.track_child(n);
                    match self.look_at_child(n) {
                        Child::Unborn if word.parent.is_none() => nameless.push(n),
                        Child::Unnamed => nameless.push(n),
                        Child::Unborn | Child::Living => {}
                        Child::Gone => self.reap(n),
                    }
                }
            }
        }
        self.looked = now;
        if !nameless.is_empty() {
            self.look_for_children(&nameless);
        }
    }

    /// Gives up reserved slots whose child can be none of the processes that there are. The list of a
    /// process's children skips some when others end under it; the list of all processes does not skip
    /// one that lives throughout.
    fn look_for_children(&mut self, nameless: &[SlotNumber]) {
        let mut all = Vec::new();
        if proc::all(|pid| all.push(pid)).is_err() {
            return;
        }
        let candidates: Vec<Candidate> = all
            .iter()
            .filter_map(|&pid| self.candidate(pid, &all))
            .collect();
        for &n in nameless {
            let parents = self.parents_of(n);
            let Some(expected) = &self.pending_children[n.index()] else {
                continue;
            };
            // Of unknown parents nothing can be told: wait for the join or the end.
            let Some(image) = expected.origin.image else {
                continue;
            };
            let may_be = |s: &Candidate| {
                s.image == image
                    && s.start_time >= expected.after
                    && parents.is_none_or(|parents| parents.contains(&s.parent))
            };
            if !candidates.iter().any(may_be) {
                self.reap(n);
            }
        }
    }

    /// Whose child the process of a reserved slot is: its forker's, or that one's own parent's, as clone(2)
    /// may have it. None if nothing is known of that: a forker that has ended leaves its children to others.
    fn parents_of(&self, n: SlotNumber) -> Option<[u32; 2]> {
        let parent = self.table.state(n).parent?;
        let member = self.members[parent.index()].as_ref()?;
        let stat = member.process.stat().ok()?;
        (!proc::has_ended(&member.pidfd)).then_some([member.process.pid(), stat.parent])
    }

    /// A process that is none of those known to us, nor the helper of one among `all`.
    fn candidate(&self, pid: u32, all: &[u32]) -> Option<Candidate> {
        let process = Process::open(pid).ok()?;
        let joined = self.by_pid.get(&pid);
        let joined = joined.and_then(|n| self.members[n.index()].as_ref());
        let expected = || {
            self.pending_children
                .iter()
                .flatten()
                .filter_map(PendingChild::process)
        };
        let known = joined
            .map(|member| &member.process)
            .into_iter()
            .chain(expected())
            .any(|p| (p.pid(), p.start_time()) == (pid, process.start_time()));
        if known || self.is_helper(&process, all) {
            return None;
        }
        let stat = process.stat().ok()?;
        Some(Candidate {
            image: stat.image,
            parent: stat.parent,
            start_time: stat.start_time,
        })
    }

    /// Images of children that were charged for before their forks, while it is not known which
    /// processes they are: neither parent nor child may have run since to say so. Counted as
    /// candidates too, such a child would use up the budget a second time.
    pub(super) fn nameless_children(&mut self) -> Vec<Image> {
        let taken = self.table.taken();
        let reserved: Vec<SlotNumber> = taken
            .filter(|(_, word)| word.state == SlotState::Reserved && word.charges)
            .map(|(n, _)| n)
            .collect();
        // Some may have been reserved since the last look.
        reserved.iter().for_each(|&n| self.track_child(n));
        let expected = reserved
            .iter()
            .map(|n| self.pending_children[n.index()].as_ref());
        let nameless = expected.flatten().filter(|e| e.child.is_none());
        nameless.filter_map(|e| e.origin.image).collect()
    }

    fn look_at_child(&mut self, slot: SlotNumber) -> Child {
        let Some(expected) = &mut self.pending_children[slot.index()] else {
            return Child::Unborn;
        };
        let origin = expected.origin;
        if expected.child.is_none() {
            let pid = match self.table.slot(slot).named(expected.taken) {
                Named::Unborn => return Child::Unborn,
                Named::Unnamed => return Child::Unnamed,
                // Pids of another namespace say only that there is, or was, a child.
                Named::Pid(_) if origin.foreign => return Child::Unnamed,
                Named::Pid(pid) => pid,
            };
            match identify(pid) {
                // Older than its parent: the number is of another pid namespace.
                Ok((process, ..)) if process.start_time() < origin.start_time => {
                    expected.origin.foreign = true;
                }
                Ok((process, pidfd, _)) => expected.child = Some((process, pidfd)),
                Err(Errno::MFILE | Errno::NFILE) => return Child::Living,
                Err(_) => return Child::Gone,
            }
        }
        let Some((process, pidfd)) = &expected.child else {
            return Child::Unnamed;
        };
        if proc::has_ended(pidfd) {
            return Child::Gone;
        }
        match process.stat() {
            Err(_) => Child::Gone,
            // Dying: the pidfd will say when it is done.
            Ok(stat) if !stat.image.is_some() => Child::Living,
            Ok(stat) if origin.image.is_some_and(|image| image != stat.image) => Child::Gone,
            Ok(_) => Child::Living,
        }
    }
}

/// The child of a reserved slot.
enum Child {
    /// Not forked yet, as far as is known.
    Unborn,
    /// Forked, if the fork did not fail; which process it is nobody said.
    Unnamed,
    Living,
    /// Dead, or another program.
    Gone,
}

/// Every process of the tree but ourselves: our descendants, and those of the `known`, which are no
/// longer ours where this process carries on for another.
pub(super) fn descendants(known: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut found: Vec<u32> = known.collect();
    // Children of one that ends meanwhile become ours; the next walk finds them.
    let mut parent = std::process::id();
    let mut next = 0;
    loop {
        let _ = proc::children(parent, |pid| {
            if !found.contains(&pid) {
                found.push(pid);
            }
        });
        match found.get(next) {
            Some(&pid) => parent = pid,
            None => return found,
        }
        next += 1;
    }
}
