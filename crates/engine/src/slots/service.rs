//! Taking slots and devices out of service, and devices into it again.

use super::cluster::table::SlotOwner;
use super::cluster::{Cluster, ClusterState};
use super::device::Device;
use super::error::SlotError;
use super::extent::Extent;
use super::{DEVICE_ERROR_LIMIT, Devices, FORGIVING_PAGES};
use crate::env::IoError;
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, Cpu, DeviceId, EntryId, SlotIndex};

impl Devices {
    /// A write to a slot failed. The consequence is up to the error: the slot leaves service, or the device, or
    /// neither. A disk that is full may have room again; until then the device gives slots alone that have blocks
    /// (`backing`). What refuses a request may refuse each like it: that counts as an error of the device, so that
    /// others get the pages in the end. The slot is its owner's still.
    ///
    /// # Errors
    /// There is no such device or slot.
    pub fn write_failed(
        &self,
        cpu: Cpu,
        device: DeviceId,
        slot: SlotIndex,
        error: IoError,
    ) -> Result<(), SlotError> {
        match error {
            IoError::Slot => return self.bad_slot(cpu, device, slot),
            IoError::Device => self.retire(device),
            IoError::NoSpace => self.ran_short(&*self.device_of(device, slot)?, slot),
            IoError::FileLimit => self.meet_file_limit(device),
            IoError::Request => self.count_error(&*self.device_of(device, slot)?),
            IoError::Again => {}
        }
        Ok(())
    }

    /// A slot found no block. The cursors go: one at a cluster that lacks blocks would give the next slots.
    fn ran_short(&self, device: &Device, slot: SlotIndex) {
        let c = slot.cluster();
        let newly = device.backing().failed(c);
        let in_hand = |cluster: &mut Cluster| matches!(cluster.state, ClusterState::OffList(_));
        if newly || self.with_cluster(device, c, in_hand) == Some(true) {
            self.let_cursors_go(|_| true);
        }
    }

    /// A write to a slot failed: it leaves service. The owner has lost it and must not free
    /// it alone (an extent freed as a whole may contain it). After `DEVICE_ERROR_LIMIT`
    /// errors that were not forgiven the device accepts no more allocations.
    ///
    /// # Errors
    /// There is no such device or slot: that says nothing of the device.
    pub fn bad_slot(&self, cpu: Cpu, device: DeviceId, slot: SlotIndex) -> Result<(), SlotError> {
        let device = self.device_of(device, slot)?;
        self.count_error(&device);
        let done = self.with_cluster(&device, slot.cluster(), |cluster| {
            device.take_out(cluster, slot.within())
        });
        if let Some(TakenOut::NotOurs(Some(owner))) = done {
            // The process whose it is finds out for itself.
            let one = Extent {
                device: device.id,
                start: slot,
                len: 1,
            };
            let _ = self.free_now(cpu, owner, one);
        }
        Ok(())
    }

    fn count_error(&self, device: &Device) {
        device.failed.fetch_add(1, Relaxed);
        if device.errors.fetch_add(1, Relaxed) + 1 >= DEVICE_ERROR_LIMIT {
            self.stop(device);
        }
    }

    /// `pages` were written without an error: each `FORGIVING_PAGES` forgive one.
    pub fn wrote(&self, device: DeviceId, pages: u32) {
        let Some(device) = self.device(device) else {
            return;
        };
        device.backing().wrote(pages);
        if device.errors.load(Relaxed) == 0 {
            return;
        }
        let before = device.written.fetch_add(pages, Relaxed) % FORGIVING_PAGES;
        let forgiven = (before + pages) / FORGIVING_PAGES;
        if forgiven > 0 {
            let _ = device.errors.fetch_update(Relaxed, Relaxed, |errors| {
                // A device that went out of service stays out.
                (errors < DEVICE_ERROR_LIMIT).then(|| errors.saturating_sub(forgiven))
            });
        }
    }

    /// The device is gone, or refuses everything: it accepts no more allocations, ever.
    pub fn retire(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            device.errors.fetch_max(DEVICE_ERROR_LIMIT, Relaxed);
            self.stop(&device);
        }
    }

    /// Nothing more goes to the device, which this process may only read: what is there stays until it is
    /// freed, also after a drain that failed. That is no fault of the device.
    pub fn only_read(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            device.lists().only_read = true;
            self.stop(&device);
        }
    }

    /// This process may write no file so large: nothing more of it goes to the device, and others are tried. That is no
    /// fault of the device either.
    fn meet_file_limit(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            device.lists().file_limited = true;
            self.stop(&device);
        }
    }

    /// Whether a device takes no pages for the reason that this process may write no file so large.
    pub fn met_file_limit(&self) -> bool {
        let control = lock(&self.control);
        let mut devices = control.devices.iter().flatten();
        devices.any(|device| device.lists().file_limited)
    }

    /// Whether no device takes pages, and one of them for that reason alone.
    pub fn is_file_limited(&self) -> bool {
        let accepts = {
            let control = lock(&self.control);
            let mut devices = control.devices.iter().flatten();
            devices.any(|device| device.accepting())
        };
        !accepts && self.met_file_limit()
    }

    /// No allocation begins on the device after this.
    pub(super) fn stop(&self, device: &Device) {
        if device.accept(false) {
            self.let_cursors_go(|_| true);
        }
    }

    pub(super) fn resume(&self, device: &Device) {
        device.accept(true);
        device.drained.begun.store(false, Relaxed);
        self.in_flight.tell(device.slots);
    }

    /// A drain is taken back: the device is in service again, unless errors took it out or this process
    /// may not write there.
    pub fn readmit(&self, device: DeviceId) {
        if let Some(device) = self.device(device) {
            self.resume(&device);
        }
    }
}

/// The fate of a slot that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakenOut {
    /// It is out of service, or was free or out already.
    Done,
    /// It is lent by another process, and only read here, for this entry.
    NotOurs(Option<EntryId>),
}

impl Device {
    /// Begins to accept allocations, or ceases to; whether that is a change. Errors take it out for good, and so does
    /// a process that may not write. The lists' lock is held, so that one who ceases for them and one who begins see each
    /// other.
    pub(super) fn accept(&self, yes: bool) -> bool {
        let lists = self.lists();
        let failed = self.errors.load(Relaxed) >= DEVICE_ERROR_LIMIT;
        let yes = yes && !failed && !lists.only_read && !lists.file_limited;
        self.accepting.swap(yes, Relaxed) != yes
    }

    /// Takes a slot out of service, if it is in use.
    fn take_out(&self, cluster: &mut Cluster, at: usize) -> TakenOut {
        let inherited = cluster.state == ClusterState::Inherited;
        let Some(table) = &mut cluster.table else {
            return TakenOut::Done;
        };
        let Some(owner) = table.used_owner(at).filter(|owner| !owner.bad()) else {
            return TakenOut::Done;
        };
        if inherited {
            return TakenOut::NotOurs(owner.entry());
        }
        table.set(at, SlotOwner::BAD);
        cluster.gone = table.gone() > 0;
        self.count_in(cluster.state, i64::from(owner.gone()));
        self.bad.fetch_add(1, Relaxed);
        TakenOut::Done
    }

    /// Slots of the clusters that the lender has; none where somebody has looked for one in vain since the last came
    /// back: others read those that nobody holds. The lender's word is a hint, and may be any number.
    pub(super) fn borrowable(&self) -> u64 {
        let lender = self.lender.as_ref().filter(|lender| !lender.is_wanted());
        let free = lender.map_or(0, |lender| lender.free_clusters());
        free.min(self.clusters.into()) * CLUSTER_SLOTS as u64
    }
}
