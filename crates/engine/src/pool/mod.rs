//! The compressed pool: objects of up to three pages, packed by size class.
//!
//! # Layout
//!
//! Memory comes in *arenas* of 32 MiB of addresses, each cut into 128 *windows* of 256 KiB. A
//! window belongs to one size class, and has up to 256 objects of it; the rest of its addresses is
//! never touched and costs nothing. It has a table with three bytes an object: the entry that owns it,
//! or the next free object. Objects never used yet are counted, not listed, so a fresh
//! window's pages, and its table, are touched as they are filled.
//!
//! An object has its class's size; what the codec wrote is followed by zeros. The class
//! also says the codec. So an object needs no header.
//!
//! The owner is kept in 23 bits: it names one entry of each 32 GiB. The candidates are told apart by
//! asking which entry names the object back. The entries of a block, up to four, name an object of
//! [`Codec::Block`], which goes with the last of them. Its owner is the block's first entry, and the
//! bits that this leaves say of how many pages it was made.
//!
//! # Protocol
//!
//! Processors are divided into shards. A shard fills one window of each class, under its *filling* lock.
//! A class's *partial* lock guards the list of its windows with holes, and an arena's lock its bytes and
//! its windows' states. Order: filling, partial, arena; the lists of free windows are leaves. An object
//! is reachable through its entry's word alone. A thread that holds the entry's cluster lock and sees
//! its word name the object may read it: nobody frees it meanwhile.
//!
//! A batch takes the filling lock once, and an arena's once for objects that follow each other
//! in it, as those stored or freed together mostly do ([`Held`]).
//!
//! Emptied windows keep their memory for the next class that needs one;
//! [`Pool::give_back`], run in the background, returns it.
//!
//! Not here: whether to store, what to evict, how to compress.

mod arena;
mod check;
mod class;
mod compact;
mod freeze;
mod layout;
#[cfg(all(test, loom))]
mod models;
mod sizes;
#[cfg(all(test, not(loom)))]
mod tests;
mod windows;

pub use arena::OWNER_STRIDE;
pub use class::{BLOCK_STEP, Class, MAX_BLOCK, MAX_COMPRESSED, MAX_OBJECT, STEP};
pub use compact::{Victim, Worth};
pub use sizes::Sizes;

use crate::codec::Codec;
use crate::entries::Handle;
use crate::env::Memory;
use crate::locks::{Guard, LockRank, Ordered, lock};
use crate::{BLOCK_PAGES, Cpu, EntryId, PAGE_SIZE};
use arena::{Arena, ArenaState};
use class::{CLASSES, Classes, PAGE_CLASSES};
use layout::WINDOWS;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The most that a pool can be allowed to hold. A pool of objects smaller than a sixteenth of a page may
/// be stopped before, by the number of objects that handles can name: 2^28.
pub const MAX_BYTES: u64 = 128 << 30;

/// The pool is at its limit, or every window is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// Whether an object may take more memory, or only what the pool holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grow {
    Yes,
    No,
    /// Even beyond the limit.
    Beyond,
}

/// Partial windows looked at for one with a hole, or for the emptiest.
const LOOKED_AT: usize = 128;

/// An object to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The way in which `data` is to be read.
    pub codec: Codec,
    /// The bytes as the codec wrote them, padded with zeros to the size of a class ([`Sizes::fitting`]).
    pub data: &'a [u8],
    /// The entry that will name it; of a block, the first entry that could.
    pub owner: EntryId,
    /// Pages in it: one, but for a block.
    pub pages: u8,
}

impl Object<'_> {
    /// Its entry in the table.
    fn mark(&self) -> EntryId {
        match self.codec {
            Codec::Block => self.owner.plus(u32::from(self.pages) - 1),
            _ => self.owner,
        }
    }
}

/// The owner of a block's object, of what the table says.
const fn first_of_block(mark: u32) -> u32 {
    mark / BLOCK_PAGES as u32 * BLOCK_PAGES as u32
}

const _: () = assert!(BLOCK_PAGES.is_power_of_two());

