//! One arena: its bytes and the states of its windows.
//!
//! The windows' tables lie before the windows, in *chunks* that windows take one by one as they are
//! filled. So a window that has few objects has a small table, and tables cost what is in them.

use super::class::{Class, Shape};
use super::layout::{CHUNK, CHUNKS, OBJECTS, WINDOW, WINDOWS};
use crate::entries::Handle;
use crate::env::Memory;
use crate::{EntryId, PAGE_SIZE};
use std::ops::Range;

/// An object's entry in its window's table: live and its owner's low bits, or free and the next free
/// object.
type Mark = [u8; 3];

/// Bytes of a chunk, and of all of an arena.
const CHUNK_BYTES: usize = CHUNK * size_of::<Mark>();
const TABLES: usize = WINDOWS * CHUNKS * CHUNK_BYTES;
/// No chunk.
const NONE: u16 = u16::MAX;

const _: () = assert!(OBJECTS <= 1 << Handle::OBJECT_BITS);
const _: () = assert!(WINDOWS * CHUNKS < NONE as usize);
const _: () = assert!(size_of::<Window>() == 24);

const LIVE: u32 = 1 << 23;
const OWNER_MASK: u32 = LIVE - 1;
const LAST: u32 = 0x100;

/// Entries that share the same bits in the table, counted from each other.
pub const OWNER_STRIDE: u32 = LIVE;

/// Which list a window is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArenaState {
    /// Of no class.
    Free,
    /// The one its class fills now.
    Current,
    /// At this position among its class's partly free ones.
    Partial(u32),
    /// All objects in use, or about to be settled by who freed one.
    Full,
    /// Being emptied or squeezed by compaction: takes no new objects.
    Draining,
    /// On no list: shared with forked relatives, takes no new objects.
    Frozen,
}

/// A [`ArenaState`] in four bytes: the position of a partly free window, or what none has.
#[derive(Clone, Copy)]
struct PackedState(u32);

impl PackedState {
    const OTHERS: [ArenaState; 5] = [
        ArenaState::Free,
        ArenaState::Current,
        ArenaState::Full,
        ArenaState::Draining,
        ArenaState::Frozen,
    ];

    const fn of(state: ArenaState) -> Self {
        let other = match state {
            ArenaState::Partial(position) => return Self(position),
            ArenaState::Free => 0,
            ArenaState::Current => 1,
            ArenaState::Full => 2,
            ArenaState::Draining => 3,
            ArenaState::Frozen => 4,
        };
        Self(u32::MAX - other)
    }

    fn get(self) -> ArenaState {
        let other = Self::OTHERS.get((u32::MAX - self.0) as usize);
        other.copied().unwrap_or(ArenaState::Partial(self.0))
    }
}

/// Invariants: the free list has `fresh - used` objects, all below `fresh`; the objects below `fresh`
/// have as many chunks as they need. Their pages are among the `touched` first; while the window is
/// frozen, the pages of the live ones are the `touched` that it holds.
#[derive(Clone, Copy)]
struct Window {
    state: PackedState,
    chunks: [u16; CHUNKS],
    class: u16,
    touched: u8,
    used: u16,
    /// Objects ever used: those after are free and untouched.
    fresh: u16,
    /// The first of the free list, `LAST` for none.
    free: u16,
}

impl Window {
    /// Of no class.
    const fn free(touched: u8) -> Self {
        Self {
            state: PackedState::of(ArenaState::Free),
            chunks: [NONE; CHUNKS],
            class: 0,
            touched,
            used: 0,
            fresh: 0,
            free: LAST as u16,
        }
    }
}

/// An arena. On lines of its own: neighbours belong to other processors.
#[repr(align(128))]
pub struct Arena {
    /// Tables, and windows: beside the objects an entry would be a page more to look up with each.
    bytes: Box<[u8]>,
    /// The place where the first window begins: the allocator need not align.
    offset: usize,
    windows: [Window; WINDOWS],
    /// Chunks ever taken; those after are untouched.
    chunks: u16,
    /// The first that was taken once and is free: its first entry names the next.
    free_chunk: u16,
}

impl Arena {
    /// An arena of free windows that hold no memory. None: there are no addresses for it.
    pub fn new(memory: &dyn Memory) -> Option<Self> {
        let bytes = memory.zeros(TABLES + WINDOW * WINDOWS + PAGE_SIZE)?;
        let offset = TABLES + bytes[TABLES..].as_ptr().align_offset(PAGE_SIZE);
        Some(Self {
            bytes,
            offset,
            windows: [Window::free(0); WINDOWS],
            chunks: 0,
            free_chunk: NONE,
        })
    }

