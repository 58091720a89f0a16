//! Where each page is, and when it leaves: page map, reclaim queue, attempts and staging area, which change
//! together. This is the only file that changes the state of a page.
//!
//! | change of a page | method |
//! |---|---|
//! | untouched, then resident | [`fill`](Pages::fill) |
//! | resident, then in transit to a frame | [`begin_capture`](Pages::begin_capture) |
//! | in a frame | [`end_capture`](Pages::end_capture) |
//! | in a frame, then in transit to the swap space | [`begin_store`](Pages::begin_store) |
//! | swapped out | [`end_store`](Pages::end_store) |
//! | in a frame, then resident again | [`came_back`](Pages::came_back) |
//! | in a frame, then swapped out with its clean copy | [`leaves_by_copy`](Pages::leaves_by_copy) |
//! | swapped out, then in transit to memory | [`begin_load`](Pages::begin_load) |
//! | resident, or poisoned | [`end_load`](Pages::end_load) |
//! | resident with a clean copy, then without | [`take_copy`](Pages::take_copy), [`drop_copies`](Pages::drop_copies) |
//! | any, then untouched | [`forget`](Pages::forget), [`forget_missing`](Pages::forget_missing) |
//! | any, at another address | [`carry`](Pages::carry) |
//!
//! Plain data under the pager's lock. Not here: the memory itself, which the caller moves, copies or drops before
//! or after it says so here.
//!
//! ```text
//! page is Staged(f) or Storing(f)   =>  staging.page_of(f) = page
//! pages Staged                      <=  staging.staged_frames()  <=  pages Staged or Storing
//! page is not Untouched             =>  it lies in a range
//! ```

use crate::map::mask::{ones, set_bits};
use crate::map::page_map::{Frame, Mask, Page, PageMap, PageNumber, UNIT, UnitNumber};
use crate::map::ranges::Ranges;
use crate::reclaim::attempts::{Attempts, Held, PAGES, Waiter};
use crate::reclaim::freeing::Freeing;
use crate::reclaim::hold_back::{self, HoldBack, Loads};
use crate::reclaim::reclaim_queue::ReclaimQueue;
use crate::reclaim::recorder::Recorder;
use crate::reclaim::staging::{BayIndex, FrameRun, Staging};
use crate::reclaim::unit_loads::UnitLoads;
use arrayvec::ArrayVec;
use ebb_engine::swap::Swap;
use ebb_engine::{Cpu, EntryId};
use ebb_sys::paging::Time;
use std::ops::ControlFlow::{Break, Continue};

/// The entries that the pages of a unit, or of a bay, kept, by their place in it.
pub type Copies = [Option<EntryId>; UNIT];

/// A bay that is being stored.
pub struct Storing {
    bay: BayIndex,
    /// The frames that hold pages.
    pub frames: Mask,
    /// The address.
    pub address: usize,
    /// The entries that pages of it kept, by their frames: they are the caller's.
    pub copies: Copies,
    /// Flag: it holds a whole unit, in order.
    pub is_unit: bool,
}

/// A page whose memory is a staged frame, or which was: how it is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// The frame was moved there.
    Moved,
    /// It was copied: the frame is unused.
    Copied,
}

/// See the module.
pub struct Pages {
    map: PageMap,
    queue: ReclaimQueue,
    attempts: Attempts,
    staging: Staging,
    hold_back: HoldBack,
    unit_loads: UnitLoads,
    /// A record of touches, for the lab.
    recorder: Option<Recorder>,
}

impl Pages {
    /// All are untouched; there is no staging area.
    pub const fn new() -> Self {
        Self {
            map: PageMap::new(),
            queue: ReclaimQueue::new(),
            attempts: Attempts::new(),
            staging: Staging::none(),
            hold_back: HoldBack::new(),
            unit_loads: UnitLoads::new(),
            recorder: None,
        }
    }

    /// The process is about to page, with this staging area.
    pub fn begin_paging(&mut self, staging: Staging, now_ms: u32) {
        self.staging = staging;
        // Pages that are there now are as old as now, not as the machine.
        self.queue.date(now_ms);
    }

