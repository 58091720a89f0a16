//! Room: free slots of devices, and whether the other devices could take what is on one.

use super::Devices;
use super::device::Device;
use super::device::in_flight::{LOOKS, More};
use super::drain::Mover;
use super::error::DrainError;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, DeviceId};
use std::sync::Arc;

/// The room needed to empty a device, at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrainEstimate {
    /// Pages on it. Copies of pages in memory are given up, and are not among them.
    pub pages: u64,
    /// Slots free on the other devices in service, or with copies only, in clusters that are this process's.
    pub room: u64,
    /// Slots there of clusters that nobody has, for which other processes may ask too.
    pub lent: u64,
}

impl DrainEstimate {
    /// Pages that would have no slot.
    pub fn lacks(&self) -> u64 {
        self.pages.saturating_sub(self.room + self.lent)
    }
}

impl Devices {
    /// The room needed to empty a device: asked before the first page moves, it tells whether all will
    /// find a place.
    ///
    /// # Errors
    /// There is no such device.
    pub fn drain_estimate(&self, device: DeviceId) -> Result<DrainEstimate, DrainError> {
        let device = self.known(device)?;
        Ok(self.estimate_of(&device))
    }

    /// Pages of a device for which there is too little room, memory included that the mover may use.
    /// Before the first moves, and where the counts find too little, every cluster is looked at.
    pub(super) fn lacks(&self, device: &Device, mover: &dyn Mover) -> Option<u64> {
        let in_memory = mover.takes();
        if device.drained.begun.load(Relaxed) {
            let others = self.devices();
            let others = others.iter().filter(|d| d.id != device.id && d.accepting());
            // By the count alone nobody knows which slots of a short device have blocks.
            let others = others.filter(|d| !d.backing().is_short());
            let room: u64 = others.map(|other| self.free_slots(other)).sum();
            if room + in_memory >= u64::from(self.used(device)) {
                return None;
            }
        }
        let missing = self.estimate_of(device).lacks();
        (missing > in_memory).then_some(missing)
    }

    /// Room that another thread has in its hands for the moment is counted nowhere: where room is short
    /// it is waited for, as in an allocation.
    pub(super) fn estimate_of(&self, device: &Device) -> DrainEstimate {
        let (mut looks, mut listener) = (0, None);
        loop {
            let seen = self.in_flight.seen();
            let estimate = self.estimate_now(device);
            let missing = estimate.lacks();
            if missing == 0 || looks == LOOKS {
                return estimate;
            }
            looks += 1;
            match self
                .in_flight
                .more_since(seen, missing as usize, listener.as_ref())
            {
                More::Arrived | More::Freed => {}
                More::Listen => listener = Some(self.in_flight.listen()),
                More::Nothing => return estimate,
            }
        }
    }

    fn estimate_now(&self, device: &Device) -> DrainEstimate {
        let mut others = self.devices();
        others.retain(|other| other.id != device.id);
        others.retain(|other| other.accepting());
        DrainEstimate {
            pages: self.data(device),
            room: others.iter().map(|d| self.own_room(d)).sum(),
            lent: others.iter().map(|d| Self::lent_room(d)).sum(),
        }
    }

    /// Slots of the clusters of a device that the lender has.
    fn lent_room(device: &Device) -> u64 {
        match device.backing().is_short() {
            true => 0,
            false => device.borrowable(),
        }
    }

    /// Free slots in the clusters of a device that are ours, those in return caches among them, and copies.
    fn own_room(&self, device: &Device) -> u64 {
        let untouched = match device.backing().is_short() {
            true => 0,
            false => device.lists().fresh,
        };
        let mut room = u64::from(untouched) * CLUSTER_SLOTS as u64;
        self.each_cluster(device, |c, cluster| {
            if cluster.state.is_ours() && device.backing().has(c) {
                room += CLUSTER_SLOTS as u64 - u64::from(cluster.used()) + self.copies(cluster);
            }
        });
        room
    }

    /// Whether a device takes pages and has room for a cluster of them, with blocks.
    pub fn has_room(&self) -> bool {
        let devices = self.devices();
        // A device in which nobody searches would be short for ever.
        let taking = |device: &&Arc<Device>| {
            device.backing().look();
            device.accepting() && !device.backing().is_short()
        };
        let mut taking = devices.iter().filter(taking);
        taking.any(|device| self.free_slots(device) >= CLUSTER_SLOTS as u64)
    }

    /// The file system under a device says whether it has room for a cluster, or that it cannot tell: asked again and
    /// again while the device is full.
    pub fn file_system_told(&self, device: DeviceId, has_room: Option<bool>) {
        if let Some(device) = self.device(device) {
            device.backing().told(has_room);
        }
    }

    /// Free slots of a device that this process can take: in its own clusters, and in those that
    /// the lender has. What is in use elsewhere, as in clusters that a fork froze, takes none of them.
    pub(super) fn free_slots(&self, device: &Device) -> u64 {
        let held = match device.lender {
            Some(_) => device.lists().held,
            None => u64::from(device.slots),
        };
        (held + device.borrowable()).saturating_sub(u64::from(self.used_of_ours(device)))
    }
}