/// Arenas that lie together: one alone would cost an allocation and a pointer each.
const GROUP: usize = if cfg!(loom) { 1 } else { 8 };
/// Groups in the directory's leaves.
const GROUPS: usize = if cfg!(loom) { 2 } else { 8 };
/// Arenas in a leaf.
const LEAF: usize = GROUPS * GROUP;
/// Leaves; loom, whose stacks are small, gets few.
const TOP: usize = if cfg!(loom) {
    2
} else {
    Handle::MAX_WINDOWS as usize / WINDOWS / LEAF
};

type Slot = Ordered<Option<Arena>, { LockRank::Arena as usize }>;
/// One of the directory, locked.
type SlotGuard<'a> = Guard<'a, Option<Arena>, { LockRank::Arena as usize }>;
type Group = Box<[Slot; GROUP]>;
type Leaf = Box<[OnceLock<Group>; GROUPS]>;
/// The window of each class that a shard fills.
type Filling = Box<[Option<u32>]>;

/// A class's windows with a free object; each knows its position here.
type Partial = Ordered<Vec<u32>, { LockRank::PoolPartial as usize }>;

/// The common part of a shard's processors: the window that each class fills now, and windows that
/// belong to no class, of arenas this shard made.
#[repr(align(64))]
struct Shard {
    filling: Ordered<Filling, { LockRank::PoolFilling as usize }>,
    /// Objects of each class that its processors put in; written under the filling lock.
    put: Box<[AtomicI64]>,
    /// Objects of each class that were freed in its arenas, whoever put them in.
    freed: Box<[AtomicI64]>,
    /// Free objects of each class that lie in touched pages of its arenas, those in frozen
    /// windows aside.
    holes: Box<[AtomicI64]>,
    free: Ordered<FreeWindows, { LockRank::Leaf as usize }>,
}

/// Most shards. More would let more processors store pages of one class at the same time,
/// and leave more windows begun.
const MAX_SHARDS: usize = 8;

#[derive(Default)]
struct FreeWindows {
    /// Still holding memory.
    warm: Vec<u32>,
    /// Holding none.
    cold: Vec<u32>,
    /// Arenas ever made by this shard; the windows of later ones are in no list.
    arenas: u32,
    /// Arenas given back whole: their windows are in no list either.
    gone: Vec<u32>,
}

/// Invariants: `bytes` = pages touched over all windows, in bytes; `data` = Σ size of live objects; Σ
/// `holes[c]` over the shards = free objects in touched pages of the windows of class c that are not
/// frozen. A window of no class is listed as warm if it holds pages, else as cold.
pub struct Pool {
    classes: Classes,
    partial: Box<[Partial]>,
    shards: Box<[Shard]>,
    sizes: Arc<Sizes>,
    top: Box<[OnceLock<Leaf>; TOP]>,
    memory: Arc<dyn Memory>,
    max: AtomicU64,
    bytes: AtomicU64,
    /// Bytes of the directory below its top.
    directory: AtomicUsize,
    /// Bytes that the windows' tables hold.
    tables: AtomicUsize,
    /// Entries that name objects, beyond one for each.
    extra_refs: AtomicI64,
}

/// The pool's content, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    /// Memory really held: every touched page of every window.
    pub bytes: u64,
    /// Σ size of the stored objects.
    pub data: u64,
    /// Stored objects.
    pub objects: u64,
    /// Stored pages.
    pub pages: u64,
    /// Directory, lists and window states.
    pub bookkeeping: u64,
}

impl Pool {
    /// An empty pool that will hold at most `max` bytes, and blocks if that is said.
    pub fn new(max: u64, memory: Arc<dyn Memory>, cpus: usize, blocks: bool) -> Self {
        let classes = if blocks { CLASSES } else { PAGE_CLASSES };
        let counts = || (0..classes).map(|_| AtomicI64::new(0)).collect();
        let shard = |_| Shard {
            filling: Ordered::new(vec![None; classes].into()),
            put: counts(),
            freed: counts(),
            holes: counts(),
            free: Ordered::default(),
        };
        let shards = cpus.clamp(1, MAX_SHARDS);
        Self {
            classes: Classes::new(),
            partial: (0..classes).map(|_| Ordered::default()).collect(),
            shards: (0..shards).map(shard).collect(),
            sizes: Arc::new(Sizes::new(shards, classes)),
            top: Box::new([const { OnceLock::new() }; TOP]),
            memory,
            max: AtomicU64::new(max),
            bytes: AtomicU64::new(0),
            directory: AtomicUsize::new(0),
            tables: AtomicUsize::new(0),
            extra_refs: AtomicI64::new(0),
        }
    }

