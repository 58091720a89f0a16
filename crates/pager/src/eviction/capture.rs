//! Capture: pages whose turn it is leave the program for a bay of the staging area. Those with
//! clean copies wait there with their entry (`clean`).
//!
//! It is a move: after it the program cannot write the page, and nothing was copied. A page that is pinned (a
//! transfer into it may be under way) or shared refuses and stays. One that is only referred to does not
//! (`pinned`). It runs without the lock, as pages in transit are this thread's. Each run of pages costs a flush; ways
//! with fewer, and what they lose, are in `docs/decisions/0013-capturing-in-batches.md`.
//!
//! The kernel moves pages out of any memory, so each move is preceded by a question: is this still registered?
//! The program may have unmapped it and mapped it anew without libc; what it has there now stays
//! in memory, and is managed no more ([`Reclaimer::is_ours`]).
//!
//! Of memory that may not be written it is a copy, as the kernel moves pages of writable memory alone. Nobody writes
//! it before `mprotect`, which waits until nothing is in transit. A write all the same (`mprotect` without libc, or
//! one that failed half way) is held by write protection until the page has gone. Dropping it asks for no pins. So
//! while the process has pages that are pinned for long all such memory stays: none of it can be pinned anew to be
//! written. (A single transfer that began while it could be written, and goes on, would be lost.) There is one page
//! more for each of a unit's, for a moment.

use crate::eviction::reclaimer::Reclaimer;
use crate::map::mask::{ones, runs, set_bits};
use crate::map::page_map::{Mask, UNIT, UNIT_BYTES, UnitNumber};
use crate::map::ranges::{Ranges, WayOut};
use crate::process::base::Locked;
use crate::process::memory_ops::{Waking, Writes};
use crate::process::state::State;
use crate::process::worker::Worker;
use crate::reclaim::attempts::Waiter;
use crate::reclaim::hold_back::Loads;
use crate::reclaim::pages::Copies;
use crate::reclaim::reclaim_queue::DEFERRED_BATCH;
use crate::reclaim::staging::FrameRun;
use arrayvec::ArrayVec;
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::pagemap::Mapped;
use ebb_sys::paging::Kernel;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Units looked at for one that can be captured, before giving up.
const LOOK: usize = 512;
/// Units tried before giving up. Of memory that the system has pinned there may be a long row.
const TRIES: usize = 128;
/// Units looked at with the lock held.
const LOOKS: usize = 64;

/// Which pages may be captured.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// Flag: pages that a forked relative still maps go, too. Evicting them here frees nothing there, and stores them
    /// once more (`sharing`).
    pub shared: bool,
    /// Flag: pages that threads hold go, too, as far as the waiting thread may take them (`attempts`).
    pub force: bool,
    /// Flag: pages are pinned for long, so memory that may not be written stays.
    pub pinned: bool,
}

impl<K: Kernel> Reclaimer<K> {
    /// Captures the unit whose turn it is, for `waiter` or for nobody; none if none can be.
    pub fn capture(
        &self,
        mut state: Locked,
        worker: &mut Worker,
        waiter: Option<Waiter>,
        mut how: How,
    ) -> (Locked, usize) {
        state.pages.try_refused();
        for _ in 0..TRIES {
            let chosen = match self.choose(&mut state, waiter, how) {
                Choice::Capture(chosen) => chosen,
                Choice::LookOn => {
                    // Others had to wait for these looks.
                    drop(state);
                    state = self.lock();
                    continue;
                }
                Choice::Nothing => {
                    state.pages.date(self.base.now_ms());
                    if state.pages.try_refused_alone() {
                        continue;
                    }
                    return (state, 0);
                }
            };
            let captured;
            (state, captured) = self.capture_chosen(state, worker, &chosen, &mut how);
            if captured > 0 {
                return (state, captured);
            }
        }
        (state, 0)
    }

