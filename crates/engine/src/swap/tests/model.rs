//! The swap beside a naive model, with faults injected at two devices: transfers that fail, in each of
//! the ways that there are, data that comes back as something else, a device that cannot be reached.

use super::*;
use crate::PageBytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
enum Step {
    Store {
        group: u16,
        pages: usize,
        random: usize,
    },
    StoreEach {
        group: u16,
        pages: usize,
        random: usize,
    },
    Load {
        which: usize,
        keep: bool,
    },
    LoadEach {
        which: usize,
        n: usize,
        keep: bool,
    },
    /// Announces entries from one on, whether or not they are in use.
    Expect {
        which: usize,
        n: u32,
    },
    Uncache {
        which: usize,
    },
    Free {
        which: usize,
    },
    FreeRun {
        which: usize,
        n: u32,
    },
    Work,
    /// The pool is shared with a forked process from now on, or no more.
    Freeze,
    Alone,
    Shrink {
        pages: u64,
    },
    /// A part of a device's pages move to the other, or into the pool; then it is as before.
    Drain {
        device: usize,
        pages: u64,
    },
    PoolMax {
        mib: u64,
    },
    Writeback {
        group: u16,
        may: bool,
    },
    EndGroup {
        group: u16,
    },
    /// The next steps are of one device: coming transfers that fail.
    FailReads {
        device: usize,
        bits: u32,
    },
    FailWrites {
        device: usize,
        bits: u32,
        why: IoError,
    },
    CorruptReads {
        device: usize,
        bits: u32,
    },
    /// Each transfer takes so long.
    Delay {
        device: usize,
        us: u32,
    },
    /// It cannot be reached, or can again.
    Gone {
        device: usize,
        yes: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let random = prop_oneof![Just(0usize), Just(512usize), 1usize..500];
    // One error that says that the device is gone takes it out.
    let why = prop_oneof![4 => Just(IoError::Slot), 4 => Just(IoError::NoSpace), 2 => Just(IoError::Again), 1 => Just(IoError::Device)];
    let step = prop_oneof![
        6 => (0..3u16, prop_oneof![1usize..5, Just(16usize), 1usize..=64], random.clone())
            .prop_map(|(group, pages, random)| Step::Store { group, pages, random }),
        4 => (0..3u16, 1usize..100, random).prop_map(|(group, pages, random)| Step::StoreEach { group, pages, random }),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(which, keep)| Step::Load { which, keep }),
        3 => (any::<usize>(), 1usize..90, any::<bool>()).prop_map(|(which, n, keep)| Step::LoadEach { which, n, keep }),
        2 => (any::<usize>(), 1u32..=64).prop_map(|(which, n)| Step::Expect { which, n }),
        6 => any::<usize>().prop_map(|which| Step::Uncache { which }),
        3 => any::<usize>().prop_map(|which| Step::Free { which }),
        3 => (any::<usize>(), 1u32..200).prop_map(|(which, n)| Step::FreeRun { which, n }),
        4 => Just(Step::Work),
        1 => Just(Step::Freeze),
        1 => Just(Step::Alone),
        2 => (1u64..400).prop_map(|pages| Step::Shrink { pages }),
        1 => (0..2usize, 0u64..200).prop_map(|(device, pages)| Step::Drain { device, pages }),
        1 => (1u64..4).prop_map(|mib| Step::PoolMax { mib }),
        1 => (0..3u16, any::<bool>()).prop_map(|(group, may)| Step::Writeback { group, may }),
        1 => (0..3u16).prop_map(|group| Step::EndGroup { group }),
        1 => (0..2usize, any::<u32>()).prop_map(|(device, bits)| Step::FailReads { device, bits }),
        2 => (0..2usize, any::<u32>(), why).prop_map(|(device, bits, why)| Step::FailWrites { device, bits, why }),
        1 => (0..2usize, any::<u32>()).prop_map(|(device, bits)| Step::CorruptReads { device, bits }),
        1 => (0..2usize, prop_oneof![Just(0u32), 1u32..500]).prop_map(|(device, us)| Step::Delay { device, us }),
        1 => (0..2usize, any::<bool>()).prop_map(|(device, yes)| Step::Gone { device, yes }),
    ];
    prop::collection::vec(step, 1..120)
}

/// The model's knowledge of an entry.
struct Known {
    content: Box<PageBytes>,
    cached: bool,
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<EntryId, Known>,
    seed: u32,
    /// Good loads by source: zero, pool, device.
    loads: [u64; 3],
}

