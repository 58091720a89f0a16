//! The page map: one word for each page of every managed range, and what reclaim knows of
//! each unit of `UNIT` pages.
//!
//! A page is in exactly one state (invariant 1 of the design):
//!
//! ```text
//!            first touch                    evict                 store
//! Untouched ------------> Resident ------------------> Staged ----------> Storing
//!     ^                   ^  ^  ^                        |                   |
//!     | drop              |  |  +---- touch: remap ------+                   v
//!     +---- any           |  +---------- Loading <---- touch ------------ Swapped
//! ```
//!
//! A page with a clean copy is staged with its entry, and becomes `Swapped` again without being stored (`clean`).
//! `Loading` and `Storing` are the transit states: a thread of ours owns the page and works on it without the lock.
//! All others wait for the transit to end.
//!
//! The map is plain data under the pager's lock. It allocates one `Chunk` for each 2 MiB first touched. One whose pages
//! are all untouched again is *idle*. When more are idle than not, all of them go, with tables that are empty then
//! (`prune`): programs may map memory at ever new addresses.

use ebb_engine::EntryId;
use std::ops::ControlFlow;

/// Pages of a unit: what is queued, captured and staged together. 64 KiB.
pub const UNIT: usize = 16;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = UNIT * PAGE;
const PAGE: usize = ebb_engine::PAGE_SIZE;
/// Where the map ends. With four levels of page tables programs have no addresses behind it. Those of five levels are
/// never managed.
pub const ADDRESSES: usize = 1 << 48;
const END: PageNumber = PageNumber::of(ADDRESSES);
const CHUNK_PAGES: usize = 512;
const UNITS: usize = CHUNK_PAGES / UNIT;
const _: () = assert!(UNIT <= 64 && CHUNK_PAGES.is_multiple_of(UNIT));

/// A set of pages of one unit, bit 0 the first.
pub type Mask = u64;

/// The number of a page: its address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageNumber(pub usize);

impl PageNumber {
    /// The page that holds `address`.
    pub const fn of(address: usize) -> Self {
        Self(address / PAGE)
    }
    /// Its first byte's address.
    pub const fn address(self) -> usize {
        self.0 * PAGE
    }
    /// The unit it belongs to.
    pub const fn unit(self) -> UnitNumber {
        UnitNumber((self.0 / UNIT) as u32)
    }
    /// Position in its unit.
    pub const fn within(self) -> usize {
        self.0 % UNIT
    }
    /// The page `n` further on.
    pub const fn plus(self, n: usize) -> Self {
        Self(self.0 + n)
    }
}

/// The number of a unit: its address / 64 KiB. 31 bits cover the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnitNumber(pub u32);

impl UnitNumber {
    /// Its first page.
    pub const fn first(self) -> PageNumber {
        PageNumber(self.0 as usize * UNIT)
    }
}

/// A page frame of the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame(pub u32);

/// The state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Page {
    /// Never touched, or dropped since: reads as zeros.
    Untouched,
    /// In memory and mapped; perhaps with a clean copy (`clean`).
    Resident(Option<EntryId>),
    /// Captured: in a frame, not mapped, not stored yet.
    Staged(Frame),
    /// In transit: being captured into a frame, or stored from it.
    Storing(Frame),
    /// In the swap space.
    Swapped(EntryId),
    /// In transit: being loaded.
    Loading(EntryId),
    /// Its data could not be read back; touching it is fatal.
    Poisoned,
}

impl Page {
    /// Whether the program has it mapped; none where a thread of ours works on it.
    pub fn is_mapped(self) -> Option<bool> {
        match self {
            Page::Resident(_) => Some(true),
            Page::Untouched | Page::Staged(_) | Page::Swapped(_) | Page::Poisoned => Some(false),
            Page::Storing(_) | Page::Loading(_) => None,
        }
    }
}

/// A page's state in 4 bytes: 3 bits of state, 29 of entry or frame.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedPage(u32);

