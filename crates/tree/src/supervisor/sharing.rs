//! Pages that several processes share after a fork, and so are counted more than once.
//!
//! How many there are, only `smaps_rollup` tells, which walks all page tables of a process.
//! In between the figure in use is what was last measured less what has been written since:
//!
//! - Members that charge for themselves say so page by page for the memory they manage, before
//!   the kernel makes the copy ([`Member::unshare`](crate::Member::unshare)).
//! - Other pages that are written stop being shared too: the members' own pools and tables, small mappings,
//!   all memory of measured processes. Each such write costs its writer a minor fault, and those are cheap
//!   to read.
//!
//! So the figure may be too small for a while, never too large. The figure is measured anew when faults
//! have lessened it. The same happens when a member gives back credit for pages that it had ceased to share
//! before the last measurement: then both took it off. Measuring takes at most one part in [`ROLLUP_SHARE`]
//! of a processor, five in a hurry. When a process ends, as much is taken off as it could have shared; the last of a
//! family has none.
//!
//! The figure has two uses. **Credit** of members that charge for themselves, family by family. **Overlap**
//! of processes that are measured: it decides whether a tree of forked processes has to page at all, and
//! becomes their credit when it has. Processes of the same image (forked, not exec'ed) are taken for a
//! family.

use super::Supervisor;
use super::pace::{FASTEST, cpu_time};
use crate::table::{Mode, SlotNumber, SlotState, start_threshold};
use ebb_sys::proc::{self, Image, Process};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

const ROLLUP_SHARE: u32 = 50;
/// So much sooner it is measured again in a hurry.
const HURRY: u32 = 5;
/// Processes smaller than this (1 MiB) are not worth a look.
const SMALL_PAGES: i64 = 256;

/// State kept between ticks.
#[derive(Default)]
pub(super) struct Sharing {
    /// The time of the last rollup.
    rolled_up: Option<Instant>,
    /// Flag: the next one is wanted soon.
    hurried: bool,
    /// Between rollups, by what the last one cost.
    pause: Duration,
    /// Cost of measuring in this tick, of both kinds: it has a limit of its own.
    cost: Duration,
    /// Credit taken for faults since the last one.
    decay: i64,
    /// Flag: credit is too small: sharing has changed since it was measured, or a member was dying or gave credit
    /// back meanwhile.
    unsure: bool,
    /// Minor faults of the charging members, but for those that their pagers account for: the most
    /// since the last measurement. By slot, and how often that was taken.
    faults: HashMap<(SlotNumber, u32), i64>,
    overlap: Overlap,
}

/// Pages counted more than once among measured processes.
#[derive(Default)]
struct Overlap {
    pages: i64,
    /// The part of that which each process had when it was measured, by pid.
    shares: HashMap<u32, i64>,
    /// Minor faults at the last look, by pid and start time, of those that were measured.
    faults: HashMap<(u32, u64), u64>,
    next: Option<Instant>,
}

impl Sharing {
    /// Processor time spent on measuring since this was asked last.
    pub fn take_cost(&mut self) -> Duration {
        std::mem::take(&mut self.cost)
    }

    /// Pages whose sharing may have ended, by faults, since that was measured: credit taken for
    /// those may still be good. None: no measurement says how much of it.
    pub fn suspected(&self) -> Option<i64> {
        (!self.unsure).then_some(self.decay)
    }

    /// Sharing has changed. It is measured soon, and not at once: all members may be large, and one may end every moment.
    pub fn measure_soon(&mut self) {
        self.hurried = true;
        self.unsure = true;
    }
}

impl Supervisor {
    /// Pages counted more than once in `measured`, as far as it matters: zero while
    /// everything fits without looking. Members that do not page have `joined` pages, and `others` are used besides
    /// members.
    pub(super) fn overlap(
        &self,
        measured: &[(&Process, i64)],
        (joined, others): (i64, i64),
        state: &mut Sharing,
    ) -> i64 {
        let budget = self.table.budget.load(SeqCst);
        let charged = self.table.charged.0.load(SeqCst);
        let near = start_threshold(budget) - budget / 8;
        let used = others + joined + charged;
        if used < near {
            state.overlap = Overlap::default();
            return 0;
        }
        let families = families_of(measured);
        let (state, spent) = (&mut state.overlap, &mut state.cost);
        let mut faults = HashMap::new();
        let (mut since, mut come) = (0, false);
        for &(process, _, now) in families.values().flatten() {
            let key = (process.pid(), process.start_time());
            match state.faults.get(&key) {
                Some(&before) => since += now.saturating_sub(before) as i64,
                None => come = true,
            }
            faults.insert(key, now);
        }
        let gone = state.faults.keys().any(|key| !faults.contains_key(key));
        state.faults = faults;
        // One that ended may have shared all that is left.
        state.pages = if gone {
            0
        } else {
            (state.pages - since).max(0)
        };

        // Measured anew when it pays and is affordable; in any case before a tree is told to
        // page, because that cannot be taken back.
        let start = Instant::now();
        let changed = gone || come || since > 0;
        let affordable = state.next.is_none_or(|at| start >= at);
        let decisive =
            self.table.mode() == Mode::Watching && used - state.pages >= start_threshold(budget);
        if changed && (affordable || decisive) {
            let cpu = cpu_time();
            state.shares.clear();
            state.pages = families
                .values()
                .map(|members| shared_by(members, &mut state.shares))
                .sum();
            let cost = cpu_time().saturating_sub(cpu);
            *spent += cost;
            state.next = Some(start + FASTEST.max(cost * ROLLUP_SHARE));
        }
        // Members' credit (see `credit_overlap`) counts once.
        let credited: i64 = self
            .table
            .taken()
            .filter(|(_, word)| word.state == SlotState::Joined)
            .map(|(n, _)| self.table.slot(n).credit.load(SeqCst))
            .sum();
        (state.pages - credited).max(0)
    }

