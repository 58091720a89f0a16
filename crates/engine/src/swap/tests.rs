//! Tests of the swap: random operations beside a naive model, with faults injected at the devices
//! (`model`), and cases that random operations seldom reach. `check()` follows every step, failures
//! print their steps, and proptest replays its seeds. Here is what they share.

mod blocks;
mod compacting;
mod groups;
mod model;
mod ranges;
mod refused;
mod shrinking;
mod sparse;
mod turns;
mod windows;

use super::*;
use crate::PageBytes;
use crate::codec::{Codec, Coder, Damaged};
use crate::entries::Handle;
use crate::env::{IoError, Lender, ReadOp, Store, WriteOp};
use crate::random::Random;
use crate::slots::{DeviceSpec, Drain, DrainError, Options};
use crate::{CLUSTER_SLOTS, Cpu, DeviceId, Node, PAGE_SIZE, SlotIndex};
use std::collections::HashSet;
use std::sync::atomic::AtomicU32;

/// A codec for test pages: some bytes as they are, then eight bytes repeated.
#[derive(Clone, Default)]
pub(super) struct Plain {
    /// Time of the denser codec for a page, in microseconds.
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
    /// One page after the other, each behind its length.
    fn compress_block(&mut self, pages: &[PageBytes], mut out: &mut [u8]) -> Option<usize> {
        let mut whole = 0;
        for page in pages {
            let mut alone = [0; 2 * PAGE_SIZE];
            let len = self.compress(Codec::Zstd, page, &mut alone)?;
            out.split_off_mut(..2)?
                .copy_from_slice(&(len as u16).to_le_bytes());
            out.split_off_mut(..len)?.copy_from_slice(&alone[..len]);
            whole += 2 + len;
        }
        Some(whole)
    }
    fn decompress_block(
        &mut self,
        mut data: &[u8],
        pages: &mut [PageBytes],
    ) -> Result<(), Damaged> {
        for page in pages {
            let (len, rest) = data.split_first_chunk::<2>().ok_or(Damaged)?;
            let len = usize::from(u16::from_le_bytes(*len));
            self.decompress(Codec::Zstd, rest.get(..len).ok_or(Damaged)?, page)?;
            data = &rest[len..];
        }
        Ok(())
    }
}

/// Time that passes a millisecond with each look, and as long as devices take; two processors.
pub(super) struct World {
    now: AtomicU64,
    /// Bytes that were said to be read soon.
    prefetched: AtomicUsize,
}