    /// The most bytes it may hold.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Sets the most bytes it may hold; what is above stays until written back.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Relaxed);
    }

    /// Bytes of memory really held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Live objects of a class.
    fn live_of(&self, class: Class) -> u64 {
        let live =
            |s: &Shard| s.put[class.index()].load(Relaxed) - s.freed[class.index()].load(Relaxed);
        self.shards.iter().map(live).sum::<i64>().max(0) as u64
    }

    /// Live objects, and Σ their size. Objects are counted where they are put and where they lie:
    /// only the sums over all shards mean something.
    fn live(&self) -> (u64, u64) {
        let (mut objects, mut data) = (0, 0);
        for class in (0..self.partial.len()).map(|class| Class(class as u16)) {
            let of_class = self.live_of(class);
            objects += of_class;
            data += of_class * u64::from(self.classes.get(class).size);
        }
        (objects, data)
    }

    /// The sizes of objects, for callers that make them.
    pub fn sizes(&self) -> &Arc<Sizes> {
        &self.sizes
    }

    fn data(&self) -> u64 {
        self.live().1
    }

    /// Its content.
    pub fn usage(&self) -> Usage {
        let shards: usize = self
            .shards
            .iter()
            .map(|shard| {
                let free = lock(&shard.free);
                let lists = free.warm.capacity() + free.cold.capacity() + free.gone.capacity();
                lists * 4
                    + self.partial.len() * size_of::<Option<u32>>()
                    + 3 * size_of_val(&*shard.holes)
            })
            .sum();
        let partial: usize = self
            .partial
            .iter()
            .map(|p| lock(p).capacity() * 4 + size_of_val(p))
            .sum();
        let directory = size_of_val(&*self.top) + self.directory.load(Relaxed);
        let (objects, data) = self.live();
        Usage {
            bytes: self.bytes(),
            data,
            objects,
            pages: objects.saturating_add_signed(self.extra_refs.load(Relaxed)),
            bookkeeping: (shards
                + partial
                + directory
                + self.sizes.bytes()
                + self.tables.load(Relaxed)) as u64,
        }
    }

    fn arena(&self, window: u32) -> &Slot {
        let arena = window as usize / WINDOWS;
        let leaf = self.top[arena / LEAF].get_or_init(|| {
            self.directory
                .fetch_add(size_of::<[OnceLock<Group>; GROUPS]>(), Relaxed);
            Box::new([const { OnceLock::new() }; GROUPS])
        });
        let group = leaf[arena % LEAF / GROUP].get_or_init(|| {
            self.directory
                .fetch_add(size_of::<[Slot; GROUP]>(), Relaxed);
            Box::new(std::array::from_fn(|_| Ordered::new(None)))
        });
        &group[arena % GROUP]
    }

    /// Runs `f` on a window's arena, which exists.
    fn with<R>(&self, window: u32, f: impl FnOnce(&mut Arena, usize) -> R) -> R {
        let mut guard = lock(self.arena(window));
        f(known(&mut guard), window as usize % WINDOWS)
    }

    /// Stores one object.
    pub fn insert(&self, cpu: Cpu, object: Object<'_>) -> Result<Handle, Full> {
        let shard = cpu.index() % self.shards.len();
        self.insert_in(shard, &object, Grow::Yes)
    }

    /// The same where the pool may pass its limit by the pages that this takes, as it replaces others.
    pub fn insert_beyond(&self, cpu: Cpu, object: Object<'_>) -> Result<Handle, Full> {
        let shard = cpu.index() % self.shards.len();
        self.insert_in(shard, &object, Grow::Beyond)
    }

    /// Stores those objects of a batch that have no handle yet; how many still have none.
    pub fn insert_each<'a>(
        &self,
        cpu: Cpu,
        objects: impl Iterator<Item = (Object<'a>, &'a mut Option<Handle>)>,
    ) -> usize {
        let shard = cpu.index() % self.shards.len();
        let mut filling = lock(&self.shards[shard].filling);
        let mut held = Held::new(self);
        let mut refused = 0;
        for (object, handle) in objects.filter(|(_, handle)| handle.is_none()) {
            *handle = self
                .put(shard, &mut filling, &mut held, &object, Grow::Yes)
                .ok();
            refused += usize::from(handle.is_none());
        }
        refused
    }

    fn insert_in(&self, shard: usize, object: &Object<'_>, grow: Grow) -> Result<Handle, Full> {
        let mut filling = lock(&self.shards[shard].filling);
        self.put(shard, &mut filling, &mut Held::new(self), object, grow)
    }

    /// Puts an object into the window that the shard fills with its class.
    fn put(
        &self,
        shard: usize,
        filling: &mut Filling,
        held: &mut Held<'_>,
        object: &Object<'_>,
        grow: Grow,
    ) -> Result<Handle, Full> {
        let class = Class::fitting(object.codec, object.data.len());
        let shape = self.classes.get(class);
        debug_assert_eq!(object.data.len(), shape.size as usize);
        let current = &mut filling[class.index()];
        let mut window = match *current {
            Some(window) => window,
            None => {
                held.release();
                *current.insert(self.next_window(shard, class)?)
            }
        };
        let (mut arena, mut at) = held.of(window);
        let touched = arena.touched_by_next(at, shape);
        if touched > 0 && !self.grow((touched * PAGE_SIZE) as u64, grow) {
            held.release();
            window = *current.insert(self.exchange(class, window).ok_or(Full)?);
            (arena, at) = held.of(window);
        }
        let hole = arena.has_hole(at);
        let tables = arena.table_bytes();
        let place = arena.take(at, shape, object.mark());
        let more = arena.table_bytes() - tables;
        arena.write(at, shape, place, object.data);
        if arena.is_full(at, shape) {
            arena.set_state(at, ArenaState::Full);
            *current = None;
        }
        let put = &self.shards[shard].put[class.index()];
        put.store(put.load(Relaxed) + 1, Relaxed);
        if hole {
            self.holes_of(class, window).fetch_sub(1, Relaxed);
        }
        if more > 0 {
            self.tables.fetch_add(more, Relaxed);
        }
        Ok(Handle::new(window, place))
    }

    /// Counts `more` bytes if the pool may hold them.
    fn grow(&self, more: u64, grow: Grow) -> bool {
        let before = self.bytes.fetch_add(more, Relaxed);
        let good = match grow {
            Grow::Yes => before + more <= self.max(),
            Grow::No => false,
            Grow::Beyond => true,
        };
        if !good {
            self.bytes.fetch_sub(more, Relaxed);
        }
        good
    }

    fn shard_of(&self, window: u32) -> &Shard {
        &self.shards[window as usize / WINDOWS % self.shards.len()]
    }

    /// The holes of a class that are counted where a window lies.
    fn holes_of(&self, class: Class, window: u32) -> &AtomicI64 {
        &self.shard_of(window).holes[class.index()]
    }

    /// Free objects of a class in touched pages.
    fn holes(&self, class: usize) -> i64 {
        self.shards
            .iter()
            .map(|s| s.holes[class].load(Relaxed))
            .sum()
    }

    /// Counts more entries, or fewer, that name objects which others name, too.
    pub fn count_extra_refs(&self, more: i64) {
        self.extra_refs.fetch_add(more, Relaxed);
    }

    /// Whether an object lies in a window that a fork froze.
    pub fn is_frozen(&self, handle: Handle) -> bool {
        self.with(handle.window(), |arena, at| {
            arena.state(at) == ArenaState::Frozen
        })
    }

    /// Copies an object into `out`; how many bytes, and the codec. If there is no room for them, none is
    /// copied.
    pub fn read(&self, handle: Handle, out: &mut [u8]) -> (usize, Codec) {
        self.with(handle.window(), |arena, at| {
            let class = arena.class(at);
            let shape = self.classes.get(class);
            if let Some(out) = out.get_mut(..shape.size as usize) {
                out.copy_from_slice(arena.object(at, shape, handle.object()));
            }
            (shape.size as usize, shape.codec)
        })
    }

    /// Changes a byte of an object, as a fault of the machine would.
    #[cfg(test)]
    pub fn damage(&self, handle: Handle, byte: usize) {
        self.with(handle.window(), |arena, at| {
            let shape = *self.classes.get(arena.class(at));
            let mut data = arena.object(at, &shape, handle.object()).to_vec();
            data[byte] ^= 1;
            arena.write(at, &shape, handle.object(), &data);
        });
    }

    /// Says that an object will be read and freed soon.
    pub fn prefetch(&self, handle: Handle) {
        self.with(handle.window(), |arena, at| {
            let shape = self.classes.get(arena.class(at));
            for bytes in arena.parts(at, shape, handle.object()) {
                self.memory.prefetch(bytes);
            }
        });
    }

    /// Whether an object is live and may belong to `entry`.
    pub fn names(&self, handle: Handle, entry: EntryId) -> bool {
        self.with(handle.window(), |arena, at| {
            let is_block = self.classes.get(arena.class(at)).codec == Codec::Block;
            let mark = arena.owner(at, handle.object());
            if is_block {
                mark.map(first_of_block) == Some(entry.block()[0].0 % OWNER_STRIDE)
            } else {
                mark == Some(entry.0 % OWNER_STRIDE)
            }
        })
    }

    /// How many pages a live object was made of.
    pub fn pages(&self, handle: Handle) -> u16 {
        self.with(handle.window(), |arena, at| {
            let is_block = self.classes.get(arena.class(at)).codec == Codec::Block;
            let mark = arena.owner(at, handle.object()).filter(|_| is_block);
            1 + mark.map_or(0, |mark| mark - first_of_block(mark)) as u16
        })
    }

    /// Objects that were ever put in, to be found or moved.
    pub fn puts(&self) -> u64 {
        let puts = self.shards.iter().flat_map(|shard| &shard.put);
        puts.map(|put| put.load(Relaxed) as u64).sum()
    }

    /// Frees an object; the bytes it was charged as.
    pub fn remove(&self, handle: Handle) -> u64 {
        self.remove_each(std::iter::once(handle))
    }

    /// Frees objects; the bytes they were charged as.
    pub fn remove_each(&self, handles: impl Iterator<Item = Handle>) -> u64 {
        let mut held = Held::new(self);
        let mut bytes = 0;
        let mut handles = handles.peekable();
        while let Some(first) = handles.next() {
            let window = first.window();
            let (arena, at) = held.of(window);
            let (class, state) = (arena.class(at), arena.state(at));
            let shape = self.classes.get(class);
            let (mut count, mut given) = (0, 0);
            let mut next = Some(first);
            while let Some(handle) = next {
                if state == ArenaState::Frozen {
                    given += arena.release_frozen(at, shape, handle.object(), &*self.memory);
                } else {
                    arena.release(at, handle.object());
                }
                count += 1;
                next = handles.next_if(|handle| handle.window() == window);
            }
            let emptied = arena.used(at) == 0;
            if state == ArenaState::Frozen {
                self.bytes.fetch_sub(given, Relaxed);
            } else {
                self.holes_of(class, window).fetch_add(count, Relaxed);
            }
            self.shard_of(window).freed[class.index()].fetch_add(count, Relaxed);
            if state == ArenaState::Full || emptied && state != ArenaState::Current {
                held.release();
                self.settle(class, window);
            }
            bytes += u64::from(shape.size) * count as u64;
        }
        bytes
    }
}

/// An arena that stays locked from one object of a batch to the next.
struct Held<'a> {
    pool: &'a Pool,
    arena: Option<(usize, SlotGuard<'a>)>,
}

impl<'a> Held<'a> {
    fn new(pool: &'a Pool) -> Self {
        Self { pool, arena: None }
    }

    /// The arena of a window, which exists, and the window's number there.
    #[inline]
    fn of(&mut self, window: u32) -> (&mut Arena, usize) {
        let number = window as usize / WINDOWS;
        if self.arena.as_ref().is_none_or(|(held, _)| *held != number) {
            // One at a time: the other goes first.
            self.release();
        }
        let (_, guard) = self
            .arena
            .get_or_insert_with(|| (number, lock(self.pool.arena(window))));
        (known(guard), window as usize % WINDOWS)
    }

    /// Before any other lock of the pool is waited for.
    fn release(&mut self) {
        self.arena = None;
    }
}

/// The arena of a window that is in use.
fn known(guard: &mut Option<Arena>) -> &mut Arena {
    guard
        .as_mut()
        .unwrap_or_else(|| unreachable!("a window in use has an arena"))
}
