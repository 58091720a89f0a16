//! Resolving a fault: a first touch is filled, a captured page goes back where it was, a swapped one
//! is loaded (`swap_in`).
//!
//! All come by copy (`install`), while the budget has room. A captured page is moved back where there is none, or
//! where copies have left many frames without use.

use crate::budget::charge::Charge;
use crate::fault::fault_service::FaultService;
use crate::map::access_pattern::around;
use crate::map::mask::ones;
use crate::map::page_map::{Page, PageNumber};
use crate::process::base::Locked;
use crate::process::memory_ops::{Waking, Writes};
use crate::process::state::State;
use crate::process::worker::{PendingFault, Worker};
use crate::reclaim::pages::Back;
use ebb_engine::{EntryId, PAGE_SIZE, PageBytes};
use ebb_sys::Errno;
use ebb_sys::paging::{Kernel, Time};
use ebb_sys::userfaultfd::Fault;
use ebb_tree::Way;

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The page is there, or the thread may look again.
    Done,
    /// There is no room: make some and serve it again.
    NoRoom,
    /// There is room, and the system has no page: the same.
    NoPage,
}

/// Pages that a fault brought in, whose waiting threads are to be woken.
pub struct Brought {
    pub way: Way,
    /// Flag: some of it came from a device, if not the page that was touched.
    pub device: bool,
    pub first: PageNumber,
    pub pages: usize,
    /// Flag: the threads were woken already, and the fault counted.
    pub woken: bool,
}

impl Brought {
    fn one(way: Way, page: PageNumber) -> Self {
        Self::run(way, page, 1)
    }

    fn run(way: Way, first: PageNumber, pages: usize) -> Self {
        Self {
            way,
            device: false,
            first,
            pages,
            woken: false,
        }
    }
}

impl<K: Kernel> FaultService<K> {
    /// Serves one fault, once.
    pub fn serve(&self, worker: &mut Worker, pending: &PendingFault) -> Served {
        let brought = match self.resolve(worker, pending) {
            Ok(brought) if brought.woken => return Served::Done,
            Ok(brought) => brought,
            Err(served) => return served,
        };
        let way = (!pending.fault.protected).then_some(brought.way);
        self.count_fault(way, brought.device, (pending.since, self.now()));
        // A thread that waits for a device waits for this one too, where no other is awake.
        let queued = brought.device && (pending.is_followed || self.kernel.has_faults(0));
        self.wake(brought.first, brought.pages);
        if queued {
            self.services.share();
        }
        Served::Done
    }

    /// Counts a fault, read and served so at these times: before anybody is woken. No way: the page was
    /// there, protected.
    pub fn count_fault(&self, way: Option<Way>, device: bool, (since, at): (Time, Time)) {
        let counters = self.counters();
        counters.fault.add(1);
        match way {
            None => {}
            Some(Way::Zero) => counters.fault_zero.add(1),
            Some(Way::Cache) => counters.fault_cache.add(1),
            Some(Way::Pool) => counters.fault_pool.add(1),
            Some(Way::Device) => counters.fault_device.add(1),
        }
        self.stops_waiting(at);
        let ns = (at - since).as_nanos() as u64;
        self.member.latency(way.unwrap_or(Way::Cache)).record(ns);
        if matches!(way, Some(Way::Pool | Way::Device)) {
            self.costs.took(device, ns);
        }
    }

    /// A thread waits no longer, from this time on.
    pub fn stops_waiting(&self, at: Time) {
        let counted = self.pressure.end(at).as_nanos() as u64;
        self.counters().psi_some_ns.add(counted);
    }

