//! The swap beside a naive model, with faults injected at the devices. Every step is
//! followed by `check()`. Failures print their steps; proptest replays its seeds.

mod compacting;
mod groups;
mod ranges;
mod shrinking;
mod windows;

use super::*;
use crate::PageBytes;
use crate::codec::{Codec, Coder, Damaged};
use crate::env::{IoError, ReadOp, Store, WriteOp};
use crate::slots::{DeviceSpec, Drain, DrainError, Options};
use crate::{CLUSTER_SLOTS, DeviceId, Node, PAGE_SIZE, SlotIndex};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

/// A codec for test pages: some bytes as they are, then eight bytes repeated.
#[derive(Clone, Default)]
pub(super) struct Plain {
    /// What the denser codec takes for a page, in microseconds.
    pub(super) delay: Arc<AtomicU32>,
}

impl Codecs for Plain {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(self.clone())
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}

impl Coder for Plain {
    fn compress(&mut self, codec: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        // The lesser codec writes its bytes twice.
        let copies = if codec == Codec::Zstd { 1 } else { 2 };
        if copies == 1 {
            take_time(&self.delay);
        }
        let tail = *page.last_chunk::<8>()?;
        let same = page.rchunks_exact(8).take_while(|c| **c == tail).count();
        let head = PAGE_SIZE - 8 * same;
        out.get_mut(..2)?
            .copy_from_slice(&(head as u16).to_le_bytes());
        out.get_mut(2..10)?.copy_from_slice(&tail);
        out.get_mut(10..10 + head)?.copy_from_slice(&page[..head]);
        if copies == 2 && head < PAGE_SIZE / 4 {
            out.copy_within(10..10 + head, 10 + head);
            return Some(10 + 2 * head);
        }
        Some(10 + head)
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        let head = usize::from(u16::from_le_bytes([data[0], data[1]]));
        let tail = data.get(2..10).ok_or(Damaged)?;
        let bytes = data.get(10..10 + head).ok_or(Damaged)?;
        page.get_mut(..head).ok_or(Damaged)?.copy_from_slice(bytes);
        for chunk in page[head..].chunks_mut(8) {
            chunk.copy_from_slice(&tail[..chunk.len()]);
        }
        Ok(())
    }
}

/// Time that passes a millisecond with each look, and two processors.
struct World(AtomicU64);

impl Clock for World {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1_000_000, Relaxed)
    }
}
impl Topology for World {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        2
    }
    fn node(&self, _: Cpu) -> Node {
        Node(0)
    }
}
impl Memory for World {
    fn give_back(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.as_ptr().align_offset(PAGE_SIZE), 0);
        assert_eq!(bytes.len() % PAGE_SIZE, 0);
        bytes.fill(0);
    }
}

/// A device in memory whose next transfers can be made to fail, or to take their time.
pub(super) struct Faulty {
    data: std::sync::Mutex<Vec<u8>>,
    /// Each bit is a coming transfer: set, it fails.
    pub(super) fail_reads: AtomicU32,
    pub(super) fail_writes: AtomicU32,
    corrupt_reads: AtomicU32,
    /// What each batch takes, in microseconds.
    pub(super) delay: AtomicU32,
    /// Batches of writes under way.
    pub(super) writing: AtomicU32,
    /// Writes so far, of one page or more side by side.
    writes: AtomicU32,
    /// What was said to be read soon, since somebody last looked.
    expected: std::sync::Mutex<Vec<std::ops::Range<u64>>>,
}

fn take_bit(bits: &AtomicU32) -> bool {
    let now = bits.load(Relaxed);
    bits.store(now >> 1, Relaxed);
    now & 1 != 0
}