    /// Members are about to charge for themselves: each takes its part of the overlap along as
    /// credit, so that nothing is counted twice meanwhile.
    pub(super) fn credit_overlap(&self) {
        let overlap = &self.measurements.sharing.overlap;
        let whole: i64 = overlap.shares.values().sum();
        for (n, word) in self.table.taken() {
            if word.state == SlotState::Joined
                && let Some(process) = self.process_of(n)
                && let Some(share) = overlap.shares.get(&process.pid())
            {
                let credit = share * overlap.pages / whole.max(1);
                self.table.slot(n).credit.store(credit, SeqCst);
            }
        }
    }

    /// Corrects the credit of families by their minor faults, and now and then by measuring.
    pub(super) fn correct_credit(&mut self) {
        let families = self.charging_families();
        self.end_credit_of_those_alone();
        let (mut counted, mut exact) = (HashMap::new(), HashMap::new());
        let (mut credit, mut decay) = (0, self.table.doubted.swap(0, SeqCst));
        for members in families.values() {
            let mut since = 0;
            for &n in members {
                let Some(now) = self.process_of(n).and_then(|p| p.stat().ok()) else {
                    continue;
                };
                let faults = now.minor_faults + self.faults_of_helper(n);
                let now = faults as i64 - self.accounted_faults(n);
                let key = (n, self.table.state(n).taken);
                let known = self.measurements.sharing.faults.get(&key).copied();
                // Pages that a new member has copied before this are in no count.
                self.measurements.sharing.unsure |= known.is_none();
                let before = known.unwrap_or(now);
                since += (now - before).max(0);
                counted.insert(key, now.max(before));
                exact.insert(key, now);
                credit += self.table.slot(n).credit.load(SeqCst);
            }
            // Before it is taken: nothing that is only suspected counts as a peak.
            let suspected = &self.table.suspected;
            if suspected.load(SeqCst) >= 0 {
                suspected.fetch_add(since, SeqCst);
            }
            decay += self.table.take_credit(members.iter().copied(), since);
        }
        let sharing = &mut self.measurements.sharing;
        sharing.faults = counted;
        sharing.decay += decay;
        // Nothing taken since the last measurement: it still holds.
        if families.is_empty() {
            sharing.decay = 0;
            sharing.unsure = false;
        }
        let holds = sharing.decay == 0 && !sharing.unsure && sharing.rolled_up.is_some();
        if families.is_empty() || holds {
            return;
        }
        // Faults that break no sharing are taken for some that do: when they have eaten much,
        // the truth is worth more.
        let pause = match sharing.hurried || sharing.decay > (credit + decay) / 8 {
            true => sharing.pause / HURRY,
            false => sharing.pause,
        };
        let start = Instant::now();
        if sharing.rolled_up.is_some_and(|at| start < at + pause) {
            return;
        }
        let cpu = cpu_time();
        let mut unsure = false;
        for members in families.values() {
            unsure |= !self.roll_up(members);
        }
        let sharing = &mut self.measurements.sharing;
        sharing.unsure = unsure;
        sharing.hurried = false;
        sharing.decay = 0;
        // Some accounted for may never come: faults count from here again, those too that came while it
        // was measured, and after. The measurement may have missed pages copied meanwhile.
        sharing.faults = exact;
        let cost = cpu_time().saturating_sub(cpu);
        sharing.cost += cost;
        sharing.pause = FASTEST.max(cost * ROLLUP_SHARE);
        sharing.rolled_up = Some(start);
    }

    /// A member shares nothing with relatives that are all gone. The end of the last one took off what that one had
    /// charged by then: too little, if it had dropped pages that nobody looked at since. And a fork that failed while
    /// it was measured has left less than nothing.
    fn end_credit_of_those_alone(&self) {
        // A reserved slot is none of them: it has its family a moment later, and its credit then.
        for n in self.table.paging() {
            let credit = &self.table.slot(n).credit;
            let has_some = credit.load(SeqCst) != 0;
            if has_some && self.table.relatives(n).all(|other| other == n) {
                self.table.limit.0.fetch_sub(credit.swap(0, SeqCst), SeqCst);
            }
        }
    }