    /// In a forked child: staging area and attempts are the parent's threads'.
    pub fn reset_in_child(&mut self) {
        self.staging = Staging::none();
        self.attempts.clear();
        self.recorder = None;
    }

    /// Touches are recorded from now on.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Whether touches are recorded. Then each is to be a fault: pages come one at a time, and none gets heat.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Pages of a unit come into memory.
    fn touched(&mut self, unit: UnitNumber, pages: Mask) {
        if let Some(recorder) = &mut self.recorder {
            recorder.touched(unit, pages);
        }
    }

    /// The state of each page.
    #[inline]
    pub fn map(&self) -> &PageMap {
        &self.map
    }

    /// The staging area.
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Frames that hold captured pages.
    pub fn staged_frames(&self) -> usize {
        self.staging.staged_frames()
    }

    /// Whether so many frames hold nothing, and wait for others of their bay or are being given back, that there shall
    /// be no more of them.
    pub fn has_wasted_frames(&self) -> bool {
        self.staging.wasted_frames() >= hold_back::least(self.map.in_memory())
    }

    /// How many captured pages are to wait before they are stored.
    pub fn held_back(&self) -> usize {
        self.hold_back.target(self.map.in_memory())
    }

    /// Decides anew how many, if it is time to; with the loads of the process so far.
    pub fn decide_held_back(&mut self, loads: Loads) {
        self.hold_back.decide(self.map.in_memory(), loads);
    }

    /// The resident pages of a unit, without those that refused to leave.
    pub fn candidates(&self, unit: UnitNumber) -> Mask {
        resident(&self.map, unit) & !self.map.unit(unit).refused()
    }

    /// Pages in memory, or with a frame that the system does not have yet.
    pub fn in_memory(&self) -> usize {
        self.map.in_memory() + self.staging.unused_frames()
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.map.bytes() + self.queue.bytes() + self.attempts.bytes() + self.staging.bytes()
    }

    // The order of eviction.

    /// Units queued from now on came at this time, in the keeper's milliseconds.
    pub fn date(&mut self, now_ms: u32) {
        self.queue.date(now_ms);
    }

    /// The time at which units that are queued now come.
    pub fn now_ms(&self) -> u32 {
        self.queue.now_ms()
    }

    /// When the oldest resident pages came.
    pub fn oldest_ms(&mut self) -> Option<u32> {
        self.queue.oldest_ms(&mut self.map, resident)
    }

    /// How soon evicted pages come back, if most do.
    pub fn return_time_ms(&self) -> Option<u32> {
        self.queue.return_time_ms()
    }

    /// How many epochs ago a page that is out was evicted.
    pub fn age(&self, page: PageNumber) -> u8 {
        self.queue.age(&self.map, page)
    }

    /// How many pages that are out were evicted after this one, which is out too, and do not wait any more: those that
    /// wait are in memory.
    pub fn rank(&self, page: PageNumber) -> usize {
        let later = self.queue.rank(&self.map, page);
        later.saturating_sub(self.staging.staged_frames())
    }

    /// A page was touched, not in a scan, and came back `age` epochs after its eviction.
    pub fn refaulted(&mut self, page: PageNumber, age: u8) {
        if !self.is_recorded() {
            self.queue.refaulted(&mut self.map, page, age);
        }
    }

    /// The same of a page that waited to be stored.
    pub fn touched_in_staging(&mut self, page: PageNumber, age: u8) {
        if !self.is_recorded() {
            self.hold_back.touched();
        }
        self.refaulted(page, age);
    }

    /// Whether a page that a scan brings leaves again behind it.
    pub fn joins_scan(&mut self, page: PageNumber) -> bool {
        self.queue.joins_scan(&self.map, page)
    }

    /// The unit whose turn it is, and which of its pages are due; see [`ReclaimQueue::next`].
    pub fn next_unit(&mut self, limit: usize) -> Option<(UnitNumber, Mask)> {
        self.queue.next(&mut self.map, limit, resident)
    }

    /// Puts a unit back at the end of the queue.
    pub fn requeue(&mut self, unit: UnitNumber) {
        self.queue.requeue(&mut self.map, unit);
    }