impl Model {
    fn pages(&mut self, n: usize, random: usize) -> Vec<Box<PageBytes>> {
        (0..n)
            .map(|_| {
                self.seed += 1;
                // Neighbours are of different classes: what a batch of the pool has to do with. Some are of one
                // value, so that folios have holes.
                let random = if self.seed.is_multiple_of(11) {
                    0
                } else {
                    random
                };
                Box::new(page(self.seed, random >> (self.seed % 3)))
            })
            .collect()
    }
    fn stored(&mut self, entry: EntryId, content: Box<PageBytes>) {
        let old = self.entries.insert(
            entry,
            Known {
                content,
                cached: false,
            },
        );
        assert!(old.is_none(), "entry {entry} was given out twice");
    }
    fn pick(&self, which: usize) -> Option<EntryId> {
        self.entries
            .keys()
            .nth(which % self.entries.len().max(1))
            .copied()
    }
    fn released(&mut self, entry: EntryId) {
        assert!(self.entries.remove(&entry).is_some());
    }
    /// A load gave the content, or an error that the faults explain.
    fn loaded(
        &mut self,
        entry: EntryId,
        out: &PageBytes,
        keep: bool,
        result: Result<Source, LoadError>,
        faulty: bool,
    ) {
        let known = self.entries.get_mut(&entry).unwrap();
        match result {
            Ok(source) => {
                self.loads[source as usize] += 1;
                assert!(
                    *out == *known.content,
                    "entry {entry} came back as something else"
                );
                if keep {
                    known.cached = true;
                } else {
                    self.released(entry);
                }
            }
            Err(LoadError::Empty) => assert!(known.cached, "entry {entry} was lost"),
            Err(_) => assert!(
                faulty,
                "entry {entry} cannot be read without a fault: {result:?}"
            ),
        }
    }
}

/// Does something to one of the devices, if there is that one.
fn on(devices: &[Arc<Faulty>], device: usize, what: impl FnOnce(&Faulty)) {
    if let Some(device) = devices.get(device) {
        what(device);
    }
}

/// The device that an entry's page is on.
fn device_of(swap: &Swap, entry: EntryId) -> Option<DeviceId> {
    match swap.space.lock_if_used(entry)?.word().location() {
        Location::Slot(place) => Some(place.device),
        _ => None,
    }
}

/// A swap beside its model.
struct Run<'r> {
    rig: &'r Rig,
    model: Model,
}

fn run(rig: &Rig, steps: &[Step]) {
    let mut run = Run {
        rig,
        model: Model::default(),
    };
    for (i, &step) in steps.iter().enumerate() {
        run.step(Cpu(i as u16 % 2), step);
        run.check();
    }
    run.end();
}

