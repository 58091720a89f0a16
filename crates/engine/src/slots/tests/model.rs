//! Random operations beside a naive allocator, with every invariant checked after each.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The naive allocator: who owns which slot, and which entries are cached.
#[derive(Default)]
pub(super) struct Naive {
    pub(super) owner: BTreeMap<(u8, u32), u32>,
    pub(super) cached: BTreeSet<u32>,
    pub(super) bad: BTreeSet<(u8, u32)>,
}

impl Naive {
    pub(super) fn extent_of(&self, entry: u32) -> Option<Extent> {
        let (&(device, slot), _) = self.owner.iter().find(|(_, owner)| **owner == entry)?;
        Some(Extent {
            device: DeviceId(device),
            start: SlotIndex(slot),
            len: 1,
        })
    }
}

/// The engine's part of a test: drops cached entries, moves owned ones.
pub(super) struct Entries {
    pub(super) naive: std::sync::Mutex<Naive>,
    pub(super) devices: OnceLock<std::sync::Weak<Devices>>,
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
            .free(B, owner, extent)
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
pub(super) enum Op {
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
    /// What an entry owns and what follows it, as if that were its own too.
    FreeOthers {
        nth: usize,
        len: u16,
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
        1 => (any::<usize>(), 2u16..=512).prop_map(|(nth, len)| Op::FreeOthers { nth, len }),
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

pub(super) struct Run {
    pub(super) devices: Arc<Devices>,
    pub(super) entries: Arc<Entries>,
    pub(super) next: u32,
    pub(super) out: ExtentList,
}

impl Run {
    pub(super) fn new(options: Options) -> Self {
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

    fn slots(&self, device: u8) -> u32 {
        let usage = self.devices.usage();
        let found = usage.iter().find(|d| d.device.0 == device);
        found.unwrap().slots
    }

    pub(super) fn owned(&self, nth: usize) -> Option<(u8, u32)> {
        let naive = self.entries.naive.lock().unwrap();
        let n = naive.owner.len();
        naive.owner.keys().nth(nth.checked_rem(n)?).copied()
    }

    pub(super) fn step(&mut self, op: Op) {
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
                let owner = EntryId(owner);
                let twice = |now| FreeError::DoubleFree {
                    device: extent.device,
                    slot: extent.start,
                    owner,
                    now,
                };
                let again = self.devices.free(B, owner, extent);
                assert_eq!(again, Err(twice(None)));
                let again = self.devices.free_now(B, owner, extent);
                assert_eq!(again, Err(twice(None)));
            }
            Op::FreeOthers { nth, len } => {
                let Some((device, slot)) = self.owned(nth) else {
                    return;
                };
                let cluster_end = SlotIndex(slot).cluster().first_slot().0 + CLUSTER_SLOTS as u32;
                let end = (slot + u32::from(len)).min(cluster_end);
                let end = end.min(self.slots(device));
                let naive = self.entries.naive.lock().unwrap();
                let first = naive.owner[&(device, slot)];
                let owner = |s: &u32| naive.owner.get(&(device, *s)).copied();
                let wrong = |s: &u32| {
                    owner(s) != Some(first + s - slot) && !naive.bad.contains(&(device, *s))
                };
                let Some(wrong) = (slot..end).find(wrong) else {
                    return;
                };
                let error = FreeError::DoubleFree {
                    device: DeviceId(device),
                    slot: SlotIndex(wrong),
                    owner: EntryId(first + wrong - slot),
                    now: owner(&wrong).map(EntryId),
                };
                drop(naive);
                let extent = Extent {
                    device: DeviceId(device),
                    start: SlotIndex(slot),
                    len: (end - slot) as u16,
                };
                let stale = self.devices.free(A, EntryId(first), extent);
                assert_eq!(stale, Err(error));
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

    pub(super) fn free(&self, cpu: Cpu, device: u8, slot: u32, len: u16, now: bool) {
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
            self.devices.give_now(cpu, extent).unwrap();
        } else {
            self.devices.give(cpu, extent).unwrap();
        }
    }

    pub(super) fn allocate(&mut self, cpu: Cpu, pages: u16) {
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

    pub(super) fn drain(&mut self, nth: usize) {
        let usage = self.devices.usage();
        if usage.len() < 2 {
            return;
        }
        let id = usage[nth % usage.len()].device;
        let used = |id: DeviceId| {
            let naive = self.entries.naive.lock().unwrap();
            naive.owner.keys().filter(|(d, _)| *d == id.0).count() as u64
        };
        let free = |d: &DeviceUsage| u64::from(d.slots - d.bad) - used(d.device);
        let others = usage.iter().filter(|d| d.device != id && d.accepting);
        let missing = used(id).saturating_sub(others.map(free).sum());
        if missing > 0 {
            // Before anything was moved.
            let step = self.devices.drain_step(A, id, 100);
            assert_eq!(step, Err(DrainError::NoRoom { missing }));
            return;
        }
        loop {
            match self.devices.drain_step(A, id, 100) {
                Ok(Drain::Moved(_)) => self.devices.check(),
                Ok(Drain::Done) => break,
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

    pub(super) fn check(&self) {
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
    #![proptest_config(ProptestConfig { max_shrink_time: 60_000, ..ProptestConfig::default() })]
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
