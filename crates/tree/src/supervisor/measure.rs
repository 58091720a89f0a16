//! The tick: measuring who does not page, writing the limit, asking for reclaim.
//!
//! # Pace
//! Memory can be filled at [`FILL_PAGES_PER_MS`] a processor. The next tick comes before the room left
//! could be used up at that pace. It comes at least every [`SLOWEST`] and at most every [`FASTEST`], and
//! never so often that ticks cost more than [`MAX_SHARE`] of a processor. Where nobody is left to measure,
//! and no forked relatives share pages (a write to one takes a page that nobody charges), it is
//! [`SLOWEST`].
//!
//! A tree that pages fills its budget: there is never room. Beside a shell that waits for its job every tick would be a
//! [`FASTEST`] one, and they took a thirtieth of a processor. Where nothing has changed for long, the least is [`QUIET`].

use super::Supervisor;
use super::descendants::{Descendants, Strangers};
use super::helpers::{Programs, may_end};
use super::managed_process::is_shortage;
use super::pace::{FASTEST, QUIET, QUIET_TICKS, SLOWEST, cpu_time};
use super::removal::CHECK_INTERVAL;
use super::sharing::Sharing;
use crate::table::{Mode, ReclaimRequest, SlotNumber, SlotState, start_threshold};
use ebb_engine::PAGE_SIZE;
use ebb_sys::proc::{Image, Process};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Minor faults with huge pages, a page zeroed at about 3 GB/s.
const FILL_PAGES_PER_MS: i64 = 750;
/// Ticks may take one part in so many of a processor.
const MAX_SHARE: u32 = 20;
/// Walks over the tree may take one part in so many.
const WALK_SHARE: u32 = 100;
/// The times that something takes on a crowded machine.
const CROWDED: u32 = 10;
/// The most walks until it is told that no process lives.
const MAX_WALKS: usize = 16;
/// With so many a process that can be managed joins.
const MORE_THAN_A_LITTLE: i64 = (1 << 20) / PAGE_SIZE as i64;

/// A process of the tree that has not joined.
struct UnmanagedProcess {
    process: Process,
    /// The pages as last measured.
    pages: i64,
    /// The program that it is: members that page may have the same pages.
    image: Image,
    /// The time from which on it is measured.
    since: Instant,
    /// Flag: [`Supervisor::unjoined`] has named it.
    shown: bool,
}

impl UnmanagedProcess {
    /// Anonymous pages that nobody else pays for. One of the `charging` programs, forked from it by a system call that
    /// nobody saw or managed no more, has mostly pages that another member is charged for.
    fn measure(&self, charging: &[Image]) -> Result<i64, Errno> {
        if self.image.is_some()
            && charging.contains(&self.image)
            && let Ok(rollup) = self.process.rollup()
        {
            // Of a page that two share, half is each one's.
            return Ok((rollup.anonymous as i64 - 2 * rollup.shared_away() as i64).max(0));
        }
        self.process.statm().map(|s| s.anonymous() as i64)
    }
}

/// The supervisor's memory of what it measured.
#[derive(Default)]
pub(super) struct Measurements {
    /// Processes of the tree that have not joined.
    unmanaged: HashMap<u32, UnmanagedProcess>,
    /// Children of this process that are not of the tree.
    pub strangers: Strangers,
    /// Ourselves.
    own: Option<Process>,
    next_walk: Option<Instant>,
    /// The processor time of the last walk.
    walk_cost: Duration,
    /// Pages of forks that the last tick saw for the first time.
    forked: i64,
    /// The time after which the last tick wanted the next one.
    pace: Duration,
    pub sharing: Sharing,
    /// Pages of all that is measured.
    pages: i64,
    /// Ticks in a row that found as many.
    quiet: u32,
    /// The limit of which all members know.
    announced: i64,
    announced_mode: bool,
    /// The least excess since there is some, and since when (CLOCK_MONOTONIC nanoseconds).
    least_excess: Option<(i64, u64)>,
}

impl Measurements {
    pub fn new() -> Self {
        let mut measurements = Self {
            strangers: Strangers::note(),
            ..Self::default()
        };
        measurements.measure_this_process();
        measurements
    }

