//! The reclaim queue alone, on a record of touches: the faults that it would have in a memory of another size.
//!
//! Not here: staging, threads that hold pages, neighbours that come along, pages that cannot leave.

use crate::map::mask::{ones, set_bits};
use crate::map::page_map::{Page, PageMap, PageNumber, UNIT};
use crate::reclaim::pages::resident;
use crate::reclaim::reclaim_queue::ReclaimQueue;
use ebb_engine::EntryId;

/// Units looked at for one that may leave.
const LOOK: usize = 512;

/// A memory of so many pages, and what a program finds there.
pub struct Replay {
    map: PageMap,
    queue: ReclaimQueue,
    room: usize,
}

impl Replay {
    /// An empty memory of `room` pages.
    pub const fn new(room: usize) -> Self {
        Self {
            map: PageMap::new(),
            queue: ReclaimQueue::new(),
            room,
        }
    }

    /// The program touches a page, by its number; whether that is a fault.
    pub fn touch(&mut self, page: usize) -> bool {
        self.bring(page, false) != 0
    }

    /// The same. In a `scan` the rest of its unit comes with it. How many pages came in.
    pub fn bring(&mut self, page: usize, scan: bool) -> usize {
        let page = PageNumber(page);
        if matches!(self.map.get(page), Page::Resident(_)) {
            return 0;
        }
        let pages = if scan { UNIT - page.within() } else { 1 };
        while self.map.resident() + pages > self.room {
            self.evict();
        }
        let out = self.map.get(page) != Page::Untouched;
        let age = self.queue.age(&self.map, page);
        let joins_scan = out && scan && self.queue.joins_scan(&self.map, page);
        for at in (0..pages).map(|i| page.plus(i)) {
            if let Page::Swapped(_) = self.map.get(at) {
                self.queue.no_longer_out(&self.map, at, 1);
            }
            self.map.set(at, Page::Resident(None));
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

    fn evict(&mut self) {
        let next = self.queue.next(&mut self.map, LOOK, resident);
        let (unit, mask) = next.expect("all is queued");
        for i in set_bits(mask) {
            self.map
                .set(unit.first().plus(i), Page::Swapped(EntryId(0)));
        }
        self.queue.evicted(&mut self.map, unit, mask);
        if resident(&self.map, unit) != 0 {
            self.queue.requeue(&mut self.map, unit);
        }
    }

    /// The invariants of map and queue; no more is resident than fits.
    ///
    /// # Panics
    /// One is broken.
    pub fn check(&self) {
        self.map.check();
        self.queue.check(&self.map);
        assert!(self.map.resident() <= self.room);
    }
}
