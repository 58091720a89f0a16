//! Progress: whose pages are not taken, so that every instruction gets all that it needs at once.
//!
//! An instruction goes on only when every page that it touches is there. It faults on one after the other. Where
//! memory is short the second may be brought into the frame of the first, for ever. So what a thread was brought is
//! kept for it until it has had the chance to go on.
//!
//! **Policy.** Of each thread its last [`PAGES`] different pages are known for which it faulted. They are *held* by
//! its *attempt* while that is in force: while the thread waits for one of them, and for a *span* after that, in
//! which it is to get a processor. A fault after that begins a new attempt. An attempt is as old as the oldest page
//! that it knows, but no older than its begin.
//!
//! - Pages that no attempt holds leave first, in their turn.
//! - A thread that waits for room, and finds all held, takes from a *younger* attempt. If there is none, it takes of
//!   its own pages the one on which it faulted longest ago. If there is none either, it waits. From older ones it
//!   takes nothing. A page of its own that it took counts as new, unless older attempts hold some.
//! - Room that is made for no thread here (ahead of need, for other processes, before a fork) takes no held page. For
//!   them a wait holds no longer than a span, so no two processes wait for each other for ever.
//! - A page that is missing again after the span was perhaps taken too early: the span doubles. It differs from
//!   thread to thread then, so of two processes that take from each other one holds on for longer. A page that is new
//!   to the thread makes it short again.
//!
//! **Why every instruction gets done.** It needs no more than [`PAGES`] pages, and no more than the process may have
//! in memory. A thread that was served gets a processor within the longest span. While a thread is at one instruction
//! it faults on the pages of that alone. Of the known pages, those on which it faulted longest ago are forgotten and
//! taken first. While older attempts hold pages, the frames that are left may be too few for the instruction: its
//! pages may take each other's frame, and the attempt keeps its age. While none does, all frames are there for the
//! thread. So each page of the instruction is forgotten, or counts as new, at most once. The span grows until the
//! thread has its processor in time, and after that the attempt stays in force and keeps its age. Later attempts are
//! younger. An older attempt gets younger as its thread comes to other pages. Else it is in force no longer, or at
//! one instruction. So in the end this attempt is the oldest, if older ones get done; and the oldest gets done. No
//! thread takes from it, so it faults once for each page of the instruction. It finds room each time, with others or
//! with a page of its own that the instruction does not need. Then all are there.
//!
//! **How many pages.** On x86-64 code 2, stack 2, a source and a destination 2 each; the state of the
//! vector and matrix units, which a signal's frame holds, 4; rseq's area and what it names 3. Strings,
//! gathers and scatters go on where they were. The kernel copies page by page.
//!
//! *Work* is a fault on a page that is new to its thread (`work`). Faults on the same few pages over and over
//! are none, however many; `memory_stall` tells by that whether a program gets on.
//!
//! Not done here: choosing what leaves (`reclaim_queue`, `capture`), waiting (`memory_stall`).

use crate::map::page_map::{Mask, PageMap, PageNumber, UnitNumber};
use arrayvec::ArrayVec;
use ebb_sys::paging::Time;
use ebb_sys::userfaultfd::Fault;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

/// Pages that one instruction needs, at most.
pub const PAGES: usize = 16;
/// How long a thread that was served may take until it has a processor.
pub const SPAN: Duration = Duration::from_millis(4);
/// As often the span doubles at most: 64 to 120 ms. Longer, and threads that the machine lets wait keep others from work.
const DOUBLED: u8 = 4;
/// Threads that did not fault for so long are forgotten, when there are many.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// Attempts that may be known without a look at which of them are over.
const MANY: usize = 64;

/// The pages that a thread was brought last.
struct Attempt {
    /// The pages, in the order in which it faulted on them last, each with the number of the fault by which
    /// it became known.
    pages: ArrayVec<(PageNumber, u64), PAGES>,
    /// The units of these pages, a bit each, which units share. Most threads have none of a unit that is asked for.
    units: u64,
    /// The page that it waits for.
    waits: Option<PageNumber>,
    /// The time when it began to wait, or was served.
    last: Time,
    /// The number of the fault by which it began.
    began: u64,
    /// The number of times that the span doubled.
    doubled: u8,
}

