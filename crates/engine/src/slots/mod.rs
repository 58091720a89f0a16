//! The slot allocator and the devices: room on swap devices for folios of every order.
//!
//! A device is divided into clusters of 512 slots. Slots of one order are cut from a cluster until it is
//! full. A processor keeps one current cluster for each order, its *cursor*. That cluster is on no list
//! and moves into the processor's own state, so that allocating takes one lock and touches only lines of
//! that processor. So does the first full cluster that it opens by freeing a folio: its next current
//! one. The device's lists are looked at only when a cursor is used up and no slot that the processor
//! gave back can be recycled: FREE, NONFULL and FRAG of the order. Then cached slots are reclaimed,
//! waiting discards done, other orders' clusters and other processors' cursors used. A folio that has no
//! aligned place anywhere gets several runs of slots, as few as can be found; its entries are contiguous
//! all the same (*virtual contiguity*).
//!
//! A returned single slot is free at once where its cluster stays on its list. Where the cluster would
//! have to move, the slot waits in a cache of the processor. There it is recycled, freed in a batch by a
//! worker ([`Devices::work`]), or freed by the free that finds the cache full. Larger runs are freed at
//! once.
//!
//! The table of a cluster has the owner of each of its slots. The worker packs the tables of clusters
//! with many free slots (`pack`), also of those that rest in a processor's hands. So a slot in use costs
//! at most 6 bytes wherever it lies, beside the cell of its cluster (`cluster_directory`); with the
//! cell, from a tenth of the slots on.
//!
//! Room that another thread has out of reach for the moment, as in a discard, makes no allocation fail:
//! one that finds too little elsewhere waits for it (`in_flight`).
//!
//! # Locks
//!
//! Outer to inner; none is held across a call to a store, a lender's `acquire` or
//! `release`, [`CacheReclaim`] or [`Mover`]:
//!
//! 1. `control`: the device table and the lists of device choice
//! 2. a processor's state: current clusters, return cache
//! 3. a rotating device's cursor
//! 4. a cluster that is in no processor's hands
//! 5. a device's lists
//! 6. the counts of room under way
//!
//! [`crate::locks`] sees to it in debug builds.
//! A cluster's lock is taken while the lists' is held only by trying. Two clusters are
//! never locked together, nor two processors.
//!
//! # What this module does not do
//!
//! It moves no data but through [`Mover`], knows nothing of entries but their numbers, and starts no
//! thread. An embedder calls [`Devices::work`] now and then; without that everything stays correct, only
//! slower.

mod check;
mod cluster;
mod compact;
mod cursors;
mod device;
mod drain;
mod error;
mod extent;
mod fork;
mod free;
#[cfg(all(test, loom))]
mod models;
mod options;
mod pack;
mod per_cpu;
mod reclaim;
mod recycle;
mod request;
mod room;
mod scatter;
mod search;
mod service;
#[cfg(all(test, not(loom)))]
mod tests;
mod work;

pub use device::device_order::DeviceChoice;
pub use drain::{Drain, Moved, Mover};
pub use error::{AddError, AllocError, DrainError, FreeError, SlotError};
pub use extent::{Extent, ExtentList};
pub use options::{DeviceSpec, DeviceUsage, Options};
pub use room::DrainEstimate;

use crate::env::{Lender, Store, Topology};
use crate::locks::{CachePadded, LockRank, Ordered, lock};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use crate::types::{
    CLUSTER_SLOTS, ClusterIndex, Cpu, DeviceId, EntryId, MAX_DEVICE_SLOTS, MAX_DEVICES, SlotIndex,
};
use device::Device;
use device::device_order::DeviceOrder;
use device::in_flight::InFlight;
use device::usage::UsageCount;
use per_cpu::PerCpu;
use std::sync::{Arc, OnceLock};

/// Write errors, less those forgiven, after which a device takes no more allocations.
pub const DEVICE_ERROR_LIMIT: u32 = 16;
/// Pages written well that forgive one error: a device with a bad spot here and there stays in
/// service, one that fails more often than this goes.
pub const FORGIVING_PAGES: u32 = 32;

/// Drops the slots of entries whose page is in memory too. Implemented by the virtual swap
/// space; called with none of this module's locks held, by an allocation or the worker.
///
/// Other allocations may wait for that one: so it calls no [`Devices::allocate`], and only tries
/// locks under which anybody does.
pub trait CacheReclaim: Send + Sync {
    /// Gives back the slot of a cached entry, by [`Devices::free`]; false if it could not.
    fn reclaim(&self, owner: EntryId) -> bool;
}

struct Control {
    devices: [Option<Arc<Device>>; MAX_DEVICES],
    order: DeviceOrder,
}

