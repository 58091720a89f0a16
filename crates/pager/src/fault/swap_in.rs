//! Bringing swapped pages in: the page that was touched, and others where they are likely to be
//! wanted too.
//!
//! In three steps. Under the lock it is settled which pages come, and they are in transit from then on. Without it
//! their data is loaded and installed. Under it again the page map says what is there. Waiting threads are woken by
//! the caller, after that; or by the second step, where that is one copy (`install`).

use crate::fault::fault_service::FaultService;
use crate::fault::resolve::{Brought, Served};
use crate::map::access_pattern::{REACH, Window, around};
use crate::map::mask::{ones, runs};
use crate::map::page_map::{Mask, Page, PageNumber, UNIT};
use crate::process::base::Locked;
use crate::process::memory_ops::{Waking, Writes};
use crate::process::state::State;
use crate::process::worker::{PendingFault, Worker};
use crate::reclaim::freeing::Freeing;
use crate::reclaim::reclaim_queue::RESIDENT_SET;
use arrayvec::ArrayVec;
use ebb_engine::swap::{LoadError, Place, Source};
use ebb_engine::{EntryId, PAGE_SIZE, PageBytes};
use ebb_sys::paging::Kernel;
use ebb_sys::paging::Time;
use ebb_tree::Way;

/// Pages in transit to where they are to be.
struct SwapIn {
    first: PageNumber,
    entries: ArrayVec<EntryId, UNIT>,
    /// Flag: they are part of a scan that passes (`reclaim_queue`).
    pass: bool,
    /// Flag: they keep their entries as clean copies.
    keep: bool,
    /// The number of times that protection had been lifted when it began.
    lifts: u32,
}

type Results = [Result<Source, LoadError>; UNIT];

/// How that went.
struct Loaded {
    results: Results,
    /// Flag: all good pages are there.
    placed: bool,
    /// The time when the waiting thread was woken, and the fault counted, if that is done.
    at: Option<Time>,
}

impl<K: Kernel> FaultService<K> {
    /// Brings in the page that is waited for, unless there is no room, or the system has no memory for the transfer.
    pub fn swap_in(
        &self,
        mut state: Locked,
        worker: &mut Worker,
        pending: &PendingFault,
    ) -> Result<Brought, Served> {
        let (waiter, write) = (pending.waiter(), pending.fault.write);
        let page = waiter.page;
        let Page::Swapped(entry) = state.pages.map().get(page) else {
            unreachable!("only swapped pages are brought in")
        };
        let device = self.swap.prefetch(entry) == Place::Slot;
        let filling = device && self.fills_pool(&state);
        let window = window_to_load(&mut state, page, (device, filling));
        let room = self.room_to_load(&mut state, page, &window);
        let (first, pages) = room.ok_or(Served::NoRoom)?;
        if pages != window.pages || device {
            state.pattern.brought(first, pages);
        }
        let (age, rank) = (state.pages.age(page), state.pages.rank(page));
        if device {
            state.pages.count_load(page, pages);
        }
        let (pass, entries) = self.begin_loading(&mut state, &window, (page, rank), (first, pages));
        let load = SwapIn {
            first,
            entries,
            pass,
            keep: self.keeps_copies(&state, (entry, age), (device, filling), pass, write),
            lifts: state.protection.lifts(),
        };
        let walk = (device && !window.stream).then_some(pending.fault.address);
        let expected = self.expected(&mut state, walk);
        drop(state);

        if !expected.is_empty() {
            self.swap.expect(&expected);
        }
        let wanted = page.0 - first.0;
        let loaded = self.transfer(&load, worker, pending.since, (!device).then_some(wanted));
        let mut state = self.lock();
        self.finish(&mut state, &load, wanted, &loaded);
        self.base.transit.end(self.kernel);
        state.parked.unpark(worker);
        if let Err(LoadError::Again { .. }) = loaded.results[wanted] {
            drop(state);
            self.wake_beside(page, first, pages);
            return Err(Served::NoPage);
        }
        let at = loaded.at.unwrap_or_else(|| self.now());
        state.pages.served(waiter, at);
        let waited = at.saturating_sub(pending.since).as_nanos() as u64;
        self.member.refaulted(rank, waited);
        if !window.stream {
            state.pages.refaulted(page, age);
        }
        self.count_swap_in(age, pages);
        let way = way_of(loaded.results[wanted], device);
        let device = device || loaded.results[..pages].contains(&Ok(Source::Device));
        if device {
            self.member.report_load(self.swap.last_load_ns());
        }
        Ok(Brought {
            way,
            device,
            first,
            pages,
            woken: loaded.at.is_some(),
        })
    }

