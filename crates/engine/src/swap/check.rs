//! All invariants of a swap at rest.

use super::Swap;
use crate::EntryId;
use crate::entries::{CLUSTER_ENTRIES, EntryWord, Location};
use crate::slots::Devices;
use std::collections::{HashMap, HashSet};

impl Swap {
    /// All invariants, for a swap at rest: those of the space and of the pool, that entries
    /// and objects name each other, and that charges add up.
    pub fn check(&self) {
        self.space.check();
        self.pool.check();
        let (mut pages, mut slots) = (0, 0u64);
        let mut objects = HashSet::new();
        // Of each cluster, pages that left blocks.
        let mut left: HashMap<u32, i32> = HashMap::new();
        self.space.each_word(|entry, word| {
            assert!(
                word.location() != Location::Reserved,
                "entry {entry} was left reserved"
            );
            assert!(!word.busy(), "entry {entry} was left busy");
            if let Location::Pool(handle) = word.location() {
                pages += 1;
                let left = left.entry(entry.0 / CLUSTER_ENTRIES as u32).or_default();
                *left -= 1;
                if objects.insert(handle) {
                    *left += i32::from(self.pool.pages(handle));
                }
                assert!(
                    self.pool.names(handle, entry),
                    "object of {entry} names another owner"
                );
            }
            if let Some(devices) = &self.devices {
                slots += u64::from(check_slot(devices, entry, word));
            }
        });
        for (cluster, left) in left {
            let first = EntryId(cluster * CLUSTER_ENTRIES as u32);
            let counted = self.space.lock(first).left().0;
            assert_eq!(i32::from(counted), left, "what left blocks of {cluster}");
        }
        let usage = self.pool.usage();
        assert_eq!(
            (objects.len() as u64, pages),
            (usage.objects, usage.pages),
            "objects and pages, of the entries and of the pool"
        );
        if let Some(devices) = &self.devices {
            devices.check();
            let used: u64 = devices
                .usage()
                .iter()
                .map(|u| u64::from(u.used - u.bad))
                .sum();
            assert!(
                slots <= used,
                "{slots} entries name slots, {used} are in use"
            );
        }
        let charged: u64 = self.space.groups().iter().map(|g| g.pool_bytes()).sum();
        assert_eq!(charged, usage.data, "charges of the groups");
    }
}

/// Whether an entry names a slot; the slot then names it back.
fn check_slot(devices: &Devices, entry: EntryId, word: EntryWord) -> bool {
    let Location::Slot(place) = word.location() else {
        return false;
    };
    let owner = devices.owner(place.device, place.slot);
    assert_eq!(
        owner,
        Some(entry),
        "slot {} of device {}",
        place.slot,
        place.device
    );
    assert_eq!(
        devices.cache_only(place.device, place.slot),
        word.cached(),
        "slot {} of device {} is only a copy",
        place.slot,
        place.device
    );
    true
}