    /// Pages of a unit, whose turn it was, have to stay, and others of it need not.
    pub fn put_aside(&mut self, unit: UnitNumber, stay: Mask) {
        self.queue.put_aside(&mut self.map, unit, stay);
    }

    /// Puts all units with resident pages of `start..end` back.
    pub fn requeue_resident(&mut self, start: PageNumber, end: PageNumber) {
        let mut at = start;
        // One unit at a time: the map cannot change while it is walked.
        while at < end {
            let mut found = None;
            self.map.each(at, end, |number, page| match page {
                Page::Resident(_) => {
                    found = Some(number.unit());
                    Break(())
                }
                _ => Continue(()),
            });
            let Some(unit) = found else { return };
            self.requeue(unit);
            at = unit.first().plus(UNIT);
        }
    }

    /// Relatives share what might leave of a unit, whose turn it was.
    pub fn defer(&mut self, unit: UnitNumber) {
        self.queue.defer(&mut self.map, unit);
    }

    /// At most so many deferred units come back: it is their turn next.
    pub fn readmit(&mut self, units: usize) {
        self.queue.readmit(&mut self.map, units);
    }

    /// Pages that refused to leave: one of their units is tried again, if it is time to.
    pub fn try_refused(&mut self) {
        self.queue.try_refused(&mut self.map, resident);
    }

    /// Nothing else may leave: the same, unless one was just now. Whether there is one.
    pub fn try_refused_alone(&mut self) -> bool {
        self.queue.try_refused_alone(&mut self.map, resident)
    }

    /// A fault is stuck: a few are tried whenever that was.
    pub fn try_refused_of_stuck(&mut self) {
        const FEW: usize = 4;
        // Nothing has come of the last ones yet.
        if self.queue.is_readmitting() {
            return;
        }
        for _ in 0..FEW {
            self.queue.try_again(&mut self.map, resident);
        }
    }

    /// Refusals of pages that are gone by now are forgotten, from time to time.
    pub fn prune_refusals(&mut self, now_ms: u32) {
        self.queue.date(now_ms);
        self.queue.prune_refusals(&mut self.map, resident);
    }

    /// How many pages refused to leave, about.
    pub fn refused(&self) -> usize {
        self.queue.refused()
    }

    /// Those of them that are there.
    pub fn refused_there(&self) -> impl Iterator<Item = PageNumber> {
        let there = |unit| resident(&self.map, unit) & self.map.unit(unit).refused();
        let pages =
            move |unit: UnitNumber| set_bits(there(unit)).map(move |i| unit.first().plus(i));
        self.queue.refusing().flat_map(pages)
    }

    /// How many looks it takes to see all that are deferred; no more than `most`.
    pub fn deferred_rounds(&self, most: usize) -> usize {
        self.queue.deferred_rounds(most)
    }

    /// Resident pages in a row of one unit count as new in the queue.
    pub fn insert(&mut self, first: PageNumber, pages: usize) {
        let mask = ones(first.within(), pages);
        self.queue.insert(&mut self.map, first.unit(), mask);
    }

    // Pages that threads hold.

    /// A thread waits for a page, which is missing or protected.
    pub fn waits(&mut self, waiter: Waiter, missing: bool, now: Time) {
        self.attempts.waits(&mut self.map, waiter, missing, now);
    }

    /// It has the page, and is to go on.
    pub fn served(&mut self, waiter: Waiter, now: Time) {
        self.attempts.served(waiter, now);
    }

    /// Which pages of a unit are not to be taken for `by`.
    pub fn held(
        &mut self,
        unit: UnitNumber,
        by: Option<Waiter>,
        now: impl FnOnce() -> Time,
    ) -> Held {
        self.attempts.held(&mut self.map, unit, by, now)
    }

    /// The pages that a thread faulted on last, the oldest first, without the one that it waits for.
    pub fn own(&self, by: Waiter) -> ArrayVec<PageNumber, PAGES> {
        self.attempts.own(by)
    }

