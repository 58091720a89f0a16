//! Resolving a fault: the page comes in, with its neighbours if the pattern says so.
//!
//! Two ways in. *Move*: the data is put into free staging frames and those are moved into place;
//! nothing is allocated. *Copy*: the kernel fills new pages from a buffer; used while the budget
//! has room, where a move is not allowed (ranges that are not plain read-write), and for few pages
//! where other threads make moves dear (`flushes`).
//!
//! Pages that are brought in are placed without the lock: in transit, they are this thread's.

use crate::bays::{Taken, ones, runs};
use crate::map::{Frame, Mask, Page, PageMap, PageNumber, UNIT, UNIT_BYTES};
use crate::pattern::{REACH, Window};
use crate::process::{Process, cpu};
use crate::queue::RESIDENT_SET;
use crate::state::{State, lock_service, transit_ended};
use arrayvec::ArrayVec;
use ebb_engine::swap::{LoadError, Place, Source};
use ebb_engine::{EntryId, PAGE_SIZE, PageBytes};
use ebb_sys::Errno;
use ebb_sys::fault::Fault;
use ebb_tree::Way;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A buffer of one unit, aligned as pages are.
#[repr(C, align(4096))]
pub struct UnitBuffer(pub [PageBytes; UNIT]);

/// What a service thread owns.
pub struct Desk {
    /// Where data is put together for a copy.
    pub buffer: &'static mut UnitBuffer,
    /// Faults that were parked and whose turn it is.
    pub again: Vec<Fault>,
    /// Another fault was read together with the one that is served.
    pub more: bool,
}

static ZEROS: UnitBuffer = UnitBuffer([[0; PAGE_SIZE]; UNIT]);

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The page is there, or the thread may look again.
    Done,
    /// There is no frame and no room: make some and serve it again.
    NoRoom,
}

/// What a fault brought in: pages whose waiting threads are to be woken.
struct Brought {
    way: Way,
    /// Some of it came from a device, if not the page that was touched.
    device: bool,
    first: PageNumber,
    pages: usize,
}

impl Brought {
    fn one(way: Way, page: PageNumber) -> Self {
        Self {
            way,
            device: false,
            first: page,
            pages: 1,
        }
    }
}

impl Process {
    /// Serves one fault, once.
    pub fn serve(&self, desk: &mut Desk, fault: Fault, since: Instant) -> Served {
        let brought = match self.resolve(desk, fault) {
            Ok(brought) => brought,
            Err(served) => return served,
        };
        let counters = self.counters();
        counters.fault.add(1);
        match brought.way {
            _ if fault.protected => {}
            Way::Zero => counters.fault_zero.add(1),
            Way::Cache => counters.fault_cache.add(1),
            Way::Pool => counters.fault_pool.add(1),
            Way::Device => counters.fault_device.add(1),
        }
        let took = since.elapsed().as_nanos() as u64;
        self.member.latency(brought.way).record(took);
        if matches!(brought.way, Way::Pool | Way::Device) {
            self.costs.took(brought.device, took);
        }
        // Who waits for a device waits for this thread too, where no other is awake.
        let queued = brought.device && (desk.more || self.fault.wait(0));
        self.wake(brought.first, brought.pages);
        if queued {
            self.services.share();
        }
        Served::Done
    }

    /// Resolves a fault, and wakes nobody: the woken thread takes this one's processor at once,
    /// which must not happen while the lock is held.
    fn resolve(&self, desk: &mut Desk, fault: Fault) -> Result<Brought, Served> {
        let mut state = lock_service();
        let page = PageNumber::of(fault.address);
        match state.map.get(page) {
            _ if fault.protected => self
                .write_shared(&mut state, page)
                .map(|()| Brought::one(Way::Cache, page)),
            Page::Loading(_) | Page::Storing(_) => {
                state.parked.push(fault);
                return Err(Served::Done);
            }
            Page::Resident(_) => {
                self.look_again(page);
                Some(Brought::one(Way::Cache, page))
            }
            Page::Poisoned => {
                let _ = self.fault.poison(page.address(), PAGE_SIZE);
                Some(Brought::one(Way::Cache, page))
            }
            Page::Staged(frame) => {
                self.remap(&mut state, page, frame);
                Some(Brought::one(Way::Cache, page))
            }
            Page::Untouched => self.fill(&mut state, page),
            Page::Swapped(_) => self.bring(state, desk, page, fault.write),
        }
        .ok_or(Served::NoRoom)
    }

