//! The tick: measuring who does not page, writing the limit, asking for reclaim.
//!
//! # Pace
//! Memory can be filled at [`FILL_PAGES_PER_MS`] a processor. The next tick comes before the
//! room that is left until something must be done could be used up at that pace, at least
//! every [`SLOWEST`], at most every [`FASTEST`], and never so often that ticks cost more than
//! [`MAX_SHARE`] of a processor. Where nobody is left to measure it is [`SLOWEST`].
//!
//! # Sharing
//! After a fork two processes have the same pages charged (or measured) twice. How many, only
//! `smaps_rollup` tells, which walks all their page tables. In between, each page that is
//! written and so stops being shared costs its writer a minor fault, and those are cheap to
//! read: the credit is what was last measured less the minor faults since. So it is never too
//! large for long, and is measured anew when the decay has eaten enough of it, with at most
//! [`ROLLUP_SHARE`] of a processor.

use super::Supervisor;
use super::seats::descendants;
use crate::table::{Mode, SlotNumber, SlotState};
use ebb_sys::proc::Process;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

const FASTEST: Duration = Duration::from_millis(2);
const SLOWEST: Duration = Duration::from_millis(50);
/// Minor faults with huge pages, a page zeroed at about 3 GB/s.
const FILL_PAGES_PER_MS: i64 = 750;
/// Of a processor, for ticks.
const MAX_SHARE: u32 = 20;
/// Of a processor, for walking the tree.
const WALK_SHARE: u32 = 100;
/// Of a processor, for smaps_rollup.
const ROLLUP_SHARE: u32 = 50;
/// Paging starts when the room left falls under the larger of these, or under half of the
/// budget if that is less.
const START_ROOM_PAGES: i64 = (32 << 20) / 4096;
const START_ROOM_PERCENT: i64 = 12;

/// At which use a tree of this budget starts to page.
pub(super) fn start_threshold(budget: i64) -> i64 {
    budget
        - START_ROOM_PAGES
            .max(budget * START_ROOM_PERCENT / 100)
            .min(budget / 2)
}

/// The supervisor's memory of what it measured.
#[derive(Default)]
pub(super) struct Watch {
    /// Processes of the tree that have not joined.
    strangers: HashMap<u32, Process>,
    next_walk: Option<Instant>,
    next_rollup: Option<Instant>,
    /// Minor faults of the members of each family at the last look.
    faults: HashMap<SlotNumber, u64>,
    /// The limit of which all members know.
    announced: i64,
    told_mode: bool,
}

impl Watch {
    /// `pid` has joined, or is gone.
    pub fn forget(&mut self, pid: u32) {
        self.strangers.remove(&pid);
    }

    /// The tree has changed in a way that a walk will show.
    pub fn walk_soon(&mut self) {
        self.next_walk = None;
    }

    /// What is shared has changed.
    pub fn share_soon(&mut self) {
        self.next_rollup = None;
    }
}