    /// Captures these pages, without the lock but for a family; those that left.
    fn capture_chosen(
        &self,
        state: Locked,
        worker: &mut Worker,
        chosen: &Chosen,
        how: &mut How,
    ) -> (Locked, usize) {
        let &Chosen {
            run,
            unit,
            victims,
            way,
            ..
        } = chosen;
        let staging = state.pages.staging();
        let bay = staging.address(run.bay);
        let address = staging.frame_address(run.frame(0));
        // Making a page our own writes to it, which must not meet the keeper protecting it.
        let held = match self.is_family() {
            true => Some(state),
            false => {
                drop(state);
                None
            }
        };
        let from = unit.first().address();
        let rollups = self.member.rollups();
        // One question is enough for all memory that has to be dropped.
        how.pinned |= way == WayOut::Copy && self.any_pinned();
        let shifted = match way {
            WayOut::Copy if how.pinned => Shifted::default(),
            WayOut::Copy => self.copy_out(worker, from, address, victims),
            WayOut::Move | WayOut::MoveExecutable => {
                let _alike = ExecutableBay::protect(self, bay, way == WayOut::MoveExecutable);
                self.shift_out(from, address, victims, how.shared)
            }
        };
        let mut state = held.unwrap_or_else(|| self.lock());
        // Over the limit for a moment: the pages that were copied are about to leave.
        state.charge.unshare(shifted.copied as i64, rollups);
        let captured = self.end_capture(&mut state, chosen, &shifted);
        self.base.transit.end(self.kernel);
        state.parked.unpark(worker);
        (state, captured)
    }

    /// Says in the page map and the staging area which pages left.
    fn end_capture(&self, state: &mut State, chosen: &Chosen, shifted: &Shifted) -> usize {
        let &Chosen {
            run,
            unit,
            victims,
            ref copies,
            ..
        } = chosen;
        let &Shifted {
            moved,
            gone,
            foreign,
            opened,
            ..
        } = shifted;
        let lost = gone | foreign;
        let good = self.give_up(copies, lost | opened);
        state
            .pages
            .end_capture(run, unit, (victims, moved, lost), &good);
        for (first, len) in runs(foreign) {
            let start = unit.first().plus(first).address();
            self.leave_to_program(state, start, start + len * PAGE_SIZE);
        }
        let pages = moved.count_ones();
        let counters = self.counters();
        state.pages.decide_held_back(Loads {
            pool: counters.fault_pool.get(),
            device: counters.fault_device.get(),
        });
        counters.map_disagrees.add(lost.count_ones().into());
        counters
            .evict_busy
            .add((victims & !moved).count_ones().into());
        counters.evicted.add(pages.into());
        pages as usize
    }

    /// The unit whose turn it is, which of its pages to capture, and frames for them. Held pages (`attempts`) are
    /// taken only with `force`, and only those that the waiter may take.
    fn choose(&self, state: &mut State, waiter: Option<Waiter>, how: How) -> Choice {
        let mut held = HeldUnits::default();
        let mut choice = self.choose_free(state, waiter, how, &mut held);
        if how.force && !matches!(choice, Choice::Capture(..)) {
            let nothing = matches!(choice, Choice::Nothing) || held.units.is_full();
            let taken = match held.by_younger {
                Some(unit) => self.takes(state, unit, how),
                None => waiter
                    .filter(|_| nothing)
                    .and_then(|w| self.choose_own(state, w, held.by_older, how)),
            };
            choice = taken.unwrap_or(choice);
        }
        for unit in held.units {
            state.pages.requeue(unit);
        }
        choice
    }

    /// The same of what nobody holds; units that are passed by as all is are put down.
    fn choose_free(
        &self,
        state: &mut State,
        waiter: Option<Waiter>,
        how: How,
        passed: &mut HeldUnits,
    ) -> Choice {
        if state.pages.staging().is_none() {
            return Choice::Nothing;
        }
        state.pages.readmit(1);
        let mut more = DEFERRED_BATCH;
        for _ in 0..LOOKS {
            let State { pages, ranges, .. } = state;
            let Some((unit, due)) = pages.next_unit(LOOK) else {
                if more == 0 {
                    return Choice::Nothing;
                }
                pages.readmit(std::mem::take(&mut more));
                continue;
            };
            let Some((way, victims)) = leaving(ranges, unit, due) else {
                // A unit that has to stay comes back to the queue when it may leave.
                if leaving(ranges, unit, pages.candidates(unit) & !due).is_some() {
                    pages.put_aside(unit, due);
                }
                continue;
            };
            if way == WayOut::Copy && how.pinned {
                // Put down with those that threads hold, so that the search ends.
                passed.units.push(unit);
                continue;
            }
            let held = pages.held(unit, waiter, || self.now());
            let free = victims & !held.all();
            if free == 0 {
                passed.units.push(unit);
                passed.by_older |= victims & held.firmly != 0;
                let younger = victims & held.by_younger;
                if younger != 0 {
                    passed.by_younger.get_or_insert((unit, way, younger));
                }
                continue;
            }
            match self.takes(state, (unit, way, free), how) {
                Some(choice) => return choice,
                None => continue,
            }
        }
        Choice::LookOn
    }