    /// A fault on a page that is there by now, brought in beside another: then it refuses the copy.
    /// If it is missing all the same, the program dropped it without libc (a system call of its own,
    /// MADV_FREE before it paged): it reads as zeros, as it would without us, and is counted.
    fn look_again(&self, page: PageNumber) {
        if self.copy(page.address(), &ZEROS.0[..1]).0 > 0 {
            self.counters().map_disagrees.add(1);
        }
    }

    /// First touch: zeros, as many pages as the pattern says.
    fn fill(&self, state: &mut State, page: PageNumber) -> Option<Brought> {
        let Some(range) = state.ranges.find(page.address()) else {
            // Unmapped meanwhile: the thread that looks again gets what the kernel has for it.
            return Some(Brought::one(Way::Zero, page));
        };
        let window = window(state, page);
        let inside = |p: PageNumber| p.address() >= range.start && p.address() < range.end;
        let (first, pages) = around(page, window.first, window.pages, |p| {
            inside(p) && state.map.get(p) == Page::Untouched
        });
        let (first, pages) = if self.has_room(state, pages) {
            self.place_copy(first, &ZEROS.0[..pages]);
            (first, pages)
        } else if range.attributes.movable()
            && let Some(frames) = take(state, pages)
        {
            let first = fit(page, first, pages, frames.count());
            for (at, run) in frames.runs() {
                // SAFETY: free frames are ours alone, and present.
                unsafe { std::ptr::write_bytes(run.address as *mut u8, 0, run.frames * PAGE_SIZE) };
                self.place_move(first.plus(at), run);
            }
            frames.placed(state);
            (first, frames.count())
        } else if self.room_for_one(state) {
            self.place_copy(page, &ZEROS.0[..1]);
            (page, 1)
        } else {
            state.pattern.brought(page, 0);
            return None;
        };
        if pages < window.pages {
            state.pattern.brought(first, pages);
        }
        for i in 0..pages {
            state.map.set(first.plus(i), Page::Resident(None));
        }
        self.queue(state, first, pages);
        Some(Brought {
            way: Way::Zero,
            device: false,
            first,
            pages,
        })
    }

    /// Whether one page may be copied in. Frames that lie free are room for it: where nothing can
    /// be moved to (a range that is not plain read-write) they are of no other use.
    fn room_for_one(&self, state: &mut State) -> bool {
        self.give_back_until(state, |account, used| account.room(self.member, used, 1))
    }

    /// A page that is still in a frame goes back where it was.
    pub fn remap(&self, state: &mut State, page: PageNumber, frame: Frame) {
        let moves = state.movable(page) && !self.prefers_copy(state, 1);
        let bays = state
            .bays
            .as_mut()
            .expect("staged pages have a staging area");
        let from = bays.frame_address(frame);
        let kept = bays.kept(frame);
        if moves {
            // SAFETY: the frame is ours and holds exactly this page's content.
            let (done, result) = unsafe { self.fault.shift(page.address(), from, PAGE_SIZE) };
            if done == PAGE_SIZE || result == Err(Errno(libc::EEXIST)) {
                bays.remapped(frame);
                if done == 0 {
                    // Somebody filled the page behind our back; the frame is left over.
                    self.drop_frames(from, 1);
                }
                return self.is_back(state, page, kept);
            }
        }
        // SAFETY: a staged frame is present and nobody writes it.
        let content = unsafe { &*(from as *const PageBytes) };
        self.place_copy(page, std::slice::from_ref(content));
        state.bays.as_mut().expect("as above").stored(frame);
        self.is_back(state, page, kept);
    }