/// All devices of one engine.
pub struct Devices {
    topology: Arc<dyn Topology>,
    options: Options,
    cpus: Box<[PerCpu]>,
    control: Ordered<Control, { LockRank::Control as usize }>,
    reclaim: OnceLock<Arc<dyn CacheReclaim>>,
    mover: OnceLock<Arc<dyn Mover>>,
    /// Flag: a return cache, a discard or a frozen cluster waits for [`Devices::work`].
    wanted: CachePadded<AtomicBool>,
    /// Devices there are.
    count: CachePadded<AtomicU32>,
    /// Room that is out of reach for the moment.
    in_flight: Arc<InFlight>,
    /// Flag: the last step of background work found nothing to do.
    rested: AtomicBool,
}

impl Devices {
    /// No devices yet. `topology` says how many processors there are, and their nodes.
    pub fn new(topology: Arc<dyn Topology>, options: Options) -> Self {
        let cpus = topology.cpus().max(1);
        let nodes = (0..cpus)
            .map(|c| topology.node(Cpu(c as u16)).index() + 1)
            .max();
        Self {
            options,
            cpus: (0..cpus).map(|_| PerCpu::new()).collect(),
            control: Ordered::new(Control {
                devices: std::array::from_fn(|_| None),
                order: DeviceOrder::new(options.choice, nodes.unwrap_or(1)),
            }),
            topology,
            reclaim: OnceLock::new(),
            mover: OnceLock::new(),
            wanted: CachePadded(AtomicBool::new(false)),
            count: CachePadded(AtomicU32::new(0)),
            in_flight: Arc::new(InFlight::new()),
            rested: AtomicBool::new(true),
        }
    }

    /// Says who can drop the slots of cached entries. Only the first call counts.
    pub fn set_cache_reclaim(&self, reclaim: Arc<dyn CacheReclaim>) {
        let _ = self.reclaim.set(reclaim);
    }

    /// Says who can move a slot's content, for compaction. Only the first call counts.
    pub fn set_mover(&self, mover: Arc<dyn Mover>) {
        let _ = self.mover.set(mover);
    }

    /// Puts a device into service. With a `lender`, only clusters it lends are used. What is less than a cluster at
    /// the device's end is not used.
    ///
    /// # Errors
    /// The device is too small or too large, or there are too many.
    pub fn add(
        &self,
        store: Arc<dyn Store>,
        spec: DeviceSpec,
        lender: Option<Arc<dyn Lender>>,
    ) -> Result<DeviceId, AddError> {
        let slots = store.slots();
        if slots < CLUSTER_SLOTS as u64 {
            return Err(AddError::TooSmall { slots });
        }
        if slots > MAX_DEVICE_SLOTS {
            return Err(AddError::TooLarge { slots });
        }
        let clusters = (slots / CLUSTER_SLOTS as u64) as u32;
        let mut control = lock(&self.control);
        let free = control.devices.iter().position(Option::is_none);
        let id = DeviceId(free.ok_or(AddError::TooMany)? as u8);
        let device = Arc::new(Device::new(
            id,
            clusters,
            spec,
            store,
            lender,
            self.in_flight.clone(),
        ));
        let slots = device.slots;
        control.order.add(id, spec.priority, device.node);
        // A processor that has it in its table must not take it for the only one, and use it before the others know it. The
        // lock of the table carries the count. The first of all counts when everybody knows it.
        let is_first = self.is_empty();
        let counted = u32::from(!is_first);
        self.count.0.fetch_add(counted, Relaxed);
        for cpu in &self.cpus {
            cpu.reset(id);
            lock(&cpu.state).devices[id.index()] = Some(device.clone());
        }
        control.devices[id.index()] = Some(device);
        self.count.0.fetch_add(1 - counted, Relaxed);
        self.in_flight.freed(slots);
        Ok(id)
    }

    /// Has the worker look for work.
    fn want_work(&self) {
        if !self.wanted.0.load(Relaxed) {
            self.wanted.0.store(true, Relaxed);
        }
    }

    /// The number of the set that a processor uses.
    fn own_set(&self, cpu: Cpu) -> Cpu {
        Cpu((cpu.index() % self.cpus.len()) as u16)
    }

    fn cpu(&self, cpu: Cpu) -> &PerCpu {
        &self.cpus[self.own_set(cpu).index()]
    }

    /// The device of a slot that there is.
    fn device_of(&self, device: DeviceId, slot: SlotIndex) -> Result<Arc<Device>, SlotError> {
        let found = self.device(device).ok_or(SlotError::NoDevice(device))?;
        let slots = found.slots;
        if slot.0 >= slots {
            return Err(SlotError::OutOfRange {
                device,
                slot,
                slots,
            });
        }
        Ok(found)
    }