    /// Of the pages that the waiting thread alone holds, the one on which it faulted longest ago. `by_older`: older
    /// attempts hold pages.
    fn choose_own(
        &self,
        state: &mut State,
        waiter: Waiter,
        by_older: bool,
        how: How,
    ) -> Option<Choice> {
        for page in state.pages.own(waiter) {
            let (unit, bit) = (page.unit(), 1 << page.within());
            let State { pages, ranges, .. } = &mut *state;
            let own = pages.held(unit, Some(waiter), || self.now()).own;
            let Some((way, victims)) = leaving(ranges, unit, bit & own & pages.candidates(unit))
            else {
                continue;
            };
            if way == WayOut::Copy && how.pinned {
                continue;
            }
            let choice = self.takes(state, (unit, way, victims), how);
            if choice.is_some() {
                state.pages.takes_own(waiter.thread, page, by_older);
                return choice;
            }
        }
        None
    }

    /// Frames for pages of a unit that is out of the queue; none if they cannot leave now.
    fn takes(
        &self,
        state: &mut State,
        (unit, way, mut victims): Leave,
        how: How,
    ) -> Option<Choice> {
        let pages = &mut state.pages;
        if pages.staging().is_none() {
            return None;
        }
        if !how.shared && !state.protection.is_alone() {
            // One look tells what a move would be refused for, page by page.
            let kept = victims & self.look(unit.first().address(), UNIT).shared;
            self.counters().evict_busy.add(kept.count_ones().into());
            victims &= !kept;
            if victims == 0 {
                pages.defer(unit);
                return None;
            }
        }
        // The protection of a bay is that of all its frames.
        let alone = way == WayOut::MoveExecutable;
        let Some((run, copies)) = pages.begin_capture(unit, victims, alone) else {
            pages.requeue(unit);
            return Some(Choice::Nothing);
        };
        Some(Choice::Capture(Chosen {
            run,
            unit,
            victims,
            way,
            copies,
        }))
    }

    /// Moves `victims` of the unit at `unit` to the frames at `run`, in a row.
    fn shift_out(&self, unit: usize, run: usize, victims: Mask, shared: bool) -> Shifted {
        let mut shifted = Shifted::default();
        let mut to = run;
        for (first, len) in runs(victims) {
            self.shift_run(unit, to, first..first + len, shared, &mut shifted);
            to += len * PAGE_SIZE;
        }
        shifted
    }

    /// Moves a run of pages of a unit to `to`.
    fn shift_run(
        &self,
        unit: usize,
        to: usize,
        pages: Range<usize>,
        shared: bool,
        shifted: &mut Shifted,
    ) {
        let (mut at, end, mut retried) = (pages.start, pages.end, None);
        let frame = |at: usize| to + (at - pages.start) * PAGE_SIZE;
        let mut most = UNIT;
        while at < end {
            let len = most.min(end - at);
            // A move is within one mapping: where its first page is ours, all are.
            if !self.is_ours(unit + at * PAGE_SIZE) {
                shifted.foreign |= 1 << at;
                at += 1;
                continue;
            }
            // SAFETY: pages that the map says are ours to capture; the frames are, and empty.
            let (done, result) = unsafe {
                self.kernel
                    .move_pages(frame(at), unit + at * PAGE_SIZE, len * PAGE_SIZE)
            };
            let pages = done / PAGE_SIZE;
            shifted.moved |= ones(at, pages);
            at += pages;
            match result {
                Ok(()) => most = UNIT,
                // The pages may be several mappings to the kernel, and no move crosses from one to
                // the next.
                Err(Errno(libc::EINVAL | libc::ENOENT)) if len > 1 => most = len / 2,
                Err(Errno(libc::EAGAIN)) if pages > 0 => {}
                // The frames are ours and were empty: what is there now was moved (`move_pages`).
                Err(Errno(libc::EEXIST)) if let pages @ 1.. = self.present(frame(at), end - at) => {
                    shifted.moved |= ones(at, pages);
                    at += pages;
                }
                Err(error) if retried != Some(at) && at < end => {
                    retried = Some(at);
                    if error == Errno(libc::EBUSY) && self.is_family() {
                        // Shared copy-on-write since a fork: a write makes it our own, without a
                        // copy if nobody else maps it any more.
                        let (own, copies) = self.own(unit + at * PAGE_SIZE, end - at, shared);
                        shifted.opened |= ones(at, own);
                        shifted.copied += copies;
                        at += usize::from(own == 0);
                    }
                }
                Err(Errno(libc::ENOENT)) => {
                    shifted.gone |= 1 << at;
                    at += 1;
                }
                // Pinned, shared for now, or not plain memory: it stays where it is.
                Err(_) => at += 1,
            }
        }
    }