    /// Whether pages should come in by copy, and may.
    fn prefers_copy(&self, state: &mut State, pages: usize) -> bool {
        self.flushes.dear(pages) && self.has_room(state, pages)
    }

    fn is_back(&self, state: &mut State, page: PageNumber, kept: Option<EntryId>) {
        state.map.set(page, Page::Resident(kept));
        let age = state.queue.age(&state.map, page);
        state.queue.leaves(&state.map, page, 1);
        self.queue(state, page, 1);
        let State { map, queue, .. } = state;
        queue.refaulted(map, page, age);
    }

    /// Brings swapped pages in.
    fn bring(
        &self,
        mut state: MutexGuard<'static, State>,
        desk: &mut Desk,
        page: PageNumber,
        write: bool,
    ) -> Option<Brought> {
        let device = match state.map.get(page) {
            Page::Swapped(entry) => self.swap.place(entry) == Place::Slot,
            _ => unreachable!("only swapped pages are brought in"),
        };
        let mut window = window(&mut state, page);
        let filling = device && self.fills_pool(&state);
        if filling {
            window = window.widened(Window::of_unit(page));
        } else if device {
            window = window.widened(neighbours(&state.map, page));
        }
        let swapped = |p: PageNumber| matches!(state.map.get(p), Page::Swapped(_));
        let (first, pages) = around(page, window.first, window.pages, swapped);
        let frames = if state.movable(page) && !self.prefers_copy(&mut state, pages) {
            take(&mut state, pages)
        } else {
            None
        };
        let (first, pages) = match &frames {
            Some(frames) => (fit(page, first, pages, frames.count()), frames.count()),
            None => {
                if self.has_room(&mut state, pages) {
                    (first, pages)
                } else if self.room_for_one(&mut state) {
                    (page, 1)
                } else {
                    state.pattern.brought(page, 0);
                    return None;
                }
            }
        };
        if pages != window.pages || device {
            state.pattern.brought(first, pages);
        }
        let mut entries = [EntryId(0); UNIT];
        for (i, entry) in entries[..pages].iter_mut().enumerate() {
            let Page::Swapped(e) = state.map.get(first.plus(i)) else {
                unreachable!("only swapped pages are taken")
            };
            state.map.set(first.plus(i), Page::Loading(e));
            *entry = e;
        }
        let State {
            map,
            queue,
            balance,
            ..
        } = &mut *state;
        let age = queue.age(map, page);
        balance.came_back(queue.rank(map, page), map.resident());
        queue.leaves(map, first, pages);
        let late = usize::from(age) > self.pool_span(&state);
        let mut expected: ArrayVec<EntryId, REACH> = ArrayVec::new();
        if self.swap.has_devices() {
            let ahead = state.pattern.ahead();
            let entries =
                (ahead.start.0..ahead.end.0).filter_map(|p| match state.map.get(PageNumber(p)) {
                    Page::Swapped(entry) => Some(entry),
                    _ => None,
                });
            expected.extend(entries.take(REACH));
        }
        drop(state);

        if !expected.is_empty() {
            self.swap.expect(&expected);
        }
        let keep = device && late && !filling && self.keeps(write);
        let mut results: [Result<Source, LoadError>; UNIT] =
            std::array::from_fn(|_| Ok(Source::Zero));
        let mut outs: ArrayVec<&mut PageBytes, UNIT> = match &frames {
            // SAFETY: the frames are present, page-aligned and ours alone until they are placed.
            Some(frames) => (0..pages)
                .map(|i| unsafe { &mut *(frames.address(i) as *mut PageBytes) })
                .collect(),
            None => desk.buffer.0[..pages].iter_mut().collect(),
        };
        self.swap.load_each(
            cpu(),
            &entries[..pages],
            &mut outs,
            keep,
            &mut results[..pages],
        );
        drop(outs);
        let good: Mask = (0..pages).fold(0, |m, i| m | u64::from(results[i].is_ok()) << i);
        match &frames {
            Some(frames) => {
                for (start, run) in frames.runs() {
                    for (i, len) in runs(good & ones(start, run.frames)) {
                        self.place_move(
                            first.plus(i),
                            Taken {
                                address: frames.address(i),
                                frames: len,
                            },
                        );
                    }
                    for (i, len) in runs(!good & ones(start, run.frames)) {
                        self.drop_frames(frames.address(i), len);
                    }
                }
            }
            None => {
                for (i, len) in runs(good) {
                    self.place_copy(first.plus(i), &desk.buffer.0[i..i + len]);
                }
            }
        }

        let mut state = lock_service();
        if let Some(frames) = &frames {
            frames.placed(&mut state);
        }
        for i in 0..pages {
            let at = first.plus(i);
            match &results[i] {
                Ok(_) => state
                    .map
                    .set(at, Page::Resident(keep.then_some(entries[i]))),
                Err(error) => self.poison(&mut state, at, error),
            }
        }
        self.queue(&mut state, first, pages);
        let State { map, queue, .. } = &mut *state;
        let soon = if window.walk {
            queue.walked(map, first, pages, age)
        } else {
            queue.refaulted(map, page, age)
        };
        self.counters().workingset_refault.add(u64::from(soon));
        self.counters().readahead.add(pages as u64 - 1);
        transit_ended();
        desk.again.append(&mut state.parked);
        let way = match results[page.0 - first.0] {
            _ if device => Way::Device,
            Ok(Source::Zero) => Way::Zero,
            _ => Way::Pool,
        };
        let device = results[..pages].contains(&Ok(Source::Device));
        Some(Brought {
            way,
            device: device || way == Way::Device,
            first,
            pages,
        })
    }