    /// So many pages were measured.
    fn note(&mut self, pages: i64) {
        self.quiet = match std::mem::replace(&mut self.pages, pages) == pages {
            true => self.quiet.saturating_add(1),
            false => 0,
        };
    }

    /// The least time to the next tick.
    fn fastest(&self, mode: Mode) -> Duration {
        match mode == Mode::Paging && self.quiet >= QUIET_TICKS {
            true => QUIET,
            false => FASTEST,
        }
    }

    /// Its own memory is the calling process's from now on.
    pub fn measure_this_process(&mut self) {
        self.own = Process::open(std::process::id()).ok();
    }

    /// Whether a walk is to be made at this time. A long one waits while the room could be filled meanwhile, for one
    /// turn at most: on a crowded machine it takes many times its processor time.
    fn is_walk_due(&self, now: Instant) -> bool {
        let Some(at) = self.next_walk else {
            return true;
        };
        let long = self.walk_cost > FASTEST / 2 && self.walk_cost * CROWDED > self.pace;
        now >= at
            + if long {
                self.walk_interval()
            } else {
                Duration::ZERO
            }
    }

    fn walk_interval(&self) -> Duration {
        SLOWEST.max(self.walk_cost * WALK_SHARE)
    }

    /// `pid` has joined, or is gone.
    pub fn forget(&mut self, pid: u32) {
        self.unmanaged.remove(&pid);
    }

    /// Processes of the tree that have not joined.
    pub fn unmanaged(&self) -> impl Iterator<Item = u32> + '_ {
        self.unmanaged.keys().copied()
    }

    /// Those processes, with the pages of each.
    pub fn pages_of_unmanaged(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let all = self.unmanaged.iter();
        all.map(|(&pid, one)| (pid, one.pages.max(0).cast_unsigned()))
    }

    /// When a process of the tree that has not joined was started.
    pub fn start_of_unmanaged(&self, pid: u32) -> Option<u64> {
        let unjoined = self.unmanaged.get(&pid)?;
        Some(unjoined.process.start_time())
    }

    /// The tree has changed in a way that a walk will show.
    pub fn walk_soon(&mut self) {
        self.next_walk = None;
    }

    /// Sharing has changed.
    pub fn measure_sharing_soon(&mut self) {
        self.sharing.measure_soon();
    }
}

/// A child of `vfork` that has not called exec: its memory is its parent's, and counted there.
fn in_its_parent(process: &Process) -> bool {
    process
        .stat()
        .is_ok_and(|stat| process.lives_in(stat.parent))
}

/// The program that a process is; none, where that is not shown.
pub(super) fn image_of(process: &Process) -> Image {
    process.stat().map_or(Image::default(), |stat| stat.image)
}

/// After so many nanoseconds in which the excess has not become less, what was asked for is not on its way.
const STALLED_NS: u64 = 200_000_000;
/// Pages that leave at a time, about.
const LOT: u128 = 32;

/// A paging member: the pages that it holds, and those times the age of its coldest page.
struct Holder {
    weight: u128,
    held: u128,
    slot: SlotNumber,
}

/// How much of `excess` each is to give, by weight; what is too little, or more than one has, is for those before it and
/// after it. The heaviest come first.
fn parts(excess: u128, holders: &[Holder]) -> Vec<(SlotNumber, u64)> {
    let whole: u128 = holders.iter().map(|holder| holder.weight).sum();
    let part = |holder: &Holder| match excess * holder.weight / whole.max(1) {
        small if small < LOT => 0,
        part => part,
    };
    let mut rest = excess - holders.iter().map(part).sum::<u128>();
    let mut asked = Vec::new();
    for holder in holders {
        let wanted = part(holder) + rest;
        let pages = wanted.min(holder.held);
        rest = wanted - pages;
        asked.push((holder.slot, pages as u64));
    }
    asked
}

