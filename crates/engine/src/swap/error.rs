//! Where a page came from, and why one is not stored or not brought back.

use crate::{DeviceId, SlotIndex};

/// Where a page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Zero or same-filled.
    Zero,
    /// Pool.
    Pool,
    /// Device.
    Device,
}

/// Why a page could not be brought back. Its room is not written to with other data; the
/// entry stays, to be freed, or to be loaded [again](LoadError::Again).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// Two reads did not give what was written.
    #[error(
        "slot {slot} of device {device} does not hold what was written to it: its checksum differs"
    )]
    Corrupt {
        /// The device.
        device: DeviceId,
        /// The slot.
        slot: SlotIndex,
    },
    /// The device failed twice.
    #[error("slot {slot} of device {device} cannot be read")]
    Io {
        /// The device.
        device: DeviceId,
        /// The slot.
        slot: SlotIndex,
    },
    /// The system had no memory for the transfer at this moment: the page is where it was, to be loaded again.
    #[error("the system has no memory to read slot {slot} of device {device}")]
    Again {
        /// The device.
        device: DeviceId,
        /// The slot.
        slot: SlotIndex,
    },
    /// Memory of the pool was overwritten: a bug, or a fault of the machine.
    #[error("a page in the pool is not what was stored: its checksum differs")]
    PoolCorrupt,
    /// The entry holds no page: the caller's bug, or one whose copy was given up.
    #[error("the entry holds no page")]
    Empty,
}

/// Why pages were not stored. They stay where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The pool is at its limit and no device has room.
    #[error("the pool is full and no swap device has room: raise the pool's limit or add a device")]
    Full,
    /// 2^29 entries are in use.
    #[error("all entries of the virtual swap space are in use: no more than 2 TiB can be swapped")]
    NoEntries,
}

impl From<crate::entries::NoEntries> for StoreError {
    fn from(_: crate::entries::NoEntries) -> Self {
        Self::NoEntries
    }
}
