//! Children that slots are reserved for, and that may not have joined yet.
//!
//! A reserved slot holds leases for a child that may not have joined yet. It is given up when the child is known to be
//! dead or to have become another program. The helper that the child named has to be gone then: it may be about to
//! write to a device. Numbers that processes of another PID namespace wrote tell of neither that it is gone. A child
//! that took its place by itself, and was named in such a one alone, keeps it until the tree ends.
//!
//! It is also given up when the parent has left, or has forked (perhaps in vain), without naming the
//! child, and no process can be the child. A process can be the child if it is not known otherwise and has the parent's
//! image, as a forked child has whatever its pid is. Also it started after the slot was reserved, and is a child of the
//! parent while that lives.

use super::Supervisor;
use super::helpers::Programs;
use super::managed_process::{Helper, identify, is_shortage};
use crate::table::{Named, SlotNumber, SlotState, StateWord};
use ebb_sys::clock;
use ebb_sys::proc::{self, Image, Process};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Properties that a forked child shares with its parent.
#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    /// The same until the child execs. None: the parent is not known.
    pub image: Option<Image>,
}

/// A child that a reserved slot is for.
pub(super) struct PendingChild {
    /// The taking of the slot that this is about.
    pub taken: u32,
    /// The slot was not reserved yet at that time: `clock::ticks`.
    pub after: u64,
    pub origin: Origin,
    pub child: Option<(Process, OwnedFd)>,
    /// Flag: it has ended, as far as can be seen, and nobody can tell of its helper.
    pub is_left_over: bool,
}

/// A process that may be a child for which a slot is reserved.
struct Candidate {
    image: Image,
    parent: u32,
    start_time: u64,
}

impl PendingChild {
    pub fn of(taken: u32, after: u64, origin: Origin) -> Self {
        Self {
            taken,
            after,
            origin,
            child: None,
            is_left_over: false,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.process().map(Process::pid)
    }

    pub fn process(&self) -> Option<&Process> {
        self.child.as_ref().map(|(process, _)| process)
    }
}

/// The child of a reserved slot.
pub(super) enum Child {
    /// Not forked yet, as far as is known.
    Unborn,
    /// Forked, if the fork did not fail; which process it is nobody said.
    Unnamed,
    Living,
    /// Dead, or another program.
    Gone,
}

impl Supervisor {
    /// Properties that a child forked by the process of a slot shares with it.
    pub(super) fn origin(&self, slot: SlotNumber) -> Origin {
        if let Some(member) = &self.members[slot.index()] {
            return Origin {
                image: Some(member.image),
            };
        }
        self.pending_children[slot.index()]
            .as_ref()
            .map_or(Origin::default(), |e| e.origin)
    }

    /// Begins to keep an eye on a reserved slot, while what is known of the parent is known.
    /// The parent may be a reserved child itself.
    pub(super) fn track_child(&mut self, slot: SlotNumber) {
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
            if self.members[parent.index()].is_none() {
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
        self.guard.notice_end();
        for member in self.members.iter_mut().flatten() {
            member.be_guarded(&mut self.guard);
        }
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
                        Child::Gone => drop(self.reap(n)),
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
        let programs = Programs::default();
        let candidates = all.iter().map(|&pid| self.candidate(pid, &all, &programs));
        // Whoever cannot be looked at now may be any of them.
        let Ok(candidates) = candidates.collect::<Result<Vec<_>, Errno>>() else {
            return;
        };
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
            if !candidates.iter().flatten().any(may_be) && self.is_over(n) {
                self.reap(n);
            }
        }
    }

    /// Possible parents of the process of a reserved slot: its forker, or the forker's own parent, as
    /// clone(2) may have it. None if nothing is known of that: a forker that has ended leaves its children
    /// to others.
    fn parents_of(&self, n: SlotNumber) -> Option<[u32; 2]> {
        let parent = self.table.state(n).parent?;
        let member = self.members[parent.index()].as_ref()?;
        let stat = member.process.stat().ok()?;
        (!proc::has_ended(&member.pidfd)).then_some([member.process.pid(), stat.parent])
    }

    /// A process that is none of those known to us, nor the helper of one among `all`. An error: it could not be looked
    /// at, for want of memory or descriptors.
    fn candidate(
        &self,
        pid: u32,
        all: &[u32],
        programs: &Programs,
    ) -> Result<Option<Candidate>, Errno> {
        let process = match Process::open(pid) {
            Ok(process) => process,
            Err(error) if is_shortage(error) => return Err(error),
            Err(_) => return Ok(None),
        };
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
        if known || self.is_helper(&process, all, programs) {
            return Ok(None);
        }
        match process.stat() {
            Ok(stat) => Ok(Some(Candidate {
                image: stat.image,
                parent: stat.parent,
                start_time: stat.start_time,
            })),
            Err(error) if is_shortage(error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Images of children that were charged for before their forks and whose numbers are not known yet.
    /// Neither parent nor child may have run since to say so. Counted as an unmanaged process too, such a child would
    /// use up the budget a second time.
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

    /// The child of a slot that is reserved, or whose process never reached us.
    pub(super) fn look_at_child(&mut self, slot: SlotNumber) -> Child {
        match self.child_of(slot) {
            Child::Gone if !self.is_over(slot) => Child::Living,
            child => child,
        }
    }

    /// The child has ended: whether its helper, which it named, has too. We never heard of it, so it is no process of
    /// ours. Where nobody can tell, the slot is left over.
    fn is_over(&mut self, slot: SlotNumber) -> bool {
        let taken = self.table.state(slot).taken;
        let (over, told) = match self.table.slot(slot).helper(taken) {
            Named::Unborn => (true, true),
            Named::Pid(pid) => (!Helper::lives(pid), true),
            Named::Unnamed | Named::Foreign(_) => (false, false),
        };
        if let Some(child) = &mut self.pending_children[slot.index()] {
            child.is_left_over = !told;
        }
        over
    }

    /// Whether a slot is of a process that may live, as far as was seen.
    pub(super) fn may_live(&self, slot: SlotNumber) -> bool {
        let child = self.pending_children[slot.index()].as_ref();
        let is_left_over = child.is_some_and(|child| child.is_left_over);
        self.members[slot.index()].is_some() || !is_left_over
    }

    fn child_of(&mut self, slot: SlotNumber) -> Child {
        let Some(expected) = &mut self.pending_children[slot.index()] else {
            return Child::Unborn;
        };
        let origin = expected.origin;
        if expected.child.is_none() {
            let pid = match self.table.slot(slot).named(expected.taken) {
                Named::Unborn => return Child::Unborn,
                // Pids of another namespace say only that there is, or was, a child.
                Named::Unnamed | Named::Foreign(_) => return Child::Unnamed,
                Named::Pid(pid) => pid,
            };
            match identify(pid) {
                Ok((process, pidfd, _)) => expected.child = Some((process, pidfd)),
                Err(error) if is_shortage(error) => return Child::Living,
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
            // It lives: the pidfd says so.
            Err(_) => Child::Living,
            // Dying: the pidfd will say when it is done.
            Ok(stat) if !stat.image.is_some() => Child::Living,
            // Of a parent whose image was not shown nothing can be told.
            Ok(stat) => match origin.image.filter(Image::is_some) {
                Some(image) if image != stat.image => Child::Gone,
                _ => Child::Living,
            },
        }
    }
}