impl Run<'_> {
    fn trouble(&self) -> bool {
        self.rig.devices.iter().any(|device| device.trouble())
    }

    fn step(&mut self, cpu: Cpu, step: Step) {
        match step {
            Step::Store {
                group,
                pages,
                random,
            } => self.store(cpu, group, pages, random),
            Step::StoreEach {
                group,
                pages,
                random,
            } => self.store_each(cpu, group, pages, random),
            Step::Load { which, keep } => self.load(which, keep),
            Step::LoadEach { which, n, keep } => self.load_each(cpu, which, n, keep),
            Step::Expect { which, n } => self.expect(which, n),
            Step::Uncache { which } => self.uncache(which),
            Step::Free { which } => self.free(cpu, which),
            Step::FreeRun { which, n } => self.free_run(which, n),
            Step::Work => {
                for _ in 0..20 {
                    if !self.rig.swap.work(cpu) {
                        break;
                    }
                }
            }
            Step::Shrink { pages } => self.shrink(pages),
            Step::Drain { device, pages } => self.drain(device, pages),
            Step::PoolMax { mib } => self.rig.swap.set_limits(mib << 20, 60).unwrap(),
            Step::Writeback { group, may } => {
                self.rig.swap.set_group_writeback(GroupId(group), may)
            }
            Step::EndGroup { group } => self.rig.swap.remove_group(GroupId(group)),
            Step::Freeze => self.rig.swap.pool.freeze(),
            Step::Alone => self.rig.swap.alone(),
            Step::FailReads { device, bits } => on(&self.rig.devices, device, |d| {
                d.fail_reads.store(bits, Relaxed)
            }),
            Step::FailWrites { device, bits, why } => on(&self.rig.devices, device, |d| {
                *d.why.lock().unwrap() = why;
                d.fail_writes.store(bits, Relaxed);
            }),
            Step::CorruptReads { device, bits } => on(&self.rig.devices, device, |d| {
                d.corrupt_reads.store(bits, Relaxed)
            }),
            Step::Delay { device, us } => {
                on(&self.rig.devices, device, |d| d.delay.store(us, Relaxed))
            }
            Step::Gone { device, yes } => {
                on(&self.rig.devices, device, |d| d.gone.store(yes, Relaxed))
            }
        }
    }

    fn check(&self) {
        self.rig.swap.check();
        assert_eq!(self.rig.swap.entries(), self.model.entries.len());
        let extra: u64 = 2 << 20;
        assert!(self.rig.swap.memory().pool_bytes <= (3 << 20) + extra);
    }

    /// Without faults everything that was stored comes back.
    fn end(mut self) {
        for device in &self.rig.devices {
            device.fail_reads.store(0, Relaxed);
            device.corrupt_reads.store(0, Relaxed);
            device.gone.store(false, Relaxed);
        }
        let entries: Vec<EntryId> = self.model.entries.keys().copied().collect();
        for entry in entries {
            while self.model.entries.contains_key(&entry) {
                let mut out = [0; PAGE_SIZE];
                match self.rig.swap.load(Cpu(0), entry, &mut out, false) {
                    Err(LoadError::Empty) if self.model.entries[&entry].cached => {
                        self.rig.swap.free(Cpu(0), entry, 1);
                        self.model.released(entry);
                    }
                    result => {
                        assert!(result.is_ok(), "entry {entry} is lost: {result:?}");
                        self.model.loaded(entry, &out, false, result, false);
                    }
                }
            }
        }
        while self.rig.swap.work(Cpu(0)) {}
        self.rig.swap.check();
        assert_eq!(self.rig.swap.memory().pool_data_bytes, 0);
        let counted = [
            &self.rig.counters.swpin_zero,
            &self.rig.counters.zswpin,
            &self.rig.counters.pswpin,
        ]
        .map(|c| c.get());
        assert_eq!(counted, self.model.loads, "loads by source");
        assert_eq!(
            self.rig.counters.zswpwb.get(),
            self.rig.counters.written_back_pages.get()
        );
    }

    /// Stores a folio.
    fn store(&mut self, cpu: Cpu, group: u16, pages: usize, random: usize) {
        let pages = self.model.pages(pages, random);
        let refs: Vec<&PageBytes> = pages.iter().map(|p| &**p).collect();
        match self.rig.swap.store(cpu, GroupId(group), &refs) {
            Ok(first) => {
                let align = pages.len().next_power_of_two();
                assert_eq!(first.0 as usize % CLUSTER_SLOTS % align, 0);
                for (k, page) in pages.into_iter().enumerate() {
                    self.model.stored(first.plus(k as u32), page);
                }
            }
            Err(error) => assert_ne!(error, StoreError::NoEntries),
        }
    }

    /// Stores single pages.
    fn store_each(&mut self, cpu: Cpu, group: u16, pages: usize, random: usize) {
        let pages = self.model.pages(pages, random);
        let refs: Vec<&PageBytes> = pages.iter().map(|p| &**p).collect();
        let mut out = vec![None; pages.len()];
        let stored = self
            .rig
            .swap
            .store_each(cpu, GroupId(group), &refs, &mut out);
        let of_one_value = |page: &PageBytes| page.chunks_exact(4).all(|c| c == &page[..4]);
        for (out, page) in out.iter().zip(&pages) {
            assert!(
                out.is_some() || !of_one_value(page),
                "what needs no room was held up"
            );
        }
        let n = out.iter().flatten().count();
        assert_eq!(stored.unwrap_or(0), n);
        for (entry, page) in out.into_iter().zip(pages) {
            if let Some(entry) = entry {
                self.model.stored(entry, page);
            }
        }
    }

    /// Loads a page.
    fn load(&mut self, which: usize, keep: bool) {
        let Some(entry) = self.model.pick(which) else {
            return;
        };
        let mut out = [0x77; PAGE_SIZE];
        let faulty = self.trouble();
        let result = self.rig.swap.load(Cpu(0), entry, &mut out, keep);
        self.model.loaded(entry, &out, keep, result, faulty);
    }

    /// Loads many pages.
    fn load_each(&mut self, cpu: Cpu, which: usize, n: usize, keep: bool) {
        let Some(first) = self.model.pick(which) else {
            return;
        };
        let entries: Vec<EntryId> = self
            .model
            .entries
            .range(first..)
            .map(|(e, _)| *e)
            .take(n)
            .collect();
        let mut rooms = vec![[0x66; PAGE_SIZE]; entries.len()];
        let mut out: Vec<&mut PageBytes> = rooms.iter_mut().collect();
        let mut results = vec![Err(LoadError::Empty); entries.len()];
        let faulty = self.trouble();
        self.rig
            .swap
            .load_each(cpu, &entries, &mut out, keep, &mut results);
        for ((entry, out), result) in entries.into_iter().zip(&rooms).zip(results) {
            self.model.loaded(entry, out, keep, result, faulty);
        }
    }

    /// Says that pages will be loaded.
    fn expect(&mut self, which: usize, n: u32) {
        let Some(first) = self.model.pick(which) else {
            return;
        };
        let entries: Vec<EntryId> = (0..n).map(|i| first.plus(i)).collect();
        self.rig.swap.expect(&entries);
        for (number, device) in self.rig.devices.iter().enumerate() {
            let id = DeviceId(number as u8);
            let mut on_device = entries.clone();
            on_device.retain(|&entry| device_of(&self.rig.swap, entry) == Some(id));
            // Those on the device and no others, in their order.
            let said = std::mem::take(&mut *device.expected.lock().unwrap());
            let slots = said.into_iter().flatten();
            let all = self.rig.swap.devices.as_ref().unwrap();
            let owners: Vec<EntryId> = slots
                .map(|slot| all.owner(id, SlotIndex(slot as u32)).unwrap())
                .collect();
            assert_eq!(owners, on_device);
        }
    }

    /// A kept page leaves unwritten.
    fn uncache(&mut self, which: usize) {
        let Some(entry) = self.model.pick(which) else {
            return;
        };
        let known = self.model.entries.get_mut(&entry).unwrap();
        let given_up = self.rig.swap.place(entry) == Place::Memory;
        let uncached = self.rig.swap.uncache(entry);
        assert_eq!(uncached, known.cached && !given_up, "entry {entry}");
        known.cached &= given_up;
    }

    /// Frees an entry.
    fn free(&mut self, cpu: Cpu, which: usize) {
        let Some(entry) = self.model.pick(which) else {
            return;
        };
        self.rig.swap.free(cpu, entry, 1);
        self.model.released(entry);
    }

    /// Frees entries side by side.
    fn free_run(&mut self, which: usize, n: u32) {
        let Some(first) = self.model.pick(which) else {
            return;
        };
        let mut count = 0;
        while count < n && self.model.entries.contains_key(&first.plus(count)) {
            count += 1;
        }
        self.rig.swap.free(Cpu(0), first, count);
        (0..count).for_each(|k| self.model.released(first.plus(k)));
    }

    /// Shrinks the pool.
    fn shrink(&mut self, pages: u64) {
        let before = self.rig.swap.memory().pool_bytes;
        let given = self.rig.swap.shrink_pool(Cpu(0), pages * PAGE_SIZE as u64);
        // Taking blocks apart may take a page for it.
        let after = self.rig.swap.memory().pool_bytes;
        assert_eq!(before.saturating_sub(after), given);
    }

    /// Drains a part of a device, and takes that back.
    fn drain(&mut self, device: usize, pages: u64) {
        self.rig.swap.let_drained_into_pool(pages);
        if let Some(devices) = &self.rig.swap.devices {
            let id = DeviceId(device as u8);
            let _ = devices.drain_step(Cpu(0), id, 64);
            devices.readmit(id);
        }
        self.rig.swap.let_drained_into_pool(0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn like_the_model_without_devices(steps in steps()) {
        run(&rig(small(CodecKind::Lz4), None), &steps);
    }

    #[test]
    fn like_the_model_with_a_device(steps in steps()) {
        run(&rig(small(CodecKind::Lz4), Some(6)), &steps);
    }

    #[test]
    fn like_the_model_without_a_codec(steps in steps()) {
        run(&rig(small(CodecKind::None), Some(6)), &steps);
    }

    #[test]
    fn like_the_model_with_two_codecs(steps in steps()) {
        run(&rig(small(CodecKind::Lz4ThenZstd { level: 1 }), Some(6)), &steps);
    }

    #[test]
    fn like_the_model_with_two_devices(steps in steps()) {
        run(&rig_of(small(CodecKind::Lz4), &[2, 6]), &steps);
    }

    #[test]
    fn like_the_model_with_two_devices_and_no_codec(steps in steps()) {
        run(&rig_of(small(CodecKind::None), &[1, 2]), &steps);
    }

    #[test]
    fn like_the_model_with_a_tiny_device(steps in steps()) {
        run(&rig(small(CodecKind::Zstd { level: 1 }), Some(1)), &steps);
    }
}
