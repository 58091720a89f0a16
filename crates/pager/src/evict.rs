//! Making room: capture units whose turn it is, store what was captured longest ago, and give
//! frames back while more is used than charged.
//!
//! Capture is a move into a bay: after it nobody can write the page, nothing was copied, and a
//! page that is pinned (a transfer into it may be under way) or shared refuses and stays.

use crate::account::Account;
use crate::bays::{BayIndex, Bays, ones, runs};
use crate::generations;
use crate::load::Desk;
use crate::map::{Frame, Mask, Page, PageMap, UNIT, UNIT_BYTES, UnitNumber};
use crate::process::{Process, cpu};
use crate::ranges::{Attributes, Ranges};
use crate::sharing::Sharing;
use crate::state::{Freeing, State, lock_service, transit_ended};
use arrayvec::ArrayVec;
use ebb_engine::{PAGE_SIZE, PageBytes};
use ebb_sys::{Errno, memory};
use ebb_tree::Asked;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What one step of making room came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is enough.
    Enough,
    /// Some was made.
    Progress,
    /// Nothing can be evicted.
    Nothing,
    /// Of what was looked at nothing can be stored: the pool is at its limit and no device has room.
    Full,
}

/// When room is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Somebody waits for it.
    Now,
    /// Before somebody does.
    Soon,
}

/// How long to wait for what others give.
const HOPE: Duration = Duration::from_millis(2);
/// How long a thread sleeps that finds others at work on all that it could do.
const MAKE_WAY: Duration = Duration::from_micros(50);
/// Free frames that reclaim keeps ready, in pages.
const READY: usize = 2 * UNIT;
/// Bays whose frames are given back at once, at most.
const TRADED: usize = 4;
/// Units looked at for one that can be evicted, before giving up.
const LOOK: usize = 512;
/// Units tried before giving up: for one that can be captured, and for pages that need no room when
/// there is none.
const TRIES: usize = 32;

impl Process {
    /// One step towards `READY` free frames (or as much room under the budget). Called without
    /// the lock.
    pub fn make_room(&self, desk: &mut Desk, when: When) -> Step {
        let mut state = lock_service();
        let free = state.bays.as_ref().map_or(0, Bays::free_frames);
        let used = state.used(self.swap);
        if state.account.over(used) > 0 && !state.account.room(self.member, used, 0) {
            if self.give_back(&mut state) {
                return Step::Progress;
            }
        } else if self.flushes.dear(1) {
            if state.account.room(self.member, used, READY as i64) {
                return Step::Enough;
            }
            if free >= READY {
                self.trade(state);
                return Step::Progress;
            }
        } else if free >= READY || state.account.room(self.member, used, (READY - free) as i64) {
            return Step::Enough;
        }
        match self.given(state, when) {
            Ok(step) => step,
            Err(state) => self.evict(state, desk),
        }
    }

