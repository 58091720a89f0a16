//! Which key each slot of a device was written with, as far as this process has written or may read it.
//!
//! Mostly all of a cluster was written with one key, and two bytes say which. A process goes on writing
//! in a cluster after a fork, as soon as nobody else reads it: then each slot of it has two bytes.
//!
//! # Protocol
//! A slot is marked before it is written, by the thread that has it from the allocator, and read after its
//! entry names it. So nobody relies on a mark that changes. A reader of a slot that has been given to
//! another meanwhile finds any mark, and then a wrong checksum. A cluster's slot keys are forgotten when
//! the process gives it back or gets it from the lender; those of a cluster that it adopts stay ([`KeyedLender`]).
//!
//! Not here: the keys themselves ([`crate::Keyring`]).

use super::key_id::KeyId;
use ebb_engine::env::Lender;
use ebb_engine::{CLUSTER_SLOTS, ClusterIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Clusters whose slot keys are made together.
const BLOCK: usize = 256;
/// In the place of a cluster's key: each slot has its own.
const EACH: u16 = u16::MAX;

type Slots = [AtomicU16; CLUSTER_SLOTS];

struct Cluster {
    /// 0: no key, [`EACH`], or that of all slots.
    key: AtomicU16,
    /// Kept once made.
    each: OnceLock<Box<Slots>>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            key: AtomicU16::new(0),
            each: OnceLock::new(),
        }
    }

    fn slot(&self, at: usize) -> u16 {
        match (self.key.load(Acquire), self.each.get()) {
            (EACH, Some(slots)) => slots[at].load(Relaxed),
            (EACH, None) => 0,
            (key, _) => key,
        }
    }

    /// The keys of slots become their own: they are not all the same any more.
    fn split(&self) -> &Slots {
        let slots = self
            .each
            .get_or_init(|| Box::new([const { AtomicU16::new(0) }; _]));
        let key = self.key.load(Acquire);
        if key != EACH {
            slots.iter().for_each(|slot| slot.store(key, Relaxed));
            self.key.store(EACH, Release);
        }
        slots
    }
}

/// See the module.
pub struct SlotKeys {
    blocks: Box<[OnceLock<Box<[Cluster]>>]>,
    clusters: usize,
    /// The lock of whoever has a cluster's slots part.
    splitting: Mutex<()>,
}

impl SlotKeys {
    /// For a device of so many slots, none of them written.
    pub fn new(slots: u64) -> Self {
        let clusters = slots.div_ceil(CLUSTER_SLOTS as u64) as usize;
        Self {
            blocks: (0..clusters.div_ceil(BLOCK))
                .map(|_| OnceLock::new())
                .collect(),
            clusters,
            splitting: Mutex::new(()),
        }
    }

    fn get(&self, cluster: usize) -> Option<&Cluster> {
        self.blocks
            .get(cluster / BLOCK)?
            .get()?
            .get(cluster % BLOCK)
    }

    fn make(&self, cluster: usize) -> &Cluster {
        let before = cluster / BLOCK * BLOCK;
        let block = self.blocks[cluster / BLOCK].get_or_init(|| {
            let here = (self.clusters - before).min(BLOCK);
            (0..here).map(|_| Cluster::new()).collect()
        });
        &block[cluster - before]
    }

