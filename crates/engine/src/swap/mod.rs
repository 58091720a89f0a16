//! The facade of swapping: takes pages, keeps them in the virtual swap space, the pool or
//! on devices, and brings them back.
//!
//! # The way of a page
//!
//! *Store*: a page whose 32-bit words are all the same is recorded in its entry. Any other is compressed
//! by a coder that the caller checks out (one for each processor), then copied into the pool, several in
//! one go. A page that does not compress is kept as it is. With the pool at its limit its coldest pages
//! make room; where they cannot, pages go to devices at once; with those full too the store is refused.
//!
//! *Load*: the bytes are copied out under the entry's cluster lock, compared with the checksum in the
//! word, and decompressed, both without any lock. The checksum (31 bits of xxh3, keyed) is that of the
//! *compressed* bytes. These are a third as many to hash on both ways, writeback and moves carry it
//! along, and no decoder sees damaged input. With `keep` the entry stays as a clean copy. The caller
//! frees it when the page is written; a page that is evicted unwritten goes back to it
//! ([`Swap::uncache`]).
//!
//! Neither allocates in a steady state, but for a table now and then (of a window of the pool, or a
//! cluster). No lock is held while compressing or waiting for a device. The locks and their order are
//! described in [`crate::entries`].
//!
//! Not here: which pages to store and when to load them (the pager).

mod background;
mod block;
mod check;
mod coders;
mod compact;
pub mod config;
mod device_io;
mod error;
mod free;
mod load;
mod pick;
mod recompress;
mod relocate;
mod same_filled;
mod slot_format;
mod store;
mod unpacked;
mod usefulness;
mod work;
mod write_batch;
mod writeback;

#[cfg(all(test, not(loom)))]
mod slow_device;
#[cfg(all(test, not(loom)))]
mod tests;

pub use config::{CodecKind, Config, ConfigError, POOL_MAX, ZSTD_LEVELS};
pub use error::{LoadError, Source, StoreError};

use crate::codec::Codecs;
use crate::counters::Counters;
use crate::entries::Locked;
use crate::entries::{Location, Space};
use crate::env::{Clock, Memory, Topology};
use crate::pool::Pool;
use crate::slots::Devices;
use crate::{Checksums, EntryId, GroupId};
use background::BackgroundSlot;
use coders::Coders;
use relocate::Relocator;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use usefulness::Usefulness;

/// Counters that live where the embedder wants them.
#[derive(Clone)]
pub enum CountersRef {
    /// In memory that is never unmapped, shared by a process tree. Where is asked at each use: after a fork the child
    /// counts elsewhere.
    Static(Arc<dyn Fn() -> &'static Counters + Send + Sync>),
    /// Anywhere else.
    Shared(Arc<Counters>),
}

impl Deref for CountersRef {
    type Target = Counters;

    #[inline(never)] // Many places count, few of them often.
    fn deref(&self) -> &Counters {
        match self {
            Self::Static(counters) => counters(),
            Self::Shared(counters) => counters,
        }
    }
}

/// The surroundings of a swap.
#[derive(Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Processors.
    pub topology: Arc<dyn Topology>,
    /// Gives memory back.
    pub memory: Arc<dyn Memory>,
    /// The counters.
    pub counters: CountersRef,
    /// Compression.
    pub codecs: Arc<dyn Codecs>,
    /// The key of checksums.
    pub checksums: Checksums,
}

/// Where an entry's page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Every byte is zero; nothing is kept.
    Zero,
    /// Every 32-bit word is the same; nothing is kept.
    SameFilled,
    /// In the pool.
    Pool,
    /// On a device.
    Slot,
    /// Only in memory: the cached entry's copy was given up to make room. Such an entry
    /// can only be freed; [`Swap::uncache`] says false for it.
    Memory,
    /// Nowhere: the entry is free, or its store has not finished. Asking then is a bug.
    None,
}

/// Memory used by swapping, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Memory really held by the pool, slack included.
    pub pool_bytes: u64,
    /// Σ size of the pool's objects.
    pub pool_data_bytes: u64,
    /// Pages in the pool.
    pub pool_pages: u64,
    /// Entries, directories, lists, scratch.
    pub bookkeeping_bytes: u64,
}

/// No group is written back before the others.
const IN_TURN: u32 = u32::MAX;