impl Supervisor {
    pub(super) fn tick(&mut self) {
        let start = Instant::now();
        let cpu = cpu_time();
        self.check_slots();
        // Processes that forked since the last tick: their children are looked for at once, and count
        // then.
        let forked = self.table.forked.load(SeqCst);
        let walk_due = self.measurements.is_walk_due(start);
        let mut apart = Duration::ZERO;
        if forked != 0 || walk_due {
            self.walk();
            if walk_due {
                apart = self.measurements.walk_cost;
            }
        }
        self.measure();
        // Forks seen at the tick before have been measured: it takes a while until there is a child.
        let seen = std::mem::replace(&mut self.measurements.forked, 0);
        let left = self.table.end_forked(seen);
        self.measurements.forked = forked.saturating_sub(seen).clamp(0, left);
        self.correct_credit();
        let suspected = self.measurements.sharing.suspected();
        self.table.suspected.store(suspected.unwrap_or(-1), SeqCst);
        self.correct_drift();
        self.count_pressure();
        let above = self.reduce_budget();
        let room = self.apply_limit(above);

        // Processor time: on a busy machine much of the elapsed is others'. Sharing is measured seldom, as are
        // processes that have many threads walked through. Both take as long as a hundred ticks. With them
        // counted here, the tree would be out of sight for that long, just when it nears its budget.
        apart += self.measurements.sharing.take_cost();
        let cost = cpu_time().saturating_sub(cpu).saturating_sub(apart);
        let rate = FILL_PAGES_PER_MS * self.processors as i64;
        let until_full = Duration::from_millis((room / rate).max(0) as u64);
        let pace = if self.someone_to_measure() || self.someone_shares() {
            until_full
        } else {
            SLOWEST
        };
        self.measurements.pace = pace;
        match self.table.crowded.swap(0, SeqCst) {
            0 => {}
            pid => self.warn_crowded(pid, "waits to fork"),
        }
        self.answer_postponed();
        self.drop_silent_handshakes();
        self.refill_spare();
        self.check_openings();
        self.check_removals();
        self.warn_of_errors();
        self.warn_of_full_devices();
        self.warn_beyond_budget();
        let moving = self.has_removals()
            || self.reduction.is_some()
            || !self.postponed.is_empty()
            || self.is_opening();
        let slowest = if moving { CHECK_INTERVAL } else { SLOWEST };
        let fastest = self.measurements.fastest(self.table.mode());
        self.due = start + pace.clamp(fastest, slowest).max(cost * MAX_SHARE);
    }

    /// A death may have left the sum of charges too large.
    fn correct_drift(&mut self) {
        if self.drifted
            && let Some(drift) = self.table.drift()
        {
            self.table.charged.0.fetch_sub(drift, SeqCst);
            self.drifted = false;
        }
    }

    /// In a simulation: what has come, and a tick in which nothing is measured.
    ///
    /// # Errors
    /// Those of the event queue; none is expected.
    #[cfg(debug_assertions)]
    pub fn simulated_turn(&mut self) -> std::io::Result<()> {
        self.handle_events(Duration::ZERO)?;
        self.notice_ended_helpers();
        self.check_slots();
        self.correct_drift();
        let above = self.reduce_budget();
        self.write_limit(0);
        self.apply_limit(above);
        Ok(())
    }

    fn someone_shares(&self) -> bool {
        let mut taken = self.table.taken();
        taken.any(|(n, _)| self.table.slot(n).credit.load(SeqCst) > 0)
    }

    fn someone_to_measure(&self) -> bool {
        !self.measurements.unmanaged.is_empty()
            || self
                .table
                .taken()
                .any(|(_, word)| word.state == SlotState::Joined)
    }

    /// Whether any process of the tree lives, those included that have too little to join.
    ///
    /// A walk alone does not tell that none does. A process that it comes upon may end meanwhile, and leave its children
    /// to us, whom the walk has been at already. So it is walked once more, until all that is come upon had ended before
    /// the walk. What cannot be looked at may live.
    pub fn has_processes(&mut self) -> bool {
        let mut ended = Vec::new();
        for _ in 0..MAX_WALKS {
            // Processes that live and are not known yet: once this process is not their ancestor any more,
            // they can join because they are known.
            let walk = self.walk();
            // Not those that have ended: who asks has nothing else to wait for.
            self.measurements
                .unmanaged
                .retain(|_, unjoined| !unjoined.process.has_ended());
            if !walk.is_whole || self.knows_processes() {
                return true;
            }
            if walk.pids.iter().all(|pid| ended.contains(pid)) {
                return false;
            }
            ended = walk.pids;
        }
        true
    }