    /// How many epochs ago the oldest pages in the pool were evicted, about, if it is as large as it
    /// may be: a page that comes back from a device sooner would rather be in the pool, and goes
    /// there when it is evicted again. By what the pool holds it would stay small once it is.
    fn pool_span(&self, state: &State) -> usize {
        const DENSITY: usize = 2;
        let pool = DENSITY * self.swap.pool_max() as usize / PAGE_SIZE;
        usize::from(RESIDENT_SET) * (1 + pool / state.map.resident().max(1))
    }

    /// Whether the pool is to hold much more than it does: what is read from devices then brings
    /// along what it can, for one transfer, and all of it goes to the pool when it is evicted.
    /// One page for each fault, the pool would be full only when as many have come back.
    fn fills_pool(&self, state: &State) -> bool {
        state.balance.learnt() && self.swap.pool_bytes() < self.swap.pool_max() / 4 * 3
    }

    /// Whether loads from a device keep their entries: if kept pages are mostly still the same when
    /// evicted again, which then costs no write. A page that is loaded to be written is not.
    /// Copies in the pool are never kept: what they would save, a compression, is worth less than
    /// the RAM they hold (measured: random touches in half the memory 17 µs with, 13 without).
    fn keeps(&self, write: bool) -> bool {
        const TRY_ANYWAY: u64 = 32;
        if write {
            return false;
        }
        self.keep_score.load(Relaxed) > 512
            || self.loads.fetch_add(1, Relaxed).is_multiple_of(TRY_ANYWAY)
    }