impl Supervisor {
    pub(super) fn tick(&mut self) {
        let start = Instant::now();
        self.look_after();
        if self.watch.next_walk.is_none_or(|at| start >= at) {
            self.walk();
        }
        self.measure();
        self.measure_sharing();
        if self.drifted
            && let Some(drift) = self.table.drift()
        {
            self.table.charged.0.fetch_sub(drift, SeqCst);
            self.drifted = false;
        }
        let room = self.govern();

        let cost = start.elapsed();
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as i64);
        let until_full = Duration::from_millis((room / (FILL_PAGES_PER_MS * cpus)).max(0) as u64);
        let pace = if self.someone_to_measure() {
            until_full
        } else {
            SLOWEST
        };
        self.due = start + pace.clamp(FASTEST, SLOWEST).max(cost * MAX_SHARE);
    }

    fn someone_to_measure(&self) -> bool {
        !self.watch.strangers.is_empty()
            || self
                .table
                .taken()
                .any(|(_, word)| word.state == SlotState::Joined)
    }

    /// Finds the processes of the tree that have not joined.
    fn walk(&mut self) {
        let start = Instant::now();
        let found = descendants();
        let reserved: Vec<u32> = self
            .nursery
            .iter()
            .flatten()
            .filter_map(|e| e.pid())
            .collect();
        self.watch.strangers.retain(|pid, _| found.contains(pid));
        for pid in found {
            if self.by_pid.contains_key(&pid) || reserved.contains(&pid) {
                self.watch.strangers.remove(&pid);
            } else if !self.watch.strangers.contains_key(&pid)
                && let Ok(process) = Process::open(pid)
            {
                self.watch.strangers.insert(pid, process);
            }
        }
        let now = Instant::now();
        self.watch.next_walk = Some(now + SLOWEST.max((now - start) * WALK_SHARE));
    }

    /// Measures every process that does not charge for itself, and writes the limit.
    fn measure(&mut self) {
        let anonymous = |process: &Process| process.statm().map(|s| s.anonymous() as i64);
        for (n, word) in self.table.taken() {
            let Some(seat) = &self.seats[n.index()] else {
                continue;
            };
            if word.state != SlotState::Joined {
                continue;
            }
            let slot = self.table.slot(n);
            slot.measured
                .store(anonymous(&seat.process).unwrap_or(0), SeqCst);
            // It may have begun to charge for itself while it was measured.
            if self.table.state(n).state == SlotState::Paging {
                slot.measured.store(0, SeqCst);
            }
        }
        // Our own memory is part of the price.
        let mut others = Process::open(std::process::id())
            .as_ref()
            .map_or(Ok(0), anonymous);
        self.watch
            .strangers
            .retain(|_, process| match anonymous(process) {
                Ok(pages) => {
                    others = others.map(|sum| sum + pages);
                    true
                }
                Err(Errno::SRCH) => false,
                Err(_) => true,
            });
        self.write_limit(others.unwrap_or(0));
    }

    /// limit = budget - outside + credit, unless a member changes it under our hands.
    fn write_limit(&self, others: i64) {
        let budget = self.table.budget.load(SeqCst);
        let limit = &self.table.limit.0;
        loop {
            let before = limit.load(SeqCst);
            let mut target = budget - others;
            for (n, _) in self.table.taken() {
                let slot = self.table.slot(n);
                target += slot.credit.load(SeqCst) - slot.measured.load(SeqCst);
            }
            if limit
                .compare_exchange(before, target, SeqCst, SeqCst)
                .is_ok()
            {
                if target > before {
                    self.table.feed();
                }
                return;
            }
        }
    }

    /// Corrects the credit of families by their minor faults, and now and then by measuring.
    fn measure_sharing(&mut self) {
        let mut families: HashMap<u64, Vec<SlotNumber>> = HashMap::new();
        for (n, word) in self.table.taken() {
            let slot = self.table.slot(n);
            if word.state != SlotState::Joined && slot.family.load(SeqCst) != 0 {
                families
                    .entry(slot.family.load(SeqCst))
                    .or_default()
                    .push(n);
            }
        }
        families.retain(|_, members| {
            members
                .iter()
                .any(|&n| self.table.slot(n).credit.load(SeqCst) > 0)
        });
        if families.is_empty() {
            self.watch.faults.clear();
            return;
        }
        let mut decay = 0;
        for members in families.values() {
            let mut faults = 0;
            for &n in members {
                let Some(now) = self.process_of(n).and_then(|p| p.stat().ok()) else {
                    continue;
                };
                let before = self.watch.faults.insert(n, now.minor_faults);
                faults += now
                    .minor_faults
                    .saturating_sub(before.unwrap_or(now.minor_faults))
                    as i64;
            }
            decay += faults;
            self.take_credit(members, faults);
        }
        let start = Instant::now();
        let due = self.watch.next_rollup.is_none_or(|at| start >= at);
        if !due || decay == 0 && self.watch.next_rollup.is_some() {
            return;
        }
        for members in families.values() {
            self.roll_up(members);
        }
        let now = Instant::now();
        self.watch.next_rollup = Some(now + FASTEST.max((now - start) * ROLLUP_SHARE));
    }

    fn process_of(&self, n: SlotNumber) -> Option<&Process> {
        match &self.seats[n.index()] {
            Some(seat) => Some(&seat.process),
            None => self.nursery[n.index()].as_ref()?.process(),
        }
    }

    /// Takes `pages` of credit from a family, wherever it has some.
    fn take_credit(&self, members: &[SlotNumber], mut pages: i64) {
        for &n in members {
            let credit = &self.table.slot(n).credit;
            let lost = credit.load(SeqCst).clamp(0, pages.max(0));
            credit.fetch_sub(lost, SeqCst);
            self.table.limit.0.fetch_sub(lost, SeqCst);
            pages -= lost;
        }
    }

    /// Measures how much each member of a family really shares.
    fn roll_up(&self, members: &[SlotNumber]) {
        let mut measured = Vec::with_capacity(members.len());
        for &n in members {
            let slot = self.table.slot(n);
            let before = slot.credit.load(SeqCst);
            let Some(process) = self.process_of(n) else {
                // Reserved and not forked yet, or not known: its charge is all shared.
                measured.push((n, before, before));
                continue;
            };
            match process.rollup() {
                Ok(rollup) => measured.push((n, before, rollup.shared_away() as i64)),
                // Dying: its end will take the credit. Not to be looked at: keep the figure.
                Err(_) => measured.push((n, before, before)),
            }
        }
        // No more can be shared than all but the largest have charged.
        let charges = members
            .iter()
            .map(|&n| self.table.slot(n).charged.load(SeqCst).max(0));
        let (sum, largest) = charges.fold((0, 0), |(sum, max), c| (sum + c, max.max(c)));
        let mut room = sum - largest;
        for (n, before, credit) in measured {
            let credit = credit.min(room);
            room -= credit;
            // As a difference: a member may have added credit meanwhile.
            self.table.slot(n).credit.fetch_add(credit - before, SeqCst);
            self.table.limit.0.fetch_add(credit - before, SeqCst);
        }
    }

    /// Starts paging when it is time, asks for reclaim when too much is charged. Returns the
    /// pages of room until something has to be done.
    fn govern(&mut self) -> i64 {
        let used = self.table.in_use();
        let charged = self.table.charged.0.load(SeqCst);
        self.table.note_peak(charged);
        let budget = self.table.budget.load(SeqCst);
        let start = start_threshold(budget);
        if self.table.mode() == Mode::Watching && used >= start {
            self.table.mode.store(1, SeqCst);
        }
        let limit = self.table.limit.0.load(SeqCst);
        let paging = self.table.mode() == Mode::Paging;
        let tell_mode = paging && !self.watch.told_mode;
        // Small changes of the limit wake nobody.
        let tell_limit = (limit - self.watch.announced).abs() > budget / 64;
        if tell_mode || tell_limit {
            self.watch.told_mode |= paging;
            self.watch.announced = limit;
            for (n, _) in self.table.taken() {
                self.table.wake(n);
            }
        }
        if charged > limit {
            self.spread(charged - limit);
        }
        if paging {
            limit - charged
        } else {
            start - used
        }
    }

    /// Asks paging members to give up `excess` pages in all: each by how much it holds and how
    /// long its coldest page has not been used.
    fn spread(&self, excess: i64) {
        let now = ebb_sys::proc::monotonic_ns();
        let holders: Vec<(SlotNumber, u128, u128)> = self
            .table
            .taken()
            .filter(|(_, word)| word.state == SlotState::Paging)
            .map(|(n, _)| {
                let slot = self.table.slot(n);
                let held = slot.charged.load(SeqCst).max(0) as u128;
                let age = match slot.coldest.load(Relaxed) {
                    0 => 0,
                    since => now.saturating_sub(since).max(1) as u128,
                };
                (n, held, held * age)
            })
            .collect();
        let weights: u128 = holders.iter().map(|h| h.2).sum();
        let held: u128 = holders.iter().map(|h| h.1).sum();
        for (n, has, weight) in holders {
            // Nobody says how old its pages are: by size alone.
            let (part, whole) = if weights > 0 {
                (weight, weights)
            } else {
                (has, held)
            };
            if part > 0 {
                let pages = (excess as u128 * part).div_ceil(whole).min(has);
                self.table.request(n, pages as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_threshold_leaves_room() {
        let mib = |n: i64| n << 8;
        // 12% of a large budget, 32 MiB of a middling one, half of a tiny one.
        assert_eq!(start_threshold(mib(10_000)), mib(8_800));
        assert_eq!(start_threshold(mib(100)), mib(68));
        assert_eq!(start_threshold(mib(20)), mib(10));
        assert_eq!(start_threshold(0), 0);
    }
}