impl PackedPage {
    const UNTOUCHED: Self = Self(0);

    fn pack(page: Page) -> Self {
        let (state, payload) = match page {
            Page::Untouched => (0, 0),
            Page::Resident(None) => (1, 0),
            Page::Resident(Some(e)) => (2, e.0),
            Page::Staged(f) => (3, f.0),
            Page::Storing(f) => (4, f.0),
            Page::Swapped(e) => (5, e.0),
            Page::Loading(e) => (6, e.0),
            Page::Poisoned => (7, 0),
        };
        debug_assert!(payload < 1 << 29);
        Self(payload << 3 | state)
    }

    fn unpack(self) -> Page {
        let payload = self.0 >> 3;
        match self.0 & 7 {
            0 => Page::Untouched,
            1 => Page::Resident(None),
            2 => Page::Resident(Some(EntryId(payload))),
            3 => Page::Staged(Frame(payload)),
            4 => Page::Storing(Frame(payload)),
            5 => Page::Swapped(EntryId(payload)),
            6 => Page::Loading(EntryId(payload)),
            _ => Page::Poisoned,
        }
    }
}

/// Reclaim's notes on a unit and its pages: 2 bytes a page. See `reclaim_queue`.
#[derive(Clone, Copy, Default, Debug)]
pub struct UnitState {
    /// A page out: the epoch it was evicted in. A resident page: the epoch until which it stays.
    pub epochs: [u8; UNIT],
    /// The heat that each page proved to have, 4 bits a page, the first lowest. The highest bit says that the page
    /// refused to leave ([`refused`](Self::refused)).
    pub heat: u64,
    /// The time when it was queued, in the keeper's milliseconds.
    pub queued_ms: u32,
    /// Flag: it stands in the reclaim queue.
    pub queued: bool,
    /// Pages that were loaded from a device one by one since some of it left, or [`SCANNED`].
    loads: u8,
    /// Flag: it is named among those that are deferred.
    pub deferred: bool,
    /// Flag: threads may hold pages of it (`attempts`).
    pub held: bool,
}
const _: () = assert!(size_of::<UnitState>() == 32 && UNIT == 16);

/// Bits of a page's heat.
pub const HEAT: u64 = 7;
/// The other bit of each page.
const REFUSED: u64 = 0x8888_8888_8888_8888;

/// In place of loads: it left as part of a scan that only passed through.
const SCANNED: u8 = u8::MAX;

impl UnitState {
    /// The epoch and the heat of a page.
    pub fn note(&self, page: usize) -> (u8, u8) {
        (self.epochs[page], (self.heat >> (4 * page) & HEAT) as u8)
    }

    /// Notes the epoch and the heat of a page.
    pub fn set_note(&mut self, page: usize, (epoch, heat): (u8, u8)) {
        self.epochs[page] = epoch;
        self.heat = self.heat & !(HEAT << (4 * page)) | u64::from(heat) << (4 * page);
    }

    /// Pages that refused to leave, and were not tried again since. They may have gone in another way.
    pub fn refused(&self) -> Mask {
        if self.heat & REFUSED == 0 {
            return 0;
        }
        (0..UNIT).fold(0, |mask, i| mask | (self.heat >> (4 * i + 3) & 1) << i)
    }

    /// These pages refused to leave.
    pub fn refuse(&mut self, mask: Mask) {
        for i in 0..UNIT {
            self.heat |= (mask >> i & 1) << (4 * i + 3);
        }
    }

    /// They are to be tried again.
    pub fn forget_refusals(&mut self) {
        self.heat &= !REFUSED;
    }

    /// Whether it left as part of a scan that only passed through.
    pub fn is_scanned(&self) -> bool {
        self.loads == SCANNED
    }

    /// It leaves so, or in its turn, or comes back.
    pub fn set_scanned(&mut self, yes: bool) {
        match yes {
            true => self.loads = SCANNED,
            false if self.is_scanned() => self.loads = 0,
            false => {}
        }
    }