    /// A page of its own is taken for a thread.
    pub fn takes_own(&mut self, thread: u32, page: PageNumber, by_older: bool) {
        self.attempts.takes_own(thread, page, by_older);
    }

    /// Faults on pages that were new to their threads.
    pub fn work(&self) -> u64 {
        self.attempts.work()
    }

    // The way in.

    /// Pages `mask` of a unit, which nobody had touched, are there.
    pub fn fill(&mut self, unit: UnitNumber, mask: Mask) {
        for i in set_bits(mask) {
            self.map.set(unit.first().plus(i), Page::Resident(None));
        }
        self.touched(unit, mask);
        self.queue.insert(&mut self.map, unit, mask);
    }

    /// Swapped pages in a row of one unit are in transit to memory from now on: their entries.
    pub fn begin_load(&mut self, first: PageNumber, pages: usize) -> ArrayVec<EntryId, UNIT> {
        let mut entries = ArrayVec::new();
        for at in (0..pages).map(|i| first.plus(i)) {
            let Page::Swapped(entry) = self.map.get(at) else {
                unreachable!("only swapped pages are taken")
            };
            self.map.set(at, Page::Loading(entry));
            entries.push(entry);
        }
        self.queue.come_back(&self.map, first, pages);
        entries
    }

    /// Whether the rest of its unit had better come with a page that is to be loaded from a device.
    pub fn wants_rest(&self, page: PageNumber) -> bool {
        let load = self.map.unit(page.unit()).next_load();
        load.is_some_and(|load| self.unit_loads.brings_rest(page.unit(), load))
    }

    /// A page is loaded from a device, one of so many. In a sample, what comes with others says nothing.
    pub fn count_load(&mut self, page: PageNumber, pages: usize) {
        let unit = self.map.unit_mut(page.unit());
        match pages > 1 && UnitLoads::is_sample(page.unit()) {
            true => _ = unit.end_stay(),
            false => unit.count_load(),
        }
    }

    /// Pages of a unit leave: what was loaded of it until now says whether the rest was wanted.
    fn ends_stay(&mut self, unit: UnitNumber) {
        let loads = self.map.unit_mut(unit).end_stay();
        if loads > 0 && UnitLoads::is_sample(unit) {
            let out = self.map.mask(unit, |p| matches!(p, Page::Swapped(_)));
            self.unit_loads.ended(loads, out.count_ones() as usize);
        }
    }

    /// The transit is over: each is resident, perhaps with a copy, or poisoned; or it is still out. They leave again
    /// behind a `scan`, or in their turn.
    pub fn end_load(&mut self, first: PageNumber, outcome: &[Page], scan: bool) {
        let mut mask = 0;
        for (i, &page) in outcome.iter().enumerate() {
            let at = first.plus(i);
            self.map.set(at, page);
            match page {
                Page::Swapped(_) => self.queue.out_again(&self.map, at),
                Page::Resident(_) | Page::Poisoned => mask |= ones(at.within(), 1),
                other => unreachable!("{at:?} is {other:?} after a load"),
            }
        }
        if mask == 0 {
            return;
        }
        self.touched(first.unit(), mask);
        match scan {
            true => self.queue.insert_scan(&mut self.map, first.unit(), mask),
            false => self.queue.insert(&mut self.map, first.unit(), mask),
        }
    }

    /// The address of the frame that holds a staged page.
    pub fn frame_address(&self, page: PageNumber) -> usize {
        self.staging.frame_address(self.frame(page))
    }

    fn frame(&self, page: PageNumber) -> Frame {
        match self.map.get(page) {
            Page::Staged(frame) => frame,
            other => unreachable!("{page:?} is {other:?}, not staged"),
        }
    }

    /// The entry that a staged page kept.
    pub fn staged_copy(&self, page: PageNumber) -> Option<EntryId> {
        self.staging.copy_of(self.frame(page))
    }

    /// A staged page waits no more: it is swapped out by the entry that it kept. If that is not `good`, it stays without:
    /// the entry is the caller's, to be freed.
    pub fn leaves_by_copy(&mut self, page: PageNumber, good: bool) -> Option<EntryId> {
        let frame = self.frame(page);
        if !good {
            return self.staging.take_copy(frame);
        }
        let entry = self.staging.stored(frame).expect("it kept one");
        self.map.set(page, Page::Swapped(entry));
        None
    }

