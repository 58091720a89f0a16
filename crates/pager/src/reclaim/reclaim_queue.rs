//! The reclaim queue: which unit's turn it is to be evicted, and which of its pages stay.
//!
//! User space sees no accessed bit: a page that is used gives no sign until it is evicted and comes back. The
//! order is therefore first in, first out by unit, corrected by the refaults of single pages:
//!
//! - **Time** is counted in *epochs*: one passes when an eighth of the resident set was evicted.
//! - The *heat* of a page rises when it comes back within one resident set's worth of evictions: it would have
//!   been a hit with twice the memory. (The kernel's workingset code calls this the refault distance.) If it
//!   comes back later, its heat is halved.
//! - A page that comes back hot *stays* for `span(heat)` epochs, whatever its turn; each level doubles it.
//!   When the time is up the page is evicted again, as a *probe*: the only way to learn whether it is still
//!   used. A page in steady use thus costs a fault every hundred epochs; an unused one leaves at the next probe.
//! - A *scan* goes through memory in order. If that is more than fits, and it comes again and again, each of its pages
//!   would in plain order go just before the scan reaches it. So pages that a scan brings leave again behind it,
//!   before all others, while the processor's caches still have them. Resident pages stay, and the scan finds them.
//!   One page in so many stays all the same, and others leave for it. So pages that are scanned slowly take the place
//!   of unused ones (`joins_scan`).
//! - When a page of a unit goes, its other pages go with it, but for those that several refaults made *hot*:
//!   each gap costs one more move.
//! - Evicted pages stay in the staging area for a while, not stored yet: a touch there costs a remap, and counts
//!   as a refault.
//!
//! So a working set that is touched at random survives the streams that run past it. Pages that came in beside
//! the one that was touched get no heat by that.
//!
//! A page's *rank*, for the split between resident pages and pool (`pool_split`), is the number of pages that are
//! out and were evicted after it, without those that still wait to be stored. With so many frames more it would have been resident. Its age says something
//! else: a few pages that come and go make all others old.
//!
//! Units of which nothing may leave wait in a queue of their own. Both queues go round in the same time, so that
//! finding a page to evict never means passing all of them in a row. A unit stands in one of these two, in
//! the scan's queue, or among the readmitted (below), at most once; `UnitState::queued` says so.
//!
//! Units whose pages forked relatives share are found out when it is their turn, and are *deferred* from then on.
//! Each time a unit is wanted, one deferred unit comes back, and it is its turn at once. So as many are looked at
//! again as leave, and deferred units never block the search. A deferred unit whose page is written comes again,
//! and may still be named there; that is found out when it comes back (`UnitState::deferred`).
//!
//! Pages that *refused* to leave, as they are pinned or sealed, count as if they were not there: a mark of each keeps
//! them from being due (`UnitState::refused`). A try costs dozens of system calls. So their units are tried again one
//! at a time: for each [`TRIES_APART`] units that left, at once after one that did leave, and each [`ALONE_MS`] in which
//! nothing else may leave; and a few where a fault is stuck. Time that passes faster makes none of them due.
//!
//! Sources:
//!
//! - Babaoglu and Joy, *Converting a Swap-Based System to do Paging in an Architecture Lacking Page-Referenced
//!   Bits* (1981), for reclaim without accessed bits
//! - Jiang and Zhang, *LIRS* (2002), for reuse distance as the measure of worth
//! - Qureshi et al., *Adaptive Insertion Policies for High Performance Caching* (2007), for evicting most pages of
//!   a scan at once (their BIP)

use crate::map::page_map::{HEAT, Mask, PageMap, PageNumber, UNIT, UnitNumber, UnitState};
use crate::reclaim::return_time::ReturnTime;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Epochs in which as much is evicted as is resident.
pub const RESIDENT_SET: u8 = 8;
/// Comes back within this: touched all the time, heat rises twice as fast.
const AT_ONCE: u8 = 2;
const MAX_HEAT: u64 = 5;
/// From this on a page stays alone, when others of its unit go.
const HOT: u64 = 3;
/// If fewer than one in so many units may leave, time passes faster.
const PROBATION: usize = 16;
/// Units that may pass at a time, 1 MiB: half of a processor's second cache.
const SCAN_UNITS: usize = 16;
/// One in so many units that a scan brings stays: the fewer, the later it came by again.
const STAYS: RangeInclusive<u32> = 2..=16;

/// Epochs that a page stays at most: they are compared modulo 256.
const LONGEST: u8 = 120;