    /// The number in its stay of the load that comes next. None after a scan, as the mark of that is still needed.
    pub fn next_load(&self) -> Option<usize> {
        (!self.is_scanned()).then_some(usize::from(self.loads) + 1)
    }

    /// A page of it is loaded by itself.
    pub fn count_load(&mut self) {
        if !self.is_scanned() {
            self.loads = (self.loads + 1).min(UNIT as u8);
        }
    }

    /// Its stay is over: so many pages were loaded by themselves.
    pub fn end_stay(&mut self) -> usize {
        match self.is_scanned() {
            true => 0,
            false => std::mem::take(&mut self.loads).into(),
        }
    }
}

struct Chunk {
    words: [PackedPage; CHUNK_PAGES],
    units: [UnitState; UNITS],
    touched: u16,
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self {
            words: [PackedPage::UNTOUCHED; CHUNK_PAGES],
            units: [UnitState::default(); UNITS],
            touched: 0,
        })
    }

    /// No page is touched, and no queue knows of it.
    fn is_forgotten(&self) -> bool {
        let is_named = |unit: &UnitState| unit.queued || unit.deferred || unit.refused() != 0;
        self.touched == 0 && !self.units.iter().any(is_named)
    }
}

/// The tables, by the addresses that they cover. They are small, as most processes have few chunks, at addresses far
/// apart.
type Table<T, const ENTRIES: usize> = [Option<Box<T>>; ENTRIES];
type Megabytes256 = Table<Chunk, { 1 << 7 }>;
type Gigabytes32 = Table<Megabytes256, { 1 << 7 }>;
type Terabytes4 = Table<Gigabytes32, { 1 << 7 }>;
type Root = Table<Terabytes4, { 1 << 6 }>;

/// Chunks that an entry of each level covers, the root's first.
const SPANS: [usize; 4] = [1 << 21, 1 << 14, 1 << 7, 1];
const _: () = assert!((SPANS[0] * CHUNK_PAGES * PAGE) << 6 == ADDRESSES);

/// The whole map: a radix tree over 48-bit addresses.
#[derive(Default)]
pub struct PageMap {
    root: Option<Box<Root>>,
    chunks: usize,
    /// Chunks of which some page is touched.
    busy: usize,
    /// Tables above the chunks.
    tables: usize,
    /// The number of pages in each state, in the order of the words' state numbers.
    counts: [usize; 8],
}

/// A table, which is counted where it is not there yet.
fn made<'a, T, const ENTRIES: usize>(
    table: &'a mut Option<Box<Table<T, ENTRIES>>>,
    count: &mut usize,
) -> &'a mut Table<T, ENTRIES> {
    table.get_or_insert_with(|| {
        *count += 1;
        Box::new([const { None }; ENTRIES])
    })
}

/// The first page after those of `page`'s entry of a level.
fn skip(page: PageNumber, level: usize) -> PageNumber {
    let span = CHUNK_PAGES * SPANS[level];
    PageNumber((page.0 / span + 1) * span)
}

impl PageMap {
    /// An empty map, without memory of its own.
    pub const fn new() -> Self {
        Self {
            root: None,
            chunks: 0,
            busy: 0,
            tables: 0,
            counts: [0; 8],
        }
    }

    fn path(page: PageNumber) -> [usize; 4] {
        debug_assert!(page < END);
        let chunk = page.0 / CHUNK_PAGES;
        [
            chunk / SPANS[0] % (1 << 6),
            chunk / SPANS[1] % (1 << 7),
            chunk / SPANS[2] % (1 << 7),
            chunk % (1 << 7),
        ]
    }

    #[inline]
    fn chunk(&self, page: PageNumber) -> Option<&Chunk> {
        let [a, b, c, d] = Self::path(page);
        self.root.as_deref()?[a].as_deref()?[b].as_deref()?[c].as_deref()?[d].as_deref()
    }