impl Attempt {
    fn age(&self) -> u64 {
        let numbers = self.pages.iter().map(|&(_, number)| number);
        numbers.min().unwrap_or(u64::MAX).max(self.began)
    }

    /// Its span is over: if it waits for nothing, its thread had its time.
    fn is_over(&self, thread: u32, now: Time) -> bool {
        now >= self.last + self.span(thread)
    }

    /// A page is known from now on, and the oldest is not if there are too many.
    fn learn(&mut self, page: PageNumber, number: u64) {
        if self.pages.is_full() {
            self.pages.remove(0);
        }
        self.pages.push((page, number));
        self.units = self.bits();
    }

    fn bits(&self) -> u64 {
        let bits = self.pages.iter().map(|(page, _)| bit(page.unit()));
        bits.fold(0, |all, bit| all | bit)
    }

    fn mask(&self, unit: UnitNumber) -> Mask {
        if self.units & bit(unit) == 0 {
            return 0;
        }
        let of_it = self.pages.iter().filter(|(page, _)| page.unit() == unit);
        of_it.fold(0, |mask, (page, _)| mask | 1 << page.within())
    }

    fn span(&self, thread: u32) -> Duration {
        let span = SPAN * (1 << self.doubled);
        match self.doubled {
            0 => span,
            _ => span + span / 8 * (thread % 8),
        }
    }
}

/// The bit of a unit.
fn bit(unit: UnitNumber) -> u64 {
    1 << (unit.0 % 64)
}

/// A thread that wants room, and the page that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    pub thread: u32,
    pub page: PageNumber,
}

impl Waiter {
    /// The thread and page of a fault.
    pub fn of(fault: &Fault) -> Self {
        Self {
            thread: fault.thread,
            page: PageNumber::of(fault.address),
        }
    }
}

/// Which pages of a unit are held, by whom.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Pages held by attempts from which nothing is taken.
    pub firmly: Mask,
    /// Pages held by the thread itself, and by none of these.
    pub own: Mask,
    /// Pages held by younger ones only.
    pub by_younger: Mask,
}

impl Held {
    /// All of them.
    pub fn all(&self) -> Mask {
        self.firmly | self.own | self.by_younger
    }
}

/// The attempt of each thread.
type ByThread = HashMap<u32, Attempt, BuildHasherDefault<ThreadHasher>>;

/// The attempts of all threads.
pub struct Attempts {
    /// The threads and their attempts. None before the first fault: an empty map points at constants, and for that pointer the loader
    /// would copy a page of data in each process that never pages.
    threads: Option<ByThread>,
    /// Faults on pages that were new to their threads.
    work: u64,
    /// The last number given to a page that is known.
    numbers: u64,
    /// The time from which on it is looked which attempts are over, if there are many.
    due: Time,
}

impl Attempts {
    /// Of no thread.
    pub const fn new() -> Self {
        Self {
            threads: None,
            work: 0,
            numbers: 0,
            due: Time::ZERO,
        }
    }

    /// A thread waits for a page, which is missing or protected. Said again, it waits still.
    pub fn waits(&mut self, map: &mut PageMap, waiter: Waiter, missing: bool, now: Time) {
        let Waiter { thread, page } = waiter;
        // Each unit that leaves looks at all that are known: those of a burst of threads go again.
        if self.count() >= MANY && now >= self.due {
            self.forget(now);
        }
        let threads = self.threads.get_or_insert_default();
        let attempt = threads.entry(thread).or_insert_with(|| Attempt {
            pages: ArrayVec::new(),
            units: 0,
            waits: None,
            last: now,
            began: 0,
            doubled: 0,
        });
        if attempt.waits.replace(page) == Some(page) {
            return;
        }
        self.numbers += 1;
        // The unit's notes may have been given back since the page became known.
        map.unit_mut(page.unit()).held = true;
        let over = attempt.is_over(thread, now);
        attempt.last = now;
        if over {
            attempt.began = self.numbers;
        }
        if let Some(at) = attempt.pages.iter().position(|&(known, _)| known == page) {
            attempt.doubled = (attempt.doubled + u8::from(over && missing)).min(DOUBLED);
            let known = attempt.pages.remove(at);
            attempt.pages.push(known);
            return;
        }
        attempt.learn(page, self.numbers);
        attempt.doubled = 0;
        self.work += 1;
    }

