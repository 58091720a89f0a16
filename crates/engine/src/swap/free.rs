//! Freeing entries and what they named.

use super::Swap;
use super::slot_format::single;
use crate::entries::{Group, Handle, Location, Locked, SlotPlace, Vacated};
use crate::slots::Extent;
use crate::{Cpu, EntryId};

impl Swap {
    /// Frees `count` entries.
    pub fn free(&self, cpu: Cpu, first: EntryId, count: u32) {
        let mut next = first;
        let end = first.plus(count);
        while next < end {
            let mut freed = [(EntryId(0), Location::Free); 64];
            let (mut n, mut still_named) = (0, 0);
            let mut locked = self.space.lock(next);
            let group = locked.cluster().group().clone();
            while next < end && n < freed.len() && locked.seek(next) {
                let vacated = locked.release_unsettled();
                self.count_left(&mut locked, vacated);
                match vacated {
                    Vacated::Place(location) => {
                        freed[n] = (next, location);
                        n += 1;
                    }
                    Vacated::StillNamed => still_named += 1,
                }
                next = next.plus(1);
            }
            locked.settle();
            if still_named > 0 {
                self.pool.count_extra_refs(-still_named);
            }
            self.free_runs(cpu, &freed[..n]);
            let objects = freed[..n]
                .iter()
                .filter_map(|(_, location)| match location {
                    Location::Pool(handle) => Some(*handle),
                    _ => None,
                });
            // One uncharge for all: the group's charge is a line that all processors write.
            group.uncharge(self.pool.remove_each(objects));
        }
    }

    /// Frees the slots that entries named. Those of a folio lie side by side, as a rule: they are freed in
    /// one piece.
    fn free_runs(&self, cpu: Cpu, freed: &[(EntryId, Location)]) {
        let mut run: Option<(EntryId, Extent)> = None;
        for &(entry, location) in freed {
            let Location::Slot(place) = location else {
                continue;
            };
            match &mut run {
                Some((first, run))
                    if run.joins(single(place)) && first.plus(u32::from(run.len)) == entry =>
                {
                    run.len += 1;
                }
                before => {
                    if let Some((first, before)) = before.replace((entry, single(place))) {
                        self.free_slots(cpu, first, before);
                    }
                }
            }
        }
        if let Some((first, run)) = run {
            self.free_slots(cpu, first, run);
        }
    }

    /// Counts pages that left blocks, for an entry of this cluster that no longer names its place: its
    /// page left the block, or nothing of the block remains. Before what it named is freed.
    pub(super) fn count_left(&self, locked: &mut Locked<'_>, vacated: Vacated) {
        match vacated {
            Vacated::StillNamed => locked.count_left(1),
            Vacated::Place(Location::Pool(handle)) if self.config.codec.has_blocks() => {
                locked.count_left(1 - i32::from(self.pool.pages(handle)));
            }
            Vacated::Place(_) => {}
        }
    }

    /// Frees what was at a place that an entry names no more, if no other does.
    pub(super) fn free_vacated(&self, cpu: Cpu, group: &Group, entry: EntryId, vacated: Vacated) {
        let location = match vacated {
            Vacated::Place(location) => location,
            Vacated::StillNamed => return self.pool.count_extra_refs(-1),
        };
        match location {
            Location::Pool(handle) => self.free_object(group, handle),
            Location::Slot(place) => self.free_slot(cpu, entry, place),
            Location::Free | Location::Reserved | Location::Dropped | Location::Same(_) => {}
        }
    }

    pub(super) fn free_object(&self, group: &Group, handle: Handle) {
        let size = self.pool.remove(handle);
        group.uncharge(size);
    }

    /// Frees one slot.
    pub(super) fn free_slot(&self, cpu: Cpu, owner: EntryId, place: SlotPlace) {
        self.free_slots(cpu, owner, single(place));
    }

    /// Frees slots side by side, of entries side by side.
    pub(super) fn free_slots(&self, cpu: Cpu, owner: EntryId, extent: Extent) {
        if let Some(devices) = &self.devices
            && let Err(error) = devices.free(cpu, owner, extent)
        {
            panic!("{} slots from {}: {error}", extent.len, extent.start);
        }
    }
}