    /// Whether the page at `start` lies in registered memory: not, if that was unmapped or mapped anew
    /// without libc. Nothing asks and moves in one. So a program that maps the very unit whose turn it is
    /// anew, just after this look, loses it all the same.
    pub fn is_ours(&self, start: usize) -> bool {
        self.kernel.is_registered(start)
    }

    /// Memory that is the program's own affair is managed no more. Forked children inherit it: a fork may have kept it from
    /// them, when the pager took it for managed memory.
    pub fn leave_to_program(&self, state: &mut State, start: usize, end: usize) {
        state.ranges.remove(start, end);
        state.holders.forget((start, end));
        // SAFETY: advice that changes no content.
        let inherit = || unsafe { self.kernel.madvise(start, end - start, libc::MADV_DOFORK) };
        // Where memory of ours is by now, it says itself what children have of it. Nothing may be mapped, either.
        let _ = self.kernel.apart_from_own(start..end, inherit);
    }

    /// Copies `victims` of the unit at `unit` to the frames at `run`, in a row, and drops them where
    /// they were.
    fn copy_out(&self, worker: &mut Worker, unit: usize, run: usize, victims: Mask) -> Shifted {
        let mut shifted = Shifted::default();
        let mut to = run;
        for (first, len) in runs(victims) {
            let from = unit + first * PAGE_SIZE;
            let left = self.copy_run(worker, from, to, len, &mut shifted);
            shifted.moved |= left << first;
            // They may have been written since they were copied first.
            shifted.opened |= (ones(0, len) & !left) << first;
            for at in set_bits(ones(0, len) & !left) {
                let offset = at * PAGE_SIZE;
                if self.copy_run(worker, from + offset, to + offset, 1, &mut shifted) != 0 {
                    shifted.moved |= 1 << (first + at);
                } else if !self.is_ours(from + offset) {
                    shifted.foreign |= 1 << (first + at);
                } else if self.present(from + offset, 1) == 0 {
                    shifted.gone |= 1 << (first + at);
                }
            }
            to += len * PAGE_SIZE;
        }
        shifted
    }

    /// The same of a run of pages; those that left, bit 0 the first.
    fn copy_run(
        &self,
        worker: &mut Worker,
        from: usize,
        to: usize,
        pages: usize,
        shifted: &mut Shifted,
    ) -> Mask {
        let bytes = pages * PAGE_SIZE;
        if self.kernel.protect(from, bytes, true).is_err() {
            return 0;
        }
        let content = worker.buffer(pages);
        let shared = match self.is_family() {
            true => self.look(from, pages).shared,
            false => 0,
        };
        let copied = self.kernel.read_memory(from, content.as_flattened_mut())
            && self
                .copy(to, content, Writes::Free, Waking::Later)
                .1
                .is_ok();
        // SAFETY: private memory whose content is in the frames by now.
        let drop_there = || unsafe { self.kernel.madvise(from, bytes, libc::MADV_DONTNEED) };
        let left = match copied {
            false => 0,
            true if drop_there().is_ok() => ones(0, pages),
            // Part of it is locked or sealed behind our back; the kernel dropped what came before.
            true => ones(0, pages) & !self.look_or_fail(from, pages).present,
        };
        for (at, len) in runs(ones(0, pages) & !left) {
            self.drop_pages(&[(to + at * PAGE_SIZE, len * PAGE_SIZE)]);
            self.unprotect(from + at * PAGE_SIZE, len * PAGE_SIZE);
        }
        shifted.copied += (shared & left).count_ones() as usize;
        left
    }