    /// The same for a caller that waits for the last to end, and asks often. Processes are looked for anew only where none
    /// is known any more. To walk over the tree takes some ten microseconds for each, and the tick does it often enough.
    pub fn still_has_processes(&mut self) -> bool {
        self.knows_processes() || self.has_processes()
    }

    fn knows_processes(&self) -> bool {
        let mut unmanaged = self.measurements.unmanaged.values();
        let mut taken = self.table.taken();
        taken.any(|(n, _)| self.may_live(n)) || unmanaged.any(|one| !one.process.has_ended())
    }

    /// A process of the tree that has more than a little memory and has not joined, each once: perhaps
    /// it cannot be managed.
    pub fn unjoined(&mut self) -> Option<u32> {
        let is_new = |s: &UnmanagedProcess| !s.shown && s.pages >= MORE_THAN_A_LITTLE;
        let mut unmanaged = self.measurements.unmanaged.iter_mut();
        let (&pid, found) = unmanaged.find(|(_, s)| is_new(s) && !may_end(&s.process, s.since))?;
        found.shown = true;
        Some(pid)
    }

    /// The user knows that a process of the tree cannot be managed.
    pub(super) fn is_told_of(&mut self, process: Process) {
        let pid = process.pid();
        if !self.measurements.unmanaged.contains_key(&pid) {
            let image = image_of(&process);
            self.begin_to_measure(process, image);
        }
        if let Some(unjoined) = self.measurements.unmanaged.get_mut(&pid) {
            unjoined.shown = true;
        }
    }

    /// Finds the processes of the tree that have not joined. One that ends is dropped when
    /// it cannot be measured any more; none leaves the tree otherwise.
    fn walk(&mut self) -> Descendants {
        let cpu = cpu_time();
        let mut found = self.descendants(std::iter::empty());
        let charging: Vec<u32> = self
            .table
            .taken()
            .filter(|(_, word)| word.is_charging())
            .filter_map(|(n, _)| self.pending_children[n.index()].as_ref()?.pid())
            .collect();
        let nameless = self.nameless_children();
        self.check_helpers();
        self.own_limits.prune();
        self.check_orphan_memory();
        let programs = Programs::default();
        for &pid in &found.pids {
            if self.by_pid.contains_key(&pid) || charging.contains(&pid) {
                self.measurements.unmanaged.remove(&pid);
                continue;
            }
            if self.measurements.unmanaged.contains_key(&pid) {
                continue;
            }
            match self.open(pid) {
                Ok(process) => {
                    let image = image_of(&process);
                    if !in_its_parent(&process)
                        && !self.is_helper(&process, &found.pids, &programs)
                        && !nameless.contains(&image)
                    {
                        self.begin_to_measure(process, image);
                    }
                }
                Err(error) => found.is_whole &= !is_shortage(error),
            }
        }
        self.measurements.walk_cost = cpu_time().saturating_sub(cpu);
        self.measurements.next_walk = Some(Instant::now() + self.measurements.walk_interval());
        found
    }

    /// A process that is to be measured, if it has not ended. For want of descriptors its memory would not count, and the
    /// user is told.
    fn open(&mut self, pid: u32) -> Result<Process, Errno> {
        let opened = Process::open(pid);
        if let Err(Errno::MFILE | Errno::NFILE) = opened {
            self.warn_exhausted(pid);
        }
        opened
    }

    /// A process that lives has not joined, or is no member any more.
    pub(super) fn begin_to_measure(&mut self, process: Process, image: Image) {
        self.own_limits.begin(&process);
        let unjoined = UnmanagedProcess {
            process,
            pages: 0,
            image,
            since: Instant::now(),
            shown: false,
        };
        let pid = unjoined.process.pid();
        self.measurements.unmanaged.insert(pid, unjoined);
    }