    /// It has the page, and is to go on.
    pub fn served(&mut self, waiter: Waiter, now: Time) {
        let attempt = self.of_mut(waiter.thread);
        // Woken by somebody else, it may wait for the next already.
        if let Some(attempt) = attempt.filter(|attempt| attempt.waits == Some(waiter.page)) {
            attempt.waits = None;
            attempt.last = now;
        }
    }

    /// Which pages of a unit are not to be taken for `by`. The clock is read only where threads may hold some.
    pub fn held(
        &self,
        map: &mut PageMap,
        unit: UnitNumber,
        by: Option<Waiter>,
        now: impl FnOnce() -> Time,
    ) -> Held {
        match map.unit(unit).held {
            true => self.look(map, unit, by, now()),
            false => Held::default(),
        }
    }

    fn look(&self, map: &mut PageMap, unit: UnitNumber, by: Option<Waiter>, now: Time) -> Held {
        let own = by.and_then(|by| self.of(by.thread));
        let age = own.map_or(u64::MAX, Attempt::age);
        let (mut held, mut known) = (Held::default(), false);
        for (&thread, attempt) in self.threads.iter().flatten() {
            let mask = attempt.mask(unit);
            known |= mask != 0;
            let waits = by.is_some() && attempt.waits.is_some();
            if mask == 0 || !waits && attempt.is_over(thread, now) {
                continue;
            }
            let kind = match by {
                Some(by) if by.thread == thread => &mut held.own,
                Some(_) if attempt.age() > age => &mut held.by_younger,
                _ => &mut held.firmly,
            };
            *kind |= mask;
        }
        held.own &= !held.firmly;
        held.by_younger &= !(held.firmly | held.own);
        if !known {
            map.unit_mut(unit).held = false;
        }
        held
    }

    /// A page of its own is taken for a thread. `by_older`: older attempts hold pages.
    pub fn takes_own(&mut self, thread: u32, page: PageNumber, by_older: bool) {
        if by_older {
            return;
        }
        self.numbers += 1;
        let latest = self.numbers;
        let attempt = self.of_mut(thread).into_iter();
        let pages = attempt.flat_map(|attempt| &mut attempt.pages);
        for (_, number) in pages.filter(|(known, _)| *known == page) {
            *number = latest;
        }
    }

    /// The pages that `by` faulted on last, the oldest first, without the one that it waits for.
    pub fn own(&self, by: Waiter) -> ArrayVec<PageNumber, PAGES> {
        let pages = self.of(by.thread).into_iter();
        let pages = pages.flat_map(|attempt| attempt.pages.iter().map(|&(page, _)| page));
        pages.filter(|&page| page != by.page).collect()
    }

    /// How much work was done.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Forgets all: a forked child has none of the threads.
    pub fn clear(&mut self) {
        self.threads.iter_mut().for_each(HashMap::clear);
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        let places = self.threads.as_ref().map_or(0, HashMap::capacity);
        places * size_of::<(u32, Attempt)>()
    }

    /// A thread waits for a page that it knows; it knows each once, by a number that was given.
    pub fn check(&self) {
        for attempt in self.threads.iter().flat_map(HashMap::values) {
            let known = |page| attempt.pages.iter().filter(|p| p.0 == page).count();
            assert!(attempt.waits.is_none_or(|page| known(page) == 1));
            for &(page, number) in &attempt.pages {
                assert!(known(page) == 1 && number <= self.numbers);
            }
            assert!(attempt.began <= self.numbers && attempt.doubled <= DOUBLED);
            assert!(attempt.units == attempt.bits());
        }
        assert!(self.work <= self.numbers);
    }

    fn count(&self) -> usize {
        self.threads.as_ref().map_or(0, HashMap::len)
    }

    fn of(&self, thread: u32) -> Option<&Attempt> {
        self.threads.as_ref()?.get(&thread)
    }

    fn of_mut(&mut self, thread: u32) -> Option<&mut Attempt> {
        self.threads.as_mut()?.get_mut(&thread)
    }

    /// Forgets threads that have not faulted for long: most of them are no more.
    fn forget(&mut self, now: Time) {
        if let Some(threads) = &mut self.threads {
            threads.retain(|_, attempt| attempt.waits.is_some() || now < attempt.last + FORGOTTEN);
        }
        self.due = now + FORGOTTEN;
    }
}