    /// Through the table of the processor this runs on: no lock is shared, but the count of references
    /// is. So who allocates or frees looks into that table itself.
    fn device(&self, id: DeviceId) -> Option<Arc<Device>> {
        lock(&self.cpu(self.topology.cpu()).state)
            .devices
            .get(id.index())?
            .clone()
    }

    fn devices(&self) -> Vec<Arc<Device>> {
        lock(&self.control)
            .devices
            .iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Whether there is no device at all.
    pub fn is_empty(&self) -> bool {
        self.count.0.load(Relaxed) == 0
    }

    /// The store of a device, for reading and writing slots.
    pub fn store(&self, device: DeviceId) -> Option<Arc<dyn Store>> {
        Some(self.device(device)?.store.clone())
    }

    /// Has every device free the buffers that no transfer has used since the last call.
    pub fn free_idle(&self) {
        for device in self.devices() {
            device.store.free_idle();
        }
    }

    /// How many slots of each cluster of a device are in use or out of service, of those that are ours.
    pub fn cluster_fills(&self, device: DeviceId) -> Vec<(ClusterIndex, u16)> {
        let mut fills = Vec::new();
        if let Some(device) = self.device(device) {
            self.each_cluster(&device, |c, cluster| {
                if cluster.state.is_ours() {
                    fills.push((c, cluster.count));
                }
            });
        }
        fills
    }

    /// The entry that owns a slot. None if the slot is free, given back, or out of range.
    pub fn owner(&self, device: DeviceId, slot: SlotIndex) -> Option<EntryId> {
        let device = self.device(device)?;
        let at = slot.within();
        self.with_cluster(&device, slot.cluster(), |cluster| {
            let owner = cluster.table.as_ref()?.used_owner(at)?;
            owner.entry().filter(|_| !owner.gone())
        })?
    }

    /// Says whether a slot is only a clean copy of a page in memory, and may be reclaimed. Of one that
    /// is nobody's that says nothing.
    ///
    /// # Errors
    /// There is no such device or slot.
    pub fn set_cache_only(
        &self,
        device: DeviceId,
        slot: SlotIndex,
        yes: bool,
    ) -> Result<(), SlotError> {
        let device = self.device_of(device, slot)?;
        let at = slot.within();
        self.with_cluster(&device, slot.cluster(), |cluster| {
            let Some(table) = &mut cluster.table else {
                return;
            };
            let owner = table.used_owner(at);
            if let Some(owner) = owner.filter(|owner| !owner.gone() && !owner.bad()) {
                table.set(at, owner.as_cached(yes));
                if yes && cluster.state == cluster::ClusterState::Full {
                    device.copies().say();
                }
            }
        });
        Ok(())
    }

    /// Whether a slot is only a clean copy, as [`Devices::set_cache_only`] said.
    pub fn cache_only(&self, device: DeviceId, slot: SlotIndex) -> bool {
        let Some(device) = self.device(device) else {
            return false;
        };
        let cached = self.with_cluster(&device, slot.cluster(), |cluster| {
            let table = cluster.table.as_ref();
            table.is_some_and(|table| table.owner(slot.within()).cached())
        });
        cached == Some(true)
    }

    /// Slots in use or out of service, by the counts of the processors and the device: exact when
    /// nobody allocates or frees, else never too many. Those that wait in a return cache, or for readers, are not.
    fn used(&self, device: &Device) -> u32 {
        // Only a lender has clusters frozen.
        self.used_with(
            device,
            device.lender.is_some().then(|| device.counted_idle()),
        )
    }

    /// Those of them in clusters that are ours to allocate in.
    fn used_of_ours(&self, device: &Device) -> u32 {
        self.used_with(device, None)
    }

    fn used_with(&self, device: &Device, idle: Option<&UsageCount>) -> u32 {
        let processors = self.cpus.iter().map(|cpu| cpu.counted(device.id));
        let all = processors.chain([device.counted()]).chain(idle);
        device::usage::used(all).min(device.slots.into()) as u32
    }

    /// Every device, in order of its number.
    pub fn usage(&self) -> Vec<DeviceUsage> {
        let control = lock(&self.control);
        let devices = control.devices.iter().flatten();
        devices
            .map(|d| DeviceUsage {
                device: d.id,
                slots: d.slots,
                used: self.used(d),
                bad: d.bad(),
                priority: control.order.priority(d.id),
                node: d.node,
                accepting: d.accepting(),
                errors: d.failed.load(Relaxed),
                out: d.errors.load(Relaxed) >= DEVICE_ERROR_LIMIT,
                full: d.backing().is_full(),
                rotational: d.rotational,
            })
            .collect()
    }

    /// Bytes of all the allocator's own memory.
    pub fn bookkeeping_bytes(&self) -> usize {
        let devices: usize = self.devices().iter().map(|d| d.bookkeeping_bytes()).sum();
        size_of::<Self>() + size_of_val(&*self.cpus) + devices
    }
}