    /// The programs of members that are charged for what they have.
    fn charging_images(&self) -> impl Iterator<Item = Image> {
        let taken = self.table.taken().filter(|(_, word)| word.is_charging());
        taken.filter_map(|(n, _)| self.members[n.index()].as_ref().map(|member| member.image))
    }

    /// Measures every process that does not charge for itself, and writes the limit.
    fn measure(&mut self) {
        let anonymous = |process: &Process| process.statm().map(|s| s.anonymous() as i64);
        let mut measured = Vec::new();
        let mut joined = Vec::new();
        for (n, word) in self.table.taken() {
            let Some(member) = &self.members[n.index()] else {
                continue;
            };
            if word.state != SlotState::Joined {
                continue;
            }
            // Dying or dead: its end will be noticed soon. What a process has is its latest program's.
            let pages = match member.replaced {
                true => 0,
                false => anonymous(&member.process).unwrap_or(0),
            };
            measured.push((&member.process, pages));
            joined.push((n, pages));
        }
        // Our own memory is part of the price.
        let mut others = self
            .measurements
            .own
            .as_ref()
            .map_or(0, |own| anonymous(own).unwrap_or(0));
        let mut unmanaged = std::mem::take(&mut self.measurements.unmanaged);
        let charging: Vec<Image> = match unmanaged.is_empty() {
            true => Vec::new(),
            false => self.charging_images().collect(),
        };
        unmanaged.retain(|_, unjoined| match unjoined.measure(&charging) {
            Ok(pages) => {
                unjoined.pages = pages;
                others += pages;
                true
            }
            Err(e) => e != Errno::SRCH,
        });
        measured.extend(unmanaged.values().map(|s| (&s.process, s.pages)));
        let mut sharing = std::mem::take(&mut self.measurements.sharing);
        let sum: i64 = joined.iter().map(|(_, pages)| pages).sum();
        self.measurements.note(sum + others);
        let overlap = self.overlap(&measured, (sum, others), &mut sharing);
        self.measurements.sharing = sharing;
        self.measurements.unmanaged = unmanaged;
        self.table.overlap.store(overlap, SeqCst);
        // Each with its part of the limit: growth that was allowed is none any more once it is measured.
        for (n, pages) in joined {
            self.table.set_measured(n, pages);
        }
        self.write_limit(others - overlap);
    }

