//! Random operations beside a naive allocator, with every invariant checked after each.
//!
//! The naive side knows who owns which slot, and of each device what the user said of it and how its
//! writes went. So it tells which devices come before others, and which accept nothing any more. No
//! device is chosen where a processor goes on in its current cluster. Else no device with an empty
//! cluster may be passed over, and while there is one anywhere no folio is scattered.

use super::*;
use crate::slots::cluster::ClusterState;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A device as the naive side knows it.
pub(super) struct Known {
    id: DeviceId,
    slots: u32,
    spec: DeviceSpec,
    errors: u32,
    written: u32,
    out: bool,
}

/// The naive allocator: who owns which slot, and which entries are cached.
#[derive(Default)]
pub(super) struct Naive {
    /// The devices in order of activation.
    devices: Vec<Known>,
    pub(super) owner: BTreeMap<(u8, u32), u32>,
    pub(super) cached: BTreeSet<u32>,
    pub(super) bad: BTreeSet<(u8, u32)>,
}

impl Naive {
    /// How early a device comes on a node.
    fn rank(&self, policy: DeviceChoice, id: DeviceId, node: Node) -> i16 {
        let at = self.devices.iter().position(|d| d.id == id).unwrap();
        let of = &self.devices[at].spec;
        let before = &self.devices[..at];
        let automatic = before.iter().filter(|d| d.spec.priority.is_none()).count();
        match (of.priority, policy) {
            (Some(priority), _) => priority,
            (None, DeviceChoice::EqualTurns) => -1,
            (None, DeviceChoice::PerNode) if of.node == Some(node) => -1,
            (None, _) => -2 - automatic as i16,
        }
    }

    fn known(&mut self, id: DeviceId) -> &mut Known {
        self.devices.iter_mut().find(|d| d.id == id).unwrap()
    }

    fn is_empty(&self, id: DeviceId, c: ClusterIndex) -> bool {
        let start = c.first_slot().0;
        let slots = (id.0, start)..(id.0, start + CLUSTER_SLOTS as u32);
        self.owner.range(slots.clone()).next().is_none() && self.bad.range(slots).next().is_none()
    }

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
        let Some(to) = to else { return Moved::NoPlace };
        let mut naive = self.naive.lock().unwrap();
        for i in 0..u32::from(from.len) {
            // No run that is moved holds what was given up.
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
    /// An entry's slot and those that follow it, as if they were its own too.
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
        spec: DeviceSpec,
        lent: bool,
    },
    Drain {
        nth: usize,
    },
    Wrote {
        nth: usize,
        pages: u32,
    },
    Retire {
        nth: usize,
    },
}

