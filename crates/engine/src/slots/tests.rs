//! Random operations beside a naive allocator, and one test for each rule that random
//! operations seldom reach.

use super::*;
use crate::env::{IoError, ReadOp, WriteOp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Cpus(pub usize);

impl Topology for Cpus {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        self.0
    }
    fn node(&self, cpu: Cpu) -> Node {
        Node(cpu.0 % 2)
    }
}

/// A device without content that remembers what was discarded.
#[derive(Default)]
struct Blank {
    slots: u64,
    discard: bool,
    rotational: bool,
    discarded: std::sync::Mutex<Vec<(u64, u64)>>,
}

impl Store for Blank {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, _: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn read(&self, _: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        self.discarded.lock().unwrap().push((slot, slots));
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        self.discard
    }
    fn rotational(&self) -> bool {
        self.rotational
    }
    fn node(&self) -> Option<Node> {
        None
    }
}

fn blank(slots: u64) -> Arc<Blank> {
    Arc::new(Blank {
        slots,
        ..Blank::default()
    })
}

fn one(slots: u64, options: Options) -> (Devices, DeviceId) {
    let devices = Devices::new(Arc::new(Cpus(2)), options);
    let id = devices
        .add(blank(slots), DeviceSpec::default(), None)
        .unwrap();
    (devices, id)
}

const A: Cpu = Cpu(0);
const B: Cpu = Cpu(1);

/// A lender of one process; readers are set by the test.
#[derive(Default)]
struct Lent {
    free: std::sync::Mutex<Vec<u32>>,
    read: std::sync::Mutex<BTreeSet<u32>>,
    stopped: std::sync::Mutex<Vec<u32>>,
}

impl Lender for Lent {
    fn acquire(&self) -> Option<ClusterIndex> {
        let mut free = self.free.lock().unwrap();
        let read = self.read.lock().unwrap();
        let at = free.iter().rposition(|c| !read.contains(c))?;
        Some(ClusterIndex(free.remove(at)))
    }
    fn release(&self, cluster: ClusterIndex) {
        let mut free = self.free.lock().unwrap();
        assert!(
            !free.contains(&cluster.0),
            "cluster {cluster} released twice"
        );
        free.push(cluster.0);
    }
    fn has_readers(&self, cluster: ClusterIndex) -> bool {
        self.read.lock().unwrap().contains(&cluster.0)
    }
    fn stop_reading(&self, cluster: ClusterIndex) {
        self.stopped.lock().unwrap().push(cluster.0);
    }
    fn free_clusters(&self) -> u64 {
        self.free.lock().unwrap().len() as u64
    }
}

/// The naive allocator: who owns which slot, and which entries are cached.
#[derive(Default)]
struct Naive {
    owner: BTreeMap<(u8, u32), u32>,
    cached: BTreeSet<u32>,
    bad: BTreeSet<(u8, u32)>,
}

impl Naive {
    fn extent_of(&self, entry: u32) -> Option<Extent> {
        let (&(device, slot), _) = self.owner.iter().find(|(_, owner)| **owner == entry)?;
        Some(Extent {
            device: DeviceId(device),
            start: SlotIndex(slot),
            len: 1,
        })
    }
}

/// The engine's part of a test: drops cached entries, moves owned ones.
struct Entries {
    naive: std::sync::Mutex<Naive>,
    devices: OnceLock<std::sync::Weak<Devices>>,
}

impl CacheReclaim for Entries {
    fn reclaim(&self, owner: EntryId) -> bool {
        let mut naive = self.naive.lock().unwrap();
        if !naive.cached.remove(&owner.0) {
            return false;
        }
        let extent = naive.extent_of(owner.0).unwrap();
        naive.owner.remove(&(extent.device.0, extent.start.0));
        drop(naive);
        self.devices
            .get()
            .unwrap()
            .upgrade()
            .unwrap()
            .free(B, extent)
            .unwrap();
        true
    }
}