impl Clock for World {
    fn now_ns(&self) -> u64 {
        self.now.fetch_add(1_000_000, Relaxed)
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
    fn prefetch(&self, bytes: &[u8]) {
        self.prefetched.fetch_add(bytes.len(), Relaxed);
    }
}

/// A device in memory whose next transfers can be made to fail, or to take their time.
pub(super) struct Faulty {
    data: std::sync::Mutex<Vec<u8>>,
    /// Each bit is a coming transfer: set, it fails.
    pub(super) fail_reads: AtomicU32,
    pub(super) fail_writes: AtomicU32,
    corrupt_reads: AtomicU32,
    /// The error of transfers that fail.
    why: std::sync::Mutex<IoError>,
    /// Slots that have blocks, and the blocks that are left for others.
    blocks: std::sync::Mutex<(HashSet<u64>, usize)>,
    /// Flag: each write fails.
    refuses: AtomicBool,
    /// Flag: it cannot be reached.
    gone: AtomicBool,
    /// Time of each batch, in microseconds.
    pub(super) delay: AtomicU32,
    world: Arc<World>,
    /// Batches of writes under way.
    pub(super) writing: AtomicU32,
    /// Writes so far, of one page or more side by side.
    writes: AtomicU32,
    /// The slots said to be read soon, since the last look.
    expected: std::sync::Mutex<Vec<std::ops::Range<u64>>>,
    /// The work of another thread while the next read is under way.
    meanwhile: std::sync::Mutex<Option<Meanwhile>>,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

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
        self.take_time();
        if self.gone.load(Relaxed) {
            results.fill(Err(IoError::Device));
            self.writing.fetch_sub(1, Relaxed);
            return;
        }
        for (op, result) in ops.iter().zip(results) {
            let at = op.slot as usize * PAGE_SIZE;
            if !self.has_blocks(op) {
                *result = Err(IoError::NoSpace);
                continue;
            }
            let mut data = self.data.lock().unwrap();
            if self.refuses.load(Relaxed) || take_bit(&self.fail_writes) {
                // Half of it arrives: a short write.
                data[at..at + op.data.len() / 2].copy_from_slice(&op.data[..op.data.len() / 2]);
                *result = Err(*self.why.lock().unwrap());
            } else {
                data[at..at + op.data.len()].copy_from_slice(op.data);
                *result = Ok(());
            }
        }
        self.writing.fetch_sub(1, Relaxed);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        self.take_time();
        // Not under the lock: it reads, too.
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if self.gone.load(Relaxed) {
            return results.fill(Err(IoError::Device));
        }
        for (op, result) in ops.iter_mut().zip(results) {
            let at = op.slot as usize * PAGE_SIZE;
            if take_bit(&self.fail_reads) {
                *result = Err(match *self.why.lock().unwrap() {
                    IoError::Again => IoError::Again,
                    _ => IoError::Slot,
                });
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
        let (has, left) = &mut *self.blocks.lock().unwrap();
        let freed = (slot..slot + slots).filter(|slot| has.remove(slot)).count();
        *left = left.saturating_add(freed);
        let at = slot as usize * PAGE_SIZE;
        self.data.lock().unwrap()[at..at + slots as usize * PAGE_SIZE].fill(0xdd);
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

pub(super) fn page(seed: u32, random: usize) -> PageBytes {
    let mut numbers = Random::new(seed.into());
    let mut page = [0; PAGE_SIZE];
    for (i, chunk) in page.chunks_exact_mut(8).enumerate() {
        let word = if i < random {
            numbers.next()
        } else {
            u64::from(seed % 4) * 0x0101_0101_0101_0101
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    page
}

pub(super) struct Rig {
    pub(super) swap: Swap,
    /// The first of the devices.
    pub(super) device: Option<Arc<Faulty>>,
    devices: Vec<Arc<Faulty>>,
    pub(super) codec: Plain,
    pub(super) counters: Arc<Counters>,
    world: Arc<World>,
}

fn faulty(clusters: usize, world: &Arc<World>) -> Arc<Faulty> {
    Arc::new(Faulty {
        world: world.clone(),
        data: vec![0; clusters * CLUSTER_SLOTS * PAGE_SIZE].into(),
        fail_reads: AtomicU32::new(0),
        fail_writes: AtomicU32::new(0),
        corrupt_reads: AtomicU32::new(0),
        why: IoError::Slot.into(),
        blocks: (HashSet::new(), usize::MAX).into(),
        refuses: AtomicBool::new(false),
        gone: AtomicBool::new(false),
        delay: AtomicU32::new(0),
        writing: AtomicU32::new(0),
        writes: AtomicU32::new(0),
        expected: Default::default(),
        meanwhile: Default::default(),
    })
}

pub(super) fn rig(config: Config, clusters: Option<usize>) -> Rig {
    rig_of(config, clusters.as_slice())
}

/// With devices of so many clusters each.
fn rig_of(config: Config, clusters: &[usize]) -> Rig {
    rig_lent(config, clusters, None)
}

/// The same, with clusters that are lent.
fn rig_lent(config: Config, clusters: &[usize], lender: Option<Arc<dyn Lender>>) -> Rig {
    let world = Arc::new(World {
        now: AtomicU64::new(1),
        prefetched: AtomicUsize::new(0),
    });
    let counters = Arc::new(Counters::default());
    let codec = Plain::default();
    let devices: Vec<_> = clusters
        .iter()
        .map(|&clusters| faulty(clusters, &world))
        .collect();
    let added = devices.first().map(|_| {
        let all = Devices::new(world.clone(), Options::default());
        for device in &devices {
            all.add(device.clone(), DeviceSpec::default(), lender.clone())
                .unwrap();
        }
        Arc::new(all)
    });
    let env = Env {
        clock: world.clone(),
        topology: world.clone(),
        memory: world.clone(),
        counters: CountersRef::Shared(counters.clone()),
        codecs: Arc::new(codec.clone()),
        checksums: crate::Checksums::default(),
    };
    Rig {
        codec,
        swap: Swap::new(config, env, added).unwrap(),
        device: devices.first().cloned(),
        devices,
        counters,
        world,
    }
}

fn take_time(delay: &AtomicU32) {
    match delay.load(Relaxed) {
        0 => {}
        us => std::thread::sleep(std::time::Duration::from_micros(us.into())),
    }
}

impl Faulty {
    /// Whether every slot of a write has a block now, as of a sparse file.
    fn has_blocks(&self, op: &WriteOp<'_>) -> bool {
        let (has, left) = &mut *self.blocks.lock().unwrap();
        (op.slot..).take(op.data.len() / PAGE_SIZE).all(|slot| {
            let new = *left > 0 && has.insert(slot);
            *left -= usize::from(new);
            has.contains(&slot)
        })
    }
    fn take_time(&self) {
        take_time(&self.delay);
        let took = 1000 * u64::from(self.delay.load(Relaxed));
        self.world.now.fetch_add(took, Relaxed);
    }
    fn trouble(&self) -> bool {
        self.fail_reads.load(Relaxed) != 0
            || self.corrupt_reads.load(Relaxed) != 0
            || self.gone.load(Relaxed)
    }
}

fn small(codec: CodecKind) -> Config {
    Config {
        codec,
        pool_max_bytes: 1 << 20,
        accept_threshold_percent: 60,
    }
}

/// Where the pool is to have nothing, and takes pages again once devices are full.
#[test]
fn pages_go_past_the_pool_as_long_as_devices_have_room() {
    let rig = rig_of(small(CodecKind::Lz4), &[1]);
    let (swap, cpu, group) = (&rig.swap, Cpu(0), GroupId(0));
    swap.set_direct(true);
    assert!(!swap.uses_pool());
    let mut entries = Vec::new();
    for i in 0..CLUSTER_SLOTS as u32 {
        entries.push(swap.store(cpu, group, &[&page(i, 64)]).unwrap());
    }
    assert_eq!(rig.counters.zswpout.get(), 0);
    let more = page(CLUSTER_SLOTS as u32, 64);
    assert_eq!(swap.store(cpu, group, &[&more]), Err(StoreError::Full));
    assert!(swap.uses_pool());
    entries.push(swap.store(cpu, group, &[&more]).unwrap());
    assert_eq!(rig.counters.zswpout.get(), 1);
    swap.check();
    let mut back = [0; PAGE_SIZE];
    for (i, entry) in (0..).zip(entries) {
        swap.load(cpu, entry, &mut back, false).unwrap();
        assert_eq!(back, page(i, 64));
    }
}

/// The system has no memory for the transfer: the page is there when it has.
#[test]
fn a_read_without_memory_loses_no_page() {
    let rig = rig(small(CodecKind::None), Some(1));
    let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
    let entry = swap.store(Cpu(0), GroupId(0), &[&page(1, 512)]).unwrap();
    *device.why.lock().unwrap() = IoError::Again;
    device.fail_reads.store(1, Relaxed);
    let mut back = [0; PAGE_SIZE];
    let refused = swap.load(Cpu(0), entry, &mut back, false);
    assert!(
        matches!(refused, Err(LoadError::Again { .. })),
        "{refused:?}"
    );
    assert_eq!(
        rig.counters.read_error.get() + rig.counters.read_again.get(),
        0
    );
    swap.check();
    assert_eq!(
        swap.load(Cpu(0), entry, &mut back, false),
        Ok(Source::Device)
    );
    assert_eq!(back, page(1, 512));
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
fn a_shared_entry_is_not_written_to() {
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

/// A full device refuses what needs a slot. Pages that need no room leave all the same, whatever they
/// stand behind, and so do those that fill the last slots.
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
fn an_expected_entry_may_be_gone_meanwhile() {
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

/// A drain moves a page while it is read, and its slot is another's by the time the data is there.
#[test]
fn a_page_that_moves_while_it_is_read_is_looked_for_again() {
    let rig = rig(small(CodecKind::None), Some(2));
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let content = page(7, 300);
    let entry = swap.store(cpu, GroupId(0), &[&content]).unwrap();
    let devices = swap.devices.clone().unwrap();
    devices
        .add(faulty(2, &rig.world), DeviceSpec::default(), None)
        .unwrap();
    let (device, moves) = (rig.device.clone().unwrap(), devices.clone());
    let overwritten = device.clone();
    *device.meanwhile.lock().unwrap() = Some(Box::new(move || {
        while moves.drain_step(Cpu(1), DeviceId(0), 64).unwrap() != Drain::Done {}
        overwritten.data.lock().unwrap().fill(0xee);
    }));
    let mut out = [0; PAGE_SIZE];
    let loaded = swap.load(cpu, entry, &mut out, true);
    assert!(device.meanwhile.lock().unwrap().is_none(), "it was read");
    assert_eq!(loaded, Ok(Source::Device));
    assert!(out == content);
    assert_eq!(rig.counters.checksum_error.get(), 0);
    swap.check();
}

/// The system has no memory for the transfers of a drain, from one device, to the other, or into the pool: no page is
/// lost, and the device leaves when it has.
#[test]
fn a_drain_without_memory_is_put_off() {
    for (codec, reads) in [
        (CodecKind::None, true),
        (CodecKind::None, false),
        (CodecKind::Lz4, true),
    ] {
        let rig = rig(small(codec), Some(2));
        let (swap, cpu) = (&rig.swap, Cpu(0));
        let pages: Vec<PageBytes> = (0..64).map(|seed| page(seed, 100)).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let first = swap.store(cpu, GroupId(0), &refs).unwrap();
        swap.shrink_pool(cpu, u64::MAX);
        let devices = swap.devices.clone().unwrap();
        let (from, to) = (rig.device.clone().unwrap(), faulty(2, &rig.world));
        let pooled = codec != CodecKind::None;
        if !pooled {
            devices
                .add(to.clone(), DeviceSpec::default(), None)
                .unwrap();
        }
        swap.let_drained_into_pool(64);
        let short = if reads { &from } else { &to };
        *short.why.lock().unwrap() = IoError::Again;
        for _ in 0..3 {
            let bits = if reads {
                &short.fail_reads
            } else {
                &short.fail_writes
            };
            bits.store(u32::MAX, Relaxed);
            let step = devices.drain_step(cpu, DeviceId(0), 64);
            assert_eq!(step, Ok(Drain::Moved(0)));
            bits.store(0, Relaxed);
            swap.check();
        }
        assert_eq!(swap.drained.load(Relaxed), 64, "nothing is in the pool");
        let usage = devices.usage();
        assert!(usage.iter().all(|u| (u.errors, u.bad) == (0, 0)));
        assert_eq!(rig.counters.write_error.get(), 0);
        while devices.drain_step(cpu, DeviceId(0), 64).unwrap() != Drain::Done {}
        devices.remove(cpu, DeviceId(0)).unwrap();
        swap.check();
        let source = match pooled {
            true => Source::Pool,
            false => Source::Device,
        };
        for (i, content) in (0..).zip(&pages) {
            let mut out = [0; PAGE_SIZE];
            assert_eq!(swap.load(cpu, first.plus(i), &mut out, false), Ok(source));
            assert!(out == *content);
        }
    }
}

/// A drain may meet a device that cannot be written: its slots leave service, and it does.
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
            // A copy is not moved.
            assert!(swap.uncache(first.plus(i as u32)));
        }
    };
    let usage = |id: DeviceId| {
        let all = devices.usage();
        *all.iter().find(|u| u.device == id).unwrap()
    };

    let bad = faulty(2, &rig.world);
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
    let good = faulty(2, &rig.world);
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