    /// The page's data is lost: touching it is fatal from now on, and says why.
    fn poison(&self, state: &mut State, page: PageNumber, error: &LoadError) {
        // The engine counts its devices from zero; users know them by other numbers.
        let serial = |device| self.embedded.devices.serial(device);
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
            LoadError::PoolCorrupt | LoadError::Empty => error.to_string(),
        };
        self.member.message(&format!(
            "the page at {:#x} cannot be read back: {why}. Whoever touches it gets SIGBUS; \
             no other page is affected. Check the device, or run with --swap none",
            page.address()
        ));
        let _ = self.fault.poison(page.address(), PAGE_SIZE);
        self.counters().poisoned.add(1);
        state.map.set(page, Page::Poisoned);
    }

    fn queue(&self, state: &mut State, first: PageNumber, pages: usize) {
        let State { map, queue, .. } = state;
        queue.brought(map, first.unit(), ones(first.within(), pages));
    }

    fn wake(&self, page: PageNumber, pages: usize) {
        let _ = self.fault.wake(page.address(), pages * PAGE_SIZE);
    }

    /// Puts copies of `content` where pages are missing; wakes nobody, as `place_move`.
    fn place_copy(&self, first: PageNumber, content: &[PageBytes]) {
        let (mut at, mut one) = (0, false);
        while at < content.len() {
            let end = if one { at + 1 } else { content.len() };
            let (done, result) = self.copy(first.plus(at).address(), &content[at..end]);
            at += done / PAGE_SIZE;
            match result {
                Ok(()) => one = false,
                Err(Errno(libc::EAGAIN)) => {}
                Err(Errno(libc::ENOMEM)) => std::thread::yield_now(),
                // A range may be several mappings to the kernel, and no copy crosses from one to
                // the next: nothing of it was done, so the first page alone says what is wrong.
                Err(_) if end - at > 1 => one = true,
                // Mapped over or unmapped without libc: what is there now is the program's wish.
                Err(Errno(libc::EEXIST | libc::ENOENT)) => {
                    self.counters().map_disagrees.add(1);
                    (at, one) = (at + 1, false);
                }
                Err(error) => self.fail(&format!(
                    "the page at {:#x} could not be put into place: {error:?}",
                    first.plus(at).address()
                )),
            }
        }
    }

    fn copy(&self, to: usize, content: &[PageBytes]) -> (usize, Result<(), Errno>) {
        self.fault.copy(to, content.as_flattened())
    }

    /// Moves filled frames into place; they are gone then.
    fn place_move(&self, first: PageNumber, taken: Taken) {
        let mut at = 0;
        while at < taken.frames {
            let (to, from) = (first.plus(at).address(), taken.address + at * PAGE_SIZE);
            // SAFETY: the frames are ours and hold what these pages shall hold.
            let (done, result) =
                unsafe { self.fault.shift(to, from, (taken.frames - at) * PAGE_SIZE) };
            at += done / PAGE_SIZE;
            match result {
                Ok(()) => {}
                Err(Errno(libc::EAGAIN)) if done > 0 => {}
                // The frame was there: it was moved (`FaultFd::shift`).
                Err(Errno(libc::EEXIST)) if !self.there(from) && self.there(to) => at += 1,
                Err(_) => {
                    // A frame that cannot be moved (the range changed under us): copy it, and let
                    // the frame go.
                    // SAFETY: the frame is present and nobody writes it.
                    let content =
                        unsafe { &*((taken.address + at * PAGE_SIZE) as *const PageBytes) };
                    self.place_copy(first.plus(at), std::slice::from_ref(content));
                    self.drop_frames(taken.address + at * PAGE_SIZE, 1);
                    at += 1;
                }
            }
        }
    }

    fn there(&self, address: usize) -> bool {
        self.pagemap.look(address, 1).present != 0
    }

    /// Drops frames that are taken, or counted by no bay any more.
    pub fn drop_frames(&self, address: usize, frames: usize) {
        // SAFETY: the frames hold nothing that anybody needs.
        let _ =
            unsafe { ebb_sys::memory::madvise(address, frames * PAGE_SIZE, libc::MADV_DONTNEED) };
    }
}

/// Free frames for the pages of one load, from a few bays.
struct Frames(ArrayVec<Taken, BAYS>);

/// Bays that a load may take frames from: another one is another move, which costs less than
/// another fault.
const BAYS: usize = 4;

impl Frames {
    fn count(&self) -> usize {
        self.0.iter().map(|run| run.frames).sum()
    }

    /// None of them is there any more: moved into place or dropped.
    fn placed(&self, state: &mut State) {
        let bays = state
            .bays
            .as_mut()
            .expect("frames come from a staging area");
        self.0.iter().for_each(|run| bays.placed(*run));
    }