impl Mover for Entries {
    fn relocate(&self, _: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved {
        let Some(to) = to else { return Moved::Failed };
        let mut naive = self.naive.lock().unwrap();
        for i in 0..u32::from(from.len) {
            let was = naive.owner.remove(&(from.device.0, from.start.0 + i));
            assert_eq!(was, Some(owner.0 + i));
            naive
                .owner
                .insert((to.device.0, to.start.0 + i), owner.0 + i);
            naive.cached.remove(&(owner.0 + i));
        }
        Moved::Yes
    }
}

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        cpu: u16,
        pages: u16,
    },
    Free {
        cpu: u16,
        nth: usize,
    },
    FreeRun {
        nth: usize,
        len: u16,
        now: bool,
    },
    FreeTwice {
        nth: usize,
    },
    Cache {
        nth: usize,
        count: usize,
    },
    Bad {
        nth: usize,
    },
    Work {
        max: usize,
    },
    Add {
        slots: u64,
        discard: bool,
        rotational: bool,
    },
    Drain {
        nth: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let pages = prop_oneof![3 => Just(1u16), 4 => (0u32..=9).prop_map(|o| 1 << o), 1 => 1u16..=512];
    prop_oneof![
        12 => (0u16..2, pages).prop_map(|(cpu, pages)| Op::Allocate { cpu, pages }),
        12 => (0u16..2, any::<usize>()).prop_map(|(cpu, nth)| Op::Free { cpu, nth }),
        6 => (any::<usize>(), 1u16..=512, any::<bool>())
            .prop_map(|(nth, len, now)| Op::FreeRun { nth, len, now }),
        1 => any::<usize>().prop_map(|nth| Op::FreeTwice { nth }),
        3 => (any::<usize>(), 1usize..200).prop_map(|(nth, count)| Op::Cache { nth, count }),
        1 => any::<usize>().prop_map(|nth| Op::Bad { nth }),
        2 => (0usize..4).prop_map(|max| Op::Work { max }),
        1 => (100u64..3000, any::<bool>(), any::<bool>())
            .prop_map(|(slots, discard, rotational)| Op::Add { slots, discard, rotational }),
        1 => any::<usize>().prop_map(|nth| Op::Drain { nth }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let choice = prop_oneof![
        Just(DeviceChoice::PerNode),
        Just(DeviceChoice::Activation),
        Just(DeviceChoice::EqualTurns)
    ];
    let clusters = prop_oneof![
        Just(ClusterPolicy::Auto),
        Just(ClusterPolicy::FreeFirst),
        Just(ClusterPolicy::NonFullFirst)
    ];
    let returns = prop_oneof![3 => Just(Returns::Cached), 1 => Just(Returns::Direct)];
    (choice, clusters, returns, 0u16..512).prop_map(|(choice, clusters, returns, compact_used)| {
        Options {
            compact_used,
            choice,
            clusters,
            returns,
        }
    })
}

struct Run {
    devices: Arc<Devices>,
    entries: Arc<Entries>,
    next: u32,
    out: ExtentList,
}

impl Run {
    fn new(options: Options) -> Self {
        let devices = Arc::new(Devices::new(Arc::new(Cpus(2)), options));
        let entries = Arc::new(Entries {
            naive: Default::default(),
            devices: OnceLock::new(),
        });
        entries.devices.set(Arc::downgrade(&devices)).unwrap();
        devices.set_cache_reclaim(entries.clone());
        devices.set_mover(entries.clone());
        devices
            .add(blank(2048), DeviceSpec::default(), None)
            .unwrap();
        Self {
            devices,
            entries,
            next: 0,
            out: ExtentList::new(),
        }
    }

    fn owned(&self, nth: usize) -> Option<(u8, u32)> {
        let naive = self.entries.naive.lock().unwrap();
        let n = naive.owner.len();
        naive.owner.keys().nth(nth.checked_rem(n)?).copied()
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Allocate { cpu, pages } => self.allocate(Cpu(cpu), pages),
            Op::Free { cpu, nth } => {
                let Some((device, slot)) = self.owned(nth) else {
                    return;
                };
                self.free(Cpu(cpu), device, slot, 1, false);
            }
            Op::FreeRun { nth, len, now } => {
                let Some((device, slot)) = self.owned(nth) else {
                    return;
                };
                let naive = self.entries.naive.lock().unwrap();
                let end = SlotIndex(slot).cluster().first_slot().0 + CLUSTER_SLOTS as u32;
                let run = (slot..end.min(slot + u32::from(len))).take_while(|s| {
                    naive.owner.contains_key(&(device, *s)) || naive.bad.contains(&(device, *s))
                });
                let len = run.count() as u16;
                drop(naive);
                self.free(A, device, slot, len, now);
            }
            Op::FreeTwice { nth } => {
                let Some((device, slot)) = self.owned(nth) else {
                    return;
                };
                let owner = self.entries.naive.lock().unwrap().owner[&(device, slot)];
                self.free(A, device, slot, 1, false);
                let extent = Extent {
                    device: DeviceId(device),
                    start: SlotIndex(slot),
                    len: 1,
                };
                match self.devices.free(B, extent) {
                    Err(FreeError::DoubleFree { owner: seen, .. }) => {
                        assert!(seen.is_none_or(|s| s.0 == owner));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Op::Cache { nth, count } => {
                let mut naive = self.entries.naive.lock().unwrap();
                let Some(skip) = nth.checked_rem(naive.owner.len()) else {
                    return;
                };
                let some: Vec<_> = naive
                    .owner
                    .iter()
                    .skip(skip)
                    .take(count)
                    .map(|(k, v)| (*k, *v))
                    .collect();
                for ((device, slot), owner) in some {
                    self.devices
                        .set_cache_only(DeviceId(device), SlotIndex(slot), true);
                    naive.cached.insert(owner);
                }
            }
            Op::Bad { nth } => {
                let Some((device, slot)) = self.owned(nth) else {
                    return;
                };
                let mut naive = self.entries.naive.lock().unwrap();
                let owner = naive.owner.remove(&(device, slot)).unwrap();
                naive.cached.remove(&owner);
                naive.bad.insert((device, slot));
                self.devices.bad_slot(A, DeviceId(device), SlotIndex(slot));
            }
            Op::Work { max } => {
                self.devices.work(B, max);
            }
            Op::Add {
                slots,
                discard,
                rotational,
            } => {
                if self.devices.usage().len() >= 4 {
                    return;
                }
                let spec = DeviceSpec {
                    discard: Some(discard),
                    rotational: Some(rotational),
                    ..DeviceSpec::default()
                };
                match self.devices.add(blank(slots), spec, None) {
                    Ok(_) => assert!(slots >= 512),
                    Err(e) => assert_eq!(e, AddError::TooSmall { slots }),
                }
            }
            Op::Drain { nth } => self.drain(nth),
        }
    }

    fn free(&self, cpu: Cpu, device: u8, slot: u32, len: u16, now: bool) {
        let mut naive = self.entries.naive.lock().unwrap();
        for s in slot..slot + u32::from(len) {
            if let Some(owner) = naive.owner.remove(&(device, s)) {
                naive.cached.remove(&owner);
            }
        }
        drop(naive);
        let extent = Extent {
            device: DeviceId(device),
            start: SlotIndex(slot),
            len,
        };
        if now {
            self.devices.free_now(cpu, extent).unwrap();
        } else {
            self.devices.free(cpu, extent).unwrap();
        }
    }

    fn allocate(&mut self, cpu: Cpu, pages: u16) {
        self.out.clear();
        let owner = EntryId(self.next);
        let result = self.devices.allocate(cpu, pages, owner, &mut self.out);
        let mut naive = self.entries.naive.lock().unwrap();
        match result {
            Ok(()) => {
                self.next += u32::from(pages);
                let mut entry = owner.0;
                for e in self.out.iter() {
                    assert!(e.start.within() + usize::from(e.len) <= CLUSTER_SLOTS);
                    for slot in e.start.0..e.start.0 + u32::from(e.len) {
                        assert!(!naive.bad.contains(&(e.device.0, slot)));
                        let was = naive.owner.insert((e.device.0, slot), entry);
                        assert_eq!(was, None, "slot {slot} is in use");
                        entry += 1;
                    }
                }
                assert_eq!(entry, self.next, "as many slots as pages");
            }
            Err(e) => {
                assert_eq!(e, AllocError::Full);
                assert!(self.out.is_empty());
                let free: u64 = self
                    .devices
                    .usage()
                    .iter()
                    .filter(|d| d.accepting)
                    .map(|d| {
                        let of = |(id, _): &&(u8, u32)| *id == d.device.0;
                        let used = naive.owner.keys().filter(of).count();
                        u64::from(d.slots) - (used + naive.bad.iter().filter(of).count()) as u64
                    })
                    .sum();
                assert!(
                    free < u64::from(pages),
                    "{free} slots are free, {pages} were refused"
                );
            }
        }
    }

    fn drain(&mut self, nth: usize) {
        let usage = self.devices.usage();
        if usage.len() < 2 {
            return;
        }
        let id = usage[nth % usage.len()].device;
        loop {
            match self.devices.drain_step(A, id, 100) {
                Ok(Drain::Moved(_)) => self.devices.check(),
                Ok(Drain::Done) => break,
                Err(DrainError::NoRoom { missing }) => {
                    assert!(missing > 0);
                    return;
                }
                Err(e) => panic!("{e}"),
            }
        }
        self.devices.remove(A, id).unwrap();
        let mut naive = self.entries.naive.lock().unwrap();
        assert!(
            naive.owner.keys().all(|(d, _)| *d != id.0),
            "a slot was lost"
        );
        naive.bad.retain(|(d, _)| *d != id.0);
    }

    fn check(&self) {
        self.devices.check();
        let naive = self.entries.naive.lock().unwrap();
        for (&(device, slot), &owner) in &naive.owner {
            assert_eq!(
                self.devices.owner(DeviceId(device), SlotIndex(slot)),
                Some(EntryId(owner)),
                "owner of slot {slot} of device {device}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_time: 60_000, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_a_naive_allocator(options in options(), ops in proptest::collection::vec(op(), 1..250)) {
        let mut run = Run::new(options);
        for op in ops {
            run.step(op);
            run.check();
        }
        // Whatever happened, everything can be given back, and all of it be used again.
        while let Some((device, slot)) = run.owned(0) {
            run.free(A, device, slot, 1, false);
        }
        while run.devices.work(A, 16) > 0 {}
        run.check();
        for usage in run.devices.usage() {
            prop_assert_eq!(usage.used, usage.bad);
        }
    }
}

#[test]
fn the_last_free_slot_is_found() {
    for order in [0u8, 4, 9] {
        let (devices, id) = one(4096 + 100, Options::default());
        let mut out = ExtentList::new();
        let pages = 1u16 << order;
        let mut got = 0;
        while devices
            .allocate(
                if got % 2 == 0 { A } else { B },
                pages,
                EntryId(got),
                &mut out,
            )
            .is_ok()
        {
            got += u32::from(pages);
        }
        while devices.allocate(A, 1, EntryId(got), &mut out).is_ok() {
            got += 1;
        }
        assert_eq!(got, 4196);
        devices.check();
        // One slot anywhere, parked in the other processor's return cache.
        devices
            .free(
                B,
                Extent {
                    device: id,
                    start: SlotIndex(1234),
                    len: 1,
                },
            )
            .unwrap();
        out.clear();
        devices.allocate(A, 1, EntryId(9999), &mut out).unwrap();
        assert_eq!(
            out[0],
            Extent {
                device: id,
                start: SlotIndex(1234),
                len: 1
            }
        );
        devices.check();
    }
}

#[test]
fn a_folio_is_scattered_only_over_what_is_there() {
    let (devices, id) = one(1024, Options::default());
    let mut out = ExtentList::new();
    for i in 0..1024 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    for slot in (1..1024).step_by(64) {
        devices
            .free(
                A,
                Extent {
                    device: id,
                    start: SlotIndex(slot),
                    len: 1,
                },
            )
            .unwrap();
    }
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(102),
                len: 8,
            },
        )
        .unwrap();
    out.clear();
    devices.allocate(B, 16, EntryId(5000), &mut out).unwrap();
    assert_eq!(
        out[0],
        Extent {
            device: id,
            start: SlotIndex(102),
            len: 8
        },
        "the longest run first"
    );
    assert_eq!(out.len(), 9);
    assert_eq!(devices.owner(id, out[8].start), Some(EntryId(5015)));
    out.clear();
    assert_eq!(
        devices.allocate(B, 9, EntryId(6000), &mut out),
        Err(AllocError::Full)
    );
    assert!(out.is_empty());
    devices.check();
    devices.allocate(B, 8, EntryId(6000), &mut out).unwrap();
    assert_eq!(
        devices.allocate(B, 1, EntryId(6008), &mut out),
        Err(AllocError::Full)
    );
}

#[test]
fn emptied_clusters_are_discarded_before_they_are_used_again() {
    let devices = Devices::new(Arc::new(Cpus(1)), Options::default());
    let store = Arc::new(Blank {
        slots: 1024,
        discard: true,
        ..Blank::default()
    });
    let id = devices
        .add(store.clone(), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..2 {
        devices
            .allocate(A, 512, EntryId(i * 512), &mut out)
            .unwrap();
    }
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(0),
                len: 512,
            },
        )
        .unwrap();
    devices.check();
    assert!(
        store.discarded.lock().unwrap().is_empty(),
        "not on the path of a free"
    );
    // No worker ran: the allocation discards for itself.
    devices.allocate(A, 512, EntryId(0), &mut out).unwrap();
    assert_eq!(*store.discarded.lock().unwrap(), [(0, 512)]);
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 512,
            },
        )
        .unwrap();
    assert!(devices.work(A, 8) > 0);
    assert_eq!(*store.discarded.lock().unwrap(), [(0, 512), (512, 512)]);
    assert_eq!(devices.work(A, 8), 0);
    devices.check();
}

/// The failure reported against the series of the seed: a cluster is taken off its list by
/// the discard worker, and something else frees or moves it as if it were still listed.
#[test]
fn a_cluster_being_discarded_is_on_no_list() {
    struct Meddler {
        devices: OnceLock<std::sync::Weak<Devices>>,
        calls: AtomicU64,
    }
    impl Store for Meddler {
        fn slots(&self) -> u64 {
            1024
        }
        fn write(&self, _: &[WriteOp<'_>], _: &mut [Result<(), IoError>]) {}
        fn read(&self, _: &mut [ReadOp<'_>], _: &mut [Result<(), IoError>]) {}
        fn discard(&self, slot: u64, _: u64) -> Result<(), IoError> {
            // In the midst of the discard, no lock held: everything else goes on.
            let devices = self.devices.get().unwrap().upgrade().unwrap();
            let extent = Extent {
                device: DeviceId(0),
                start: SlotIndex(slot as u32),
                len: 1,
            };
            assert!(matches!(
                devices.free(A, extent),
                Err(FreeError::DoubleFree { .. })
            ));
            assert!(matches!(
                devices.free_now(A, extent),
                Err(FreeError::DoubleFree { .. })
            ));
            let mut out = ExtentList::new();
            assert_eq!(
                devices.allocate(A, 512, EntryId(0), &mut out),
                Err(AllocError::Full)
            );
            devices.bad_slot(A, DeviceId(0), SlotIndex(slot as u32));
            devices.work(A, 8);
            self.calls.fetch_add(1, Ordering::Relaxed);
            Err(IoError::Slot)
        }
        fn wants_discard(&self) -> bool {
            true
        }
        fn rotational(&self) -> bool {
            false
        }
        fn node(&self) -> Option<Node> {
            None
        }
    }
    let devices = Arc::new(Devices::new(Arc::new(Cpus(1)), Options::default()));
    let store = Arc::new(Meddler {
        devices: OnceLock::new(),
        calls: AtomicU64::new(0),
    });
    store.devices.set(Arc::downgrade(&devices)).unwrap();
    let id = devices
        .add(store.clone(), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..2 {
        devices
            .allocate(A, 512, EntryId(i * 512), &mut out)
            .unwrap();
    }
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 512,
            },
        )
        .unwrap();
    assert!(devices.work(A, 8) > 0);
    assert_eq!(store.calls.load(Ordering::Relaxed), 1);
    devices.check();
    devices.allocate(A, 512, EntryId(512), &mut out).unwrap();
    devices.check();
}

#[test]
fn a_rotating_device_has_one_cursor() {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let store = Arc::new(Blank {
        slots: 4096,
        rotational: true,
        ..Blank::default()
    });
    devices.add(store, DeviceSpec::default(), None).unwrap();
    let mut out = ExtentList::new();
    for i in 0..600 {
        devices
            .allocate(if i % 2 == 0 { A } else { B }, 1, EntryId(i), &mut out)
            .unwrap();
        devices.check();
    }
    let forward = |out: &ExtentList| {
        out.windows(2)
            .all(|w| w[1].start.0 == w[0].start.0 + u32::from(w[0].len))
    };
    assert!(forward(&out), "the head only moves forward: {out:?}");
    out.clear();
    for i in 0..8 {
        devices
            .allocate(
                if i % 2 == 0 { A } else { B },
                16,
                EntryId(1000 + i * 16),
                &mut out,
            )
            .unwrap();
    }
    assert!(forward(&out), "{out:?}");
}

#[test]
fn cached_slots_are_reclaimed_when_over_half_full() {
    let mut run = Run::new(Options::default());
    for _ in 0..2048 {
        run.allocate(A, 1);
    }
    run.step(Op::Cache { nth: 100, count: 1 });
    run.step(Op::Cache {
        nth: 1024,
        count: 64,
    });
    assert_eq!(run.entries.naive.lock().unwrap().cached.len(), 65);
    run.allocate(A, 1);
    run.check();
    run.allocate(B, 32);
    run.check();
    assert_eq!(
        run.entries.naive.lock().unwrap().owner.len(),
        2048 - 65 + 33
    );
    for _ in 33..65 {
        run.allocate(B, 1);
    }
    run.allocate(B, 1);
    assert_eq!(run.entries.naive.lock().unwrap().owner.len(), 2048);
}

#[test]
fn repeated_errors_take_the_device_out() {
    let (devices, id) = one(1024, Options::default());
    let other = devices
        .add(blank(1024), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..DEVICE_ERROR_LIMIT {
        out.clear();
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
        assert_eq!(out[0].device, id);
        devices.bad_slot(A, id, out[0].start);
        devices.check();
    }
    let usage = devices.usage();
    assert_eq!(
        (usage[0].bad, usage[0].accepting),
        (DEVICE_ERROR_LIMIT, false)
    );
    out.clear();
    devices.allocate(A, 1, EntryId(100), &mut out).unwrap();
    assert_eq!(out[0].device, other);
}

#[test]
fn a_drain_without_room_says_how_much_is_missing() {
    let mut run = Run::new(Options::default());
    run.devices
        .add(blank(1024), DeviceSpec::default(), None)
        .unwrap();
    for _ in 0..2000 {
        run.allocate(A, 1);
    }
    assert_eq!(run.devices.drain_lacks(DeviceId(0)), Ok(976));
    let error = loop {
        match run.devices.drain_step(A, DeviceId(0), 300) {
            Ok(step) => assert_ne!(step, Drain::Done),
            Err(e) => break e,
        }
    };
    assert_eq!(error, DrainError::NoRoom { missing: 976 });
    assert!(run.devices.usage()[0].accepting);
    run.check();
    assert_eq!(
        run.devices.remove(A, DeviceId(0)),
        Err(DrainError::InUse {
            device: DeviceId(0),
            used: 976
        })
    );
    run.devices
        .add(blank(1024), DeviceSpec::default(), None)
        .unwrap();
    run.drain(0);
    run.check();
    assert_eq!(run.devices.usage().len(), 2);
    // The number is used again, and nothing of the old device is left under it.
    let id = run
        .devices
        .add(blank(512), DeviceSpec::default(), None)
        .unwrap();
    assert_eq!(id, DeviceId(0));
    run.check();
}

#[test]
fn parameters_out_of_range_are_errors() {
    let (devices, id) = one(700, Options::default());
    let mut out = ExtentList::new();
    for pages in [0, 513, u16::MAX] {
        assert_eq!(
            devices.allocate(A, pages, EntryId(0), &mut out),
            Err(AllocError::Pages(pages))
        );
    }
    for (start, len) in [
        (0, 0),
        (511, 2),
        (700, 1),
        (690, 11),
        (u32::MAX, 1),
        (0, 513),
    ] {
        let start = SlotIndex(start);
        let error = devices.free(
            A,
            Extent {
                device: id,
                start,
                len,
            },
        );
        assert_eq!(
            error,
            Err(FreeError::OutOfRange {
                device: id,
                start,
                len
            })
        );
    }
    let nowhere = Extent {
        device: DeviceId(200),
        start: SlotIndex(0),
        len: 1,
    };
    assert_eq!(
        devices.free(A, nowhere),
        Err(FreeError::NoDevice(DeviceId(200)))
    );
    assert_eq!(devices.owner(DeviceId(200), SlotIndex(0)), None);
    assert_eq!(devices.owner(id, SlotIndex(u32::MAX)), None);
    let free = Extent {
        device: id,
        start: SlotIndex(3),
        len: 1,
    };
    assert!(matches!(
        devices.free(A, free),
        Err(FreeError::DoubleFree { owner: None, .. })
    ));
    let small = devices.add(blank(511), DeviceSpec::default(), None);
    assert_eq!(small, Err(AddError::TooSmall { slots: 511 }));
    let large = devices.add(blank(1 << 40), DeviceSpec::default(), None);
    assert_eq!(large, Err(AddError::TooLarge { slots: 1 << 40 }));
    devices.check();
}

#[test]
fn memory_stays_within_the_promises() {
    let slots = 1 << 20;
    let (devices, id) = one(slots, Options::default());
    let empty = Devices::new(Arc::new(Cpus(2)), Options::default()).bookkeeping_bytes();
    let per_slot = |devices: &Devices| (devices.bookkeeping_bytes() - empty) as f64 / slots as f64;
    assert!(
        per_slot(&devices) < 0.01,
        "idle: {} bytes a slot",
        per_slot(&devices)
    );
    let mut out = ExtentList::new();
    for i in 0..slots as u32 {
        out.clear();
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    assert!(
        per_slot(&devices) < 4.5,
        "full: {} bytes a slot",
        per_slot(&devices)
    );
    for i in 0..slots as u32 {
        devices
            .free(
                A,
                Extent {
                    device: id,
                    start: SlotIndex(i),
                    len: 1,
                },
            )
            .unwrap();
    }
    while devices.work(A, 64) > 0 {}
    devices.check();
    assert!(
        per_slot(&devices) < 0.1,
        "idle again: {} bytes a slot",
        per_slot(&devices)
    );
}

fn lent(clusters: u32) -> (Devices, Arc<Lent>) {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let lender = Arc::new(Lent::default());
    lender.free.lock().unwrap().extend((0..clusters).rev());
    let store = blank(u64::from(clusters) * 512 - 12);
    devices
        .add(store, DeviceSpec::default(), Some(lender.clone()))
        .unwrap();
    (devices, lender)
}

#[test]
fn clusters_are_borrowed_when_needed_and_given_back_when_empty() {
    let (devices, lender) = lent(16);
    let mut out = ExtentList::new();
    for i in 0..16 * 512 - 12 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    assert_eq!(
        devices.allocate(A, 1, EntryId(0), &mut out),
        Err(AllocError::Full)
    );
    assert_eq!(lender.free_clusters(), 0);
    devices.check();
    for extent in out.iter() {
        devices.free(A, *extent).unwrap();
    }
    while devices.work(A, 4) > 0 {
        devices.check();
    }
    // The last cluster has slots past the device's end, and stays ours.
    assert_eq!(lender.free_clusters(), 16 - 2 - 1);
    let idle = devices.bookkeeping_bytes();
    assert!(idle < 64 * 1024, "{idle}");
}

#[test]
fn a_fork_freezes_what_the_child_may_read() {
    let (devices, lender) = lent(8);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..700 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(5),
                len: 1,
            },
        )
        .unwrap();
    lender.read.lock().unwrap().extend([0, 1]);
    devices.fork_parent();
    devices.check();
    // What was free at the fork, or is freed since, is not used while the child may read.
    devices
        .free(
            B,
            Extent {
                device: id,
                start: SlotIndex(6),
                len: 1,
            },
        )
        .unwrap();
    devices
        .free(
            B,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 188,
            },
        )
        .unwrap();
    devices.check();
    while devices.work(A, 8) > 0 {}
    out.clear();
    for i in 0..600 {
        devices.allocate(A, 1, EntryId(1000 + i), &mut out).unwrap();
    }
    assert!(out.iter().all(|e| e.start.cluster().0 >= 2), "{out:?}");
    let twice = devices.free(
        A,
        Extent {
            device: id,
            start: SlotIndex(6),
            len: 1,
        },
    );
    assert!(
        matches!(
            twice,
            Err(FreeError::DoubleFree {
                owner: Some(EntryId(6)),
                ..
            })
        ),
        "{twice:?}"
    );
    assert_eq!(devices.owner(id, SlotIndex(6)), None);
    assert_eq!(devices.owner(id, SlotIndex(7)), Some(EntryId(7)));
    devices.check();
    lender.read.lock().unwrap().clear();
    assert!(devices.work(A, 8) > 0);
    devices.check();
    assert_eq!(devices.usage()[0].used, 700 - 190 + 600);
}

#[test]
fn a_child_only_reads_and_frees_what_it_inherits() {
    let (devices, lender) = lent(8);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..600 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices.allocate(A, 512, EntryId(1000), &mut out).unwrap();
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(1024),
                len: 512,
            },
        )
        .unwrap();
    devices.bad_slot(A, id, SlotIndex(513));
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 1,
            },
        )
        .unwrap();
    devices.fork_child();
    devices.check();
    assert_eq!(
        *lender.stopped.lock().unwrap(),
        [2],
        "the empty cluster is not read"
    );
    assert_eq!(devices.owner(id, SlotIndex(599)), Some(EntryId(599)));
    assert_eq!(devices.owner(id, SlotIndex(513)), None);
    out.clear();
    devices.allocate(A, 1, EntryId(5000), &mut out).unwrap();
    assert_eq!(out[0].start.cluster(), ClusterIndex(3));
    devices
        .free(
            A,
            Extent {
                device: id,
                start: SlotIndex(514),
                len: 86,
            },
        )
        .unwrap();
    assert_eq!(*lender.stopped.lock().unwrap(), [2, 1]);
    devices.check();
    // A grandchild inherits both what its parent inherited and what its parent took.
    devices.fork_child();
    devices.check();
    for slot in (0..512).chain([out[0].start.0]) {
        devices
            .free(
                A,
                Extent {
                    device: id,
                    start: SlotIndex(slot),
                    len: 1,
                },
            )
            .unwrap();
    }
    while devices.work(A, 8) > 0 {}
    devices.check();
    assert_eq!(*lender.stopped.lock().unwrap(), [2, 1, 0, 3]);
    assert_eq!(devices.usage()[0].used, 0);
}

#[test]
fn compaction_makes_whole_clusters() {
    let mut run = Run::new(Options::default());
    for _ in 0..2048 / 16 {
        run.allocate(A, 16);
    }
    for i in 0..4096 {
        if let Some((device, slot)) = run.owned(i * 7919)
            && run.entries.naive.lock().unwrap().owner.len() > 700
        {
            run.free(A, device, slot, 1, true);
        }
    }
    run.check();
    let held = run.entries.naive.lock().unwrap().owner.len();
    while run.devices.work(A, 4) > 0 {
        run.check();
    }
    assert_eq!(run.entries.naive.lock().unwrap().owner.len(), held);
    run.allocate(A, 512);
    assert_eq!(run.out.len(), 1, "{:?}", run.out);
}