impl Store for Faulty {
    fn slots(&self) -> u64 {
        (self.data.lock().unwrap().len() / PAGE_SIZE) as u64
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        self.writing.fetch_add(1, Relaxed);
        self.writes.fetch_add(ops.len() as u32, Relaxed);
        take_time(&self.delay);
        for (op, result) in ops.iter().zip(results) {
            let at = op.slot as usize * PAGE_SIZE;
            let mut data = self.data.lock().unwrap();
            if take_bit(&self.fail_writes) {
                // Half of it arrives: a short write.
                data[at..at + op.data.len() / 2].copy_from_slice(&op.data[..op.data.len() / 2]);
                *result = Err(IoError::Slot);
            } else {
                data[at..at + op.data.len()].copy_from_slice(op.data);
                *result = Ok(());
            }
        }
        self.writing.fetch_sub(1, Relaxed);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        take_time(&self.delay);
        for (op, result) in ops.iter_mut().zip(results) {
            let at = op.slot as usize * PAGE_SIZE;
            if take_bit(&self.fail_reads) {
                *result = Err(IoError::Slot);
                continue;
            }
            op.data
                .copy_from_slice(&self.data.lock().unwrap()[at..at + op.data.len()]);
            if take_bit(&self.corrupt_reads) {
                op.data[PAGE_SIZE / 3] ^= 0x20;
            }
            *result = Ok(());
        }
    }
    fn expect(&self, slots: &[std::ops::Range<u64>]) {
        let all = 0..Store::slots(self);
        for run in slots {
            assert!(!run.is_empty() && run.end <= all.end, "{run:?} of {all:?}");
        }
        self.expected.lock().unwrap().extend_from_slice(slots);
    }
    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        let at = slot as usize * PAGE_SIZE;
        self.data.lock().unwrap()[at..at + slots as usize * PAGE_SIZE].fill(0xdd);
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

pub(super) fn page(seed: u32, random: usize) -> PageBytes {
    let mut s = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = [0; PAGE_SIZE];
    for (i, chunk) in page.chunks_exact_mut(8).enumerate() {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        let word = if i < random {
            s
        } else {
            u64::from(seed % 4) * 0x0101_0101_0101_0101
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    page
}

pub(super) struct Rig {
    pub(super) swap: Swap,
    pub(super) device: Option<Arc<Faulty>>,
    pub(super) codec: Plain,
    pub(super) counters: Arc<Counters>,
}

fn faulty(clusters: usize) -> Arc<Faulty> {
    Arc::new(Faulty {
        data: vec![0; clusters * CLUSTER_SLOTS * PAGE_SIZE].into(),
        fail_reads: AtomicU32::new(0),
        fail_writes: AtomicU32::new(0),
        corrupt_reads: AtomicU32::new(0),
        delay: AtomicU32::new(0),
        writing: AtomicU32::new(0),
        writes: AtomicU32::new(0),
        expected: Default::default(),
    })
}

pub(super) fn rig(config: Config, clusters: Option<usize>) -> Rig {
    let world = Arc::new(World(AtomicU64::new(1)));
    let counters = Arc::new(Counters::default());
    let codec = Plain::default();
    let device = clusters.map(faulty);
    let devices = device.as_ref().map(|device| {
        let devices = Devices::new(world.clone(), Options::default());
        devices
            .add(device.clone(), DeviceSpec::default(), None)
            .unwrap();
        Arc::new(devices)
    });
    let env = Env {
        clock: world.clone(),
        topology: world.clone(),
        memory: world,
        counters: CountersRef::Shared(counters.clone()),
        codecs: Arc::new(codec.clone()),
    };
    Rig {
        codec,
        swap: Swap::new(config, env, devices).unwrap(),
        device,
        counters,
    }
}

#[derive(Clone, Debug)]
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
    Dup {
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
    /// A part of the device's pages move into the pool.
    Drain {
        pages: u64,
    },
    PoolMax {
        mib: u64,
    },
    GroupLimit {
        group: u16,
        pages: u64,
        writeback: bool,
    },
    EndGroup {
        group: u16,
    },
    FailReads {
        bits: u32,
    },
    FailWrites {
        bits: u32,
    },
    CorruptReads {
        bits: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let random = prop_oneof![Just(0usize), Just(512usize), 1usize..500];
    let step = prop_oneof![
        6 => (0..3u16, prop_oneof![1usize..5, Just(16usize), 1usize..130], random.clone())
            .prop_map(|(group, pages, random)| Step::Store { group, pages, random }),
        4 => (0..3u16, 1usize..100, random).prop_map(|(group, pages, random)| Step::StoreEach { group, pages, random }),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(which, keep)| Step::Load { which, keep }),
        3 => (any::<usize>(), 1usize..90, any::<bool>()).prop_map(|(which, n, keep)| Step::LoadEach { which, n, keep }),
        2 => (any::<usize>(), 1u32..=64).prop_map(|(which, n)| Step::Expect { which, n }),
        6 => any::<usize>().prop_map(|which| Step::Uncache { which }),
        1 => any::<usize>().prop_map(|which| Step::Dup { which }),
        3 => any::<usize>().prop_map(|which| Step::Free { which }),
        3 => (any::<usize>(), 1u32..200).prop_map(|(which, n)| Step::FreeRun { which, n }),
        4 => Just(Step::Work),
        1 => Just(Step::Freeze),
        1 => Just(Step::Alone),
        2 => (1u64..400).prop_map(|pages| Step::Shrink { pages }),
        1 => (0u64..200).prop_map(|pages| Step::Drain { pages }),
        1 => (1u64..4).prop_map(|mib| Step::PoolMax { mib }),
        1 => (0..3u16, 0u64..300, any::<bool>())
            .prop_map(|(group, pages, writeback)| Step::GroupLimit { group, pages, writeback }),
        1 => (0..3u16).prop_map(|group| Step::EndGroup { group }),
        1 => any::<u32>().prop_map(|bits| Step::FailReads { bits }),
        1 => any::<u32>().prop_map(|bits| Step::FailWrites { bits }),
        1 => any::<u32>().prop_map(|bits| Step::CorruptReads { bits }),
    ];
    prop::collection::vec(step, 1..120)
}

/// What the model knows of an entry.
struct Known {
    content: Box<PageBytes>,
    references: u32,
    cached: bool,
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<EntryId, Known>,
    seed: u32,
    /// Good loads by source: zero, pool, device.
    loads: [u64; 3],
    /// Bytes of the pool that a group may hold, of those that have a limit.
    limits: BTreeMap<u16, u64>,
}

impl Model {
    fn pages(&mut self, n: usize, random: usize) -> Vec<Box<PageBytes>> {
        (0..n)
            .map(|_| {
                self.seed += 1;
                // Neighbours are of different classes: what a batch of the pool has to do with.
                Box::new(page(self.seed, random >> (self.seed % 3)))
            })
            .collect()
    }
    fn stored(&mut self, entry: EntryId, content: Box<PageBytes>) {
        let old = self.entries.insert(
            entry,
            Known {
                content,
                references: 1,
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
        let known = self.entries.get_mut(&entry).unwrap();
        known.references -= 1;
        known.cached = false;
        if known.references == 0 {
            self.entries.remove(&entry);
        }
    }
    /// What a load gave is the content, or an error that the faults explain.
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

fn run(rig: &Rig, steps: &[Step]) {
    let Rig {
        swap,
        device,
        counters,
        ..
    } = rig;
    let mut model = Model::default();
    let cpu = Cpu(0);
    for (i, step) in steps.iter().enumerate() {
        let cpu_now = Cpu(i as u16 % 2);
        let held = [0, 1, 2].map(|group| swap.group_pool_bytes(GroupId(group)));
        match *step {
            Step::Store {
                group,
                pages,
                random,
            } => {
                let pages = model.pages(pages, random);
                let refs: Vec<&PageBytes> = pages.iter().map(|p| &**p).collect();
                match swap.store(cpu_now, GroupId(group), &refs) {
                    Ok(first) => {
                        let align = pages.len().next_power_of_two();
                        assert_eq!(first.0 as usize % CLUSTER_SLOTS % align, 0);
                        for (k, page) in pages.into_iter().enumerate() {
                            model.stored(first.plus(k as u32), page);
                        }
                    }
                    Err(error) => assert_ne!(error, StoreError::NoEntries),
                }
            }
            Step::StoreEach {
                group,
                pages,
                random,
            } => {
                let pages = model.pages(pages, random);
                let refs: Vec<&PageBytes> = pages.iter().map(|p| &**p).collect();
                let mut out = vec![None; pages.len()];
                let stored = swap.store_each(cpu_now, GroupId(group), &refs, &mut out);
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
                        model.stored(entry, page);
                    }
                }
            }
            Step::Load { which, keep } => {
                let Some(entry) = model.pick(which) else {
                    continue;
                };
                let mut out = [0x77; PAGE_SIZE];
                let faulty = device.as_ref().is_some_and(|d| d.trouble());
                let result = swap.load(cpu, entry, &mut out, keep);
                model.loaded(entry, &out, keep, result, faulty);
            }
            Step::LoadEach { which, n, keep } => {
                let Some(first) = model.pick(which) else {
                    continue;
                };
                let entries: Vec<EntryId> = model
                    .entries
                    .range(first..)
                    .map(|(e, _)| *e)
                    .take(n)
                    .collect();
                let mut rooms = vec![[0x66; PAGE_SIZE]; entries.len()];
                let mut out: Vec<&mut PageBytes> = rooms.iter_mut().collect();
                let mut results = vec![Err(LoadError::Empty); entries.len()];
                let faulty = device.as_ref().is_some_and(|d| d.trouble());
                swap.load_each(cpu_now, &entries, &mut out, keep, &mut results);
                for ((entry, out), result) in entries.into_iter().zip(&rooms).zip(results) {
                    model.loaded(entry, out, keep, result, faulty);
                }
            }
            Step::Expect { which, n } => {
                let Some(first) = model.pick(which) else {
                    continue;
                };
                let entries: Vec<EntryId> = (0..n).map(|i| first.plus(i)).collect();
                swap.expect(&entries);
                let on_device: Vec<EntryId> = entries
                    .into_iter()
                    .filter(|&entry| swap.place(entry) == Place::Slot)
                    .collect();
                let Some((device, devices)) = device.as_ref().zip(swap.devices.as_ref()) else {
                    continue;
                };
                // Those on the device and no others, in their order.
                let said = std::mem::take(&mut *device.expected.lock().unwrap());
                let slots = said.into_iter().flatten();
                let owners: Vec<EntryId> = slots
                    .map(|slot| devices.owner(DeviceId(0), SlotIndex(slot as u32)).unwrap())
                    .collect();
                assert_eq!(owners, on_device);
            }
            Step::Uncache { which } => {
                let Some(entry) = model.pick(which) else {
                    continue;
                };
                let known = model.entries.get_mut(&entry).unwrap();
                let given_up = swap.place(entry) == Place::Memory;
                // Shared entries lose the mark when one reference goes.
                let uncached = swap.uncache(entry);
                assert_eq!(uncached, known.cached && !given_up, "entry {entry}");
                known.cached &= given_up;
            }
            Step::Dup { which } => {
                let Some(entry) = model.pick(which) else {
                    continue;
                };
                match swap.dup(entry) {
                    Ok(()) => model.entries.get_mut(&entry).unwrap().references += 1,
                    Err(DupError::NotStored) => assert!(model.entries[&entry].cached),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Free { which } => {
                let Some(entry) = model.pick(which) else {
                    continue;
                };
                swap.free(cpu_now, entry, 1);
                model.released(entry);
            }
            Step::FreeRun { which, n } => {
                let Some(first) = model.pick(which) else {
                    continue;
                };
                let mut count = 0;
                while count < n && model.entries.contains_key(&first.plus(count)) {
                    count += 1;
                }
                swap.free(cpu, first, count);
                (0..count).for_each(|k| model.released(first.plus(k)));
            }
            Step::Work => {
                for _ in 0..20 {
                    if !swap.work(cpu_now) {
                        break;
                    }
                }
            }
            Step::Shrink { pages } => {
                let before = swap.memory().pool_bytes;
                let given = swap.shrink_pool(cpu, pages * PAGE_SIZE as u64);
                assert_eq!(before - swap.memory().pool_bytes, given);
            }
            Step::Drain { pages } => {
                swap.let_drained_into_pool(pages);
                if let Some(devices) = &swap.devices {
                    let _ = devices.drain_step(cpu, DeviceId(0), 64);
                    devices.readmit(DeviceId(0));
                }
                swap.let_drained_into_pool(0);
            }
            Step::PoolMax { mib } => swap.set_limits(mib << 20, 60).unwrap(),
            Step::GroupLimit {
                group,
                pages,
                writeback,
            } => {
                let pool_max = pages * PAGE_SIZE as u64;
                let set = swap.set_group_limits(GroupId(group), pool_max, writeback);
                assert_eq!(set.is_ok(), pool_max <= swap.pool.max(), "{set:?}");
                if set.is_ok() {
                    model.limits.insert(group, pool_max);
                }
            }
            Step::EndGroup { group } => {
                swap.remove_group(GroupId(group));
                model.limits.remove(&group);
            }
            Step::FailReads { bits } => device
                .iter()
                .for_each(|d| d.fail_reads.store(bits, Relaxed)),
            Step::Freeze => swap.pool.freeze(),
            Step::Alone => swap.alone(),
            Step::FailWrites { bits } => device
                .iter()
                .for_each(|d| d.fail_writes.store(bits, Relaxed)),
            Step::CorruptReads { bits } => device
                .iter()
                .for_each(|d| d.corrupt_reads.store(bits, Relaxed)),
        }
        swap.check();
        for (&group, &limit) in &model.limits {
            // What is above a limit that was lowered may stay; nothing comes to it.
            let bytes = swap.group_pool_bytes(GroupId(group));
            assert!(
                bytes <= limit.max(held[usize::from(group)]),
                "group {group}"
            );
        }
        assert_eq!(swap.entries(), model.entries.len());
        let extra: u64 = 2 << 20;
        assert!(swap.memory().pool_bytes <= (3 << 20) + extra);
    }
    // Without faults everything that was stored comes back.
    if let Some(device) = device {
        device.fail_reads.store(0, Relaxed);
        device.corrupt_reads.store(0, Relaxed);
    }
    let entries: Vec<EntryId> = model.entries.keys().copied().collect();
    for entry in entries {
        while model.entries.contains_key(&entry) {
            let mut out = [0; PAGE_SIZE];
            match swap.load(cpu, entry, &mut out, false) {
                Err(LoadError::Empty) if model.entries[&entry].cached => {
                    swap.free(cpu, entry, 1);
                    model.released(entry);
                }
                result => {
                    assert!(result.is_ok(), "entry {entry} is lost: {result:?}");
                    model.loaded(entry, &out, false, result, false);
                }
            }
        }
    }
    while swap.work(cpu) {}
    swap.check();
    assert_eq!(swap.memory().pool_data_bytes, 0);
    let counted = [&counters.swpin_zero, &counters.zswpin, &counters.pswpin].map(|c| c.get());
    assert_eq!(counted, model.loads, "loads by source");
    assert_eq!(counters.zswpwb.get(), counters.written_back_pages.get());
}

fn take_time(delay: &AtomicU32) {
    match delay.load(Relaxed) {
        0 => {}
        us => std::thread::sleep(std::time::Duration::from_micros(us.into())),
    }
}

impl Faulty {
    fn trouble(&self) -> bool {
        self.fail_reads.load(Relaxed) != 0 || self.corrupt_reads.load(Relaxed) != 0
    }
}

fn small(codec: CodecKind) -> Config {
    Config {
        codec,
        pool_max_bytes: 1 << 20,
        accept_threshold_percent: 60,
    }
}

/// A pool frozen with a hole beside every page that is left: those pages.
fn frozen_with_holes(swap: &Swap, store: impl Fn() -> EntryId) -> Vec<EntryId> {
    let entries: Vec<EntryId> = (0..20).map(|_| store()).collect();
    for &entry in entries.iter().step_by(2) {
        swap.free(Cpu(0), entry, 1);
    }
    swap.pool.freeze();
    entries.into_iter().skip(1).step_by(2).collect()
}

#[test]
fn what_is_shared_is_not_written_to() {
    let Rig { swap, .. } = rig(small(CodecKind::Lz4), None);
    let page = page(1, 100);
    let store = || swap.store(Cpu(0), GroupId(0), &[&page]).unwrap();
    let entries = frozen_with_holes(&swap, store);
    swap.check();
    let held = swap.memory().pool_bytes;
    let fresh = store();
    let more = swap.memory().pool_bytes;
    assert!(more > held, "there are holes, and they stay");
    for entry in entries {
        swap.free(Cpu(0), entry, 1);
    }
    swap.check();
    let less = swap.memory().pool_bytes;
    assert_eq!(less, more - held, "what runs empty goes back at once");
    swap.alone();
    swap.check();
    swap.free(Cpu(0), fresh, 1);
}

#[test]
fn holes_are_filled_again_when_nothing_is_shared() {
    let Rig { swap, .. } = rig(small(CodecKind::Lz4), None);
    let page = page(1, 100);
    let store = || swap.store(Cpu(0), GroupId(0), &[&page]).unwrap();
    frozen_with_holes(&swap, store);
    let held = swap.memory().pool_bytes;
    swap.alone();
    for _ in 0..10 {
        store();
    }
    swap.check();
    assert_eq!(swap.memory().pool_bytes, held);
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
    fn like_the_model_with_a_tiny_device(steps in steps()) {
        run(&rig(small(CodecKind::Zstd { level: 1 }), Some(1)), &steps);
    }
}

/// A full device refuses what needs a slot. What needs none leaves all the same, whatever it
/// stands behind, and so does what the last slots hold.
#[test]
fn a_full_device_holds_up_only_what_needs_it() {
    let rig = rig(small(CodecKind::None), Some(1));
    let (swap, cpu, group) = (&rig.swap, Cpu(0), GroupId(0));
    let full: Vec<PageBytes> = (0..CLUSTER_SLOTS as u32 - 2)
        .map(|i| page(i, 512))
        .collect();
    for batch in full.chunks(64) {
        let refs: Vec<&PageBytes> = batch.iter().collect();
        let stored = swap.store_each(cpu, group, &refs, &mut [None; 64]);
        assert_eq!(stored, Ok(refs.len()));
    }
    let (value, random) = (page(1000, 0), page(1001, 512));
    let mixed = [&random, &value, &random, &random, &value, &random];
    // All or nothing takes nothing, not for a moment.
    let before = rig.counters.pswpout.get();
    assert_eq!(swap.store(cpu, group, &mixed), Err(StoreError::Full));
    assert_eq!(rig.counters.pswpout.get(), before);
    swap.check();
    let mut out = [None; 6];
    assert_eq!(swap.store_each(cpu, group, &mixed, &mut out), Ok(4));
    assert_eq!(
        out.map(|entry| entry.is_some()),
        [true, true, true, false, true, false]
    );
    swap.check();
    assert_eq!(
        swap.store_each(cpu, group, &[&random], &mut [None]),
        Err(StoreError::Full)
    );
    let mut back = [0; PAGE_SIZE];
    for (entry, content) in out.iter().zip(mixed) {
        if let Some(entry) = *entry {
            swap.load(cpu, entry, &mut back, false).unwrap();
            assert!(back == *content);
        }
    }
    swap.check();
}

/// Entries are announced while another thread frees them and their slots go to others: that is
/// said of slots of the device, and disturbs nobody.
#[test]
fn what_is_expected_may_be_gone_meanwhile() {
    let rig = rig(small(CodecKind::None), Some(2));
    let (swap, group) = (&rig.swap, GroupId(0));
    let pages: Vec<PageBytes> = (0..64).map(|seed| page(seed, 512)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    let said = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until they have met often; that it ends is not left to the scheduler.
            for round in 0..100_000 {
                if round > 100 && said.load(Relaxed) > 100 {
                    break;
                }
                let mut out = [None; 64];
                assert_eq!(swap.store_each(Cpu(0), group, &refs, &mut out), Ok(64));
                for (entry, content) in out.into_iter().flatten().zip(&pages) {
                    let mut back = [0; PAGE_SIZE];
                    swap.load(Cpu(0), entry, &mut back, false).unwrap();
                    assert!(back == *content);
                }
            }
            done.store(true, Relaxed);
        });
        let entries: Vec<EntryId> = (0..64).map(EntryId).collect();
        while !done.load(Relaxed) {
            swap.expect(&entries);
            let device = rig.device.as_ref().unwrap();
            let runs = std::mem::take(&mut *device.expected.lock().unwrap());
            said.fetch_add(runs.len(), Relaxed);
        }
    });
    assert!(said.into_inner() > 0, "the threads never met");
    swap.check();
    assert_eq!(swap.entries(), 0);
}

/// The shrinker stops where it is to stop: memory of the pool that holds no page is given back, not
/// made up for by writing out more pages.
#[test]
fn the_pool_keeps_what_it_may() {
    const MAX: u64 = 8 << 20;
    let rig = rig(
        Config {
            pool_max_bytes: MAX,
            ..small(CodecKind::Lz4)
        },
        Some(20),
    );
    let swap = &rig.swap;
    let accept = u64::from(rig.swap.accept_percent());
    for batch in 0..100u32 {
        // Of many classes, so that there are holes in all of them.
        let pages: Vec<PageBytes> = (0..64)
            .map(|i| page(batch << 8 | i, 20 + (7 * i as usize + batch as usize) % 200))
            .collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let stored = swap.store_each(Cpu(0), GroupId(0), &refs, &mut [None; 64]);
        assert_eq!(stored, Ok(64));
        while batch % 8 == 7 && swap.work(Cpu(0)) {}
    }
    while swap.work(Cpu(0)) {}
    swap.check();
    assert!(rig.counters.zswpwb.get() > 0, "it had nothing to do");
    let memory = swap.memory();
    assert!(memory.pool_bytes <= MAX / 100 * (accept + 1), "{memory:?}");
    assert!(
        memory.pool_data_bytes >= MAX / 100 * (accept - 10),
        "{memory:?}"
    );
}

#[test]
fn recompression_ends_where_nothing_is_gained() {
    let rig = rig(
        Config {
            pool_max_bytes: 16 << 20,
            ..small(CodecKind::Lz4ThenZstd { level: 1 })
        },
        None,
    );
    let pages: Vec<PageBytes> = (0..64).map(|seed| page(seed, 300)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    for _ in 0..4 * CLUSTER_SLOTS / 64 {
        let mut out = [None; 64];
        let n = rig.swap.store_each(Cpu(0), GroupId(0), &refs, &mut out);
        assert_eq!(n, Ok(64));
    }
    let busy = (0..10_000).filter(|_| rig.swap.work(Cpu(0))).count();
    assert!(busy < 1000, "{busy} steps for {} pages", 4 * CLUSTER_SLOTS);
}

#[test]
fn a_drained_device_goes_into_the_pool_if_all_of_it_may() {
    let rig = rig(
        Config {
            pool_max_bytes: 16 << 20,
            ..small(CodecKind::Lz4)
        },
        Some(3),
    );
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let pages: Vec<PageBytes> = (0..512).map(|seed| page(seed, 100)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let mut entries = [None; 512];
    assert_eq!(
        swap.store_each(cpu, GroupId(0), &refs, &mut entries),
        Ok(512)
    );
    let entries = entries.map(|entry| entry.expect("all were stored"));
    swap.shrink_pool(cpu, u64::MAX);
    let on_device = || {
        let places = entries.iter().map(|&entry| swap.place(entry));
        places.filter(|&place| place == Place::Slot).count()
    };
    assert_eq!(on_device(), 512);

    let devices = swap.devices.clone().unwrap();
    let device = DeviceId(0);
    let drain = || {
        let step = devices.drain_step(cpu, device, 64);
        swap.check();
        step
    };
    assert!(matches!(drain(), Err(DrainError::NoRoom { missing: 512 })));
    swap.let_drained_into_pool(511);
    assert!(matches!(drain(), Err(DrainError::NoRoom { missing: 512 })));
    assert_eq!(on_device(), 512);
    swap.let_drained_into_pool(512);
    while !matches!(drain(), Ok(Drain::Done)) {}
    devices.remove(cpu, device).unwrap();
    assert_eq!(on_device(), 0);
    for (content, entry) in pages.iter().zip(entries) {
        let mut out = [0; PAGE_SIZE];
        assert_eq!(swap.load(cpu, entry, &mut out, false), Ok(Source::Pool));
        assert!(out == *content);
    }
    swap.check();
    assert_eq!(swap.memory().pool_data_bytes, 0);
}

/// What is drained may meet a device that cannot be written: its slots leave service, and it does.
#[test]
fn write_errors_of_a_drain_take_out_slots_and_device() {
    let rig = rig(small(CodecKind::None), Some(2));
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let pages: Vec<PageBytes> = (0..64).map(|seed| page(seed, 300)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let first = swap.store(cpu, GroupId(0), &refs).unwrap();
    let devices = swap.devices.clone().unwrap();
    let intact = || {
        swap.check();
        for (i, content) in pages.iter().enumerate() {
            let mut out = [0; PAGE_SIZE];
            let loaded = swap.load(cpu, first.plus(i as u32), &mut out, true);
            assert_eq!(loaded, Ok(Source::Device));
            assert!(out == *content);
        }
    };
    let usage = |id: DeviceId| {
        let all = devices.usage();
        *all.iter().find(|u| u.device == id).unwrap()
    };

    let bad = faulty(2);
    let worse = devices
        .add(bad.clone(), DeviceSpec::default(), None)
        .unwrap();
    bad.fail_writes.store(u32::MAX, Relaxed);
    let step = devices.drain_step(cpu, DeviceId(0), 64);
    assert!(matches!(step, Err(DrainError::NoRoom { .. })), "{step:?}");
    let now = usage(worse);
    assert_eq!((now.bad, now.errors, now.out), (16, 16, true));
    assert_eq!(rig.counters.write_error.get(), 16);
    assert!(usage(DeviceId(0)).accepting);
    intact();

    // Of a run that fails as a whole, the third page: the others are written one by one.
    let good = faulty(2);
    let better = devices
        .add(good.clone(), DeviceSpec::default(), None)
        .unwrap();
    good.fail_writes.store(0b1001, Relaxed);
    while devices.drain_step(cpu, DeviceId(0), 64).unwrap() != Drain::Done {}
    let now = usage(better);
    assert_eq!((now.bad, now.used, now.out), (1, 65, false));
    assert_eq!(rig.counters.write_error.get(), 17);
    intact();
}