/// See the module.
pub struct Swap {
    config: Config,
    env: Env,
    space: Arc<Space>,
    pool: Arc<Pool>,
    coders: Arc<Coders>,
    blocks: Usefulness,
    /// Pages that a drain may still put into the pool.
    drained: Arc<AtomicU64>,
    devices: Option<Arc<Devices>>,
    /// The time when a load last used a device.
    last_load_ns: AtomicU64,
    /// The same of what other processes loaded.
    others_load_ns: AtomicU64,
    /// Flag: what has to go to devices does so in the background ([`Swap::set_patient`]).
    patient: AtomicBool,
    /// Flag: new pages go past the pool ([`Swap::set_direct`]).
    direct: AtomicBool,
    /// The time when a store that the pool refused last used a device.
    last_refused_ns: AtomicU64,
    /// Flag: [`Swap::is_newly_file_limited`] has said so.
    file_limit_told: AtomicBool,
    staging_bytes: AtomicUsize,
    /// The most pages of a batch of writeback.
    batch: AtomicUsize,
    accept_percent: AtomicU8,
    /// The group that is written back first, or [`IN_TURN`].
    first_group: AtomicU32,
    /// One thread at a time does background work.
    background_slot: BackgroundSlot,
    /// Flag: the last batch of writeback moved no page, so that waiting for another is in vain.
    in_vain: AtomicBool,
}

impl Swap {
    /// An empty swap.
    pub fn new(
        config: Config,
        env: Env,
        devices: Option<Arc<Devices>>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let cpus = env.topology.cpus();
        let space = Arc::new(Space::new(cpus));
        let (max, blocks) = (config.pool_max_bytes, config.codec.has_blocks());
        let pool = Arc::new(Pool::new(max, env.memory.clone(), cpus, blocks));
        let coders = Arc::new(Coders::new(
            cpus,
            env.codecs.clone(),
            env.checksums,
            config.codec,
            pool.sizes().clone(),
        ));
        let drained = Arc::new(AtomicU64::new(0));
        if let Some(devices) = &devices {
            let places = Arc::new(Relocator {
                space: space.clone(),
                devices: Arc::downgrade(devices),
                topology: env.topology.clone(),
                pool: pool.clone(),
                coders: coders.clone(),
                codec: config.codec,
                counters: env.counters.clone(),
                checksums: env.checksums,
                allowance: drained.clone(),
            });
            devices.set_cache_reclaim(places.clone());
            devices.set_mover(places);
        }
        Ok(Self {
            space,
            pool,
            coders,
            blocks: Usefulness::default(),
            drained,
            devices,
            last_load_ns: AtomicU64::new(0),
            others_load_ns: AtomicU64::new(0),
            patient: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            last_refused_ns: AtomicU64::new(0),
            file_limit_told: AtomicBool::new(false),
            staging_bytes: AtomicUsize::new(0),
            batch: AtomicUsize::new(write_batch::BATCH),
            accept_percent: AtomicU8::new(config.accept_threshold_percent),
            first_group: AtomicU32::new(IN_TURN),
            background_slot: BackgroundSlot::new(),
            in_vain: AtomicBool::new(false),
            config,
            env,
        })
    }

    /// Where an entry's page is now. It may move at any time.
    pub fn place(&self, entry: EntryId) -> Place {
        self.look(entry, |_| ())
    }

    /// The same, and that it will be loaded soon. Fetching its bytes from memory is half of the work;
    /// until then there is other work to do.
    pub fn prefetch(&self, entry: EntryId) -> Place {
        self.look(entry, |location| {
            if let Location::Pool(handle) = location {
                self.pool.prefetch(handle);
            }
        })
    }

    /// Where an entry's page is; `then` is called while it stays there.
    fn look(&self, entry: EntryId, then: impl FnOnce(Location)) -> Place {
        let Some(locked) = self.space.lock_if_used(entry) else {
            return Place::None;
        };
        let location = locked.word().location();
        then(location);
        match location {
            Location::Free | Location::Reserved => Place::None,
            Location::Dropped => Place::Memory,
            Location::Same(0) => Place::Zero,
            Location::Same(_) => Place::SameFilled,
            Location::Pool(_) => Place::Pool,
            Location::Slot(_) => Place::Slot,
        }
    }

    /// The group that an entry belongs to, if it is used.
    pub fn group_of(&self, entry: EntryId) -> Option<GroupId> {
        let locked = self.space.lock_if_used(entry)?;
        Some(locked.cluster().group().id)
    }

    /// The kept entry's page leaves again, and was not written since it was loaded: the entry has its
    /// only copy from now on. False if it has none to go back to, and can only be freed: its copy was
    /// given up to make room ([`Place::Memory`]).
    pub fn uncache(&self, entry: EntryId) -> bool {
        let mut locked = self.space.lock(entry);
        let word = locked.word();
        let location = word.location();
        if !word.cached() || location == Location::Dropped {
            return false;
        }
        let word = word.with_cached(false);
        match (location, &self.devices) {
            (Location::Pool(_), _) => locked.set_used(word),
            (Location::Slot(place), Some(devices)) => {
                locked.set(word.with_referenced(true));
                device_io::set_cache_only(devices, place, false);
            }
            _ => locked.set(word),
        }
        true
    }

