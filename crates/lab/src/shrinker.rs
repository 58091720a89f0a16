//! The shrinker: an active process beside idle services that fill the pool, and a large
//! allocation, under the kernel's policies and ours.
//!
//! Simulated time on one processor for the program and one for background work, and one
//! device with a queue, in the proportions of the published experiment (Takero Funaki, "mm:
//! zswap: global shrinker fix and proactive shrink", July 2024). The kernel's policies are a
//! model of zswap's store, load and shrink worker, page by page. `ebb` is the engine itself,
//! on a simulated device and clock.
//!
//! - `kernel-6.10`: the pool rejects from its limit down to the accept threshold, and the
//!   worker's walk ends at the first group that is offline or empty, so it stays there.
//! - `patches-1-3`: the walk goes on; shrinking starts at the threshold + 1%.
//! - `all-six`: also keeps incompressible pages, and writes nothing for 500 ms after a
//!   rejected store or a load that missed the pool.
//!
//! `inverted_percent` says how often the wrong page went to the device: of all pairs of a page
//! there and a page in the pool, stored by the same group, the share in which the one on the
//! device was stored later. 0 is an order without inversion, 50 no order at all.

mod ages;
pub mod real;

use crate::report::Report;
use crate::sim::{Machine, Random};
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, IoError, Memory, ReadOp, Store, WriteOp};
use ebb_engine::slots::{DeviceSpec, Devices, Options as Policies};
use ebb_engine::swap::{Config, CountersRef, Env, Place, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, Node, PAGE_SIZE, PageBytes};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// One line for the list of experiments.
pub const ABOUT: &str =
    "shrinker: an active process beside a pool full of idle pages; a large allocation";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes are those of the published experiment divided by this.
    pub scale: u64,
    /// Page accesses of the active process, before scaling.
    pub accesses: u64,
    /// Seed of the accesses.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scale: 1,
            accesses: 1_200_000,
            seed: 1,
        }
    }
}

const APP: usize = 0;
const WORKER: usize = 1;
const READ_NS: u64 = 130_000;
/// A write's own cost, and each page's.
const WRITE_NS: u64 = 60_000;
const WRITE_PAGE_NS: u64 = 34_000;
/// How far writes may be behind before their sender waits.
const BACKLOG_NS: u64 = 20_000_000;
const COMPRESS_NS: u64 = 3_000;
const DECOMPRESS_NS: u64 = 1_500;
/// How often an idle worker looks.
const POLL_NS: u64 = 1_000_000;
/// Pages that the pager evicts at a time.
const EVICT_BATCH: usize = 64;
/// What the active process computes for each access: half of its time with no pool.
const THINK_NS: u64 = 40_000;
/// Bytes a compressible page takes.
const SIZE: u64 = 1024;

/// Time and the device. One real thread drives both actors.
#[derive(Default)]
struct World {
    actor: AtomicUsize,
    now: [AtomicU64; 2],
    /// When what somebody waits for is done, and when all is: the scheduler lets the first
    /// go before writes that nobody waits for.
    sync_until: AtomicU64,
    busy_until: AtomicU64,
    counts: Counters,
}

impl World {
    fn time(&self) -> &AtomicU64 {
        &self.now[self.actor.load(Relaxed)]
    }
    fn spend(&self, ns: u64) {
        self.time().fetch_add(ns, Relaxed);
    }
    /// The device works `cost` for the actor, who waits for it.
    fn wait_for(&self, cost: u64) {
        let now = self.time().load(Relaxed);
        let done = now.max(self.sync_until.load(Relaxed)) + cost;
        self.sync_until.store(done, Relaxed);
        self.busy_until
            .store(now.max(self.busy_until.load(Relaxed)) + cost, Relaxed);
        self.time().store(done, Relaxed);
    }
    fn read(&self, pages: u64) {
        self.wait_for(READ_NS * pages);
        self.counts.pswpin.add(pages);
    }
    /// `merged`: queued behind another write to neighbouring slots.
    fn write(&self, pages: u64, merged: bool, wait: bool) {
        let cost = pages * WRITE_PAGE_NS + if merged { 0 } else { WRITE_NS };
        if wait {
            self.wait_for(cost);
        } else {
            let now = self.time().load(Relaxed);
            let done = now.max(self.busy_until.load(Relaxed)) + cost;
            self.busy_until.store(done, Relaxed);
            self.time()
                .store(now.max(done.saturating_sub(BACKLOG_NS)), Relaxed);
        }
        self.counts.pswpout.add(pages);
    }
}