    /// Families of two or more members that charge for themselves.
    fn charging_families(&self) -> HashMap<u64, Vec<SlotNumber>> {
        let mut families: HashMap<u64, Vec<SlotNumber>> = HashMap::new();
        for (n, word) in self.table.taken() {
            let slot = self.table.slot(n);
            if word.is_charging() && slot.family.load(SeqCst) != 0 {
                families
                    .entry(slot.family.load(SeqCst))
                    .or_default()
                    .push(n);
            }
        }
        families.retain(|_, members| members.len() > 1);
        families
    }

    /// Minor faults of a member that broke no sharing, or sharing that it has accounted for. A fault served
    /// ends as a minor one, and so does the first write to a page made writable.
    fn accounted_faults(&self, n: SlotNumber) -> i64 {
        let counters = &self.table.slot(n).counters.0;
        let [served, shared, unshared] =
            [&counters.fault, &counters.fault_shared, &counters.unshared]
                .map(|counter| counter.get() as i64);
        served - shared + unshared
    }

    /// Its helper writes to the same memory, and has a count of its own.
    fn faults_of_helper(&self, n: SlotNumber) -> u64 {
        let member = self.members[n.index()].as_ref();
        let helper = member.and_then(|member| member.living_helper());
        helper.map_or(0, |helper| proc::minor_faults(helper.pid))
    }

    fn process_of(&self, n: SlotNumber) -> Option<&Process> {
        match &self.members[n.index()] {
            Some(member) => Some(&member.process),
            None => self.pending_children[n.index()].as_ref()?.process(),
        }
    }

    /// Measures how much each member of a family really shares; false if for one that is not sure.
    fn roll_up(&self, members: &[SlotNumber]) -> bool {
        let mut complete = true;
        let mut measured = Vec::with_capacity(members.len());
        // The measurement may or may not see sharing that ends from here on. Credit taken off before its
        // end is seen to, whichever member of the family loses it. A member that takes credit off later
        // reports its doubt.
        self.table.rollups.fetch_add(1, SeqCst);
        let credits: Vec<i64> = members
            .iter()
            .map(|&n| self.table.slot(n).credit.load(SeqCst))
            .collect();
        for (&n, before) in members.iter().zip(credits) {
            let Some(process) = self.process_of(n) else {
                // Reserved and not forked yet, or not known: its charge is all shared.
                measured.push((n, before, before));
                continue;
            };
            match process.rollup() {
                Ok(rollup) => measured.push((n, before, rollup.shared_away() as i64)),
                // Dying: its end will take the credit. Not to be looked at: keep the figure.
                Err(_) => {
                    complete = false;
                    measured.push((n, before, before));
                }
            }
        }
        self.table.rollups.fetch_add(1, SeqCst);
        // No more can be shared than all but the largest have charged.
        let charges = members
            .iter()
            .map(|&n| self.table.slot(n).charged.load(SeqCst).max(0));
        let (sum, largest) = charges.fold((0, 0), |(sum, max), c| (sum + c, max.max(c)));
        let mut room = sum - largest;
        for (n, before, credit) in measured {
            let credit = credit.min(room);
            room -= credit;
            // As a difference: a member may have added credit meanwhile, or taken some for pages
            // that were no longer there to be measured.
            let was = &self.table.slot(n).credit;
            complete &= was.fetch_add(credit - before, SeqCst) >= before;
            self.table.limit.0.fetch_add(credit - before, SeqCst);
        }
        complete
    }
}

/// A process, its pages, and its minor faults so far.
type Measured<'a> = (&'a Process, i64, u64);

/// Families: large processes of one image, where there are two or more.
fn families_of<'a>(measured: &[(&'a Process, i64)]) -> HashMap<Image, Vec<Measured<'a>>> {
    let mut families: HashMap<Image, Vec<Measured<'a>>> = HashMap::new();
    for &(process, pages) in measured.iter().filter(|(_, pages)| *pages >= SMALL_PAGES) {
        if let Ok(stat) = process.stat()
            && stat.image.is_some()
        {
            families
                .entry(stat.image)
                .or_default()
                .push((process, pages, stat.minor_faults));
        }
    }
    families.retain(|_, members| members.len() > 1);
    families
}

/// Pages counted more than once among processes of one family; notes each one's share.
fn shared_by(members: &[Measured<'_>], shares: &mut HashMap<u32, i64>) -> i64 {
    let mut shared = 0;
    for &(process, ..) in members {
        let away = process.rollup().map_or(0, |r| r.shared_away() as i64);
        shares.insert(process.pid(), away);
        shared += away;
    }
    let sum: i64 = members.iter().map(|&(_, pages, _)| pages).sum();
    let largest = members
        .iter()
        .map(|&(_, pages, _)| pages)
        .max()
        .unwrap_or(0);
    // No more can be shared than all but the largest have.
    shared.min(sum - largest)
}