    /// Memory used, without a walk over the entries.
    pub fn memory(&self) -> MemoryUse {
        let pool = self.pool.usage();
        MemoryUse {
            pool_bytes: pool.bytes,
            pool_data_bytes: pool.data,
            pool_pages: pool.pages,
            bookkeeping_bytes: pool.bookkeeping
                + (self.space.bytes()
                    + self.coders.bytes()
                    + self.staging_bytes.load(Relaxed)
                    + self.devices.as_ref().map_or(0, |d| d.bookkeeping_bytes()))
                    as u64,
        }
    }

    /// Memory held by the pool, as in [`Swap::memory`], at the cost of reading one word.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Entries in use.
    pub fn entries(&self) -> usize {
        self.space.used()
    }

    /// Says whether the pages of a group may be written to devices.
    pub fn set_group_writeback(&self, group: GroupId, may: bool) {
        self.space.group(group).set_writeback(may);
    }

    /// Whether they may; a new group's pages may.
    pub fn group_writeback(&self, group: GroupId) -> bool {
        self.space.group(group).writeback()
    }

    /// From now on pages of `group` are written back before those of others, which have their turn
    /// when it has none that may be. An order only: which groups may be written is another setting.
    pub fn write_back_first(&self, group: GroupId) {
        self.first_group.store(group.0.into(), Relaxed);
    }

    /// Forgets a group that ended. Its entries stay until they are freed.
    pub fn remove_group(&self, group: GroupId) {
        self.space.remove_group(group);
    }

    /// Bytes of pool objects a group holds.
    pub fn group_pool_bytes(&self, group: GroupId) -> u64 {
        self.space.group(group).pool_bytes()
    }

    /// The order in which pages came into the pool, counted in clusters of entries: the number that came
    /// so far, and the oldest whose pages are there and may go to devices. A caller that notes the time
    /// of each number can tell how old these pages are.
    pub fn pool_order(&self) -> (u64, Option<u64>) {
        let groups = self.space.groups();
        let wanted = groups.iter().filter(|group| self.can_write(group));
        let oldest = wanted.filter_map(|group| group.oldest()).min();
        (self.space.came(), oldest.map(|stamp| stamp.number()))
    }

    /// When a page was last loaded from a device here, by the engine's clock; 0: never.
    pub fn last_load_ns(&self) -> u64 {
        self.last_load_ns.load(Relaxed)
    }

    /// Somebody else loaded a page from a device at `ns`: the shrinker stands back for others, too.
    pub fn others_loaded(&self, ns: u64) {
        self.others_load_ns.fetch_max(ns, Relaxed);
    }

    /// Whether the shrinker takes its time, however near the pool is to its limit: whoever sets that has
    /// room left elsewhere.
    pub fn set_patient(&self, yes: bool) {
        self.patient.store(yes, Relaxed);
    }

    /// Whether new pages go past the pool, to devices. Where these are full the pool takes pages again.
    pub fn set_direct(&self, yes: bool) {
        self.direct.store(yes, Relaxed);
    }

    /// Whether new pages go to the pool first.
    pub fn uses_pool(&self) -> bool {
        let may = self.config.codec != CodecKind::None && !self.direct.load(Relaxed);
        may || !self.has_devices()
    }

    /// Sets the pool's limit in bytes, and the percentage of it that the shrinker works down to. The
    /// excess leaves in the background.
    pub fn set_limits(&self, pool_max_bytes: u64, accept_percent: u8) -> Result<(), ConfigError> {
        let accept_threshold_percent = accept_percent;
        Config {
            pool_max_bytes,
            accept_threshold_percent,
            ..self.config
        }
        .check()?;
        self.pool.set_max(pool_max_bytes);
        self.accept_percent.store(accept_percent, Relaxed);
        Ok(())
    }

    /// Until the next call, draining a device may put so many pages into the pool that have no room
    /// on another device. For whoever has made room for them in memory.
    pub fn let_drained_into_pool(&self, pages: u64) {
        self.drained.store(pages, Relaxed);
    }

    /// The pool's limit in bytes.
    pub fn pool_max(&self) -> u64 {
        self.pool.max()
    }

    /// Whether there is a device to write to. They may come later.
    pub fn has_devices(&self) -> bool {
        self.devices.as_ref().is_some_and(|d| !d.is_empty())
    }

    fn accept_percent(&self) -> u8 {
        self.accept_percent.load(Relaxed)
    }

    /// After a fork, in the parent; see [`Devices::fork_parent`].
    pub fn fork_parent(&self) {
        self.pool.freeze();
        if let Some(devices) = &self.devices {
            devices.fork_parent();
        }
    }

    /// After a fork, in the child; see [`Devices::fork_child`].
    pub fn fork_child(&self) {
        self.pool.freeze();
        if let Some(devices) = &self.devices {
            devices.fork_child();
        }
        self.background_slot.replace_if_taken();
    }

    /// No process is left that shares memory with this one since a fork.
    pub fn alone(&self) {
        self.pool.thaw();
        if matches!(self.config.codec, CodecKind::Lz4ThenZstd { .. }) {
            self.space.thawed();
        }
    }
}