    /// The slots of `pages` as runs of one key each.
    pub(crate) fn runs(
        &self,
        pages: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Option<KeyId>)> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let first = at;
            let key = (first < pages.end).then(|| self.of(first))?;
            at += 1;
            while at < pages.end && self.of(at) == key {
                at += 1;
            }
            Some((first..at, KeyId::new(key)))
        })
    }

    fn of(&self, slot: u64) -> u16 {
        let (cluster, at) = place(slot);
        self.get(cluster).map_or(0, |cluster| cluster.slot(at))
    }

    /// These slots of the device are about to be written with this key.
    pub(crate) fn set(&self, pages: Range<u64>, key: KeyId) {
        let key = key.get();
        for page in pages {
            let (cluster, at) = place(page);
            let cluster = self.make(cluster);
            match cluster.key.load(Acquire) {
                now if now == key => {}
                // Others that do the same write the same.
                0 if cluster
                    .key
                    .compare_exchange(0, key, AcqRel, Acquire)
                    .is_ok() => {}
                EACH => cluster.split()[at].store(key, Relaxed),
                _ => {
                    let _one = self
                        .splitting
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    if cluster.key.load(Acquire) != key {
                        cluster.split()[at].store(key, Relaxed);
                    }
                }
            }
        }
    }

    /// Nothing of this cluster is to be read any more.
    pub fn forget(&self, cluster: ClusterIndex) {
        if let Some(cluster) = self.get(cluster.index()) {
            cluster.key.store(0, Release);
        }
    }

    /// Calls `f` with every key that a slot was written with, often more than once. A cluster that has
    /// come to have one key again says so. Requires: no transfer is under way.
    pub(crate) fn keys(&self, mut f: impl FnMut(KeyId)) {
        for cluster in self.blocks.iter().filter_map(OnceLock::get).flatten() {
            let key = cluster.key.load(Acquire);
            match cluster.each.get() {
                Some(slots) if key == EACH => {
                    let first = slots[0].load(Relaxed);
                    let mut same = true;
                    for slot in slots.iter() {
                        let key = slot.load(Relaxed);
                        same &= key == first;
                        KeyId::new(key).into_iter().for_each(&mut f);
                    }
                    if same {
                        cluster.key.store(first, Release);
                    }
                }
                _ => KeyId::new(key).into_iter().for_each(&mut f),
            }
        }
    }

    /// Its memory, in bytes.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let clusters = self.blocks.iter().filter_map(OnceLock::get).flatten();
        let each = clusters
            .clone()
            .filter(|cluster| cluster.each.get().is_some());
        size_of_val(&*self.blocks)
            + clusters.count() * size_of::<Cluster>()
            + each.count() * size_of::<Slots>()
    }
}

fn place(slot: u64) -> (usize, usize) {
    let slots = CLUSTER_SLOTS as u64;
    ((slot / slots) as usize, (slot % slots) as usize)
}

/// A lender that has the slot keys of a cluster forgotten with it.
pub struct KeyedLender {
    lender: Arc<dyn Lender>,
    slot_keys: Arc<SlotKeys>,
}

impl KeyedLender {
    /// Over the lender of a device, with its slot keys.
    pub fn new(lender: Arc<dyn Lender>, slot_keys: Arc<SlotKeys>) -> Self {
        Self { lender, slot_keys }
    }
}

impl Lender for KeyedLender {
    fn acquire(&self) -> Option<ClusterIndex> {
        let cluster = self.lender.acquire()?;
        self.slot_keys.forget(cluster);
        Some(cluster)
    }

    fn release(&self, cluster: ClusterIndex) {
        self.slot_keys.forget(cluster);
        self.lender.release(cluster);
    }

    fn has_readers(&self, cluster: ClusterIndex) -> bool {
        self.lender.has_readers(cluster)
    }

    fn returned(&self) -> u64 {
        self.lender.returned()
    }

    fn stop_reading(&self, cluster: ClusterIndex) {
        self.slot_keys.forget(cluster);
        self.lender.stop_reading(cluster);
    }

    // Its slots stay, and so do their keys.
    fn adopt(&self, cluster: ClusterIndex) -> bool {
        self.lender.adopt(cluster)
    }

    fn free_clusters(&self) -> u64 {
        self.lender.free_clusters()
    }