    /// How many pages in a row are there from `start` on, of `pages`.
    fn present(&self, start: usize, pages: usize) -> usize {
        let present = self.look_or_fail(start, pages).present;
        (present.trailing_ones() as usize).min(pages)
    }

    /// A look at pages, where one that is not seen would be forgotten.
    fn look_or_fail(&self, start: usize, pages: usize) -> Mapped {
        match self.kernel.try_look(start, pages) {
            Some(mapped) => mapped,
            None => self.fail("what was captured cannot be looked at in /proc/self/pagemap"),
        }
    }
}

/// The next capture.
enum Choice {
    /// These pages.
    Capture(Chosen),
    /// None of those looked at may go now; there are others.
    LookOn,
    /// Nothing.
    Nothing,
}

/// Pages of a unit to capture.
struct Chosen {
    /// The frames that they go to.
    run: FrameRun,
    unit: UnitNumber,
    victims: Mask,
    way: WayOut,
    /// The entries that they kept.
    copies: Copies,
}

/// Pages of a unit that are to leave, and in which way.
type Leave = (UnitNumber, WayOut, Mask);

/// Units of which nothing may leave but what threads hold.
#[derive(Default)]
struct HeldUnits {
    units: ArrayVec<UnitNumber, LOOKS>,
    /// Pages of the first of them that attempts younger than the waiter's hold.
    by_younger: Option<Leave>,
    /// Flag: older attempts hold some.
    by_older: bool,
}

/// The outcome for pages that were to leave.
#[derive(Default)]
struct Shifted {
    /// Pages that were no more where they had been.
    moved: Mask,
    /// Pages that the program had dropped without libc: there is nothing to move.
    gone: Mask,
    /// Pages that are not ours any more: the program mapped something else there without libc.
    foreign: Mask,
    /// Pages that could be written meanwhile.
    opened: Mask,
    /// The number of pages, of those that left, that relatives share and keep.
    copied: usize,
}

/// Those of `victims` that may leave together, and in which way: those in memory that pages leave, and whose missing
/// pages are our faults. Only from such may they be missing.
fn leaving(ranges: &Ranges, unit: UnitNumber, victims: Mask) -> Option<(WayOut, Mask)> {
    let start = unit.first().address();
    let mut by_way = WayOut::ALL.map(|way| (way, 0));
    for range in ranges.within(start, start + UNIT_BYTES) {
        if range.attributes.evictable()
            && let Some(way) = range.attributes.way_out()
        {
            let (first, end) = (range.start - start, range.end - start);
            by_way[way as usize].1 |= victims & ones(first / PAGE_SIZE, (end - first) / PAGE_SIZE);
        }
    }
    by_way.into_iter().find(|(_, pages)| *pages != 0)
}

/// A bay with the protection of memory that may be executed: the kernel moves pages between places
/// of like protection alone. Only while they are moved: back they go to plain memory alone.
struct ExecutableBay<'a, K: Kernel> {
    process: &'a Reclaimer<K>,
    address: usize,
}

impl<'a, K: Kernel> ExecutableBay<'a, K> {
    /// If the memory to be moved into the bay `is` executable. Refused, the move is as well, and pages stay.
    fn protect(process: &'a Reclaimer<K>, address: usize, is: bool) -> Option<Self> {
        if is {
            process.protect_bay(address, PLAIN | libc::PROT_EXEC);
        } else if process.kept_executable.load(Relaxed) {
            process.protect_bay(address, PLAIN);
        }
        is.then_some(Self { process, address })
    }
}

impl<K: Kernel> Drop for ExecutableBay<'_, K> {
    fn drop(&mut self) {
        if !self.process.protect_bay(self.address, PLAIN) {
            self.process.kept_executable.store(true, Relaxed);
        }
    }
}

impl<K: Kernel> Reclaimer<K> {
    fn protect_bay(&self, address: usize, protection: libc::c_int) -> bool {
        // SAFETY: the bay is the caller's, and nothing of the program's is executed in it.
        unsafe { self.kernel.mprotect(address, UNIT_BYTES, protection) }.is_ok()
    }
}

const PLAIN: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