    /// Each run of frames, and the number of its first page.
    fn runs(&self) -> impl Iterator<Item = (usize, Taken)> {
        self.0.iter().scan(0, |at, run| {
            let start = *at;
            *at += run.frames;
            Some((start, *run))
        })
    }

    /// The address of the frame for page `i`.
    fn address(&self, i: usize) -> usize {
        let (start, run) = self
            .runs()
            .find(|(start, run)| i < start + run.frames)
            .expect("as many frames as pages");
        run.address + (i - start) * PAGE_SIZE
    }
}

/// Frames for up to `pages` pages, if there are any.
fn take(state: &mut State, pages: usize) -> Option<Frames> {
    let bays = state.bays.as_mut()?;
    let mut frames = Frames(ArrayVec::new());
    let mut missing = pages;
    while missing > 0
        && !frames.0.is_full()
        && let Some(run) = bays.take(missing)
    {
        missing -= run.frames;
        frames.0.push(run);
    }
    (missing < pages).then_some(frames)
}

/// What the pattern of faults says to bring in with `page`.
pub fn window(state: &mut State, page: PageNumber) -> Window {
    let State { map, pattern, .. } = state;
    pattern.window(page, |p| matches!(map.get(p), Page::Resident(_)))
}

/// The longest run of pages around `page`, inside the window, for which `good` holds.
pub fn around(
    page: PageNumber,
    first: PageNumber,
    pages: usize,
    good: impl Fn(PageNumber) -> bool,
) -> (PageNumber, usize) {
    let (mut start, mut end) = (page.0, page.0 + 1);
    while start > first.0 && good(PageNumber(start - 1)) {
        start -= 1;
    }
    while end < first.0 + pages && good(PageNumber(end)) {
        end += 1;
    }
    (PageNumber(start), end - start)
}

/// What to bring from a device beside `page`, in order or not: the rest of its unit, if half of it
/// is in memory already. Where pages of a unit come back one by one the others are likely to, and a
/// transfer costs many times what one more page in it does.
fn neighbours(map: &PageMap, page: PageNumber) -> Window {
    let here = map.mask(page.unit(), |p| matches!(p, Page::Resident(_)));
    if here.count_ones() as usize >= UNIT / 2 {
        Window::of_unit(page)
    } else {
        Window::one(page)
    }
}

/// Where to begin if only `frames` of `pages` pages from `first` can be had: `page` is among them.
fn fit(page: PageNumber, first: PageNumber, pages: usize, frames: usize) -> PageNumber {
    if frames >= pages {
        first
    } else {
        PageNumber(page.0.min(first.0 + pages - frames))
    }
}

const _: () = assert!(size_of::<UnitBuffer>() == UNIT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches pages of a unit on a device in this order: how many transfers, and pages brought.
    fn touch(order: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut map = PageMap::new();
        let first = 50 * UNIT;
        for page in first..first + UNIT {
            map.set(PageNumber(page), Page::Swapped(EntryId(page as u32)));
        }
        let mut transfers = 0;
        for page in order.map(|i| PageNumber(first + i)) {
            let out = |p| matches!(map.get(p), Page::Swapped(_));
            if !out(page) {
                continue;
            }
            let window = neighbours(&map, page);
            let (start, pages) = around(page, window.first, window.pages, out);
            assert!((start.0..start.0 + pages).contains(&page.0));
            for i in 0..pages {
                map.set(start.plus(i), Page::Resident(None));
            }
            transfers += 1;
        }
        (transfers, map.resident())
    }

    #[test]
    fn the_second_half_of_a_unit_takes_one_transfer_and_one_page_takes_one() {
        assert_eq!(touch(0..UNIT), (UNIT / 2 + 1, UNIT));
        assert_eq!(touch((0..UNIT).rev()), (UNIT / 2 + 1, UNIT));
        assert_eq!(touch([9].into_iter()), (1, 1));
        assert_eq!(touch([9, 2].into_iter()), (2, 2));
    }
}
