//! Settings of the allocator and of a device, and the state of a device.

use super::device::device_order::DeviceChoice;
use crate::types::{CLUSTER_SLOTS, DeviceId, Node};

/// A device's properties as the user, or the system, gives them. None: ask the store.
#[derive(Clone, Copy, Default, Debug)]
pub struct DeviceSpec {
    /// The user's priority, at least 0; higher is tried first. None: automatic.
    pub priority: Option<i16>,
    /// The memory node it hangs on.
    pub node: Option<Node>,
    /// Flag: emptied clusters are discarded.
    pub discard: Option<bool>,
    /// Flag: it has a head to move.
    pub rotational: Option<bool>,
}

/// Policies of a [`Devices`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Device choice.
    pub choice: DeviceChoice,
    /// Compaction empties clusters with at most so many used slots, 0..=511. More makes more
    /// whole clusters, and moves more pages for each.
    pub compact_used: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            choice: DeviceChoice::default(),
            compact_used: CLUSTER_SLOTS as u16 / 2,
        }
    }
}

/// How a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceUsage {
    /// The device.
    pub device: DeviceId,
    /// Slots of the device.
    pub slots: u32,
    /// Slots in use or out of service.
    pub used: u32,
    /// Slots out of service.
    pub bad: u32,
    /// The priority, automatic ones from -2 down.
    pub priority: i16,
    /// The memory node.
    pub node: Option<Node>,
    /// Flag: it takes allocations: it does not drain, and had few errors.
    pub accepting: bool,
    /// Write errors so far.
    pub errors: u32,
    /// Flag: errors took it out of service.
    pub out: bool,
    /// Flag: its file system has no room, as far as is known.
    pub full: bool,
    /// Flag: all processors have one cursor.
    pub rotational: bool,
}