    fn is_wanted(&self) -> bool {
        self.lender.is_wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn key(number: u16) -> KeyId {
        KeyId::new(number).unwrap()
    }

    fn keys(slot_keys: &SlotKeys) -> BTreeSet<u16> {
        let mut found = BTreeSet::new();
        slot_keys.keys(|key| {
            found.insert(key.get());
        });
        found
    }

    proptest! {
        /// As one word for each slot would have it.
        #[test]
        fn like_one_key_a_slot(
            steps in proptest::collection::vec((0..1300u64, 1..600u64, 0..5u16), 1..60),
        ) {
            let slot_keys = SlotKeys::new(1300);
            let mut model = [0u16; 1300];
            for (first, pages, step) in steps {
                let pages = first..(first + pages).min(1300);
                match step {
                    0 => {
                        let cluster = place(first).0;
                        slot_keys.forget(ClusterIndex(cluster as u32));
                        let end = ((cluster + 1) * CLUSTER_SLOTS).min(1300);
                        model[cluster * CLUSTER_SLOTS..end].fill(0);
                    }
                    4 => { keys(&slot_keys); }
                    number => {
                        slot_keys.set(pages.clone(), key(number));
                        model[pages.start as usize..pages.end as usize].fill(number);
                    }
                }
                // A cluster in which some slots were written with one key has it for the others too.
                for (slot, &number) in model.iter().enumerate().filter(|(_, number)| **number != 0) {
                    prop_assert_eq!(slot_keys.of(slot as u64), number);
                }
            }
            let mut at = 0;
            for (run, key) in slot_keys.runs(0..1300) {
                prop_assert_eq!(run.start, at);
                prop_assert!(run.clone().all(|slot| slot_keys.of(slot) == key.map_or(0, KeyId::get)));
                at = run.end;
            }
            prop_assert_eq!(at, 1300);
        }
    }

    #[test]
    fn a_device_that_nobody_uses_costs_next_to_nothing_and_one_key_two_bytes_a_cluster() {
        let slot_keys = SlotKeys::new(1 << 25);
        assert!(
            slot_keys.memory_bytes() < 8 << 10,
            "{}",
            slot_keys.memory_bytes()
        );
        slot_keys.set(0..256 * CLUSTER_SLOTS as u64, key(1));
        let used = 256 * CLUSTER_SLOTS;
        assert!(
            slot_keys.memory_bytes() * 10 < used,
            "{} bytes",
            slot_keys.memory_bytes()
        );
        slot_keys.set(7..8, key(2));
        assert_eq!(keys(&slot_keys), BTreeSet::from([1, 2]));
        slot_keys.set(0..CLUSTER_SLOTS as u64, key(3));
        slot_keys.set(512..1024, key(3));
        assert_eq!(keys(&slot_keys), BTreeSet::from([1, 3]));
        assert_eq!(
            slot_keys.get(0).unwrap().key.load(Relaxed),
            3,
            "one key again"
        );
    }

    #[test]
    fn threads_that_split_a_cluster_lose_no_key() {
        for _ in 0..200 {
            let slot_keys = SlotKeys::new(CLUSTER_SLOTS as u64);
            slot_keys.set(0..512, key(1));
            std::thread::scope(|scope| {
                for thread in 0..2u64 {
                    let slot_keys = &slot_keys;
                    scope.spawn(move || {
                        for slot in (thread..512).step_by(4) {
                            slot_keys.set(slot..slot + 1, key(2));
                        }
                    });
                }
            });
            for slot in 0..512 {
                assert_eq!(slot_keys.of(slot), if slot % 4 < 2 { 2 } else { 1 });
            }
        }
    }

    struct Plain;
    impl Lender for Plain {
        fn acquire(&self) -> Option<ClusterIndex> {
            Some(ClusterIndex(0))
        }
        fn release(&self, _: ClusterIndex) {}
        fn has_readers(&self, _: ClusterIndex) -> bool {
            false
        }
        fn returned(&self) -> u64 {
            0
        }
        fn stop_reading(&self, _: ClusterIndex) {}
        fn adopt(&self, _: ClusterIndex) -> bool {
            false
        }
        fn free_clusters(&self) -> u64 {
            1
        }
        fn is_wanted(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_cluster_that_comes_or_goes_has_no_key() {
        let slot_keys = Arc::new(SlotKeys::new(1024));
        let lender = KeyedLender::new(Arc::new(Plain), slot_keys.clone());
        let went: [&dyn Fn(); 3] = [
            &|| lender.release(ClusterIndex(0)),
            &|| lender.stop_reading(ClusterIndex(0)),
            &|| {
                lender.acquire();
            },
        ];
        for go in went {
            slot_keys.set(0..100, key(1));
            slot_keys.set(600..601, key(2));
            go();
            assert_eq!(keys(&slot_keys), BTreeSet::from([2]));
        }
    }
}