    /// Room that others of the tree make, whose pages were not used for much longer than ours; or
    /// the lock back, if none is to be hoped for.
    fn given(
        &self,
        mut state: MutexGuard<'static, State>,
        when: When,
    ) -> Result<Step, MutexGuard<'static, State>> {
        let now = || Duration::from_nanos(ebb_sys::proc::monotonic_ns());
        let oldest = state.queue.oldest_ms(&state.map).unwrap_or(0);
        let evicted = self.counters().evicted.get();
        if let Some(wish) = state.appetite.hungers(evicted, now(), oldest) {
            // It wakes somebody.
            drop(state);
            let asked = self
                .member
                .ask_colder(wish.before_ms * 1_000_000, wish.pages);
            state = lock_service();
            state.appetite.told(asked != Asked::Nobody, now());
        }
        if !state.appetite.hopes() {
            return Err(state);
        }
        if when == When::Soon {
            return Ok(Step::Enough);
        }
        let begin = Instant::now();
        loop {
            // News before this look are no news to the wait.
            let seen = self.member.wait(0, Some(Duration::ZERO));
            if self.has_room(&mut state, READY) {
                state.appetite.given();
                return Ok(Step::Progress);
            }
            let Some(left) = HOPE.checked_sub(begin.elapsed()) else {
                state.appetite.disappointed(now());
                return Err(state);
            };
            drop(state);
            self.member.wait(seen, Some(left));
            state = lock_service();
        }
    }

    /// Evicts something, room or not.
    pub fn evict_some(&self, desk: &mut Desk) -> Step {
        self.evict(lock_service(), desk)
    }

    fn evict(&self, mut state: MutexGuard<'static, State>, desk: &mut Desk) -> Step {
        let target = self.probation(&state);
        let staged = |state: &State| state.bays.as_ref().map_or(0, Bays::staged_frames);
        let mut captured;
        if state.copy_units == 0 {
            while staged(&state) < target + UNIT {
                (state, captured) = self.capture(state, desk, false);
                if captured == 0 {
                    break;
                }
            }
        }
        // Each captured so takes a page more for a moment: no more of them than one store needs.
        while state.copy_units > 0 && staged(&state) < UNIT {
            state.copy_units -= 1;
            (state, captured) = self.capture(state, desk, true);
            if captured == 0 {
                break;
            }
        }
        if staged(&state) == 0 {
            return Step::Nothing;
        }
        let mut step = self.store_oldest(state, desk);
        // What finds no room does not hold up what needs none: unchanged pages that kept their
        // entry, and pages of one value.
        for _ in 0..TRIES {
            if step != Step::Full {
                break;
            }
            let (state, _) = self.capture(lock_service(), desk, false);
            step = self.store_oldest(state, desk);
        }
        step
    }

    /// Whether there is room under the budget for `pages` more, by what is in use: it is charged.
    pub fn has_room(&self, state: &mut State, pages: usize) -> bool {
        let used = state.used(self.swap);
        state.account.room(self.member, used, pages as i64)
    }

    /// Makes room under the budget for `pages` more, evicting what it takes; false if that is not
    /// to be had. The caller serves the faults on its desk after it, without the gate.
    pub fn room_for(&self, desk: &mut Desk, pages: usize) -> bool {
        for _ in 0..4 * pages.div_ceil(UNIT) {
            {
                let mut state = lock_service();
                if self.give_back_until(&mut state, |account, used| {
                    account.room(self.member, used, pages as i64)
                }) {
                    return true;
                }
            }
            if self.evict_some(desk) != Step::Progress {
                return false;
            }
        }
        false
    }

    /// How many captured pages to hold back before storing them: a touch meanwhile costs a remap.
    fn probation(&self, state: &State) -> usize {
        (state.account.charged().max(0) as usize / 64).clamp(2 * UNIT, 1024)
    }

    /// Captures the unit whose turn it is; how many pages, 0 if none can be. Pages that a forked
    /// relative still maps are left unless `shared`: evicting them here frees nothing there, and
    /// stores them once more (`sharing`).
    fn capture(
        &self,
        mut state: MutexGuard<'static, State>,
        desk: &mut Desk,
        shared: bool,
    ) -> (MutexGuard<'static, State>, usize) {
        for _ in 0..TRIES {
            let (bay, unit, victims, code) = match self.choose(&mut state, shared) {
                Choice::Capture(bay, unit, victims, code) => (bay, unit, victims, code),
                Choice::LookOn => {
                    // Others had to wait for these looks.
                    drop(state);
                    state = lock_service();
                    continue;
                }
                Choice::Nothing => return (state, 0),
            };
            let State { map, bays, .. } = &mut *state;
            let address = bays.as_ref().expect("chosen into it").address(bay);
            let mut kept = [None; UNIT];
            for (first, len) in runs(victims) {
                for (i, kept) in kept.iter_mut().enumerate().skip(first).take(len) {
                    let page = unit.first().plus(i);
                    if let Page::Resident(k) = map.get(page) {
                        *kept = k;
                    }
                    map.set(page, Page::Storing(Bays::frame(bay, i)));
                }
            }
            // Making a page our own writes to it, which must not meet the keeper protecting it.
            let held = if self.forked.load(Relaxed) {
                Some(state)
            } else {
                drop(state);
                None
            };
            let executable = Executable::bay(address, code);
            let Shifted { moved, copied } =
                self.shift_out(unit.first().address(), address, victims, shared);
            drop(executable);
            state = held.unwrap_or_else(lock_service);

            let State {
                map,
                queue,
                bays,
                account,
                parked,
                ..
            } = &mut *state;
            // Over the limit for a moment: what was copied is about to leave.
            account.part(copied as i64);
            for (first, len) in runs(victims) {
                for (i, &kept) in kept.iter().enumerate().skip(first).take(len) {
                    let now = if moved & 1 << i != 0 {
                        Page::Staged(Bays::frame(bay, i))
                    } else {
                        Page::Resident(kept)
                    };
                    map.set(unit.first().plus(i), now);
                }
            }
            let bays = bays.as_mut().expect("as above");
            bays.captured(bay, moved, kept);
            transit_ended();
            desk.again.append(parked);
            let pages = moved.count_ones();
            self.counters()
                .evict_busy
                .add((victims & !moved).count_ones().into());
            self.counters().evicted.add(pages.into());
            queue.evicted(map, unit, moved);
            if resident(map, unit) != 0 {
                queue.requeue(map, unit);
            }
            if pages > 0 {
                return (state, pages as usize);
            }
        }
        (state, 0)
    }

    /// The unit whose turn it is, which of its pages to capture, and an empty bay for them.
    fn choose(&self, state: &mut State, shared: bool) -> Choice {
        let State {
            map,
            queue,
            ranges,
            bays,
            sharing,
            ..
        } = state;
        let Some(bays) = bays else {
            return Choice::Nothing;
        };
        for _ in 0..64 {
            let Some((unit, due)) = queue.next(map, LOOK, resident) else {
                return Choice::Nothing;
            };
            let mut victims = movable(ranges, unit, due, Attributes::movable);
            let code = victims == 0;
            if code {
                victims = movable(ranges, unit, due, Attributes::executable);
            }
            if victims == 0 {
                // What may not leave comes back to the queue when its protection allows.
                let others = resident(map, unit) & !due;
                if movable(ranges, unit, others, Attributes::evictable) != 0 {
                    queue.requeue(map, unit);
                }
                continue;
            }
            if !shared && *sharing != Sharing::Alone {
                // One look tells what a move would be refused for, page by page.
                let kept = victims & self.pagemap.look(unit.first().address(), UNIT).shared;
                self.counters().evict_busy.add(kept.count_ones().into());
                victims &= !kept;
                // Not looked at again before all that is not shared had its turn.
                queue.postpone(map, unit, kept);
                if victims == 0 {
                    queue.requeue(map, unit);
                    continue;
                }
            }
            let Some(bay) = bays.begin_capture(unit) else {
                queue.requeue(map, unit);
                return Choice::Nothing;
            };
            return Choice::Capture(bay, unit, victims, code);
        }
        Choice::LookOn
    }

    /// Moves `victims` of the unit at `unit` to the bay at `bay`.
    fn shift_out(&self, unit: usize, bay: usize, victims: Mask, shared: bool) -> Shifted {
        let mut shifted = Shifted::default();
        let (begin, mut calls) = (Instant::now(), 0);
        for (first, len) in runs(victims) {
            calls += self.shift_run(unit, bay, first..first + len, shared, &mut shifted);
        }
        self.flushes
            .moved(begin.elapsed(), calls, shifted.moved.count_ones());
        shifted
    }

    /// Moves a run of pages of a unit; how many calls that took.
    fn shift_run(
        &self,
        unit: usize,
        bay: usize,
        pages: Range<usize>,
        shared: bool,
        shifted: &mut Shifted,
    ) -> u32 {
        let (mut at, end, mut retried) = (pages.start, pages.end, None);
        let (mut calls, mut most) = (0, UNIT);
        while at < end {
            let (offset, len) = (at * PAGE_SIZE, most.min(end - at));
            // SAFETY: pages that the map says are ours to capture; the bay is empty.
            let (done, result) = unsafe {
                self.fault
                    .shift(bay + offset, unit + offset, len * PAGE_SIZE)
            };
            calls += 1;
            let pages = done / PAGE_SIZE;
            shifted.moved |= ones(at, pages);
            at += pages;
            match result {
                Ok(()) => most = UNIT,
                // The pages may be several mappings to the kernel, and no move crosses from one to
                // the next.
                Err(Errno(libc::EINVAL | libc::ENOENT)) if len > 1 => most = len / 2,
                Err(Errno(libc::EAGAIN)) if pages > 0 => {}
                // The bay is ours and was empty: what is there now was moved (`FaultFd::shift`).
                Err(Errno(libc::EEXIST))
                    if let pages @ 1.. = self.present(bay + at * PAGE_SIZE, end - at) =>
                {
                    shifted.moved |= ones(at, pages);
                    at += pages;
                }
                Err(error) if retried != Some(at) && at < end => {
                    retried = Some(at);
                    if error == Errno(libc::EBUSY) && self.forked.load(Relaxed) {
                        // Shared copy-on-write since a fork: a write makes it our own, without a
                        // copy if nobody else maps it any more.
                        let (own, copies) = self.own(unit + at * PAGE_SIZE, end - at, shared);
                        shifted.copied += copies;
                        at += usize::from(own == 0);
                    }
                }
                // Pinned, shared for now, or not plain memory: it stays where it is.
                Err(_) => at += 1,
            }
        }
        calls
    }

    /// How many pages in a row are there from `start` on, of `pages`.
    fn present(&self, start: usize, pages: usize) -> usize {
        let present = self.pagemap.look(start, pages).present;
        (present.trailing_ones() as usize).min(pages)
    }

    /// Stores the bay staged longest ago.
    fn store_oldest(&self, mut state: MutexGuard<'static, State>, desk: &mut Desk) -> Step {
        let bays = state.bays.as_mut().expect("something is staged");
        let Some(bay) = bays.begin_store() else {
            // Others store all there is. They may have less urgency than this thread: it makes way.
            drop(state);
            std::thread::sleep(MAKE_WAY);
            return Step::Progress;
        };
        let (unit, mask) = bays.staged_of(bay);
        let base = bays.address(bay);
        let mut frames = [Frame(0); UNIT];
        let mut kept = [None; UNIT];
        let mut n = 0;
        for (first, len) in runs(mask) {
            for i in first..first + len {
                frames[n] = Bays::frame(bay, i);
                kept[n] = bays.kept(frames[n]);
                n += 1;
            }
        }
        for &frame in &frames[..n] {
            state.map.set(
                unit.first().plus(frame.0 as usize % UNIT),
                Page::Storing(frame),
            );
        }
        drop(state);

        let content = |frame: Frame| {
            // SAFETY: the frame is present and in transit: nobody but this thread uses it.
            unsafe { &*((base + frame.0 as usize % UNIT * PAGE_SIZE) as *const PageBytes) }
        };
        let cpu = cpu();
        let mut entries = [None; UNIT];
        let mut freeing = Freeing::default();
        for i in 0..n {
            if let Some(entry) = kept[i] {
                let same = self.swap.unchanged(entry, content(frames[i]));
                self.learn_keeping(same);
                if same {
                    self.swap.uncache(entry);
                    self.counters().clean_reuse.add(1);
                    entries[i] = Some(entry);
                } else {
                    freeing.add(self.swap, cpu, entry);
                }
            }
        }
        freeing.finish(self.swap, cpu);
        let mut which = [0; UNIT];
        let mut todo = 0;
        for i in (0..n).filter(|i| entries[*i].is_none()) {
            which[todo] = i;
            todo += 1;
        }
        let pages: [&PageBytes; UNIT] =
            std::array::from_fn(|i| content(frames[which[i.min(todo.max(1) - 1)]]));
        let mut out = [None; UNIT];
        let generation = generations::youngest();
        // A whole unit is a folio: neighbouring entries, and neighbouring slots on a device.
        let folio = (todo == UNIT).then(|| self.swap.store(cpu, generation, &pages));
        let split = matches!(folio, Some(Err(_)));
        let stored = match folio {
            Some(Ok(first)) => {
                out = std::array::from_fn(|i| Some(first.plus(i as u32)));
                UNIT
            }
            // Short of room for all of it: the pages that there is room for, or that need none.
            _ => self
                .swap
                .store_each(cpu, generation, &pages[..todo], &mut out[..todo])
                .unwrap_or(0),
        };
        if split && stored > 0 {
            self.counters().swpout_fallback[UNIT.ilog2() as usize].add(1);
        }
        for i in 0..todo {
            entries[which[i]] = out[i];
        }

        // Once in a few hundred pages, so it costs little: the keeper writes on another processor
        // what else the next store would have to.
        if self.swap.behind() && !self.behind.swap(true, Relaxed) {
            self.member.wake_self();
        }

        let mut state = lock_service();
        let State {
            map, bays, parked, ..
        } = &mut *state;
        let bays = bays.as_mut().expect("as above");
        bays.end_store(bay);
        if stored < todo {
            bays.pass_over(bay);
        }
        for i in 0..n {
            let page = unit.first().plus(frames[i].0 as usize % UNIT);
            match entries[i] {
                Some(entry) => {
                    map.set(page, Page::Swapped(entry));
                    bays.stored(frames[i]);
                }
                None => {
                    map.set(page, Page::Staged(frames[i]));
                    bays.forget_kept(frames[i]);
                }
            }
        }
        transit_ended();
        desk.again.append(parked);
        self.pay(&mut state);
        if stored < todo && entries[..n].iter().all(Option::is_none) {
            Step::Full
        } else {
            Step::Progress
        }
    }

    /// Puts every captured page back where it was; false while some are in transit.
    pub fn unstage(&self, state: &mut State) -> bool {
        if state.map.in_transit() > 0 {
            return false;
        }
        while let Some(bay) = state.bays.as_ref().and_then(Bays::oldest_staged) {
            let (unit, mask) = state.bays.as_ref().expect("as above").staged_of(bay);
            for (first, len) in runs(mask) {
                for i in first..first + len {
                    self.remap(state, unit.first().plus(i), Bays::frame(bay, i));
                }
            }
        }
        true
    }

    /// Learns from a kept page whether keeping is worth it.
    fn learn_keeping(&self, same: bool) {
        let old = self.keep_score.load(Relaxed);
        let new = if same {
            old + (1024 - old) / 32
        } else {
            old - old / 32
        };
        self.keep_score.store(new, Relaxed);
    }

    /// Gives frames back while more is used than is charged and no more can be charged.
    fn pay(&self, state: &mut State) {
        self.give_back_until(state, |account, used| account.room(self.member, used, 0));
    }

    /// Gives free frames back until that makes enough room under the budget, by what is in use;
    /// false if all of them do not.
    pub fn give_back_until(
        &self,
        state: &mut State,
        enough: impl Fn(&mut Account, i64) -> bool,
    ) -> bool {
        loop {
            let used = state.used(self.swap);
            if enough(&mut state.account, used) {
                return true;
            }
            if !self.give_back(state) {
                return false;
            }
        }
    }

    /// Gives one free bay's pages back to the system.
    pub fn give_back(&self, state: &mut State) -> bool {
        let Some(bays) = state.bays.as_mut() else {
            return false;
        };
        let leaving = Leaving::take(bays, 1);
        leaving.drop_pages();
        leaving.gone(bays)
    }

    /// Gives a few free bays' pages back to the system, with one flush for all and without the
    /// lock. Where other threads run, loads copy: they need room under the budget, not frames.
    fn trade(&self, mut state: MutexGuard<'static, State>) {
        let Some(bays) = state.bays.as_mut() else {
            return;
        };
        let leaving = Leaving::take(bays, TRADED);
        drop(state);
        leaving.drop_pages();
        let mut state = lock_service();
        leaving.gone(state.bays.as_mut().expect("taken from there"));
    }
}