    #[inline]
    fn chunk_mut(&mut self, page: PageNumber) -> &mut Chunk {
        let [a, b, c, d] = Self::path(page);
        let count = &mut self.tables;
        let root = made(&mut self.root, count);
        let terabytes = made(&mut root[a], count);
        let gigabytes = made(&mut terabytes[b], count);
        let leaf = &mut made(&mut gigabytes[c], count)[d];
        if leaf.is_none() {
            self.chunks += 1;
        }
        leaf.get_or_insert_with(Chunk::new)
    }

    /// The state of a page.
    pub fn get(&self, page: PageNumber) -> Page {
        self.chunk(page)
            .map_or(Page::Untouched, |c| c.words[page.0 % CHUNK_PAGES].unpack())
    }

    /// Changes the state of a page.
    pub fn set(&mut self, page: PageNumber, to: Page) {
        let new = PackedPage::pack(to);
        let chunk = self.chunk_mut(page);
        let word = &mut chunk.words[page.0 % CHUNK_PAGES];
        let old = std::mem::replace(word, new);
        let was_busy = chunk.touched > 0;
        chunk.touched += u16::from(new != PackedPage::UNTOUCHED);
        chunk.touched -= u16::from(old != PackedPage::UNTOUCHED);
        let is_busy = chunk.touched > 0;
        self.busy = self.busy + usize::from(is_busy) - usize::from(was_busy);
        self.counts[old.0 as usize & 7] = self.counts[old.0 as usize & 7].wrapping_sub(1);
        self.counts[new.0 as usize & 7] = self.counts[new.0 as usize & 7].wrapping_add(1);
    }

    /// The notes on a unit; one that was never touched has the default.
    pub fn unit(&self, unit: UnitNumber) -> UnitState {
        let page = unit.first();
        self.chunk(page)
            .map_or_else(UnitState::default, |c| c.units[page.0 % CHUNK_PAGES / UNIT])
    }

    /// Room to change what is known of a unit.
    pub fn unit_mut(&mut self, unit: UnitNumber) -> &mut UnitState {
        let page = unit.first();
        &mut self.chunk_mut(page).units[page.0 % CHUNK_PAGES / UNIT]
    }

    /// The pages of a unit for which `f` holds.
    pub fn mask(&self, unit: UnitNumber, f: impl Fn(Page) -> bool) -> Mask {
        let first = unit.first();
        let Some(chunk) = self.chunk(first) else {
            return 0;
        };
        let at = first.0 % CHUNK_PAGES;
        (0..UNIT).fold(0, |m, i| {
            m | u64::from(f(chunk.words[at + i].unpack())) << i
        })
    }

    /// Calls `f` for every page of `start..end` that is not untouched, in order, until it says to
    /// stop. Skips what was never touched at the cost of its tables, so ranges of terabytes are cheap.
    pub fn each(
        &self,
        start: PageNumber,
        end: PageNumber,
        mut f: impl FnMut(PageNumber, Page) -> ControlFlow<()>,
    ) {
        let Some(root) = self.root.as_deref() else {
            return;
        };
        let (mut page, end) = (start, end.min(END));
        while page < end {
            let [a, b, c, d] = Self::path(page);
            let Some(terabytes) = root[a].as_deref() else {
                page = skip(page, 0);
                continue;
            };
            let Some(gigabytes) = terabytes[b].as_deref() else {
                page = skip(page, 1);
                continue;
            };
            let Some(megabytes) = gigabytes[c].as_deref() else {
                page = skip(page, 2);
                continue;
            };
            if let Some(chunk) = megabytes[d].as_deref().filter(|c| c.touched > 0) {
                let at = page.0 % CHUNK_PAGES;
                let stop = (end.0 - page.0).min(CHUNK_PAGES - at);
                for i in 0..stop {
                    let word = chunk.words[at + i];
                    if word != PackedPage::UNTOUCHED && f(page.plus(i), word.unpack()).is_break() {
                        return;
                    }
                }
            }
            page = skip(page, 3);
        }
    }

