//! Why a call of the slot allocator fails.

use crate::types::{CLUSTER_SLOTS, DeviceId, EntryId, MAX_DEVICE_SLOTS, MAX_DEVICES, SlotIndex};

/// Why a device was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddError {
    /// Less than one cluster.
    #[error("the device has {slots} slots of 4 KiB; at least {CLUSTER_SLOTS} (2 MiB) are needed")]
    TooSmall {
        /// The slots.
        slots: u64,
    },
    /// More slots than an entry can name.
    #[error(
        "the device has {slots} slots of 4 KiB; at most {MAX_DEVICE_SLOTS} (128 GiB) can be used: give a size"
    )]
    TooLarge {
        /// The slots.
        slots: u64,
    },
    /// The device table is full.
    #[error("{MAX_DEVICES} swap devices are in use already; remove one first")]
    TooMany,
}

/// Why slots were not allocated. Nothing is allocated then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocError {
    /// All devices together have not that many free slots. Room that another thread discards, borrows or
    /// moves at this moment was waited for.
    #[error("no swap device has room")]
    Full,
    /// Not 1..=512 pages: the caller's bug.
    #[error("{0} pages cannot be allocated at a time, only 1 to {CLUSTER_SLOTS}")]
    Pages(u16),
}

/// Why nothing was noted of a slot, and nothing changed: the caller's bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SlotError {
    /// No such device.
    #[error("device {0} is not in use")]
    NoDevice(DeviceId),
    /// The device ends before it.
    #[error("there is no slot {slot} on device {device}, which has {slots}")]
    OutOfRange {
        /// The device.
        device: DeviceId,
        /// The slot that was named.
        slot: SlotIndex,
        /// Slots of the device.
        slots: u32,
    },
}

/// Why slots were not freed. Nothing is changed then; all are bugs of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeError {
    /// No such device.
    #[error("device {0} is not in use")]
    NoDevice(DeviceId),
    /// Not 1..=512 slots inside one cluster of the device.
    #[error("{len} slots from {start} are not within one cluster of device {device}")]
    OutOfRange {
        /// The device.
        device: DeviceId,
        /// First slot of the extent.
        start: SlotIndex,
        /// Length of the extent.
        len: u16,
    },
    /// The slot is not the entry's: it was given back already, and may be another's since.
    #[error("entry {owner} freed slot {slot} of device {device}, {}", whose(.now))]
    DoubleFree {
        /// The device.
        device: DeviceId,
        /// The first slot of the extent that is not its own.
        slot: SlotIndex,
        /// The entry in whose name it was freed.
        owner: EntryId,
        /// The entry whose it is now, if it is any's.
        now: Option<EntryId>,
    },
}

fn whose(now: &Option<EntryId>) -> String {
    match now {
        Some(entry) => format!("which belongs to entry {entry}"),
        None => "which is free".into(),
    }
}

/// Why a device is not drained or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrainError {
    /// No such device.
    #[error("device {0} is not in use")]
    NoDevice(DeviceId),
    /// The other devices have too little room; the device is in service as before.
    #[error(
        "the other swap devices lack room for {missing} pages ({mib} MiB): add a device or free memory first",
        mib = missing.div_ceil(256)
    )]
    NoRoom {
        /// Pages that have no place.
        missing: u64,
    },
    /// Slots could not be moved, for read or write errors.
    #[error("{left} pages on device {device} could not be moved; they stay where they are")]
    Stuck {
        /// The device.
        device: DeviceId,
        /// The slots in use.
        left: u64,
    },
    /// Removal before the drain is done.
    #[error("device {device} still holds {used} pages: drain it first")]
    InUse {
        /// The device.
        device: DeviceId,
        /// The slots in use.
        used: u64,
    },
    /// Emptied clusters are left to be discarded or given back: the next call goes on.
    #[error("clusters of device {0} wait to be discarded: it cannot be removed yet")]
    Unfinished(DeviceId),
    /// Other processes read from it.
    #[error(
        "forked processes still read {clusters} clusters of device {device}: drain it there first"
    )]
    Read {
        /// The device.
        device: DeviceId,
        /// Clusters with readers.
        clusters: u64,
    },
    /// Nothing can move slots: [`Devices::set_mover`] was not called.
    #[error("there is nothing to move pages with")]
    NoMover,
}