    fn window_bytes(&self, at: usize) -> &[u8] {
        &self.bytes[self.offset + at * WINDOW..][..WINDOW]
    }

    fn window_bytes_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[self.offset + at * WINDOW..][..WINDOW]
    }

    /// The bytes of an object's entry.
    fn place_of(&self, at: usize, object: usize) -> Range<usize> {
        let chunk = self.windows[at].chunks[object / CHUNK];
        let begin = chunk as usize * CHUNK_BYTES + object % CHUNK * size_of::<Mark>();
        begin..begin + size_of::<Mark>()
    }

    fn value(&self, place: Range<usize>) -> u32 {
        let mut entry = [0; 4];
        entry[..3].copy_from_slice(&self.bytes[place]);
        u32::from_le_bytes(entry)
    }

    fn set_value(&mut self, place: Range<usize>, value: u32) {
        self.bytes[place].copy_from_slice(&value.to_le_bytes()[..3]);
    }

    fn entry(&self, at: usize, object: usize) -> u32 {
        self.value(self.place_of(at, object))
    }

    fn set_entry(&mut self, at: usize, object: usize, value: u32) {
        self.set_value(self.place_of(at, object), value);
    }

    /// Where the first entry of a chunk is.
    fn first_of(chunk: u16) -> Range<usize> {
        let begin = chunk as usize * CHUNK_BYTES;
        begin..begin + size_of::<Mark>()
    }

    /// A chunk that is no window's. There are as many as all windows can have.
    fn take_chunk(&mut self) -> u16 {
        if self.free_chunk == NONE {
            self.chunks += 1;
            return self.chunks - 1;
        }
        let chunk = self.free_chunk;
        self.free_chunk = self.value(Self::first_of(chunk)) as u16;
        chunk
    }

    /// Takes from a window the chunks that its objects do not need.
    fn release_chunks(&mut self, at: usize) {
        for k in self.fresh(at).div_ceil(CHUNK)..CHUNKS {
            let chunk = std::mem::replace(&mut self.windows[at].chunks[k], NONE);
            if chunk != NONE {
                self.set_value(Self::first_of(chunk), self.free_chunk.into());
                self.free_chunk = chunk;
            }
        }
    }

    /// Bytes of memory that the tables hold: they go back with the arena.
    pub fn table_bytes(&self) -> usize {
        self.chunks as usize * CHUNK_BYTES
    }

    pub fn state(&self, at: usize) -> ArenaState {
        self.windows[at].state.get()
    }
    pub fn set_state(&mut self, at: usize, state: ArenaState) {
        self.windows[at].state = PackedState::of(state);
    }
    pub fn class(&self, at: usize) -> Class {
        Class(self.windows[at].class)
    }
    pub fn class_if_any(&self, at: usize) -> Option<Class> {
        (self.state(at) != ArenaState::Free).then(|| self.class(at))
    }
    pub fn used(&self, at: usize) -> usize {
        self.windows[at].used as usize
    }
    pub fn touched(&self, at: usize) -> usize {
        self.windows[at].touched as usize
    }
    /// Free objects in touched pages.
    pub fn holes(&self, at: usize) -> i64 {
        i64::from(self.windows[at].fresh) - i64::from(self.windows[at].used)
    }
    /// Those of them that new objects may fill: none while the window is frozen.
    pub fn fillable(&self, at: usize) -> i64 {
        match self.state(at) {
            ArenaState::Frozen => 0,
            _ => self.holes(at),
        }
    }
    pub fn has_hole(&self, at: usize) -> bool {
        self.windows[at].free as u32 != LAST
    }
    pub fn is_full(&self, at: usize, shape: &Shape) -> bool {
        self.windows[at].used == shape.objects
    }

    /// Gives a free window to a class, as its current one.
    pub fn assign(&mut self, at: usize, class: Class) {
        let window = &mut self.windows[at];
        debug_assert!(window.state.get() == ArenaState::Free && window.used == 0);
        *window = Window {
            state: PackedState::of(ArenaState::Current),
            class: class.0,
            ..Window::free(window.touched)
        };
    }

    /// Takes an empty window from its class.
    pub fn unassign(&mut self, at: usize) {
        let window = &mut self.windows[at];
        debug_assert_eq!(window.used, 0);
        window.fresh = 0;
        self.release_chunks(at);
        self.windows[at] = Window::free(self.windows[at].touched);
    }

    /// How many more pages the next object touches.
    pub fn touched_by_next(&self, at: usize, shape: &Shape) -> usize {
        let window = &self.windows[at];
        if window.free as u32 != LAST {
            return 0;
        }
        shape
            .pages(window.fresh as usize + 1)
            .saturating_sub(window.touched as usize)
    }

    /// Takes a free object for `owner`; there must be one.
    pub fn take(&mut self, at: usize, shape: &Shape, owner: EntryId) -> u8 {
        let window = &mut self.windows[at];
        debug_assert!(window.used < shape.objects);
        window.used += 1;
        let object = if window.free as u32 == LAST {
            let object = window.fresh as usize;
            window.fresh += 1;
            let pages = shape.pages(window.fresh as usize) as u8;
            window.touched = window.touched.max(pages);
            if object.is_multiple_of(CHUNK) {
                self.windows[at].chunks[object / CHUNK] = self.take_chunk();
            }
            object
        } else {
            let object = window.free as usize;
            let next = self.entry(at, object);
            debug_assert_eq!(next & LIVE, 0);
            self.windows[at].free = next as u16;
            object
        };
        self.set_entry(at, object, LIVE | owner.0 & OWNER_MASK);
        object as u8
    }

    /// Frees a live object.
    pub fn release(&mut self, at: usize, object: u8) {
        assert_ne!(
            self.entry(at, object as usize) & LIVE,
            0,
            "pool object freed twice"
        );
        self.set_entry(at, object as usize, u32::from(self.windows[at].free));
        self.windows[at].free = u16::from(object);
        self.windows[at].used -= 1;
    }

    /// Writes an object.
    pub fn write(&mut self, at: usize, shape: &Shape, object: u8, data: &[u8]) {
        let room = &mut self.window_bytes_mut(at)[shape.start(object)..];
        room[..shape.size as usize].copy_from_slice(data);
    }

    /// An object's bytes.
    pub fn object(&self, at: usize, shape: &Shape, object: u8) -> &[u8] {
        &self.window_bytes(at)[shape.start(object)..][..shape.size as usize]
    }

    /// Both parts of an object: its entry in the table, and its bytes.
    pub fn parts(&self, at: usize, shape: &Shape, object: u8) -> [&[u8]; 2] {
        let entry = &self.bytes[self.place_of(at, object as usize)];
        [entry, self.object(at, shape, object)]
    }

    /// The low bits of the owner of an object, if it is live.
    pub fn owner(&self, at: usize, object: u8) -> Option<u32> {
        if object as usize >= self.fresh(at) {
            return None;
        }
        let entry = self.entry(at, object as usize);
        (entry & LIVE != 0).then_some(entry & OWNER_MASK)
    }

    /// The first free object below `object`, from `low` on.
    pub fn hole_below(&self, at: usize, low: u8, object: u8) -> Option<u8> {
        (low..object).find(|&hole| self.owner(at, hole).is_none())
    }

    /// Moves a live object to a free place. The free list is wrong until [`Arena::trim`]: for
    /// windows that take no new objects.
    pub fn shift(&mut self, at: usize, shape: &Shape, from: u8, to: u8) {
        let (source, target) = (shape.start(from), shape.start(to));
        let size = shape.size as usize;
        let entry = self.entry(at, from as usize);
        debug_assert_ne!(entry & LIVE, 0);
        debug_assert_eq!(self.entry(at, to as usize) & LIVE, 0);
        self.window_bytes_mut(at)
            .copy_within(source..source + size, target);
        self.set_entry(at, to as usize, entry);
        self.set_entry(at, from as usize, LAST);
    }

    /// Pages that squeezing the window gives back.
    pub fn spare_pages(&self, at: usize, shape: &Shape) -> usize {
        shape.pages(self.fresh(at)) - shape.pages(self.used(at))
    }

    /// Lists the holes anew, and returns the memory behind the last live object: how many free
    /// objects there are less, and how many bytes.
    pub fn trim(&mut self, at: usize, shape: &Shape, memory: &dyn Memory) -> (u16, u64) {
        let old = self.windows[at].fresh;
        let live = |object: &u16| self.owner(at, *object as u8).is_some();
        let fresh = (0..old).rev().find(live).map_or(0, |last| last + 1);
        let mut free = LAST;
        for object in (0..fresh as usize).rev() {
            if self.entry(at, object) & LIVE == 0 {
                self.set_entry(at, object, free);
                free = object as u32;
            }
        }
        let window = &mut self.windows[at];
        (window.fresh, window.free) = (fresh, free as u16);
        self.release_chunks(at);
        let bytes = self.keep_pages(at, shape.pages(fresh as usize), memory);
        (old - fresh, bytes)
    }

    /// Returns what a window holds beyond its first `pages`; how many bytes.
    pub fn keep_pages(&mut self, at: usize, pages: usize, memory: &dyn Memory) -> u64 {
        let behind = pages * PAGE_SIZE..self.touched(at) * PAGE_SIZE;
        if behind.is_empty() {
            return 0;
        }
        let bytes = behind.len() as u64;
        memory.give_back(&mut self.window_bytes_mut(at)[behind]);
        self.windows[at].touched = pages as u8;
        bytes
    }

    /// Makes a window give back, from now on, all pages that no live object lies in; how many bytes
    /// that is at once.
    pub fn freeze(&mut self, at: usize, shape: &Shape, memory: &dyn Memory) -> u64 {
        self.set_state(at, ArenaState::Frozen);
        self.give_back_unused(at, shape, 0..self.touched(at), memory)
    }

    /// Frees a live object of a frozen window; how many bytes go back.
    pub fn release_frozen(
        &mut self,
        at: usize,
        shape: &Shape,
        object: u8,
        memory: &dyn Memory,
    ) -> u64 {
        self.release(at, object);
        let first = shape.start(object) / PAGE_SIZE;
        self.give_back_unused(at, shape, first..shape.pages(object as usize + 1), memory)
    }

    /// Returns those of a window's pages in which no live object lies, all of which it holds.
    fn give_back_unused(
        &mut self,
        at: usize,
        shape: &Shape,
        pages: Range<usize>,
        memory: &dyn Memory,
    ) -> u64 {
        let size = shape.size as usize;
        let mut given = 0;
        for page in pages {
            let bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            let mut objects = bytes.start / size..bytes.end.div_ceil(size).min(self.fresh(at));
            if !objects.any(|object| self.owner(at, object as u8).is_some()) {
                memory.give_back(&mut self.window_bytes_mut(at)[bytes]);
                given += 1;
            }
        }
        self.windows[at].touched -= given;
        u64::from(given) * PAGE_SIZE as u64
    }

    /// Ends that. The bytes that new objects may fill count as held again before they are: how many.
    pub fn thaw(&mut self, at: usize, shape: &Shape, memory: &dyn Memory) -> u64 {
        let held = self.touched(at);
        self.trim(at, shape, memory);
        let pages = shape.pages(self.fresh(at));
        self.windows[at].touched = pages as u8;
        ((pages - held) * PAGE_SIZE) as u64
    }

    /// Objects ever used.
    pub fn fresh(&self, at: usize) -> usize {
        self.windows[at].fresh as usize
    }

    /// Returns a free window's memory; how many bytes.
    pub fn give_back(&mut self, at: usize, memory: &dyn Memory) -> u64 {
        debug_assert_eq!(self.state(at), ArenaState::Free);
        self.keep_pages(at, 0, memory)
    }

    /// Whether no window belongs to a class or holds memory.
    pub fn is_idle(&self) -> bool {
        self.windows
            .iter()
            .all(|w| w.state.get() == ArenaState::Free && w.touched == 0)
    }

    pub fn check(&self, at: usize, shape: Option<&Shape>) {
        let window = &self.windows[at];
        let chunks = window.chunks.iter().filter(|&&chunk| chunk != NONE);
        assert_eq!(chunks.count(), self.fresh(at).div_ceil(CHUNK));
        let Some(shape) = shape else {
            let is = (window.state.get(), window.used, window.fresh);
            assert_eq!(is, (ArenaState::Free, 0, 0));
            return;
        };
        let live = (0..window.fresh)
            .filter(|&o| self.owner(at, o as u8).is_some())
            .count();
        assert_eq!(live, window.used as usize);
        let (mut free, mut listed) = (u32::from(window.free), 0);
        while free != LAST {
            assert!(free < u32::from(window.fresh) && self.owner(at, free as u8).is_none());
            listed += 1;
            assert!(
                listed <= window.fresh,
                "the free list of a window has a loop"
            );
            free = self.entry(at, free as usize);
        }
        assert_eq!(listed, window.fresh - window.used);
        assert!(window.fresh <= shape.objects);
        let pages = shape.pages(window.fresh as usize);
        assert!(window.state.get() == ArenaState::Frozen || pages <= window.touched as usize);
        match window.state.get() {
            ArenaState::Free => panic!("a window of a class is marked free"),
            ArenaState::Full => assert_eq!(window.used, shape.objects),
            ArenaState::Current | ArenaState::Draining => {}
            ArenaState::Frozen => assert!(window.used > 0),
            ArenaState::Partial(_) => assert!(window.used > 0 && window.used < shape.objects),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_state_is_the_state() {
        let partial = [0, 1, Handle::MAX_WINDOWS].map(ArenaState::Partial);
        for state in PackedState::OTHERS.into_iter().chain(partial) {
            assert_eq!(PackedState::of(state).get(), state);
        }
    }
}