    /// Whether more chunks are idle than not, a few aside.
    pub fn is_sparse(&self) -> bool {
        const ASIDE: usize = 16;
        self.chunks > 2 * self.busy + ASIDE
    }

    /// Frees idle chunks none of whose units stands in a queue, and tables that are empty then.
    pub fn prune(&mut self) {
        fn each<T, const ENTRIES: usize>(
            table: &mut Option<Box<Table<T, ENTRIES>>>,
            f: &mut impl FnMut(&mut Option<Box<T>>),
        ) {
            let Some(entries) = table else { return };
            entries
                .iter_mut()
                .filter(|entry| entry.is_some())
                .for_each(f);
            if entries.iter().all(Option::is_none) {
                *table = None;
            }
        }
        let (mut chunks, mut tables) = (0, 0);
        let mut root = self.root.take();
        each(&mut root, &mut |terabytes| {
            each(terabytes, &mut |gigabytes| {
                each(gigabytes, &mut |megabytes| {
                    each(megabytes, &mut |chunk| {
                        if chunk.as_deref().is_some_and(Chunk::is_forgotten) {
                            *chunk = None;
                        }
                        chunks += usize::from(chunk.is_some());
                    });
                    tables += usize::from(megabytes.is_some());
                });
                tables += usize::from(gigabytes.is_some());
            });
            tables += usize::from(terabytes.is_some());
        });
        (self.root, self.chunks) = (root, chunks);
        self.tables = tables + usize::from(self.root.is_some());
    }

    /// Pages in memory and mapped.
    pub fn resident(&self) -> usize {
        self.counts[1] + self.counts[2]
    }

    /// Pages in memory, or with memory set aside for them: all but those untouched, swapped out or
    /// poisoned.
    pub fn in_memory(&self) -> usize {
        self.resident() + self.counts[3] + self.in_transit()
    }

    /// Pages in the swap space alone.
    pub fn swapped(&self) -> usize {
        self.counts[5]
    }

    /// Pages in transit.
    pub fn in_transit(&self) -> usize {
        self.counts[4] + self.counts[6]
    }

    /// Calls `f` for each unit that has notes.
    pub fn each_unit(&self, mut f: impl FnMut(UnitNumber, &UnitState)) {
        self.each_chunk(|first, chunk| {
            for (i, state) in chunk.units.iter().enumerate() {
                f(first.plus(i * UNIT).unit(), state);
            }
        });
    }

    fn each_chunk(&self, mut f: impl FnMut(PageNumber, &Chunk)) {
        fn there<T, const ENTRIES: usize>(
            table: &Table<T, ENTRIES>,
        ) -> impl Iterator<Item = (usize, &T)> {
            let entries = table.iter().enumerate();
            entries.filter_map(|(i, entry)| Some((i, entry.as_deref()?)))
        }
        for (a, terabytes) in self.root.iter().flat_map(|root| there(root)) {
            for (b, gigabytes) in there(terabytes) {
                for (c, megabytes) in there(gigabytes) {
                    for (d, chunk) in there(megabytes) {
                        let chunks = a * SPANS[0] + b * SPANS[1] + c * SPANS[2] + d;
                        f(PageNumber(chunks * CHUNK_PAGES), chunk);
                    }
                }
            }
        }
    }

    /// Each count is that of the words, and each chunk knows how many of its pages are touched.
    pub fn check(&self) {
        let (mut counts, mut chunks, mut busy) = ([0; 8], 0, 0);
        self.each_chunk(|_, chunk| {
            chunks += 1;
            busy += usize::from(chunk.touched > 0);
            let mut touched = 0;
            for word in &chunk.words {
                counts[word.0 as usize & 7] += 1;
                touched += u16::from(*word != PackedPage::UNTOUCHED);
            }
            assert_eq!(touched, chunk.touched);
        });
        assert_eq!((chunks, busy), (self.chunks, self.busy));
        // Untouched pages are not counted: most have no word.
        assert_eq!(counts[1..], self.counts[1..]);
    }