    /// A staged page is where it was again, protected if it `keeps` its entry. One that it does not keep is the caller's,
    /// to be freed.
    pub fn came_back(&mut self, page: PageNumber, back: Back, keeps: bool) -> Option<EntryId> {
        let frame = self.frame(page);
        let copy = match back {
            Back::Moved => self.staging.remapped(frame),
            Back::Copied => self.staging.stored(frame),
        };
        self.map.set(page, Page::Resident(copy.filter(|_| keeps)));
        self.touched(page.unit(), ones(page.within(), 1));
        self.queue.come_back(&self.map, page, 1);
        self.insert(page, 1);
        copy.filter(|_| !keeps)
    }

    // The way out.

    /// Frames for pages `victims` of a unit that is out of the queue, in a bay with others or in one `alone`.
    /// They are in transit from now on; what entries they kept. None: there is no frame.
    pub fn begin_capture(
        &mut self,
        unit: UnitNumber,
        victims: Mask,
        alone: bool,
    ) -> Option<(FrameRun, Copies)> {
        let leaving: ArrayVec<_, UNIT> = set_bits(victims).map(|i| unit.first().plus(i)).collect();
        let run = self.staging.begin_capture(leaving.iter().copied(), alone)?;
        let mut copies = [None; UNIT];
        for (at, &page) in leaving.iter().enumerate() {
            if let Page::Resident(kept) = self.map.get(page) {
                copies[page.within()] = kept;
            }
            self.map.set(page, Page::Storing(run.frame(at)));
        }
        Some((run, copies))
    }

    /// The capture is over: `moved` pages are in their frames, `lost` ones are nowhere, the others are where they
    /// were. `copies` are the entries that are still good.
    pub fn end_capture(
        &mut self,
        run: FrameRun,
        unit: UnitNumber,
        (victims, moved, lost): (Mask, Mask, Mask),
        copies: &Copies,
    ) {
        if moved != 0 {
            self.ends_stay(unit);
        }
        let mut came: Mask = 0;
        for (at, i) in set_bits(victims).enumerate() {
            let now = match 1 << i {
                bit if moved & bit != 0 => Page::Staged(run.frame(at)),
                bit if lost & bit != 0 => Page::Untouched,
                _ => Page::Resident(copies[i]),
            };
            came |= Mask::from(moved >> i & 1 != 0) << at;
            self.map.set(unit.first().plus(i), now);
        }
        self.staging.end_capture(run, came);
        for (at, i) in set_bits(victims).enumerate() {
            if let Some(entry) = copies[i].filter(|_| came >> at & 1 != 0) {
                self.staging.keep_copy(run.frame(at), entry);
            }
        }
        self.queue.evicted(&mut self.map, unit, moved);
        // The system has pinned or sealed what refused, for long perhaps.
        let refused = victims & !moved & !lost;
        if refused != 0 {
            self.queue.refuse(&mut self.map, unit, refused);
        }
        if self.candidates(unit) != 0 {
            self.queue.requeue(&mut self.map, unit);
        }
        self.hold_back.captured(moved.count_ones() as usize);
    }

    /// The bay staged longest ago is the caller's to store: its pages are in transit. None: others store all.
    /// Where `clean` ones come first, one with pages that kept their entries.
    pub fn begin_store(&mut self, clean: bool) -> Option<Storing> {
        let bay = self.staging.begin_store(clean)?;
        let frames = self.staging.staged_of(bay);
        let mut copies = [None; UNIT];
        for i in set_bits(frames) {
            let frame = Staging::frame(bay, i);
            copies[i] = self.staging.take_copy(frame);
            self.map
                .set(self.staging.page_of(frame), Page::Storing(frame));
        }
        let page = |i| self.staging.page_of(Staging::frame(bay, i));
        let is_unit = page(0).within() == 0 && (0..UNIT).all(|i| page(i) == page(0).plus(i));
        Some(Storing {
            bay,
            frames,
            address: self.staging.address(bay),
            copies,
            is_unit,
        })
    }