/// Numbers of threads are numbers already.
#[derive(Default)]
pub struct ThreadHasher(u64);

impl Hasher for ThreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(self.0 as u32 ^ u32::from(byte));
        }
    }
    fn write_u32(&mut self, thread: u32) {
        self.0 = u64::from(thread).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::page_map::Page;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn waiter(thread: u32, page: usize) -> Waiter {
        Waiter {
            thread,
            page: PageNumber(page),
        }
    }

    struct Known {
        map: PageMap,
        attempts: Attempts,
        start: Time,
    }

    impl Known {
        fn new() -> Self {
            Self {
                map: PageMap::new(),
                attempts: Attempts::new(),
                start: Time::from_secs(1000),
            }
        }

        fn waits(&mut self, thread: u32, page: usize, at: u64) {
            let now = self.start + ms(at);
            self.attempts
                .waits(&mut self.map, waiter(thread, page), true, now);
        }

        pub fn served(&mut self, thread: u32, page: usize, at: u64) {
            self.attempts
                .served(waiter(thread, page), self.start + ms(at));
        }

        /// Whether the page is free to be taken for a thread, or for nobody.
        fn free(&mut self, page: usize, by: Option<u32>, at: u64) -> Option<bool> {
            let page = PageNumber(page);
            let by = by.map(|thread| waiter(thread, 999));
            let now = self.start + ms(at);
            let held = self.attempts.look(&mut self.map, page.unit(), by, now);
            let bit = 1 << page.within();
            match ((held.firmly | held.own) & bit, held.by_younger & bit) {
                (0, 0) => Some(true),
                (0, _) => None,
                _ => Some(false),
            }
        }
    }

    #[test]
    fn a_page_is_held_while_its_thread_waits_and_for_a_span_after_that() {
        let mut known = Known::new();
        known.waits(1, 5, 0);
        assert_eq!(known.free(5, Some(2), 100), Some(false));
        assert_eq!(known.free(5, None, 3), Some(false));
        assert_eq!(known.free(5, None, 4), Some(true), "for others no longer");
        known.served(1, 5, 100);
        assert_eq!(known.free(5, Some(2), 103), Some(false));
        assert_eq!(known.free(5, Some(2), 104), Some(true));
        assert_eq!(known.free(6, Some(2), 101), Some(true));
        // Another fault of the thread, and it is held again.
        known.waits(1, 80, 200);
        known.served(1, 5, 201);
        assert_eq!(known.free(5, Some(2), 300), Some(false), "it waits still");
    }

    /// The program unmapped the unit, which forgets its notes, and mapped memory there anew.
    #[test]
    fn a_page_is_held_again_after_its_units_notes_were_given_back() {
        let mut known = Known::new();
        known.waits(1, 5, 0);
        known.served(1, 5, 0);
        known.map = PageMap::new();
        known.waits(1, 80, 1);
        known.waits(1, 5, 2);
        let (page, by) = (PageNumber(5), Some(waiter(2, 999)));
        let held = known
            .attempts
            .held(&mut known.map, page.unit(), by, || known.start + ms(3));
        assert_eq!(held.all(), 1 << 5);
    }

    #[test]
    fn a_thread_that_misses_a_page_again_holds_it_for_longer() {
        let mut known = Known::new();
        let mut at = 0;
        for again in 0..10 {
            let page = 8 + again % 2 * 32;
            known.waits(8, page, at);
            known.served(8, page, at);
            let span = match again {
                0 | 1 => 4,
                _ => 4 << (again - 1).min(usize::from(DOUBLED)),
            };
            assert_eq!(known.free(8, None, at + span - 1), Some(false), "{again}");
            assert_eq!(known.free(8, None, at + span), Some(true), "{again}");
            at += span;
        }
        // Within the span it is none the longer, and a new page makes it short.
        known.waits(8, 8, at);
        known.served(8, 8, at);
        known.waits(8, 100, at);
        known.served(8, 100, at);
        assert_eq!(known.free(8, None, at + 4), Some(true));
    }

    #[test]
    fn the_older_takes_from_the_younger() {
        let mut known = Known::new();
        for (thread, page) in [(1, 20), (2, 40), (1, 21)] {
            known.waits(thread, page, 0);
            known.served(thread, page, 0);
        }
        assert_eq!(known.free(40, Some(1), 1), None);
        assert_eq!(known.free(20, Some(2), 1), Some(false));
        assert_eq!(known.free(20, Some(1), 1), Some(false), "not one's own");
        // Page by page the first one comes to other instructions, and gets younger.
        for page in 100..100 + PAGES - 1 {
            known.waits(1, page, 1);
            known.served(1, page, 1);
        }
        assert_eq!(known.free(20, Some(2), 2), Some(true), "forgotten");
        assert_eq!(known.free(21, Some(2), 2), None);
        let own: Vec<_> = known
            .attempts
            .own(waiter(1, 100))
            .iter()
            .map(|p| p.0)
            .collect();
        assert_eq!(own[..2], [21, 101]);
        assert_eq!(known.attempts.work(), 2 + PAGES as u64);
    }

    #[test]
    fn threads_that_are_no_more_are_forgotten() {
        let mut known = Known::new();
        for thread in 0..10_000u32 {
            known.waits(thread, thread as usize, u64::from(thread));
            known.served(thread, thread as usize, u64::from(thread));
        }
        assert!(known.attempts.count() <= 2 * FORGOTTEN.as_millis() as usize + MANY);
        assert_eq!(known.free(9_999, None, 10_000), Some(false));
    }

    /// Threads at instructions that need several pages, in so many frames. A thread runs when it has a
    /// processor: an instruction whose pages are all there is done, else it waits for the first that is not.
    struct Machine {
        map: PageMap,
        attempts: Attempts,
        frames: usize,
        /// The pages that are there, in the order in which they came.
        there: VecDeque<PageNumber>,
        /// The instructions that each thread is to do, in a circle, and how many it has done.
        threads: Vec<(Vec<Vec<usize>>, usize)>,
        /// The page that each waits for.
        waiting: BTreeMap<usize, PageNumber>,
        now: Time,
        /// Flag: without the policy what came first leaves.
        plain: bool,
    }

    impl Machine {
        fn new(frames: usize, programs: &[Vec<Vec<usize>>]) -> Self {
            Self {
                map: PageMap::new(),
                attempts: Attempts::new(),
                frames,
                there: VecDeque::new(),
                threads: programs.iter().map(|p| (p.clone(), 0)).collect(),
                waiting: BTreeMap::new(),
                now: Time::from_secs(1000),
                plain: false,
            }
        }

        fn missing(&self, thread: usize) -> Option<PageNumber> {
            let (program, done) = &self.threads[thread];
            let pages = program[done % program.len()].iter();
            let mut pages = pages.map(|&page| PageNumber(page));
            pages.find(|page| !self.there.contains(page))
        }

        /// The thread has a processor.
        fn run(&mut self, thread: usize) {
            if self.waiting.contains_key(&thread) {
                return;
            }
            match self.missing(thread) {
                None => self.threads[thread].1 += 1,
                Some(page) => {
                    let who = waiter(thread as u32, page.0);
                    self.attempts.waits(&mut self.map, who, true, self.now);
                    self.waiting.insert(thread, page);
                }
            }
        }

        /// Service looks at what the thread waits for.
        fn serve(&mut self, thread: usize) {
            let Some(&page) = self.waiting.get(&thread) else {
                return;
            };
            let who = waiter(thread as u32, page.0);
            if !self.there.contains(&page) {
                if self.there.len() == self.frames {
                    let Some(victim) = self.victim(who) else {
                        return;
                    };
                    self.there.retain(|&page| page != victim);
                    self.map.set(victim, Page::Untouched);
                }
                self.there.push_back(page);
                self.map.set(page, Page::Resident(None));
            }
            self.waiting.remove(&thread);
            self.attempts.served(who, self.now);
            self.attempts.check();
        }

        fn victim(&mut self, who: Waiter) -> Option<PageNumber> {
            if self.plain {
                return self.there.front().copied();
            }
            let (mut younger, mut by_older) = (None, false);
            for &page in &self.there {
                let unit = page.unit();
                let held = self.attempts.look(&mut self.map, unit, Some(who), self.now);
                let bit = 1 << page.within();
                if held.all() & bit == 0 {
                    return Some(page);
                }
                if held.by_younger & bit != 0 {
                    younger = younger.or(Some(page));
                }
                by_older |= held.firmly & bit != 0;
            }
            younger.or_else(|| {
                let (attempts, map) = (&self.attempts, &mut self.map);
                let own = attempts.own(who).into_iter().find(|page| {
                    let held = attempts.look(map, page.unit(), Some(who), self.now);
                    self.there.contains(page) && held.own & 1 << page.within() != 0
                })?;
                self.attempts.takes_own(who.thread, own, by_older);
                Some(own)
            })
        }

        /// Everybody has a turn, in the order of the steps: so many of them until each thread has done
        /// something more; none if that takes more than `most`.
        fn until_all_get_on(&mut self, steps: &[(usize, bool, u8)], most: usize) -> Option<usize> {
            let before: Vec<_> = self.threads.iter().map(|t| t.1).collect();
            let all = self.threads.len();
            for n in 0..most {
                let (thread, serve, pause) = steps[n % steps.len()];
                // Nobody is left out for ever.
                let thread = (thread + n / steps.len()) % all;
                self.now += Duration::from_micros(u64::from(pause));
                match serve {
                    true => self.serve(thread),
                    false => self.run(thread),
                }
                let got_on = |(t, before): (&(_, usize), &usize)| t.1 > *before;
                if self.threads.iter().zip(&before).all(got_on) {
                    return Some(n);
                }
            }
            None
        }
    }

    /// Programs whose instructions need up to so many of a few pages, which the threads share in part.
    fn programs(pages: usize) -> impl Strategy<Value = Vec<Vec<Vec<usize>>>> {
        let instruction = prop::collection::btree_set(0..3 * pages, 1..=pages)
            .prop_map(|pages| pages.into_iter().collect());
        let program = prop::collection::vec(instruction, 1..4);
        prop::collection::vec(program, 1..6)
    }

    proptest! {
        /// In as few frames as one instruction needs, all threads get on, whoever runs and is served when.
        #[test]
        fn every_thread_gets_on(
            (pages, programs) in (1..=PAGES).prop_flat_map(|pages| (Just(pages), programs(pages))),
            steps in prop::collection::vec((0usize..8, any::<bool>(), 20u8..200), 1..200),
        ) {
            let mut machine = Machine::new(pages, &programs);
            // Everybody runs, and everybody is served.
            let both = steps.iter().flat_map(|&(t, _, pause)| [(t, false, pause), (t, true, 0)]);
            let steps: Vec<_> = steps.iter().copied().chain(both).collect();
            for _ in 0..4 {
                prop_assert!(machine.until_all_get_on(&steps, 200_000).is_some());
            }
        }
    }

    /// A thread whose instruction needs both frames, beside three whose instructions need one each: when it took its
    /// own pages they counted as new, and it was the youngest for ever.
    #[test]
    fn a_thread_keeps_its_age_while_older_ones_leave_it_too_few_frames() {
        let programs = [
            vec![vec![5], vec![0, 5]],
            vec![vec![1]],
            vec![vec![2]],
            vec![vec![2]],
        ];
        let steps = [
            (3, 33),
            (0, 129),
            (3, 137),
            (0, 154),
            (2, 40),
            (2, 145),
            (0, 68),
            (3, 128),
            (0, 113),
            (1, 127),
        ];
        let runs = steps.map(|(thread, pause)| (thread, false, pause));
        let serves = steps.map(|(thread, _)| (thread, true, 0));
        let between = [(3, true, 88), (1, true, 72)];
        let both = runs.into_iter().zip(serves).flat_map(<[_; 2]>::from);
        let steps: Vec<_> = runs.into_iter().chain(between).chain(both).collect();
        let mut machine = Machine::new(2, &programs);
        for _ in 0..100 {
            assert!(machine.until_all_get_on(&steps, 20_000).is_some());
        }
    }

    #[test]
    fn without_the_policy_two_threads_take_each_others_pages_for_ever() {
        let programs = [vec![vec![1, 2]], vec![vec![21, 22]]];
        let run_and_serve = [false, true].map(|serve| [0, 1].map(|thread| (thread, serve, 20)));
        let in_turn = run_and_serve.as_flattened();
        let gets_on = |plain| {
            let mut machine = Machine::new(2, &programs);
            machine.plain = plain;
            machine.until_all_get_on(in_turn, 100_000)
        };
        assert_eq!(gets_on(true), None);
        assert!(gets_on(false).is_some_and(|steps| steps < 1000));
    }
}