    /// Resolves a fault. Nobody is woken while the lock is held: the woken thread takes this one's
    /// processor at once.
    fn resolve(&self, worker: &mut Worker, pending: &PendingFault) -> Result<Brought, Served> {
        let mut state = self.lock();
        let (fault, waiter) = (pending.fault, pending.waiter());
        let pages = &mut state.pages;
        pages.waits(waiter, !fault.protected, pending.since);
        let is_staged = matches!(pages.map().get(waiter.page), Page::Staged(_));
        if is_staged && !fault.write && self.swap_space.devices.reads_only() {
            // Moved back without its copy it could not go there again.
            self.leaves_by_copy(&mut state, waiter.page);
        }
        let pages = &mut state.pages;
        let brought = match pages.map().get(waiter.page) {
            // A write to a page that is leaving, too: it must not be let through before that is over.
            Page::Loading(_) | Page::Storing(_) => {
                state.parked.park(fault);
                return Err(Served::Done);
            }
            // A page that is put there would be refused, and lost.
            Page::Swapped(_) | Page::Staged(_)
                if !fault.protected && !state.is_registered(waiter.page) =>
            {
                return self.park_early(state, fault);
            }
            // Memory grew in place: the kernel has it registered at once. A thread that was only woken would
            // fault again and again.
            Page::Untouched if !fault.protected && state.is_to_be_registered(waiter.page) => {
                return self.park_early(state, fault);
            }
            Page::Swapped(_) if !fault.protected => {
                return self.swap_in(state, worker, pending);
            }
            page => self.resolve_at_once(&mut state, fault, page)?,
        };
        state.pages.served(waiter, self.now());
        Ok(brought)
    }

    /// The fault waits until the keeper registers its memory.
    fn park_early(&self, mut state: Locked, fault: Fault) -> Result<Brought, Served> {
        state.parked.park_early(fault);
        drop(state);
        self.base.registration.awaits();
        // The thread that mapped the memory may have no reason to wait, and would not wake the keeper.
        self.member.wake_self();
        Err(Served::Done)
    }

    /// The same of a page that needs no work without the lock.
    fn resolve_at_once(
        &self,
        state: &mut State,
        fault: Fault,
        now: Page,
    ) -> Result<Brought, Served> {
        let page = PageNumber::of(fault.address);
        if fault.protected {
            let written = self.write_protected(state, page);
            let (first, pages) = written.ok_or(Served::NoRoom)?;
            return Ok(Brought::run(Way::Cache, first, pages));
        }
        match now {
            Page::Resident(_) => self.look_again(state, page)?,
            Page::Poisoned => {
                self.kernel.poison(page.address(), PAGE_SIZE);
            }
            Page::Staged(_) => return self.remap(state, page, fault.write),
            Page::Untouched => return self.fill(state, page),
            Page::Swapped(_) | Page::Loading(_) | Page::Storing(_) => {
                unreachable!("takes work without the lock")
            }
        }
        Ok(Brought::one(Way::Cache, page))
    }

    /// A fault on a page that is there by now, brought in beside another: then it refuses the copy. If it is missing
    /// all the same, the program dropped it without libc (a system call of its own, MADV_FREE before it paged). It
    /// reads as zeros, as it would without us, and is counted. If it had a clean copy, that is of the past.
    fn look_again(&self, state: &mut State, page: PageNumber) -> Result<(), Served> {
        let (zeros, at) = (self.zeros(1), page.address());
        let (done, result) = self.copy(at, zeros, Writes::Free, Waking::Later);
        if done > 0 {
            state
                .pages
                .drop_copies(self.swap, self.cpu(), at, at + PAGE_SIZE);
            self.counters().map_disagrees.add(1);
        }
        // The system takes a page before it looks whether one is there.
        match result {
            Err(Errno(libc::ENOMEM)) if !self.is_there(page) => Err(Served::NoPage),
            _ => Ok(()),
        }
    }

    fn is_there(&self, page: PageNumber) -> bool {
        let mut there = false;
        let at = page.address();
        let looked = self.kernel.scan(at, at + PAGE_SIZE, |_, _| there = true);
        there || looked.is_err()
    }

    /// First touch: zeros, as many pages as the pattern says.
    fn fill(&self, state: &mut State, page: PageNumber) -> Result<Brought, Served> {
        let Some(range) = state.ranges.find(page.address()) else {
            // Unmapped meanwhile: the thread that looks again gets what the kernel has for it. But memory may be registered
            // of which no call told: an instruction of the program's has extended other memory.
            if self.serves(page) {
                self.look_again(state, page)?;
            }
            return Ok(Brought::one(Way::Zero, page));
        };
        let window = state.window(page);
        let (first, pages) = around(page, window.first, window.pages, |p| {
            range.holds(p) && state.pages.map().get(p) == Page::Untouched
        });
        let room = self.gets_room(state, page, first, pages);
        let (first, mut pages) = room.ok_or(Served::NoRoom)?;
        (pages, _) = self.try_install(first, self.zeros(pages), Writes::Free, Waking::Later);
        if pages < window.pages {
            state.pattern.brought(first, pages);
        }
        if pages > 0 {
            state.pages.fill(first.unit(), ones(first.within(), pages));
        }
        if page >= first.plus(pages) {
            self.wake(first, pages);
            return Err(Served::NoPage);
        }
        Ok(Brought::run(Way::Zero, first, pages))
    }