/// What is compared.
trait Swapping {
    fn store(&mut self, page: u64, compressible: bool, group: u16);
    fn load(&mut self, page: u64);
    /// One step of the background; false: idle.
    fn work(&mut self) -> bool;
    /// Bytes the pool holds.
    fn pool_bytes(&self) -> u64;
    /// Whether a stored page is on the device, not in the pool; none if it has not left memory.
    fn on_device(&self, page: u64) -> Option<bool>;
    /// Brings the world's counts up to date.
    fn count(&self) {}
}

/// Remembers what was stored when.
struct Ages<'a> {
    inner: &'a mut dyn Swapping,
    /// Of each page that is out: the number of its store, and its group.
    stored: HashMap<u64, (u64, u16)>,
    next: u64,
}

impl<'a> Ages<'a> {
    fn new(inner: &'a mut dyn Swapping) -> Self {
        Self {
            inner,
            stored: HashMap::new(),
            next: 0,
        }
    }
    fn store(&mut self, page: u64, compressible: bool, group: u16) {
        self.stored.insert(page, (self.next, group));
        self.next += 1;
        self.inner.store(page, compressible, group);
    }
    fn load(&mut self, page: u64) {
        self.stored.remove(&page);
        self.inner.load(page);
    }
    /// See the module.
    fn inverted_percent(&self) -> f64 {
        let mut pages: Vec<(u16, u64, bool)> = self
            .stored
            .iter()
            .filter_map(|(&page, &(at, group))| {
                self.inner.on_device(page).map(|device| (group, at, device))
            })
            .collect();
        pages.sort_unstable();
        let (mut inverted, mut pairs) = (0u64, 0u64);
        for group in pages.chunk_by(|a, b| a.0 == b.0) {
            let on_device = group.iter().filter(|page| page.2).count() as u64;
            pairs += on_device * (group.len() as u64 - on_device);
            // In order of age: each page on the device counts those in the pool before it.
            let mut pooled = 0;
            for &(_, _, device) in group {
                if device {
                    inverted += pooled;
                } else {
                    pooled += 1;
                }
            }
        }
        if pairs == 0 {
            0.0
        } else {
            inverted as f64 / pairs as f64 * 100.0
        }
    }
}

/// The kernel's zswap, and its swap file behind.
struct Zswap {
    world: Arc<World>,
    max: u64,
    accept: u64,
    patches: u8,
    pool: HashMap<u64, (u64, u16)>,
    lru: Vec<VecDeque<u64>>,
    bytes: u64,
    reached_full: bool,
    shrinking: bool,
    stand_back_until: u64,
    cursor: usize,
}

impl Zswap {
    fn demand(&mut self) {
        self.stand_back_until = self.world.time().load(Relaxed) + 500_000_000;
    }
    fn take(&mut self, page: u64) -> Option<u64> {
        let (size, _) = self.pool.remove(&page)?;
        self.bytes -= size;
        Some(size)
    }
}

impl Swapping for Zswap {
    fn store(&mut self, page: u64, compressible: bool, group: u16) {
        let full = self.bytes >= self.max;
        if full {
            self.world.counts.pool_limit_hit.add(1);
            self.reached_full = true;
        } else if self.reached_full && self.bytes <= self.accept {
            self.reached_full = false;
        }
        let proactive = self.patches >= 3;
        if full || proactive && self.bytes >= self.accept + self.max / 100 {
            self.shrinking = true;
        }
        let sticky = self.reached_full && !proactive;
        let poor = !compressible && self.patches < 5;
        self.world.spend(COMPRESS_NS * u64::from(!full && !sticky));
        if full || sticky || poor {
            self.world.counts.reject_pool.add(1);
            self.world.write(1, true, false);
            self.demand();
            return;
        }
        let size = if compressible { SIZE } else { PAGE_SIZE as u64 };
        self.pool.insert(page, (size, group));
        self.lru[usize::from(group)].push_back(page);
        self.bytes += size;
        self.world.counts.zswpout.add(1);
    }
    fn load(&mut self, page: u64) {
        if self.take(page).is_some() {
            self.world.spend(DECOMPRESS_NS);
            self.world.counts.zswpin.add(1);
        } else {
            self.demand();
            self.world.read(1);
        }
    }
    fn work(&mut self) -> bool {
        if self.bytes <= self.accept {
            self.shrinking = false;
        }
        // Without patches 1 and 2 the walk meets an offline or empty group and gives up.
        if !self.shrinking || self.patches < 2 {
            return false;
        }
        if self.patches >= 6 && self.world.time().load(Relaxed) < self.stand_back_until {
            return false;
        }
        for _ in 0..self.lru.len() {
            self.cursor = (self.cursor + 1) % self.lru.len();
            while let Some(page) = self.lru[self.cursor].pop_front() {
                if self.take(page).is_some() {
                    self.world.spend(DECOMPRESS_NS);
                    self.world.write(1, false, true);
                    self.world.counts.zswpwb.add(1);
                    return true;
                }
            }
        }
        false
    }
    fn pool_bytes(&self) -> u64 {
        self.bytes
    }
    fn on_device(&self, page: u64) -> Option<bool> {
        Some(!self.pool.contains_key(&page))
    }
}