/// Free frames on their way back to the system.
struct Leaving {
    frames: ArrayVec<(BayIndex, Mask), TRADED>,
    /// The same as runs of pages: address and length in bytes.
    parts: ArrayVec<(usize, usize), { TRADED * UNIT.div_ceil(2) }>,
}

impl Leaving {
    /// Those of up to `count` free bays, at most `TRADED`.
    fn take(bays: &mut Bays, count: usize) -> Self {
        let (mut frames, mut parts) = (ArrayVec::new(), ArrayVec::new());
        while frames.len() < count
            && let Some((bay, mask)) = bays.give_back()
        {
            let address = bays.address(bay);
            parts.extend(
                runs(mask).map(|(first, len)| (address + first * PAGE_SIZE, len * PAGE_SIZE)),
            );
            frames.push((bay, mask));
        }
        Self { frames, parts }
    }

    fn drop_pages(&self) {
        // SAFETY: free frames hold nothing that anybody needs.
        unsafe { memory::drop_pages(&self.parts) };
    }

    /// The system has them; whether there were any.
    fn gone(self, bays: &mut Bays) -> bool {
        let any = !self.frames.is_empty();
        self.frames
            .into_iter()
            .for_each(|(bay, mask)| bays.gone(bay, mask));
        any
    }
}

