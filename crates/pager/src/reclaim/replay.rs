//! The policy of reclaim alone, on a record of touches: the loads that it would have in a memory of another size.
//!
//! Pages leave by the queue, and wait before they are stored, as many as [`HoldBack`] says for loads from devices.
//!
//! Not here: threads that hold pages, neighbours that come along, pages that cannot leave, the pool.

use crate::map::mask::{ones, set_bits};
use crate::map::page_map::{Frame, Page, PageMap, PageNumber, UNIT};
use crate::reclaim::hold_back::{HoldBack, Loads};
use crate::reclaim::pages::resident;
use crate::reclaim::reclaim_queue::ReclaimQueue;
use ebb_engine::EntryId;
use std::collections::VecDeque;

/// Units looked at for one that may leave.
const LOOK: usize = 512;
/// Numbers of frames.
const MOST_FRAMES: u32 = 1 << 29;

/// A memory of so many pages, and what a program finds there.
pub struct Replay {
    map: PageMap,
    queue: ReclaimQueue,
    hold_back: HoldBack,
    /// Pages that wait, and some that came back: those are in another frame by now, or in none.
    waiting: VecDeque<(PageNumber, Frame)>,
    room: usize,
    /// Pages that came back before they were stored.
    remapped: usize,
    loads: Loads,
}

impl Replay {
    /// An empty memory of `room` pages.
    pub const fn new(room: usize) -> Self {
        Self {
            map: PageMap::new(),
            queue: ReclaimQueue::new(),
            hold_back: HoldBack::new(),
            waiting: VecDeque::new(),
            room,
            remapped: 0,
            loads: Loads { pool: 0, device: 0 },
        }
    }

    /// The program touches a page, by its number; whether that is a load, or the first touch.
    pub fn touch(&mut self, page: usize) -> bool {
        self.bring(page, false) != 0
    }

    /// Pages that came back before they were stored, which cost no load.
    pub fn remapped(&self) -> usize {
        self.remapped
    }

    /// The same. In a `scan` the rest of its unit comes with it. How many pages were loaded, or touched first.
    pub fn bring(&mut self, page: usize, scan: bool) -> usize {
        let page = PageNumber(page);
        match self.map.get(page) {
            Page::Resident(_) => return 0,
            Page::Staged(_) => {
                self.remap(page, scan);
                return 0;
            }
            _ => {}
        }
        let pages = if scan { UNIT - page.within() } else { 1 };
        while self.map.in_memory() + pages > self.room {
            self.make_room();
        }
        let out = self.map.get(page) != Page::Untouched;
        self.loads.device += u64::from(out);
        let age = self.queue.age(&self.map, page);
        let joins_scan = out && scan && self.queue.joins_scan(&self.map, page);
        for at in (0..pages).map(|i| page.plus(i)) {
            self.comes(at);
        }
        let mask = ones(page.within(), pages);
        match joins_scan {
            true => self.queue.insert_scan(&mut self.map, page.unit(), mask),
            false => self.queue.insert(&mut self.map, page.unit(), mask),
        }
        if out && !scan {
            self.queue.refaulted(&mut self.map, page, age);
        }
        pages
    }

    /// A page is resident from now on, wherever it was.
    fn comes(&mut self, page: PageNumber) {
        if let Page::Swapped(_) | Page::Staged(_) = self.map.get(page) {
            self.queue.no_longer_out(&self.map, page, 1);
        }
        self.map.set(page, Page::Resident(None));
    }

    /// A page that waits is touched.
    fn remap(&mut self, page: PageNumber, scan: bool) {
        let age = self.queue.age(&self.map, page);
        self.comes(page);
        let mask = ones(page.within(), 1);
        self.queue.insert(&mut self.map, page.unit(), mask);
        self.remapped += 1;
        if !scan {
            self.hold_back.touched();
            self.queue.refaulted(&mut self.map, page, age);
        }
    }

    fn make_room(&mut self) {
        let staged = self.map.in_memory() - self.map.resident();
        let enough = self.hold_back.target(self.map.in_memory());
        if staged >= enough || self.map.resident() == 0 {
            self.store();
        } else {
            self.capture();
        }
    }

    /// The page that has waited longest is stored.
    fn store(&mut self) {
        while let Some((page, frame)) = self.waiting.pop_front() {
            if self.map.get(page) == Page::Staged(frame) {
                self.map.set(page, Page::Swapped(EntryId(0)));
                return;
            }
        }
    }

    /// Pages of a unit begin to wait.
    fn capture(&mut self) {
        let next = self.queue.next(&mut self.map, LOOK, resident);
        let (unit, mask) = next.expect("all is queued");
        for page in set_bits(mask).map(|i| unit.first().plus(i)) {
            // A number of its own, as long as it can be on the list.
            let frame = Frame(self.counter());
            self.map.set(page, Page::Staged(frame));
            self.waiting.push_back((page, frame));
        }
        self.queue.evicted(&mut self.map, unit, mask);
        if resident(&self.map, unit) != 0 {
            self.queue.requeue(&mut self.map, unit);
        }
        self.hold_back.captured(mask.count_ones() as usize);
        self.hold_back.decide(self.map.in_memory(), self.loads);
    }

    /// The number after the last frame's.
    fn counter(&self) -> u32 {
        let last = self.waiting.back().map_or(0, |(_, frame)| frame.0);
        (last + 1) % MOST_FRAMES
    }

    /// The invariants of map and queue; no more is resident than fits.
    ///
    /// # Panics
    /// One is broken.
    pub fn check(&self) {
        self.map.check();
        self.queue.check(&self.map);
        assert!(self.map.in_memory() <= self.room);
    }
}