/// The engine, on the simulated device.
struct Ebb {
    world: Arc<World>,
    swap: Swap,
    entries: HashMap<u64, EntryId>,
    /// Pages on their way out: the pager evicts in batches.
    leaving: Vec<(u64, bool, u16)>,
    counters: Arc<Counters>,
}

struct SimClock(Arc<World>);
impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.time().load(Relaxed) + 1
    }
}
struct Clean;
impl Memory for Clean {
    fn give_back(&self, _: &mut [u8]) {}
}
struct SimStore {
    world: Arc<World>,
    data: std::sync::Mutex<HashMap<u64, Box<[u8]>>>,
    slots: u64,
}
impl Store for SimStore {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        let mut data = self.data.lock().expect("no panic");
        let mut next = u64::MAX;
        for op in ops {
            let pages = (op.data.len() / PAGE_SIZE) as u64;
            self.world.write(pages, op.slot == next, true);
            next = op.slot + pages;
            for (i, page) in op.data.chunks(PAGE_SIZE).enumerate() {
                data.insert(op.slot + i as u64, page.into());
            }
        }
        results.fill(Ok(()));
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        let data = self.data.lock().expect("no panic");
        for op in ops {
            self.world.read(1);
            op.data.copy_from_slice(&data[&op.slot]);
        }
        results.fill(Ok(()));
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        false
    }
    fn rotational(&self) -> bool {
        false
    }
    fn node(&self) -> Option<Node> {
        None
    }
}

/// Pages say themselves how they compress: byte 8 is 1 for those that do.
struct SimCodec(Arc<World>);
impl Codecs for SimCodec {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Self(self.0.clone()))
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}
impl Coder for SimCodec {
    fn compress(&mut self, _: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        self.0.spend(COMPRESS_NS);
        out[..SIZE as usize].copy_from_slice(&page[..SIZE as usize]);
        (page[8] == 1).then_some(SIZE as usize)
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        self.0.spend(DECOMPRESS_NS);
        page[..data.len()].copy_from_slice(data);
        Ok(())
    }
}

impl Ebb {
    fn new(world: &Arc<World>, max: u64, accept_percent: u8, slots: u64) -> Self {
        let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
        let devices = Devices::new(machine.clone(), Policies::default());
        let store = SimStore {
            world: world.clone(),
            data: Default::default(),
            slots,
        };
        devices
            .add(Arc::new(store), DeviceSpec::default(), None)
            .expect("a device of this size");
        let counters = Arc::new(Counters::default());
        let env = Env {
            clock: Arc::new(SimClock(world.clone())),
            topology: machine,
            memory: Arc::new(Clean),
            counters: CountersRef::Shared(counters.clone()),
            codecs: Arc::new(SimCodec(world.clone())),
        };
        let config = Config {
            pool_max_bytes: max,
            accept_threshold_percent: accept_percent,
            ..Config::default()
        };
        let swap =
            Swap::new(config, env, Some(Arc::new(devices))).expect("the settings are in range");
        Self {
            world: world.clone(),
            swap,
            entries: HashMap::new(),
            leaving: Vec::new(),
            counters,
        }
    }
}

impl Ebb {
    fn flush(&mut self) {
        while let Some(&(_, _, group)) = self.leaving.first() {
            let n = self
                .leaving
                .iter()
                .take_while(|(.., g)| *g == group)
                .count();
            let batch: Vec<_> = self.leaving.drain(..n).collect();
            let pages: Vec<PageBytes> = batch
                .iter()
                .map(|&(page, compressible, _)| {
                    let mut bytes = [0x5a; PAGE_SIZE];
                    bytes[..8].copy_from_slice(&page.to_le_bytes());
                    bytes[8] = u8::from(compressible);
                    bytes
                })
                .collect();
            let refs: Vec<&PageBytes> = pages.iter().collect();
            let mut out = vec![None; n];
            let stored = self
                .swap
                .store_each(Cpu(0), GroupId(group), &refs, &mut out);
            assert_eq!(stored, Ok(n), "the device has room for all");
            let entries = out.into_iter().flatten();
            self.entries.extend(batch.iter().map(|b| b.0).zip(entries));
        }
    }
}