    /// The transit is over: pages with an entry are swapped out, the others stay in their frames.
    pub fn end_store(&mut self, storing: &Storing, entries: &[Option<EntryId>]) {
        let bay = storing.bay;
        self.staging.end_store(bay);
        if set_bits(storing.frames).any(|i| entries[i].is_none()) {
            self.staging.rotate_past(bay);
        }
        for i in set_bits(storing.frames) {
            let frame = Staging::frame(bay, i);
            let page = self.staging.page_of(frame);
            match entries[i] {
                Some(entry) => {
                    self.map.set(page, Page::Swapped(entry));
                    self.staging.stored(frame);
                }
                None => self.map.set(page, Page::Staged(frame)),
            }
        }
    }

    /// The pages in the bay staged longest ago that nobody stores; none: there is no such bay.
    pub fn oldest_staged(&mut self) -> Option<ArrayVec<PageNumber, UNIT>> {
        let bay = self.staging.oldest_staged()?;
        let pages = set_bits(self.staging.staged_of(bay))
            .map(|i| self.staging.page_of(Staging::frame(bay, i)));
        Some(pages.collect())
    }

    /// Takes out a bay whose frames are all unused: see [`Staging::take`].
    pub fn take_unused(&mut self) -> Option<(BayIndex, Mask)> {
        self.staging.take()
    }

    /// Takes out unused frames of a bay in use: see [`Staging::take_early`].
    pub fn take_early(&mut self) -> Option<(BayIndex, Mask)> {
        self.staging.take_early()
    }

    /// The system has frames that were taken out.
    pub fn released(&mut self, bay: BayIndex, frames: Mask) {
        self.staging.released(bay, frames);
    }

    // Changes by the program.

    /// A page may be written from now on: the entry of its clean copy, to be freed.
    pub fn take_copy(&mut self, page: PageNumber) -> Option<EntryId> {
        let Page::Resident(Some(entry)) = self.map.get(page) else {
            return None;
        };
        self.map.set(page, Page::Resident(None));
        Some(entry)
    }

    /// Gives up the copies of pages in `start..end`: what keeps these from being written is about to go.
    pub fn drop_copies(&mut self, swap: &Swap, cpu: Cpu, start: usize, end: usize) {
        const SOME: usize = 256;
        let (mut at, end) = (PageNumber::of(start), PageNumber::of(end));
        loop {
            let mut some = ArrayVec::<(PageNumber, EntryId), SOME>::new();
            self.map.each(at, end, |number, page| {
                if let Page::Resident(Some(entry)) = page {
                    some.push((number, entry));
                }
                if some.is_full() {
                    Break(())
                } else {
                    Continue(())
                }
            });
            let mut freeing = Freeing::default();
            for &(number, entry) in &some {
                self.map.set(number, Page::Resident(None));
                freeing.add(swap, cpu, entry);
            }
            freeing.finish(swap, cpu);
            match some.last() {
                Some(&(last, _)) if some.is_full() => at = last.plus(1),
                _ => return,
            }
        }
    }

    /// Forgets the content of every page in `start..end`: they read as zeros when next touched.
    /// None of them is in transit. `swap` has their entries, with the processor that the caller runs on.
    pub fn forget(&mut self, swap: Option<(&Swap, Cpu)>, start: usize, end: usize) {
        const SOME: usize = 256;
        let (mut at, end) = (PageNumber::of(start), PageNumber::of(end));
        let mut freeing = Freeing::default();
        loop {
            let (mut batch, mut n) = ([(PageNumber(0), Page::Untouched); SOME], 0);
            self.map.each(at, end, |number, page| {
                batch[n] = (number, page);
                n += 1;
                if n == SOME { Break(()) } else { Continue(()) }
            });
            for &(number, page) in &batch[..n] {
                let entry = self.forget_page(number, page);
                if let (Some(entry), Some((swap, cpu))) = (entry, swap) {
                    freeing.add(swap, cpu, entry);
                }
            }
            if n < SOME {
                break;
            }
            at = batch[n - 1].0.plus(1);
        }
        if let Some((swap, cpu)) = swap {
            freeing.finish(swap, cpu);
        }
    }