fn spec() -> impl Strategy<Value = DeviceSpec> {
    let priority = proptest::option::of(0i16..3);
    let node = proptest::option::of((0u16..3).prop_map(Node));
    (any::<bool>(), any::<bool>(), priority, node).prop_map(
        |(discard, rotational, priority, node)| DeviceSpec {
            priority,
            node,
            discard: Some(discard),
            rotational: Some(rotational),
        },
    )
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
        2 => (100u64..3000, spec(), any::<bool>())
            .prop_map(|(slots, spec, lent)| Op::Add { slots, spec, lent }),
        1 => any::<usize>().prop_map(|nth| Op::Drain { nth }),
        1 => (any::<usize>(), 1u32..100).prop_map(|(nth, pages)| Op::Wrote { nth, pages }),
        1 => any::<usize>().prop_map(|nth| Op::Retire { nth }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let choice = prop_oneof![
        Just(DeviceChoice::PerNode),
        Just(DeviceChoice::Activation),
        Just(DeviceChoice::EqualTurns)
    ];
    (choice, 0u16..512).prop_map(|(choice, compact_used)| Options {
        compact_used,
        choice,
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
        Self::beginning(options, false)
    }

    /// With a device of 2048 slots, the clusters of which are lent if so wanted.
    pub(super) fn beginning(options: Options, lent: bool) -> Self {
        let devices = Arc::new(Devices::new(Arc::new(Cpus(2)), options));
        let entries = Arc::new(Entries {
            naive: Default::default(),
            devices: OnceLock::new(),
        });
        entries.devices.set(Arc::downgrade(&devices)).unwrap();
        devices.set_cache_reclaim(entries.clone());
        devices.set_mover(entries.clone());
        let run = Self {
            devices,
            entries,
            next: 0,
            out: ExtentList::new(),
        };
        run.add(2048, DeviceSpec::default(), lent).unwrap();
        run
    }

    /// Adds a device, the clusters of which are lent if so wanted.
    pub(super) fn add(
        &self,
        slots: u64,
        spec: DeviceSpec,
        lent: bool,
    ) -> Result<DeviceId, AddError> {
        let lender: Option<Arc<dyn Lender>> = lent.then(|| {
            let lender = Lent::default();
            let clusters = (slots / CLUSTER_SLOTS as u64) as u32;
            lender.free.lock().unwrap().extend((0..clusters).rev());
            Arc::new(lender) as _
        });
        let id = self.devices.add(blank(slots), spec, lender)?;
        self.entries.naive.lock().unwrap().devices.push(Known {
            id,
            // What is left over at its end is not used.
            slots: slots as u32 / 512 * 512,
            spec,
            errors: 0,
            written: 0,
            out: false,
        });
        Ok(id)
    }

    fn nth_device(&self, nth: usize) -> Option<DeviceId> {
        let naive = self.entries.naive.lock().unwrap();
        let n = naive.devices.len();
        Some(naive.devices[nth.checked_rem(n)?].id)
    }

    pub(super) fn owned(&self, nth: usize) -> Option<(u8, u32)> {
        let naive = self.entries.naive.lock().unwrap();
        let n = naive.owner.len();
        naive.owner.keys().nth(nth.checked_rem(n)?).copied()
    }

    pub(super) fn step(&mut self, op: Op) {
        match op {
            Op::Allocate { cpu, pages } => self.allocate(Cpu(cpu), pages),
            Op::Free { cpu, nth } => self.free_one(cpu, nth),
            Op::FreeRun { nth, len, now } => self.free_several(nth, len, now),
            Op::FreeTwice { nth } => self.free_twice(nth),
            Op::FreeOthers { nth, len } => self.free_others(nth, len),
            Op::Cache { nth, count } => self.cache(nth, count),
            Op::Bad { nth } => self.bad(nth),
            Op::Work { max } => {
                self.devices.work(B, max);
            }
            Op::Add { slots, spec, lent } => {
                if self.devices.usage().len() >= 4 {
                    return;
                }
                match self.add(slots, spec, lent) {
                    Ok(_) => assert!(slots >= 512),
                    Err(e) => assert_eq!(e, AddError::TooSmall { slots }),
                }
            }
            Op::Wrote { nth, pages } => self.wrote(nth, pages),
            Op::Retire { nth } => {
                let Some(id) = self.nth_device(nth) else {
                    return;
                };
                self.devices.retire(id);
                self.entries.naive.lock().unwrap().known(id).out = true;
            }
            Op::Drain { nth } => self.drain(nth),
        }
    }

    /// Frees a slot.
    fn free_one(&mut self, cpu: u16, nth: usize) {
        let Some((device, slot)) = self.owned(nth) else {
            return;
        };
        self.free(Cpu(cpu), device, slot, 1, false);
    }

    /// Frees some slots from one on, as far as entries own them.
    fn free_several(&mut self, nth: usize, len: u16, now: bool) {
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

    /// Frees a slot and then again, which is refused.
    fn free_twice(&mut self, nth: usize) {
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

    /// Frees slots of which not all are the owner's, which is refused.
    fn free_others(&mut self, nth: usize, len: u16) {
        let Some((device, slot)) = self.owned(nth) else {
            return;
        };
        let cluster_end = SlotIndex(slot).cluster().first_slot().0 + CLUSTER_SLOTS as u32;
        let end = (slot + u32::from(len)).min(cluster_end);
        let naive = self.entries.naive.lock().unwrap();
        let first = naive.owner[&(device, slot)];
        let owner = |s: &u32| naive.owner.get(&(device, *s)).copied();
        let wrong =
            |s: &u32| owner(s) != Some(first + s - slot) && !naive.bad.contains(&(device, *s));
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

    /// Says of some slots that they are only copies.
    fn cache(&mut self, nth: usize, count: usize) {
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
            let slot = SlotIndex(slot);
            let told = self.devices.set_cache_only(DeviceId(device), slot, true);
            told.unwrap();
            naive.cached.insert(owner);
        }
    }

    /// A write to a slot fails.
    fn bad(&mut self, nth: usize) {
        let Some((device, slot)) = self.owned(nth) else {
            return;
        };
        let mut naive = self.entries.naive.lock().unwrap();
        let owner = naive.owner.remove(&(device, slot)).unwrap();
        naive.cached.remove(&owner);
        naive.bad.insert((device, slot));
        let known = naive.known(DeviceId(device));
        known.errors += 1;
        known.out |= known.errors == DEVICE_ERROR_LIMIT;
        let slot = SlotIndex(slot);
        self.devices.bad_slot(A, DeviceId(device), slot).unwrap();
    }

    /// Pages were written well.
    fn wrote(&mut self, nth: usize, pages: u32) {
        let Some(id) = self.nth_device(nth) else {
            return;
        };
        self.devices.wrote(id, pages);
        let mut naive = self.entries.naive.lock().unwrap();
        let known = naive.known(id);
        if known.errors > 0 && !known.out {
            let forgiven = (known.written + pages) / FORGIVING_PAGES;
            known.written = (known.written + pages) % FORGIVING_PAGES;
            known.errors = known.errors.saturating_sub(forgiven);
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

    /// Whether an allocation would go on with what the processor has at hand, and choose no device.
    fn has_at_hand(&self, cpu: Cpu, pages: u16) -> bool {
        let order = usize::from(order_of(pages));
        let state = lock(&self.devices.cpu(cpu).state);
        state.current[order].is_some()
            || state.opened[order].is_some()
            || state.rotating[order].is_some()
            || pages == 1 && state.returns.len() > 0
    }

    /// The devices that have empty clusters in nobody's hands.
    fn with_empty_clusters(&self) -> Vec<DeviceId> {
        let naive = self.entries.naive.lock().unwrap();
        let free = |known: &&Known| {
            let device = self.devices.device(known.id).unwrap();
            let whole = known.slots as usize / CLUSTER_SLOTS;
            let mut all = (0..whole as u32).map(ClusterIndex);
            !known.out
                && all.any(|c| {
                    let at_rest = device.cell(c).is_none_or(|cell| {
                        let state = lock(&cell.cluster).state;
                        matches!(
                            state,
                            ClusterState::Absent | ClusterState::Free | ClusterState::Discard
                        )
                    });
                    at_rest && naive.is_empty(known.id, c)
                })
        };
        let found = naive.devices.iter().filter(free);
        found.map(|known| known.id).collect()
    }

    /// A device was chosen, of those that had empty clusters or others: none before it had one.
    fn check_choice(&self, cpu: Cpu, empty: &[DeviceId]) {
        assert!(self.out.len() == 1 || empty.is_empty(), "{:?}", self.out);
        let naive = self.entries.naive.lock().unwrap();
        let (policy, node) = (self.devices.options.choice, Cpus(2).node(cpu));
        let rank = |id| naive.rank(policy, id, node);
        let best = empty.iter().map(|&id| rank(id)).max();
        let chosen = rank(self.out[0].device);
        assert!(best.is_none_or(|best| chosen >= best), "{:?}", self.out);
    }

    pub(super) fn allocate(&mut self, cpu: Cpu, pages: u16) {
        self.out.clear();
        let owner = EntryId(self.next);
        let chooses = !self.has_at_hand(cpu, pages);
        let empty = self.with_empty_clusters();
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
                drop(naive);
                if chooses {
                    self.check_choice(cpu, &empty);
                }
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
            let of = naive.owner.iter().filter(|((d, _), _)| *d == id.0);
            // Copies are given up.
            of.filter(|(_, owner)| !naive.cached.contains(owner))
                .count() as u64
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
        while let Err(why) = self.devices.remove(A, id) {
            assert_eq!(why, DrainError::Unfinished(id));
        }
        let mut naive = self.entries.naive.lock().unwrap();
        assert!(
            naive.owner.keys().all(|(d, _)| *d != id.0),
            "a slot was lost"
        );
        naive.bad.retain(|(d, _)| *d != id.0);
        naive.devices.retain(|d| d.id != id);
    }

    pub(super) fn check(&self) {
        self.devices.check();
        let naive = self.entries.naive.lock().unwrap();
        for usage in self.devices.usage() {
            let known = naive.devices.iter().find(|d| d.id == usage.device);
            let Known { out, slots, .. } = *known.unwrap();
            assert_eq!((usage.out, usage.accepting), (out, !out), "{usage:?}");
            assert_eq!(usage.slots, slots);
        }
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
        // In the end everything can be given back, and all of it be used again.
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