impl Swapping for Ebb {
    fn store(&mut self, page: u64, compressible: bool, group: u16) {
        self.leaving.push((page, compressible, group));
        if self.leaving.len() == EVICT_BATCH {
            self.flush();
        }
    }
    fn load(&mut self, page: u64) {
        // Not out yet: it stays.
        if let Some(at) = self.leaving.iter().position(|l| l.0 == page) {
            self.leaving.remove(at);
            return;
        }
        let mut bytes = [0; PAGE_SIZE];
        let entry = self.entries.remove(&page).expect("stored before");
        self.swap
            .load(Cpu(0), entry, &mut bytes, false)
            .expect("no fault is injected");
        assert_eq!(bytes[..8], page.to_le_bytes(), "another page came back");
    }
    fn work(&mut self) -> bool {
        let before = self.world.time().load(Relaxed);
        let did = self.swap.work(Cpu(0));
        if did && self.world.time().load(Relaxed) == before {
            self.world.spend(10_000);
        }
        did
    }
    fn pool_bytes(&self) -> u64 {
        self.swap.memory().pool_bytes
    }
    fn on_device(&self, page: u64) -> Option<bool> {
        match self.swap.place(*self.entries.get(&page)?) {
            Place::Slot => Some(true),
            Place::Pool => Some(false),
            _ => None,
        }
    }
    fn count(&self) {
        let (from, to) = (&self.counters, &self.world.counts);
        for (from, to) in [
            (&from.zswpin, &to.zswpin),
            (&from.zswpout, &to.zswpout),
            (&from.zswpwb, &to.zswpwb),
            (&from.pool_limit_hit, &to.pool_limit_hit),
            (&from.reject_pool, &to.reject_pool),
        ] {
            to.add(from.get() - to.get());
        }
    }
}

/// Lets the background catch up with the program.
fn background(world: &World, swapping: &mut Ages) {
    world.actor.store(WORKER, Relaxed);
    let until = world.now[APP].load(Relaxed);
    while world.now[WORKER].load(Relaxed) < until {
        if !swapping.inner.work() {
            world.spend(POLL_NS);
        }
    }
    world.actor.store(APP, Relaxed);
}

/// Idle services fill the pool; then a process works in a budget smaller than its pages.
fn active(world: &Arc<World>, swapping: &mut Ages, options: &Options) -> (f64, Counts) {
    let mib = |n: u64| (n << 20) / options.scale / PAGE_SIZE as u64;
    for page in 0..mib(1500) {
        swapping.store(1 << 32 | page, page % 20 != 0, 1 + (page % 8) as u16);
        world.spend(2_000);
        background(world, swapping);
    }
    // The services idle on; the worker may do what it wants to.
    world.now[APP].fetch_add(10_000_000_000, Relaxed);
    background(world, swapping);
    swapping.inner.count();
    let start = (world.now[APP].load(Relaxed), Counts::of(world));
    let (budget, pages) = (mib(60), mib(90));
    let mut random = Random::new(options.seed);
    let mut resident: VecDeque<u64> = VecDeque::new();
    let mut place: Vec<Option<bool>> = vec![None; pages as usize];
    for _ in 0..options.accesses / options.scale {
        world.spend(THINK_NS);
        let page = random.next() % pages;
        match place[page as usize] {
            Some(true) => continue,
            Some(false) => swapping.load(page),
            None => {}
        }
        place[page as usize] = Some(true);
        resident.push_back(page);
        if resident.len() as u64 > budget
            && let Some(old) = resident.pop_front()
        {
            place[old as usize] = Some(false);
            swapping.store(old, old % 20 != 0, 0);
        }
        background(world, swapping);
    }
    swapping.inner.count();
    let elapsed = (world.now[APP].load(Relaxed) - start.0) as f64 / 1e9;
    (elapsed, Counts::of(world).since(&start.1))
}

/// 2 GiB of pages that compress to a quarter are filled in 1 GiB of memory.
fn allocate(world: &Arc<World>, swapping: &mut Ages, options: &Options) -> (f64, Counts) {
    let mib = |n: u64| (n << 20) / options.scale / PAGE_SIZE as u64;
    for page in 0..mib(2048) {
        world.spend(4_000);
        if page >= mib(560) {
            swapping.store(page, true, 0);
        }
        background(world, swapping);
    }
    swapping.inner.count();
    (world.now[APP].load(Relaxed) as f64 / 1e9, Counts::of(world))
}