    /// Forgets one; its entry, to be freed.
    fn forget_page(&mut self, number: PageNumber, page: Page) -> Option<EntryId> {
        if matches!(page, Page::Staged(_) | Page::Swapped(_)) {
            self.queue.no_longer_out(&self.map, number, 1);
            // Nobody will know whether it was wanted.
            self.map.unit_mut(number.unit()).end_stay();
        }
        let entry = match page {
            Page::Resident(kept) => kept,
            Page::Staged(frame) => self.staging.stored(frame),
            Page::Swapped(entry) => Some(entry),
            Page::Untouched | Page::Poisoned => None,
            Page::Loading(_) | Page::Storing(_) => {
                unreachable!("forgot a page in transit")
            }
        };
        self.map.set(number, Page::Untouched);
        entry
    }

    /// Gives back tables of memory that is gone, once they are many.
    pub fn give_back_tables(&mut self) {
        if self.map.is_sparse() {
            self.queue.drop_empty(&mut self.map, resident);
            self.map.prune();
        }
    }

    /// In a forked child: pages of which its parent had only read zeros are missing here, as the kernel does not
    /// copy them; `there` are the runs of the others.
    pub fn forget_missing(&mut self, start: usize, end: usize, there: &[(usize, usize)]) {
        let mut missing = Vec::new();
        let mut runs = there.iter().peekable();
        let (start, end) = (PageNumber::of(start), PageNumber::of(end));
        self.map.each(start, end, |page, is| {
            let at = page.address();
            while runs.next_if(|run| run.1 <= at).is_some() {}
            if is == Page::Resident(None) && runs.peek().is_none_or(|run| at < run.0) {
                missing.push(page);
            }
            Continue(())
        });
        for page in missing {
            self.map.set(page, Page::Untouched);
        }
    }

    /// A page is at another address now. It is without protection there: the entry of its clean copy, to be freed.
    /// A staged one was copied there.
    pub fn carry(&mut self, from: PageNumber, to: PageNumber) -> Option<EntryId> {
        let (page, entry) = match self.map.get(from) {
            Page::Staged(frame) => {
                self.queue.no_longer_out(&self.map, from, 1);
                (Page::Resident(None), self.staging.stored(frame))
            }
            Page::Resident(copy) => (Page::Resident(None), copy),
            page => (page, None),
        };
        self.map.set(from, Page::Untouched);
        let unit = self.map.unit_mut(from.unit());
        unit.end_stay();
        let note = unit.note(from.within());
        self.map.set(to, page);
        self.map.unit_mut(to.unit()).set_note(to.within(), note);
        if matches!(page, Page::Resident(_)) {
            self.requeue(to.unit());
        }
        entry
    }

    /// For tests of threads that meet a transit.
    #[cfg(test)]
    pub fn set_for_test(&mut self, page: PageNumber, to: Page) {
        self.map.set(page, to);
    }

    /// The equations of the head comment, and those of the four parts.
    pub fn check(&self, ranges: &Ranges) {
        self.map.check();
        self.queue.check(&self.map);
        self.attempts.check();
        self.staging.check();
        self.unit_loads.check();
        let (mut staged, mut storing) = (0, 0);
        self.map
            .each(PageNumber(0), PageNumber(1 << 35), |number, page| {
                assert!(
                    ranges.find(number.address()).is_some(),
                    "{number:?} is {page:?} outside every range"
                );
                match page {
                    Page::Staged(frame) | Page::Storing(frame) => {
                        assert_eq!(self.staging.page_of(frame), number);
                        staged += 1;
                        storing += usize::from(matches!(page, Page::Storing(_)));
                    }
                    _ => {}
                }
                Continue(())
            });
        // Pages that are just being captured are in no frame yet.
        assert!((staged - storing..=staged).contains(&self.staging.staged_frames()));
    }
}

pub fn resident(map: &PageMap, unit: UnitNumber) -> Mask {
    map.mask(unit, |p| matches!(p, Page::Resident(_)))
}