/// Epochs that a page of `heat` stays.
const fn span(heat: u64) -> u8 {
    match heat {
        0 => 0,
        MAX_HEAT.. => LONGEST,
        h => 4 << h,
    }
}

/// Units that are deferred which come back at once where nothing else may leave.
pub const DEFERRED_BATCH: usize = 16;

/// How often refusals of pages that are gone are forgotten.
const PRUNED_MS: u32 = 1000;

/// Captures of others from one try of a unit that refused to the next.
const TRIES_APART: usize = 16;

/// Milliseconds from one to the next where nothing else may leave. The pool often may, and needs no tries.
const ALONE_MS: u32 = 16;

/// The outcome of looking at a unit.
enum Verdict {
    /// Nothing of it is resident.
    Empty,
    /// All of it stays.
    Keep,
    /// These pages shall go.
    Evict(Mask),
}

/// The queue. Its memory is taken ahead of need.
pub struct ReclaimQueue {
    /// The units in the order in which they came.
    units: VecDeque<UnitNumber>,
    /// Units whose pages all stayed when it was their turn.
    kept: VecDeque<UnitNumber>,
    /// Brought by scans that pass through, in the order in which they came.
    scan: VecDeque<UnitNumber>,
    /// Units of which all that might leave was shared, in the order in which that was found.
    deferred: VecDeque<UnitNumber>,
    /// Units that were, whose turn it is next.
    readmitted: VecDeque<UnitNumber>,
    /// Units with pages that refused to leave, in the order in which they did.
    refusing: VecDeque<UnitNumber>,
    /// The number of pages that are marked so.
    refused: usize,
    /// Captures until one of them is tried again.
    until_tried: usize,
    /// The last that was.
    tried: Option<UnitNumber>,
    /// The time when one last was because nothing else might leave.
    tried_ms: u32,
    /// The time when refusals of pages that are gone were last forgotten.
    pruned_ms: u32,
    /// Loads of scans that might pass.
    scanned: u32,
    /// The number of turns of those that stay, times the length of the other queue.
    turns: usize,
    epoch: u8,
    /// Pages that are out, by the epoch of their eviction. Those of 256 epochs ago are not told
    /// from those of now, and counted no more: so it is a good guess.
    out: [u32; 256],
    /// Pages evicted in this epoch.
    evicted: usize,
    return_time: ReturnTime,
    /// The keeper's milliseconds, for units queued from now on.
    now_ms: u32,
}

impl UnitState {
    /// It is queued from now on; whether it was not before.
    fn queue(&mut self, now_ms: u32) -> bool {
        let new = !std::mem::replace(&mut self.queued, true);
        if new {
            self.queued_ms = now_ms;
        }
        new
    }

    /// Which pages' time to stay is up.
    fn due(&self, epoch: u8) -> Mask {
        (0..UNIT).fold(0, |mask, i| {
            mask | Mask::from(self.epochs[i].wrapping_sub(epoch) as i8 <= 0) << i
        })
    }

    /// Which pages proved hot.
    fn hot(&self) -> Mask {
        (0..UNIT).fold(0, |mask, i| {
            mask | Mask::from(self.heat >> (4 * i) & HEAT >= HOT) << i
        })
    }

    /// Notes `epoch` for the pages of `mask`.
    fn stamp(&mut self, mask: Mask, epoch: u8) {
        for (i, noted) in self.epochs.iter_mut().enumerate() {
            if mask & 1 << i != 0 {
                *noted = epoch;
            }
        }
    }

    /// Page `within` came back `age` epochs after it was evicted.
    fn warm(&mut self, within: usize, age: u8, epoch: u8) {
        let at = within * 4;
        let heat = self.heat >> at & HEAT;
        let heat = if age <= AT_ONCE {
            (heat + 2).min(MAX_HEAT)
        } else if age <= RESIDENT_SET {
            (heat + 1).min(MAX_HEAT)
        } else {
            heat / 2
        };
        self.heat = self.heat & !(HEAT << at) | heat << at;
        self.epochs[within] = epoch.wrapping_add(if age <= RESIDENT_SET { span(heat) } else { 0 });
    }
}

