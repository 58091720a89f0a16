//! A processor's own state, so that the fast path touches no line of another: current clusters, the
//! return cache, a copy of the device table, counts of used slots.
//!
//! The processor number is a hint, so two threads may use one set at a time: a lock guards it,
//! uncontended as a rule. It guards the current clusters too, whole. They were moved here out of their
//! cells, so allocating in them, and freeing by the same processor, takes no other lock. A thread that
//! comes to such a cluster by its cell is told the processor ([`Devices::with_cluster`]).
//!
//! [`Devices::with_cluster`]: super::Devices::with_cluster

use super::cluster::{Cluster, ClusterState};
use super::device::Device;
use super::device::usage::UsageCount;
use crate::locks::{LockRank, Ordered};
use crate::types::{ClusterIndex, DeviceId, MAX_DEVICES, ORDERS, SlotIndex};
use std::sync::Arc;

/// Slots a return cache holds.
pub(super) const RETURNS: usize = if cfg!(loom) { 2 } else { 64 };
/// Returned slots from which on the worker is asked to come: early enough that it may
/// arrive before the cache is full.
pub(super) const RETURNS_WAKE: usize = RETURNS / 2;
/// Slots that the worker leaves to a processor that recycles its own. To free them would have it search
/// for others, which costs more than the worker spares it.
pub(super) const RETURNS_LEFT: usize = RETURNS / 4;

/// A cluster that a processor allocates in, or will.
pub(super) struct Current {
    pub device: DeviceId,
    pub index: ClusterIndex,
    /// The place to look first.
    pub next: u16,
    /// The same when the worker last asked whether it is in use ([`Current::rests`]).
    pub seen: Option<u16>,
    /// The same at the last visit of the worker while another process looked for a cluster ([`Current::rests_long`]).
    pub visited: Option<u16>,
    pub cluster: Cluster,
}

impl Current {
    /// Whether nothing was allocated in it since this was last asked.
    pub fn rests(&mut self) -> bool {
        self.seen.replace(self.next) == Some(self.next)
    }

    /// The same, from one such visit to the next.
    pub fn rests_long(&mut self) -> bool {
        self.visited.replace(self.next) == Some(self.next)
    }

    pub fn is(&self, device: DeviceId, c: ClusterIndex) -> bool {
        self.index == c && self.device == device
    }
}

/// A slot on its way back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Returned {
    pub device: DeviceId,
    pub slot: SlotIndex,
}

/// Slots given back and not yet free, oldest first; at most `RETURNS`.
///
/// They are `slots[first..end]`; `first` = `end` only at 0.
pub(super) struct Returns {
    slots: [Returned; RETURNS],
    first: usize,
    end: usize,
}

impl Returned {
    /// A filler for unused places of an array.
    pub const NONE: Self = Self {
        device: DeviceId(0),
        slot: SlotIndex(0),
    };
}

impl Returns {
    pub const EMPTY: Self = Self {
        slots: [Returned::NONE; RETURNS],
        first: 0,
        end: 0,
    };

    pub fn len(&self) -> usize {
        self.end - self.first
    }

    /// Adds one; there must be room.
    pub fn push(&mut self, slot: Returned) {
        if self.end == RETURNS {
            self.slots.copy_within(self.first.., 0);
            self.end -= self.first;
            self.first = 0;
        }
        self.slots[self.end] = slot;
        self.end += 1;
    }

    /// Forgets the oldest.
    pub fn pop(&mut self) {
        self.forget(1);
    }

    /// Forgets the `n` oldest.
    pub fn forget(&mut self, n: usize) {
        self.first += n;
        if self.first == self.end {
            (self.first, self.end) = (0, 0);
        }
    }

    pub fn as_slice(&self) -> &[Returned] {
        &self.slots[self.first..self.end]
    }
}

/// The guarded part.
pub(super) struct CpuState {
    /// One for each order.
    pub current: [Option<Current>; ORDERS],
    /// One for each order of folios: a full cluster that this processor has opened by freeing a
    /// folio of it, and goes on emptying. It comes next, and no other processor takes it meanwhile:
    /// each free would have to reach across.
    pub opened: [Option<Current>; ORDERS],
    /// Orders for which a rotating device's one cursor is to be used.
    pub rotating: [Option<DeviceId>; ORDERS],
    pub returns: Returns,
    /// The device that the last search for a single slot came to, if its slots may be recycled.
    pub home: Option<DeviceId>,
    /// Slots recycled since that search.
    pub recycled: usize,
    /// Flag: one was, since the worker came.
    pub recycles: bool,
    /// The device table of `Control`, as it was when devices last changed.
    pub devices: [Option<Arc<Device>>; MAX_DEVICES],
}

impl CpuState {
    /// All clusters in this processor's hands.
    pub fn in_hand(&mut self) -> impl Iterator<Item = &mut Option<Current>> {
        self.current.iter_mut().chain(&mut self.opened)
    }

    /// The cluster in hand that has this number, if one has.
    pub fn in_hand_at(&mut self, device: DeviceId, c: ClusterIndex) -> Option<&mut Current> {
        let mut all = self.in_hand().flatten();
        all.find(|current| current.is(device, c))
    }
}

/// One processor's set; alone on its cache lines.
#[repr(align(128))]
pub(super) struct PerCpu {
    pub state: Ordered<CpuState, { LockRank::Cpu as usize }>,
    /// Slots taken and given back with the lock of `state` held, per device. Read without it.
    used: [UsageCount; MAX_DEVICES],
}

impl PerCpu {
    pub fn new() -> Self {
        Self {
            state: Ordered::new(CpuState {
                current: [const { None }; ORDERS],
                opened: [const { None }; ORDERS],
                rotating: [None; ORDERS],
                returns: Returns::EMPTY,
                home: None,
                recycled: 0,
                recycles: false,
                devices: std::array::from_fn(|_| None),
            }),
            used: std::array::from_fn(|_| UsageCount::new()),
        }
    }

    /// Counts slots taken (or freed, if negative), with the lock held; so nobody else writes.
    pub fn count(&self, _held: &CpuState, device: DeviceId, slots: i64) {
        self.used[device.index()].add_alone(slots);
    }

    /// Counts slots freed in a cluster that is in nobody's hands, with its lock held too.
    pub fn count_freed(&self, held: &CpuState, device: &Device, state: ClusterState, slots: i64) {
        if state.is_idle() {
            device.count_in(state, -slots);
        } else {
            self.count(held, device.id, -slots);
        }
    }

    pub fn counted(&self, device: DeviceId) -> &UsageCount {
        &self.used[device.index()]
    }

    pub fn reset(&self, device: DeviceId) {
        self.used[device.index()].reset();
    }
}