/// What to capture next.
enum Choice {
    /// These pages of the unit, into the bay; whether they may be executed, as then it must too.
    Capture(BayIndex, UnitNumber, Mask, bool),
    /// None of those looked at may go now; there are others.
    LookOn,
    /// Nothing.
    Nothing,
}

/// What became of pages that were to be moved.
#[derive(Default)]
struct Shifted {
    /// Those that were.
    moved: Mask,
    /// How many had to be copied first because relatives share them.
    copied: usize,
}

fn resident(map: &PageMap, unit: UnitNumber) -> Mask {
    map.mask(unit, |p| matches!(p, Page::Resident(_)))
}

/// Those of `victims` that lie in read-write memory of this kind whose missing pages are our faults:
/// only such may be moved out, and only from such may they be missing.
fn movable(ranges: &Ranges, unit: UnitNumber, victims: Mask, kind: fn(Attributes) -> bool) -> Mask {
    let all = |first: usize, len: usize| {
        let start = unit.first().plus(first).address();
        ranges.find(start).is_some_and(|r| {
            r.end >= start + len * PAGE_SIZE && r.attributes.evictable() && kind(r.attributes)
        })
    };
    let in_run = |first, len| match all(first, len) {
        true => ones(first, len),
        // It goes from one range to the next.
        false => (first..first + len)
            .filter(|&i| all(i, 1))
            .fold(0, |mask, i| mask | 1 << i),
    };
    runs(victims).fold(0, |mask, (first, len)| mask | in_run(first, len))
}

/// A bay with the protection of memory that may be executed: the kernel moves pages between places
/// of like protection alone. Only while they are moved: loads move its frames to plain memory.
struct Executable(usize);

/// A bay kept that protection: the kernel refuses to split a mapping where a process has too many.
static KEPT: AtomicBool = AtomicBool::new(false);

impl Executable {
    /// If what is to be moved into the bay `is` that. Refused, the move is as well, and pages stay.
    fn bay(address: usize, is: bool) -> Option<Self> {
        if is {
            protect_bay(address, PLAIN | libc::PROT_EXEC);
        } else if KEPT.load(Relaxed) {
            protect_bay(address, PLAIN);
        }
        is.then_some(Self(address))
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if !protect_bay(self.0, PLAIN) {
            KEPT.store(true, Relaxed);
        }
    }
}

fn protect_bay(address: usize, protection: libc::c_int) -> bool {
    // SAFETY: the bay is the caller's, and nothing of the program's is executed in it.
    unsafe { memory::mprotect(address, UNIT_BYTES, protection) }.is_ok()
}

const PLAIN: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