impl ReclaimQueue {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            units: VecDeque::new(),
            kept: VecDeque::new(),
            scan: VecDeque::new(),
            deferred: VecDeque::new(),
            readmitted: VecDeque::new(),
            refusing: VecDeque::new(),
            refused: 0,
            until_tried: 0,
            tried: None,
            tried_ms: 0,
            pruned_ms: 0,
            scanned: 0,
            turns: 0,
            epoch: 0,
            out: [0; 256],
            evicted: 0,
            return_time: ReturnTime::new(),
            now_ms: 0,
        }
    }

    /// Units queued from now on came at this time, in the keeper's milliseconds.
    pub fn date(&mut self, now_ms: u32) {
        self.now_ms = now_ms;
    }

    /// The time at which units that are queued now come.
    pub fn now_ms(&self) -> u32 {
        self.now_ms
    }

    /// Pages `mask` of `unit` are resident now. `refaulted` comes after this for the page that
    /// was touched.
    pub fn insert(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        if self.enqueue(map, unit, mask) {
            self.units.push_back(unit);
        }
    }

    /// The same of pages that a scan brought and that pass. Beside others of their unit they leave with
    /// those.
    pub fn insert_scan(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        if self.enqueue(map, unit, mask) {
            self.scan.push_back(unit);
        }
    }

    /// Pages `mask` of `unit` come; whether it is to be queued.
    fn enqueue(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) -> bool {
        let state = map.unit_mut(unit);
        state.stamp(mask, self.epoch);
        state.set_scanned(false);
        state.queue(self.now_ms)
    }

    /// How many epochs ago a page that is out was evicted.
    pub fn age(&self, map: &PageMap, page: PageNumber) -> u8 {
        self.epoch
            .wrapping_sub(map.unit(page.unit()).epochs[page.within()])
    }

    /// How many pages that are out were evicted after `page`, which is out too; by halves of an
    /// epoch.
    pub fn rank(&self, map: &PageMap, page: PageNumber) -> usize {
        let age = self.age(map, page);
        let own = self.epoch.wrapping_sub(age);
        let later: u32 = (0..age)
            .map(|k| self.out[usize::from(self.epoch.wrapping_sub(k))])
            .sum();
        (later + self.out[usize::from(own)] / 2) as usize
    }

    /// `pages` pages from `first`, all out, come back.
    pub fn come_back(&mut self, map: &PageMap, first: PageNumber, pages: usize) {
        for page in (0..pages).map(|i| first.plus(i)) {
            let evicted = map.unit(page.unit()).epochs[page.within()];
            self.return_time.returned(evicted, self.now_ms);
        }
        self.no_longer_out(map, first, pages);
    }

    /// How soon pages come back, in milliseconds, if most do.
    pub fn return_time_ms(&self) -> Option<u32> {
        self.return_time.get_ms(self.now_ms)
    }

    /// `pages` pages from `first`, all out, come back or are dropped.
    pub fn no_longer_out(&mut self, map: &PageMap, first: PageNumber, pages: usize) {
        for page in (0..pages).map(|i| first.plus(i)) {
            let evicted = map.unit(page.unit()).epochs[page.within()];
            let out = &mut self.out[usize::from(evicted)];
            *out = out.saturating_sub(1);
        }
    }

    /// `page`, of which that was said, is out all the same.
    pub fn out_again(&mut self, map: &PageMap, page: PageNumber) {
        let evicted = map.unit(page.unit()).epochs[page.within()];
        self.out[usize::from(evicted)] += 1;
    }

    /// `page` was touched, not in a scan, and came back `age` epochs after its eviction.
    pub fn refaulted(&mut self, map: &mut PageMap, page: PageNumber, age: u8) {
        map.unit_mut(page.unit())
            .warm(page.within(), age, self.epoch);
    }

    /// Whether `page`, which is out and which a scan brings, is to pass. A page that left in its turn had been
    /// resident for one resident set's worth of evictions. It would be gone again when the scan comes by the next
    /// time. A page of a scan that came back soon may be of one that fits, and had better stay. Or the scan finds
    /// the rest of its way resident, and each page that stays takes the place of one that is wanted as much. Nothing
    /// tells them apart. With one in `n` kept the second finds `n / (n - 1)` times as much missing, and the first
    /// fits after about `n` rounds.
    pub fn joins_scan(&mut self, map: &PageMap, page: PageNumber) -> bool {
        let before = match map.unit(page.unit()).is_scanned() {
            true => 0,
            false => RESIDENT_SET,
        };
        let reuse = u32::from(self.age(map, page)) + u32::from(before);
        self.scanned = self.scanned.wrapping_add(1);
        !self
            .scanned
            .is_multiple_of(reuse.clamp(*STAYS.start(), *STAYS.end()))
    }

    /// The unit whose turn it is, and which of its resident pages to evict. It is out of the
    /// queue; give it back with `requeue` if pages of it stay. Looks at no more than about `limit`
    /// units, and at each about once. If all their pages shall stay, takes some all the same, and lets time pass
    /// faster.
    pub fn next(
        &mut self,
        map: &mut PageMap,
        limit: usize,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> Option<(UnitNumber, Mask)> {
        while self.scan.len() > SCAN_UNITS {
            let unit = self.scan.pop_front().expect("more than none");
            let victims = self.take(map, unit, resident(map, unit), true);
            if victims.is_some() {
                return victims;
            }
        }
        while let Some(unit) = self.readmitted.pop_front() {
            let victims = self.take(map, unit, resident(map, unit), false);
            if victims.is_some() {
                return victims;
            }
        }
        if self.units.is_empty() && self.kept.is_empty() && self.scan.is_empty() {
            return None;
        }
        if self.units.len() * PROBATION < self.kept.len() {
            self.advance(1);
        }
        // Units that stood aside and were not looked at yet. After all of them nothing is due before time passes.
        let mut new = self.kept.len();
        for _ in 0..limit {
            if self.units.is_empty() && new == 0 {
                break;
            }
            // Both queues go round in the same time, as if they were one.
            let aside = self.units.is_empty() || self.turns >= self.units.len();
            let next = if aside {
                self.turns = self.turns.saturating_sub(self.units.len());
                new = new.saturating_sub(1);
                self.kept.pop_front()
            } else {
                self.turns += self.kept.len();
                self.units.pop_front()
            };
            let Some(unit) = next else { continue };
            let victims = self.take(map, unit, resident(map, unit), false);
            if victims.is_some() {
                return victims;
            }
        }
        self.advance(RESIDENT_SET);
        let mut first = || {
            let queues = [&mut self.units, &mut self.scan, &mut self.kept];
            queues.into_iter().find_map(VecDeque::pop_front)
        };
        while let Some(unit) = first() {
            map.unit_mut(unit).queued = false;
            let present = resident(map, unit) & !map.unit(unit).refused();
            if present != 0 {
                return Some((unit, present));
            }
        }
        None
    }

    /// Which of the resident pages `present` of a unit leave, as part of a scan or not; none if it is empty, or
    /// stays.
    fn take(
        &mut self,
        map: &mut PageMap,
        unit: UnitNumber,
        present: Mask,
        scanned: bool,
    ) -> Option<(UnitNumber, Mask)> {
        match self.judge(map, unit, present) {
            Verdict::Evict(victims) => {
                map.unit_mut(unit).set_scanned(scanned);
                return Some((unit, victims));
            }
            Verdict::Keep => self.kept.push_back(unit),
            Verdict::Empty => {}
        }
        None
    }

    /// Decides on a unit of which `present` is resident; it leaves the queue unless it is kept.
    fn judge(&self, map: &mut PageMap, unit: UnitNumber, present: Mask) -> Verdict {
        let state = map.unit_mut(unit);
        let present = present & !state.refused();
        let due = present & state.due(self.epoch);
        let victims = match due {
            0 => 0,
            _ => due | present & !state.hot(),
        };
        state.queued = present != 0 && victims == 0;
        match (present, victims) {
            (0, _) => Verdict::Empty,
            (_, 0) => Verdict::Keep,
            _ => Verdict::Evict(victims),
        }
    }

    /// Lets epochs pass.
    fn advance(&mut self, epochs: u8) {
        for _ in 0..epochs {
            self.epoch = self.epoch.wrapping_add(1);
            self.out[usize::from(self.epoch)] = 0;
            self.return_time.begin(self.epoch);
        }
    }

    /// Pages `mask` of `unit` were evicted.
    pub fn evicted(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        if mask != 0 {
            let is_tried = self.tried == Some(unit);
            self.until_tried = match is_tried {
                true => 0,
                false => self.until_tried.saturating_sub(1),
            };
        }
        let (epoch, resident) = (self.epoch, map.resident());
        map.unit_mut(unit).stamp(mask, epoch);
        self.out[usize::from(epoch)] += mask.count_ones();
        self.evicted += mask.count_ones() as usize;
        self.return_time
            .evicted(epoch, mask.count_ones(), self.now_ms);
        if self.evicted >= (resident / usize::from(RESIDENT_SET)).max(UNIT) {
            self.evicted = 0;
            self.advance(1);
        }
    }

    /// Relatives share what might leave of a unit, whose turn it was: it is deferred.
    pub fn defer(&mut self, map: &mut PageMap, unit: UnitNumber) {
        if !std::mem::replace(&mut map.unit_mut(unit).deferred, true) {
            self.deferred.push_back(unit);
        }
    }

    /// At most so many of those that are deferred come back: it is their turn next. Those that did longest
    /// come first.
    pub fn readmit(&mut self, map: &mut PageMap, units: usize) {
        for unit in self.deferred.drain(..units.min(self.deferred.len())).rev() {
            let state = map.unit_mut(unit);
            state.deferred = false;
            // As old as it was.
            if !std::mem::replace(&mut state.queued, true) {
                self.readmitted.push_front(unit);
            }
        }
    }

    /// How many looks at [`DEFERRED_BATCH`] units each it takes to see all that are deferred; no more than `most`.
    pub fn deferred_rounds(&self, most: usize) -> usize {
        self.deferred.len().div_ceil(DEFERRED_BATCH).min(most)
    }

    /// Pages `mask` of a unit, whose turn it was, refused to leave.
    pub fn refuse(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        if self.tried == Some(unit) {
            self.tried = None;
            self.until_tried = TRIES_APART;
        }
        let state = map.unit_mut(unit);
        let before = state.refused();
        if before == 0 {
            self.refusing.push_back(unit);
        }
        self.refused += (mask & !before).count_ones() as usize;
        state.refuse(mask);
    }

    /// The next of the units that refused is tried again, if it is time to.
    pub fn try_refused(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) {
        if self.until_tried == 0 && self.refused > 0 {
            self.until_tried = TRIES_APART;
            self.try_again(map, resident);
        }
    }

    /// Nothing else may leave: one is tried, unless one was just now. Whether there is one.
    pub fn try_refused_alone(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> bool {
        if self.refused == 0 || self.now_ms.wrapping_sub(self.tried_ms) < ALONE_MS {
            return false;
        }
        self.tried_ms = self.now_ms;
        self.try_again(map, resident)
    }

    /// The unit that refused longest ago is next in turn, if there is one. Those whose pages have gone are forgotten.
    pub fn try_again(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> bool {
        while let Some(unit) = self.refusing.pop_front() {
            let there = resident(map, unit);
            let state = map.unit_mut(unit);
            let refused = state.refused();
            self.refused -= refused.count_ones() as usize;
            state.forget_refusals();
            if refused & there == 0 {
                continue;
            }
            // The note of a page that is out is when it left.
            state.stamp(refused & there, self.epoch);
            self.tried = Some(unit);
            // As old as it was.
            if !std::mem::replace(&mut state.queued, true) {
                self.readmitted.push_back(unit);
            }
            return true;
        }
        false
    }

    /// How many pages refused to leave, about: some may have gone since.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// Units with pages that refused to leave.
    pub fn refusing(&self) -> impl Iterator<Item = UnitNumber> {
        self.refusing.iter().copied()
    }

    /// Puts a unit back at the end: it counts as one that has just come.
    pub fn requeue(&mut self, map: &mut PageMap, unit: UnitNumber) {
        if map.unit_mut(unit).queue(self.now_ms) {
            self.units.push_back(unit);
        }
    }

    /// Takes units out of which nothing is resident, as when it is their turn.
    pub fn drop_empty(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) {
        let queues = [
            &mut self.units,
            &mut self.kept,
            &mut self.scan,
            &mut self.readmitted,
        ];
        for queue in queues {
            queue.retain(|&unit| {
                let stays = resident(map, unit) != 0;
                map.unit_mut(unit).queued = stays;
                stays
            });
        }
        self.deferred.retain(|&unit| {
            let stays = resident(map, unit) != 0;
            map.unit_mut(unit).deferred = stays;
            stays
        });
        self.forget_gone_refusals(map, resident);
    }

    /// Refusals of pages that are gone by now are forgotten.
    fn forget_gone_refusals(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) {
        self.refusing.retain(|&unit| {
            let there = resident(map, unit);
            let state = map.unit_mut(unit);
            let refused = state.refused();
            let stays = refused & there;
            if stays != refused {
                self.refused -= (refused & !there).count_ones() as usize;
                state.forget_refusals();
                state.refuse(stays);
            }
            stays != 0
        });
    }

    /// The same if it was not done lately: memory that refused may be unmapped, and nobody short of room then.
    pub fn prune_refusals(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) {
        if self.refused > 0 && self.now_ms.wrapping_sub(self.pruned_ms) >= PRUNED_MS {
            self.pruned_ms = self.now_ms;
            self.forget_gone_refusals(map, resident);
        }
    }

    /// Whether units that come back out of turn wait for it.
    pub fn is_readmitting(&self) -> bool {
        !self.readmitted.is_empty()
    }

    /// Pages `mask` of a unit, whose turn it was, cannot leave, but others of it can when they are due. So it stands aside,
    /// and for a resident set's worth of evictions these pages are not what it is looked at for.
    pub fn put_aside(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        let state = map.unit_mut(unit);
        state.stamp(mask, self.epoch.wrapping_add(RESIDENT_SET));
        if state.queue(self.now_ms) {
            self.kept.push_back(unit);
        }
    }

    /// When the unit at the front was queued: what it holds was not seen to be used since. Units of which nothing is
    /// resident any more leave the front.
    pub fn oldest_ms(
        &mut self,
        map: &mut PageMap,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> Option<u32> {
        /// Units that leave at a time.
        const MOST: usize = 64;
        for queue in [&mut self.units, &mut self.scan, &mut self.readmitted] {
            for _ in 0..MOST {
                let is_empty =
                    |unit: &mut UnitNumber| resident(map, *unit) & !map.unit(*unit).refused() == 0;
                let Some(unit) = queue.pop_front_if(is_empty) else {
                    break;
                };
                map.unit_mut(unit).queued = false;
            }
        }
        // Pages that relatives shared at that look may be this process's alone by now.
        let fronts = [&self.readmitted, &self.units, &self.scan, &self.deferred];
        let fronts = fronts.map(VecDeque::front);
        let first = fronts.into_iter().flatten().next();
        // Pages that stay were used when they came. Where most come back, that is known of the others as well.
        let kept = self
            .kept
            .front()
            .filter(|_| self.return_time_ms().is_some());
        let dates = [first, kept]
            .into_iter()
            .flatten()
            .map(|unit| map.unit(*unit).queued_ms);
        dates.max_by_key(|&date| self.now_ms.wrapping_sub(date))
    }

    /// A unit stands in one of the four queues that are looked at iff it is `queued`, once; among the deferred
    /// ones iff it is `deferred`, once; and among those that refuse iff it has pages that refused, once.
    pub fn check(&self, map: &PageMap) {
        let numbers = |queues: &[&VecDeque<UnitNumber>]| {
            let mut all: Vec<u32> = queues.iter().flat_map(|q| q.iter().map(|u| u.0)).collect();
            all.sort_unstable();
            all
        };
        let (mut queued, mut deferred, mut refusing) = (Vec::new(), Vec::new(), Vec::new());
        let mut refused = 0;
        map.each_unit(|unit, state| {
            queued.extend(state.queued.then_some(unit.0));
            deferred.extend(state.deferred.then_some(unit.0));
            refusing.extend((state.refused() != 0).then_some(unit.0));
            refused += state.refused().count_ones() as usize;
        });
        assert_eq!(refused, self.refused);
        assert_eq!(numbers(&[&self.refusing]), refusing);
        assert_eq!(numbers(&self.looked_at()), queued);
        assert_eq!(numbers(&[&self.deferred]), deferred);
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        let apart = [&self.deferred, &self.refusing];
        let all = self.looked_at().into_iter().chain(apart);
        all.map(|queue| queue.capacity() * size_of::<UnitNumber>())
            .sum()
    }

    /// The queues of units that are `queued`.
    fn looked_at(&self) -> [&VecDeque<UnitNumber>; 4] {
        [&self.units, &self.kept, &self.scan, &self.readmitted]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::page_map::{Page, UNIT};
    use crate::reclaim::pages::resident;
    use crate::reclaim::replay::Replay;
    use ebb_engine::random::Random;

    fn bring(map: &mut PageMap, q: &mut ReclaimQueue, unit: u32, mask: Mask) {
        for i in (0..UNIT).filter(|i| mask & 1 << i != 0) {
            map.set(UnitNumber(unit).first().plus(i), Page::Resident(None));
        }
        q.insert(map, UnitNumber(unit), mask);
    }

    const ALL: Mask = (1 << UNIT) - 1;

    #[test]
    fn first_in_first_out_by_unit() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        for u in 0..2 {
            bring(&mut map, &mut q, u, ALL & !0b100);
        }
        bring(&mut map, &mut q, 0, 0b100);
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(0), ALL)));
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((UnitNumber(1), ALL & !0b100))
        );
        q.requeue(&mut map, UnitNumber(0));
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(0), ALL)));
        assert_eq!(q.next(&mut map, 8, resident), None);
    }

    #[test]
    fn units_that_have_become_empty_leave_the_front_and_nobody_is_as_old_as_they() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        q.date(5);
        (0..100).for_each(|u| bring(&mut map, &mut q, u, ALL));
        q.date(9);
        bring(&mut map, &mut q, 200, ALL);
        for page in 0..100 * UNIT {
            map.set(PageNumber(page), Page::Untouched);
        }
        // So many leave at a time.
        assert_eq!(q.oldest_ms(&mut map, resident), Some(5));
        assert_eq!(q.oldest_ms(&mut map, resident), Some(9));
        q.check(&map);
        q.defer(&mut map, UnitNumber(300));
        q.drop_empty(&mut map, resident);
        map.prune();
        q.check(&map);
        assert_eq!(q.oldest_ms(&mut map, resident), Some(9));
    }

    #[test]
    fn pages_that_have_to_stay_do_not_keep_others_of_their_unit() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        let unit = UnitNumber(7);
        bring(&mut map, &mut q, 7, 0b11);
        // The second is hot, and the first cannot leave.
        let page = unit.first().plus(1);
        (0..3).for_each(|_| q.refaulted(&mut map, page, 0));
        let mut looks = 0;
        while let Some((_, victims)) = q.next(&mut map, 8, resident) {
            if victims & 0b10 != 0 {
                break;
            }
            looks += 1;
            assert!(looks < 64, "the second page is never due");
            q.put_aside(&mut map, unit, victims);
            q.check(&map);
        }
        assert!(looks > 0, "a hot page leaves at once");
    }

    #[test]
    fn units_that_stand_apart_are_in_nobodys_way_and_come_back_one_by_one() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        for u in 0..100 {
            bring(&mut map, &mut q, u, ALL);
        }
        for u in 0..100 {
            let next = q.next(&mut map, 1, resident);
            assert_eq!(next, Some((UnitNumber(u), ALL)));
            q.defer(&mut map, UnitNumber(u));
        }
        let epoch = q.epoch;
        assert_eq!(q.next(&mut map, 1, resident), None);
        assert_eq!(q.epoch, epoch, "no time joins_scan where there is nothing");
        // One that comes beside them, and one of them that is written.
        bring(&mut map, &mut q, 200, ALL);
        bring(&mut map, &mut q, 1, ALL);
        q.readmit(&mut map, 2);
        for u in [0, 200, 1] {
            let next = q.next(&mut map, 1, resident);
            assert_eq!(next, Some((UnitNumber(u), ALL)));
        }
        assert_eq!(q.next(&mut map, 1, resident), None);
        // A unit that came back and is deferred again stands at the end.
        q.defer(&mut map, UnitNumber(0));
        q.readmit(&mut map, usize::MAX);
        for u in (2..100).chain([0]) {
            let next = q.next(&mut map, 1, resident);
            assert_eq!(next, Some((UnitNumber(u), ALL)));
        }
    }

    #[test]
    fn units_that_refused_are_tried_again_one_for_so_many_that_left() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        for u in 0..3 {
            bring(&mut map, &mut q, u, ALL);
        }
        for u in 0..3 {
            assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(u), ALL)));
            q.refuse(&mut map, UnitNumber(u), 0b11);
            q.requeue(&mut map, UnitNumber(u));
            q.check(&map);
        }
        // The first look at one that refused is at once. The rest of each leaves without what refused.
        q.try_refused(&mut map, resident);
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(0), ALL)));
        q.refuse(&mut map, UnitNumber(0), ALL);
        for u in 1..3 {
            assert_eq!(
                q.next(&mut map, 8, resident),
                Some((UnitNumber(u), ALL & !0b11))
            );
        }
        for u in 100..100 + TRIES_APART as u32 {
            q.try_refused(&mut map, resident);
            assert_eq!(q.next(&mut map, 8, resident), None);
            q.evicted(&mut map, UnitNumber(u), ALL);
        }
        q.try_refused(&mut map, resident);
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(1), ALL)));
        // It leaves: another is tried at once.
        (0..UNIT).for_each(|i| map.set(UnitNumber(1).first().plus(i), Page::Untouched));
        q.evicted(&mut map, UnitNumber(1), ALL);
        q.try_refused(&mut map, resident);
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(2), ALL)));
        assert_eq!((q.refused(), q.next(&mut map, 8, resident)), (UNIT, None));
        q.check(&map);
    }

    #[test]
    fn a_page_that_refaults_soon_and_again_stays_and_its_neighbours_go() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        let page = UnitNumber(3).first().plus(5);
        bring(&mut map, &mut q, 3, ALL);
        for _ in 0..2 {
            let (unit, mask) = q.next(&mut map, 8, resident).unwrap();
            assert_eq!(mask, ALL);
            q.evicted(&mut map, unit, mask);
            let age = q.age(&map, page);
            bring(&mut map, &mut q, 3, ALL);
            q.refaulted(&mut map, page, age);
        }
        let unit = page.unit();
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((unit, ALL & !(1 << page.within())))
        );
    }

    #[test]
    fn when_everything_shall_stay_something_goes() {
        let (mut map, mut q) = (PageMap::new(), ReclaimQueue::new());
        for u in 0..4 {
            bring(&mut map, &mut q, u, ALL);
            for i in 0..UNIT {
                q.refaulted(&mut map, UnitNumber(u).first().plus(i), 0);
            }
        }
        assert_eq!(q.next(&mut map, 2, resident), Some((UnitNumber(2), ALL)));
    }

    /// A memory and what a program finds there, whose invariants are looked at now and then.
    struct QueueModel {
        replay: Replay,
        steps: usize,
    }

    impl QueueModel {
        fn of(room: usize) -> Self {
            Self {
                replay: Replay::new(room),
                steps: 0,
            }
        }

        /// Touches a page; in a scan the rest of its unit comes with it. How many pages came in.
        fn touch(&mut self, page: usize, scan: bool) -> usize {
            self.steps += 1;
            if self.steps.is_multiple_of(1024) {
                self.replay.check();
            }
            self.replay.bring(page, scan)
        }

        /// Scans `pages` pages `times` times: the share that came in anew.
        fn scan(&mut self, pages: usize, times: usize) -> f64 {
            let touches = pages * times;
            let misses: usize = (0..touches)
                .map(|step| self.touch(ELSEWHERE + step % pages, true))
                .sum();
            misses as f64 / touches as f64
        }
    }

    const ELSEWHERE: usize = 1 << 20;

    /// A program touches `hot` pages at random, and `cold` others in order, in a memory of `room` pages. The share of
    /// hot touches that fault, after warming up.
    fn missed(hot: usize, cold: usize, room: usize, scan: bool) -> f64 {
        let (mut memory, mut random) = (QueueModel::of(room), Random::new(1));
        let (mut touches, mut misses) = (0, 0);
        for step in 0..400_000 {
            if step % 4 == 0 {
                memory.touch(ELSEWHERE + step / 4 % cold, scan);
            } else {
                let missed = memory.touch(random.below(hot), false);
                if step > 200_000 {
                    touches += 1;
                    misses += missed;
                }
            }
        }
        misses as f64 / touches as f64
    }

    #[test]
    fn a_part_of_what_is_scanned_stays() {
        for (pages, at_best) in [(4400, 0.09), (8000, 0.5), (16_000, 0.75)] {
            let mut memory = QueueModel::of(4000);
            memory.scan(pages, 4);
            let share = memory.scan(pages, 20);
            assert!(
                share >= at_best && share < at_best + 0.15,
                "{pages} pages: {:.1}% come in anew",
                share * 100.0
            );
        }
    }

    #[test]
    fn pages_kept_of_a_scan_leave_when_others_want_the_room() {
        let mut memory = QueueModel::of(4000);
        memory.scan(8000, 8);
        let mut random = Random::new(1);
        let mut touch = || {
            (0..10_000)
                .map(|_| memory.touch(random.below(2400), false))
                .sum()
        };
        let (first, _, third): (usize, usize, usize) = (touch(), touch(), touch());
        assert!(first < 2 * 2400, "{first}");
        assert!(third < 300, "{third}");
    }

    #[test]
    fn a_hot_set_survives_a_stream() {
        // Without heat, 37% of the hot touches fault: the stream pushes everything out in turn.
        let share = missed(3000, 40_000, 4000, false);
        assert!(share < 0.03, "{:.1}% of hot touches fault", share * 100.0);
        // Beside a scan that is kept in part: the hot pages come first.
        let share = missed(2000, 6000, 4000, true);
        assert!(share < 0.05, "{:.1}% of hot touches fault", share * 100.0);
        // One that does not fit: at best half of the touches fault, without heat 69%.
        let share = missed(8000, 40_000, 4000, false);
        assert!(share < 0.56, "{:.1}% of hot touches fault", share * 100.0);
    }
}