    /// Which pages may be copied in of those from `first` on, `page` among them: all, or it alone, if
    /// need be for spent frames that are given back.
    pub fn gets_room(
        &self,
        state: &mut State,
        page: PageNumber,
        first: PageNumber,
        pages: usize,
    ) -> Option<(PageNumber, usize)> {
        for (first, pages) in [(first, pages), (page, 1)] {
            let enough =
                |charge: &mut Charge, used| charge.reserve(self.member, used, pages as i64);
            if self.release_until(state, enough) {
                return Some((first, pages));
            }
        }
        state.pattern.undo();
        None
    }

    /// A page that is still in a frame is wanted again; in a scan its neighbours too.
    fn remap(&self, state: &mut State, page: PageNumber, write: bool) -> Result<Brought, Served> {
        let window = state.window(page);
        let reads_only = self.swap_space.devices.reads_only();
        let pages = &state.pages;
        let range = state.ranges.find(page.address());
        let staged = |p| {
            // Beside it may be memory that is not registered yet.
            let is = matches!(pages.map().get(p), Page::Staged(_))
                && (p == page || range.is_some_and(|range| range.holds(p)));
            is && (p == page || !reads_only || pages.staged_copy(p).is_none())
        };
        let (first, wanted) = around(page, window.first, window.pages, staged);
        let age = state.pages.age(page);
        let mut pages = 0;
        while pages < wanted && self.bring_back(state, first.plus(pages), write) {
            pages += 1;
        }
        if pages != window.pages {
            state.pattern.brought(first, pages);
        }
        if page >= first.plus(pages) {
            self.wake(first, pages);
            return Err(Served::NoPage);
        }
        if !window.stream {
            state.pages.touched_in_staging(page, age);
            state.pool_split.record_staged_touch();
        }
        Ok(Brought {
            pages,
            ..Brought::one(Way::Cache, first)
        })
    }

    /// A staged page goes back where it was; false if the system has no page for it. A copy needs no flush, but leaves
    /// a frame, which waits for the others of its bay.
    fn bring_back(&self, state: &mut State, page: PageNumber, write: bool) -> bool {
        let moves = state.pages.has_wasted_frames() && state.movable(page);
        !moves && self.has_room(state, 1) && self.copy_back(state, page, write)
            || self.put_back(state, page)
    }

    /// The same, moved if that can be: it takes no other page then.
    pub fn put_back(&self, state: &mut State, page: PageNumber) -> bool {
        if state.movable(page) {
            let from = state.pages.frame_address(page);
            // SAFETY: the frame is ours and holds exactly this page's content.
            let (done, result) = unsafe { self.kernel.move_pages(page.address(), from, PAGE_SIZE) };
            if done == PAGE_SIZE || result == Err(Errno(libc::EEXIST)) {
                if done == 0 {
                    // Somebody filled the page behind our back; the frame is left over.
                    self.drop_pages(&[(from, PAGE_SIZE)]);
                }
                let copy = state.pages.came_back(page, Back::Moved, false);
                self.free_copy(copy);
                return true;
            }
        }
        self.copy_back(state, page, true)
    }

    /// False if the system has no page for it. It keeps its entry where that is worth it, and it is not to be written.
    fn copy_back(&self, state: &mut State, page: PageNumber, write: bool) -> bool {
        let copy = state.pages.staged_copy(page);
        let keeps = copy.is_some() && self.keeps(write);
        let writes = if keeps { Writes::Faults } else { Writes::Free };
        let from = state.pages.frame_address(page);
        // SAFETY: a staged frame is present and nobody writes it.
        let content = unsafe { &*(from as *const PageBytes) };
        let content = std::slice::from_ref(content);
        let (done, placed) = self.try_install(page, content, writes, Waking::Later);
        if done > 0 {
            let copy = state.pages.came_back(page, Back::Copied, keeps && placed);
            self.free_copy(copy);
        }
        done > 0
    }

    /// Frees the entry that a page does not keep.
    fn free_copy(&self, copy: Option<EntryId>) {
        if let Some(entry) = copy {
            self.swap.free(self.cpu(), entry, 1);
        }
    }
}