    /// limit = budget - outside + credit. Members change credit and limit one after the other; a
    /// sum taken in between would count that change twice. So it is one that nothing disturbed, or
    /// what is nobody's part of the limit stays until the next tick.
    fn write_limit(&self, others: i64) {
        /// A change takes less than a microsecond, unless its thread lost its processor.
        const TRIES: u32 = 20;
        let limit = &self.table.limit.0;
        let look = || {
            let before = limit.load(SeqCst);
            let budget = self.table.budget.load(SeqCst);
            let slots = self.table.taken().map(|(n, _)| self.table.slot(n));
            let inside: i64 = slots
                .map(|slot| slot.credit.load(SeqCst) - slot.measured.load(SeqCst))
                .sum();
            (before, budget - others + inside)
        };
        for _ in 0..TRIES {
            if let Some((before, target)) = self.table.undisturbed(look)
                && limit
                    .compare_exchange(before, target, SeqCst, SeqCst)
                    .is_ok()
            {
                if target > before {
                    self.table.wake_waiters();
                }
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Starts paging when it is time, asks for reclaim when too much is charged, or `above` pages
    /// too much for a lower budget. Returns the pages of room until something has to be done.
    fn apply_limit(&mut self, above: i64) -> i64 {
        let used = self.table.in_use();
        let charged = self.table.charged.0.load(SeqCst);
        if let Some((charged, limit)) = self.table.charged_and_limit() {
            self.table.note_peak(charged, limit);
        }
        let budget = self.table.budget.load(SeqCst);
        let start = start_threshold(budget);
        let requested = self.table.paging_request.swap(0, SeqCst) != 0;
        self.table.unanswered.store(0, SeqCst);
        if self.table.mode() == Mode::Watching && (requested || used >= start) {
            self.credit_overlap();
            self.table.mode.store(1, SeqCst);
        }
        let limit = self.table.limit.0.load(SeqCst);
        let paging = self.table.mode() == Mode::Paging;
        let announce_mode = paging && !self.measurements.announced_mode;
        // Small changes of the limit wake nobody.
        let announce_limit = (limit - self.measurements.announced).abs() > budget / 64;
        if announce_mode || announce_limit {
            self.measurements.announced_mode |= paging;
            self.measurements.announced = limit;
            for (n, _) in self.table.taken() {
                self.table.wake(n);
            }
        }
        let excess = (charged - limit).max(above);
        match excess > 0 {
            true => self.distribute_excess(excess),
            false => self.measurements.least_excess = None,
        }
        if paging {
            limit - charged
        } else {
            start - used
        }
    }

    /// Asks paging members to give up `excess` pages in all, with those that are on their way. Each gives by how much it holds
    /// and how long its coldest page has been idle. One page would cost a member as much as [`LOT`]: smaller parts are the
    /// largest one's. Where nothing comes, members that were asked may be stopped: the others are asked for all.
    fn distribute_excess(&mut self, excess: i64) {
        let now = ebb_sys::clock::monotonic_ns();
        let (least, since) = self.measurements.least_excess.unwrap_or((i64::MAX, now));
        let since = if excess < least { now } else { since };
        self.measurements.least_excess = Some((least.min(excess), since));
        let stalled = now.saturating_sub(since) > STALLED_NS;
        let on_its_way = |slot| match stalled {
            true => 0,
            false => self.table.on_its_way(slot),
        };
        let coming = self.table.paging().map(on_its_way);
        let excess = coming.fold(excess, i64::saturating_sub);
        if excess <= 0 {
            return;
        }
        let mut holders: Vec<Holder> = self
            .table
            .paging()
            .filter(|&slot| !self.table.is_asked(slot))
            .map(|slot| {
                let shared = self.table.slot(slot);
                let held = shared.charged.load(SeqCst).saturating_sub(on_its_way(slot));
                let held = held.max(0) as u128;
                let idle = shared.idle_ns(now).map_or(0, |idle| idle.max(1));
                let weight = held * u128::from(idle);
                Holder { weight, held, slot }
            })
            .collect();
        if holders.iter().all(|holder| holder.weight == 0) {
            // Nobody says how old its pages are: by size alone.
            for holder in &mut holders {
                holder.weight = holder.held;
            }
        }
        holders.sort_unstable_by_key(|holder| Reverse(holder.weight));
        for (slot, pages) in parts(excess as u128, &holders) {
            self.table.request(slot, ReclaimRequest::any(pages));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Member;
    use crate::table::StateWord;

    /// Supervisors that are stopped hold up one fork, and those that are gone none.
    #[test]
    fn a_fork_waits_for_a_supervisor_that_looks() {
        let mut supervisor = Supervisor::for_test(1000);
        let table = supervisor.table;
        let me = table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        let member = Member::for_test(table, me);
        assert!(member.may_request_paging());
        member.waits_in_vain();
        assert!(!member.may_request_paging(), "nobody has looked since");
        supervisor.tick();
        assert!(member.may_request_paging());
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        member.tell(ours);
        member.request_paging();
        member.forward_paging_request();
        assert!(member.may_request_paging());
        drop(theirs);
        member.forward_paging_request();
        assert!(!member.may_request_paging());
    }

    /// A process that begins to charge pays for its memory as much as the limit was lowered by for it.
    #[test]
    fn what_is_measured_lowers_the_limit_whatever_is_under_way() {
        let supervisor = Supervisor::for_test(1000);
        let table = supervisor.table;
        let take = || table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        let (me, other) = (take(), take());
        // A change that is under way all the time.
        table.slot(other).begun.store(1, SeqCst);
        table.set_measured(me, 300);
        supervisor.write_limit(0);
        assert_eq!(table.limit.0.load(SeqCst), 700);
        table.start_paging(me, 300);
        assert_eq!(table.limit.0.load(SeqCst), 1000);
        // It begins to charge while it is measured.
        table.set_measured(me, 400);
        assert_eq!(table.limit.0.load(SeqCst), 1000);
        assert_eq!(table.in_use(), 300);
    }

    #[test]
    fn what_is_on_its_way_is_not_asked_for_again() {
        let mut supervisor = Supervisor::for_test(1000);
        let table = supervisor.table;
        let members = [0, 1].map(|_| {
            let n = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
            table.charge_forced(n, 600);
            n
        });
        let [first, second] = members;
        let excess = || table.charged.0.load(SeqCst) - 1000;
        supervisor.distribute_excess(excess());
        assert_eq!(members.map(|n| table.on_its_way(n)), [100, 100]);
        // One is about to give, and the other has not heard of it yet.
        assert_eq!(table.take_request(first).pages, 100);
        table.uncharge(first, 60);
        supervisor.distribute_excess(excess());
        assert_eq!(members.map(|n| table.on_its_way(n)), [40, 100]);
        assert!(!table.is_asked(first));
        assert_eq!(table.take_request(second).pages, 100);
        table.uncharge(second, 100);
        table.has_given(second);
        supervisor.distribute_excess(excess());
        assert!(!members.iter().any(|&n| table.is_asked(n)));
        // The first could give no more.
        table.has_given(first);
        supervisor.distribute_excess(excess());
        assert_eq!(members.map(|n| table.on_its_way(n)).iter().sum::<i64>(), 40);
        // The member that has it is stopped.
        let stopped = members.into_iter().find(|&n| table.is_asked(n)).unwrap();
        assert_eq!(table.take_request(stopped).pages, 40);
        let other = if stopped == first { second } else { first };
        let since = supervisor.measurements.least_excess.as_mut().unwrap();
        since.1 = since.1.saturating_sub(2 * STALLED_NS);
        (0..2).for_each(|_| supervisor.distribute_excess(excess()));
        assert!(table.is_asked(other));
    }

    #[test]
    fn a_long_walk_waits_while_the_room_could_be_filled_for_one_turn_at_most() {
        let now = Instant::now();
        let due = |walk_cost, pace, at| {
            let measurements = Measurements {
                next_walk: Some(now),
                walk_cost: Duration::from_micros(walk_cost),
                pace: Duration::from_millis(pace),
                ..Measurements::default()
            };
            measurements.is_walk_due(at)
        };
        let turn = Duration::from_micros(5000) * WALK_SHARE;
        assert!(due(100, 0, now), "a short one never waits");
        assert!(due(5000, 60, now), "there is time for it");
        assert!(!due(5000, 10, now));
        assert!(!due(5000, 10, now + turn - FASTEST));
        assert!(due(5000, 10, now + turn));
    }

    #[test]
    fn excess_is_asked_of_the_heaviest_first_and_all_of_it_where_there_is_as_much() {
        let divided = |excess, holders: &[(u128, u128)]| -> Vec<u64> {
            let holder = |(n, &(weight, held)): (usize, &(u128, u128))| Holder {
                weight,
                held,
                slot: SlotNumber::new(n).unwrap(),
            };
            let holders: Vec<Holder> = holders.iter().enumerate().map(holder).collect();
            parts(excess, &holders)
                .into_iter()
                .map(|(_, pages)| pages)
                .collect()
        };
        assert_eq!(divided(1000, &[(60, 5000), (40, 5000)]), [600, 400]);
        assert_eq!(
            divided(7, &[(60, 5000), (40, 5000)]),
            [7, 0],
            "too little to divide"
        );
        assert_eq!(divided(1000, &[(990, 5000), (10, 5000)]), [1000, 0]);
        assert_eq!(divided(1000, &[(990, 300), (10, 5000)]), [300, 700]);
        assert_eq!(
            divided(1000, &[(1, 300), (0, 100)]),
            [300, 100],
            "all there is"
        );
        assert_eq!(divided(1000, &[(0, 300), (0, 900)]), [300, 700]);
        assert_eq!(divided(1000, &[]), [0; 0]);
    }
}