    /// Wakes who waits for pages that came with one that is to be loaded again.
    fn wake_beside(&self, page: PageNumber, first: PageNumber, pages: usize) {
        let before = page.0 - first.0;
        for (first, pages) in [(first, before), (page.plus(1), pages - before - 1)] {
            if pages > 0 {
                self.wake(first, pages);
            }
        }
    }

    /// The pages are in transit from now on: their entries, and whether they leave again behind a scan.
    fn begin_loading(
        &self,
        state: &mut State,
        window: &Window,
        (page, rank): (PageNumber, usize),
        (first, pages): (PageNumber, usize),
    ) -> (bool, ArrayVec<EntryId, UNIT>) {
        let State {
            pages: all,
            pool_split,
            ..
        } = state;
        pool_split.record_refault(rank, all.map().resident());
        let entries = all.begin_load(first, pages);
        (window.whole_scan && all.joins_scan(page), entries)
    }

    /// Whether pages keep their entries as clean copies. The touched one has this entry and age. It comes from a
    /// `device` or not, while the pool is being filled or not, as `pass`ing part of a scan or not.
    fn keeps_copies(
        &self,
        state: &State,
        (entry, age): (EntryId, u8),
        (device, filling): (bool, bool),
        pass: bool,
        write: bool,
    ) -> bool {
        // Given up, it could not go back there.
        if device && self.swap_space.devices.reads_only() {
            return !write;
        }
        let worth = match device {
            true => usize::from(age) > self.pool_span(state) && !filling,
            // Freed, a page that was there at a fork gives nothing back (`generations`), and would be stored
            // once more by each relative.
            false => {
                let inherits = || self.swap_space.generations.inherits(self.swap, entry);
                pass || !state.protection.is_alone() && inherits()
            }
        };
        worth && self.keeps(write)
    }

    /// Which pages of the window to bring in with `page`: as many as there is room for.
    fn room_to_load(
        &self,
        state: &mut State,
        page: PageNumber,
        window: &Window,
    ) -> Option<(PageNumber, usize)> {
        // Not across the end of its range: beside it may lie memory that `mremap` has just moved. Its missing pages
        // are not ours to fill before it is registered again.
        let range = state.ranges.find(page.address());
        let good = |p: PageNumber| {
            let inside = range.as_ref().is_some_and(|r| r.holds(p));
            inside && matches!(state.pages.map().get(p), Page::Swapped(_))
        };
        let (first, pages) = around(page, window.first, window.pages, good);
        self.gets_room(state, page, first, pages)
    }

    /// Counts the pages that came in with one that had been out for `age` epochs.
    fn count_swap_in(&self, age: u8, pages: usize) {
        let counters = self.counters();
        counters
            .workingset_refault
            .add(u64::from(age <= RESIDENT_SET));
        counters.readahead.add(pages as u64 - 1);
    }

    /// Entries that a scan will come to, to be read ahead from devices, or a walk with a stride that has come to an address.
    fn expected(&self, state: &mut State, walk: Option<usize>) -> ArrayVec<EntryId, REACH> {
        if !self.swap.has_devices() {
            return ArrayVec::new();
        }
        let State {
            pages,
            pattern,
            strides,
            ..
        } = state;
        let scan = pattern.ahead();
        let walk = walk.map(|address| strides.touched(address));
        (scan.start.0..scan.end.0)
            .map(PageNumber)
            .chain(walk.into_iter().flatten())
            .filter_map(|page| match pages.map().get(page) {
                Page::Swapped(entry) => Some(entry),
                _ => None,
            })
            .take(REACH)
            .collect()
    }

    /// Loads the data and puts what is good of it into place. If one copy does that, and a page is
    /// `wanted`, the fault is counted and who waits is woken.
    fn transfer(
        &self,
        load: &SwapIn,
        worker: &mut Worker,
        since: Time,
        wanted: Option<usize>,
    ) -> Loaded {
        let pages = load.entries.len();
        let mut results: Results = std::array::from_fn(|_| Ok(Source::Zero));
        let buffer = worker.buffer(pages);
        let mut outs: ArrayVec<&mut PageBytes, UNIT> = buffer.iter_mut().collect();
        let (entries, keep) = (&load.entries, load.keep);
        self.swap
            .load_each(self.cpu(), entries, &mut outs, keep, &mut results[..pages]);
        drop(outs);
        let good: Mask = (0..pages).fold(0, |m, i| m | u64::from(results[i].is_ok()) << i);
        let mut at = None;
        let waking = match wanted {
            Some(wanted) if good == ones(0, pages) && self.services.can_compete() => {
                let took = (self.now() - since) + Self::install_estimate(pages);
                let served = since + took;
                self.count_fault(Some(way_of(results[wanted], false)), false, (since, served));
                at = Some(served);
                Waking::AtOnce
            }
            _ => Waking::Later,
        };
        let writes = match keep {
            true => Writes::Faults,
            false => Writes::Free,
        };
        let mut placed = true;
        for (i, len) in runs(good) {
            let content = &buffer[i..i + len];
            placed &= self.install(load.first.plus(i), content, writes, waking);
        }
        Loaded {
            results,
            placed,
            at,
        }
    }