#[derive(Clone, Copy, Default)]
struct Counts([u64; 7]);

impl Counts {
    fn of(world: &World) -> Self {
        let c = &world.counts;
        Self(
            [
                &c.pswpin,
                &c.pswpout,
                &c.zswpin,
                &c.zswpout,
                &c.zswpwb,
                &c.pool_limit_hit,
                &c.reject_pool,
            ]
            .map(|c| c.get()),
        )
    }
    fn since(self, start: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - start.0[i]))
    }
}

/// A benchmark: fills in the counts and says how long it took.
type Bench = fn(&Arc<World>, &mut Ages, &Options) -> (f64, Counts);

/// The counters that a row has, of simulated runs and real ones.
const COUNTERS: [&str; 7] = [
    "pswpin",
    "pswpout",
    "zswpin",
    "zswpout",
    "zswpwb",
    "pool_limit_hit",
    "rejected",
];

/// Runs both benchmarks under each policy.
pub fn run(options: &Options) -> Report {
    let first = ["benchmark", "policy", "elapsed_s"];
    let mut report = Report::new(&[&first[..], &COUNTERS, &["inverted_percent"]].concat());
    let benches: [(&str, u64, Bench); 2] = [("active", 200, active), ("allocate", 256, allocate)];
    for (name, pool_mib, bench) in benches {
        let max = (pool_mib << 20) / options.scale;
        for policy in ["no-pool", "kernel-6.10", "patches-1-3", "all-six", "ebb"] {
            let world = Arc::new(World::default());
            let (elapsed, counts, inverted) = if policy == "ebb" {
                let mut ebb = Ebb::new(
                    &world,
                    max,
                    50,
                    (4 << 30) / options.scale / PAGE_SIZE as u64,
                );
                let mut ages = Ages::new(&mut ebb);
                let (elapsed, counts) = bench(&world, &mut ages, options);
                let inverted = ages.inverted_percent();
                assert!(ebb.pool_bytes() <= max);
                (elapsed, counts, inverted)
            } else {
                let patches = match policy {
                    "all-six" => 6,
                    "patches-1-3" => 3,
                    _ => 0,
                };
                let mut zswap = Zswap {
                    world: world.clone(),
                    max: if policy == "no-pool" { 0 } else { max },
                    accept: max / 2,
                    patches,
                    pool: HashMap::new(),
                    lru: vec![VecDeque::new(); 9],
                    bytes: 0,
                    reached_full: false,
                    shrinking: false,
                    stand_back_until: 0,
                    cursor: 0,
                };
                let mut ages = Ages::new(&mut zswap);
                let (elapsed, counts) = bench(&world, &mut ages, options);
                (elapsed, counts, ages.inverted_percent())
            };
            let mut row = vec![
                json!(name),
                json!(policy),
                json!((elapsed * 1000.0).round() / 1000.0),
            ];
            row.extend(counts.0.iter().map(|n| json!(n)));
            row.push(json!((inverted * 100.0).round() / 100.0));
            report.row(row);
        }
    }
    report.note("simulated time; published: 8.47 s before and 4.53 s after (active), 13.10 s with patches 1-3, 11.17 s with all, 11.81 s without a pool (allocate)");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_relations_hold_and_ours_is_best() {
        let report = run(&Options {
            scale: 8,
            ..Options::default()
        });
        let get = |bench: &str, policy: &str, column: &str| {
            let row = report
                .rows()
                .find(|r| r["benchmark"] == bench && r["policy"] == policy);
            row.expect("a row")[column].as_f64().expect("a number")
        };
        let reads = |policy| get("active", policy, "pswpin");
        assert!(
            reads("kernel-6.10") > 8.0 * reads("all-six"),
            "{} and {}",
            reads("kernel-6.10"),
            reads("all-six")
        );
        assert!(reads("ebb") <= reads("all-six"));
        let time = |bench, policy| get(bench, policy, "elapsed_s");
        assert!(time("active", "ebb") <= time("active", "all-six"));
        assert!(time("allocate", "all-six") < time("allocate", "patches-1-3"));
        assert!(time("allocate", "all-six") < time("allocate", "no-pool"));
        assert!(time("allocate", "ebb") < time("allocate", "all-six"));
        let inverted = |bench, policy| get(bench, policy, "inverted_percent");
        for bench in ["active", "allocate"] {
            assert!(inverted(bench, "ebb") < 5.0, "{}", inverted(bench, "ebb"));
        }
        // Its rejected pages are the youngest.
        assert!(inverted("allocate", "all-six") > 50.0);
    }
}