    /// Bytes of the map's tables.
    pub fn bytes(&self) -> usize {
        self.chunks * size_of::<Chunk>() + self.tables * size_of::<Megabytes256>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_a_stay_are_counted_and_a_scan_has_none() {
        let mut state = UnitState::default();
        (0..UNIT + 2).for_each(|_| state.count_load());
        assert_eq!((state.end_stay(), state.end_stay()), (UNIT, 0));
        state.set_scanned(true);
        state.count_load();
        assert_eq!((state.next_load(), state.end_stay()), (None, 0));
        assert!(state.is_scanned());
        state.set_scanned(false);
        state.count_load();
        state.set_scanned(false);
        assert_eq!(state.next_load(), Some(2), "the count goes on");
    }

    #[test]
    fn refusals_and_heat_of_a_page_stand_side_by_side() {
        let mut state = UnitState::default();
        state.set_note(15, (3, 5));
        state.refuse(0b1001 | 1 << 15);
        assert_eq!(
            (state.refused(), state.note(15)),
            (0b1001 | 1 << 15, (3, 5))
        );
        state.set_note(0, (1, 2));
        state.set_note(15, (1, 0));
        assert_eq!((state.refused(), state.note(0)), (0b1001 | 1 << 15, (1, 2)));
        state.forget_refusals();
        assert_eq!((state.refused(), state.note(0)), (0, (1, 2)));
    }

    #[test]
    fn words_keep_every_state() {
        for page in [
            Page::Untouched,
            Page::Resident(None),
            Page::Resident(Some(EntryId(0))),
            Page::Staged(Frame((1 << 29) - 1)),
            Page::Storing(Frame(7)),
            Page::Swapped(EntryId(ebb_engine::MAX_ENTRIES)),
            Page::Loading(EntryId(3)),
            Page::Poisoned,
        ] {
            assert_eq!(PackedPage::pack(page).unpack(), page);
        }
    }

    #[test]
    fn each_skips_what_was_never_touched_and_idle_tables_go() {
        let mut map = PageMap::new();
        let far = [
            PageNumber(5),
            PageNumber(511),
            PageNumber(512),
            PageNumber((1 << 35) - 1),
            PageNumber(1 << 30),
        ];
        for p in far {
            map.set(p, Page::Resident(None));
        }
        assert_eq!(map.resident(), far.len());
        map.check();
        let mut seen = vec![];
        map.each(PageNumber(0), PageNumber(1 << 35), |p, _| {
            seen.push(p);
            ControlFlow::Continue(())
        });
        let mut expected = far.to_vec();
        expected.sort();
        assert_eq!(seen, expected);
        for p in far {
            map.set(p, Page::Untouched);
        }
        assert_eq!(map.resident(), 0);
        assert_eq!((map.busy, map.chunks), (0, 4));
        map.prune();
        assert_eq!((map.chunks, map.tables, map.bytes()), (0, 0, 0));
        map.check();
    }

    /// Memory at ever new addresses, of which little is there at a time.
    #[test]
    fn the_map_stays_as_large_as_what_is_touched() {
        let mut map = PageMap::new();
        let mut there = std::collections::VecDeque::new();
        let mut random = ebb_engine::random::Random::new(3);
        for _ in 0..20_000 {
            let page = PageNumber(random.below(1 << 35) * 2);
            map.set(page, Page::Resident(None));
            there.push_back(page);
            if there.len() > 100 {
                map.set(there.pop_front().unwrap(), Page::Untouched);
            }
            if map.is_sparse() {
                map.prune();
            }
            assert!(map.chunks <= 2 * 101 + 17, "{}", map.chunks);
            assert!(map.tables <= 3 * 250, "{}", map.tables);
        }
        map.check();
    }
}