    /// Says in the page map what has come. Copies are kept of what is protected without a doubt. Lost is only the `wanted` page:
    /// others stay where they are, as nobody touched them, and the device may be back by then.
    fn finish(&self, state: &mut State, load: &SwapIn, wanted: usize, loaded: &Loaded) {
        let keeps = load.keep && loaded.placed && load.lifts == state.protection.lifts();
        let mut freeing = Freeing::default();
        let mut outcome = ArrayVec::<Page, UNIT>::new();
        for (i, (&entry, result)) in load.entries.iter().zip(&loaded.results).enumerate() {
            let page = match result {
                Ok(_) => {
                    if load.keep && !keeps {
                        freeing.add(self.swap, self.cpu(), entry);
                    }
                    Page::Resident(keeps.then_some(entry))
                }
                Err(LoadError::Again { .. }) => Page::Swapped(entry),
                Err(LoadError::Io { .. } | LoadError::Corrupt { .. }) if i != wanted => {
                    Page::Swapped(entry)
                }
                Err(error) => {
                    self.poison(load.first.plus(i), error);
                    if *error != LoadError::Empty {
                        // Nobody will ask for it again: it would keep its slot, and so its device.
                        freeing.add(self.swap, self.cpu(), entry);
                    }
                    Page::Poisoned
                }
            };
            outcome.push(page);
        }
        freeing.finish(self.swap, self.cpu());
        state.pages.end_load(load.first, &outcome, load.pass);
    }

    /// How many epochs ago the oldest pages in the pool were evicted, about, if it is as large as it may be. A page
    /// that comes back from a device sooner goes to the pool when it is evicted again. By what the pool holds it
    /// would stay small once it is.
    fn pool_span(&self, state: &State) -> usize {
        const DENSITY: usize = 2;
        if !self.swap.uses_pool() {
            return 0;
        }
        let pool = DENSITY * self.swap.pool_max() as usize / PAGE_SIZE;
        usize::from(RESIDENT_SET) * (1 + pool / state.pages.map().resident().max(1))
    }

    /// Whether the pool is to hold much more than it does. Then a read from a device brings along all that one
    /// transfer can, and all of it goes to the pool when it is evicted. One page for each fault, the pool would be
    /// full only when as many have come back.
    fn fills_pool(&self, state: &State) -> bool {
        let learned = state.pool_split.is_learned() && !state.pool_split.is_none();
        learned && self.swap.pool_bytes() < self.swap.pool_max() / 4 * 3
    }

    /// The page's data is lost: touching it is fatal from now on, and says why. Where the keys are wiped the program is
    /// gone, and nothing is lost: the calling thread waits for the end of the helper.
    fn poison(&self, page: PageNumber, error: &LoadError) {
        if self.swap_space.devices.has_no_keys() {
            self.await_end();
        }
        // The engine counts its devices from zero; users know them by other numbers.
        let serial = |device| self.swap_space.devices.serial(device);
        let why = match *error {
            LoadError::Corrupt { device, slot } => format!(
                "slot {slot} of swap device {} does not hold what was written to it",
                serial(device)
            ),
            LoadError::Io { device, slot } => {
                format!(
                    "slot {slot} of swap device {} cannot be read",
                    serial(device)
                )
            }
            LoadError::PoolCorrupt | LoadError::Empty | LoadError::Again { .. } => {
                error.to_string()
            }
        };
        self.member.message(&format!(
            "the page at {:#x} cannot be read back: {why}. Whoever touches it gets SIGBUS; \
             no other page is affected. Check the device, or run with --swap none",
            page.address()
        ));
        self.kernel.poison(page.address(), PAGE_SIZE);
        self.counters().poisoned.add(1);
    }
}

/// The way a page came in that was on a `device` or not.
fn way_of(result: Result<Source, LoadError>, device: bool) -> Way {
    match result {
        _ if device => Way::Device,
        Ok(Source::Zero) => Way::Zero,
        _ => Way::Pool,
    }
}

/// Pages to bring in with `page`, which comes from a `device` or not, while the pool is being filled or not.
fn window_to_load(state: &mut State, page: PageNumber, (device, filling): (bool, bool)) -> Window {
    if state.pages.is_recorded() {
        return Window::one(page);
    }
    let window = state.window(page);
    if device && (filling || !window.stream && state.pages.wants_rest(page)) {
        return window.widened(Window::of_unit(page));
    }
    window
}
