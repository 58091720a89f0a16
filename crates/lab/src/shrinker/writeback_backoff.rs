//! Whether, and for how long, the shrinker should stand back while others use the device. A program
//! works in bursts on a simulated device that does one thing after the other.
//!
//! In turn the program brings back [`READS`] pages from the device, and works for [`WORK_NS`]. Meanwhile
//! about [`STORES`] pages are evicted into a pool above its threshold, and as many have to leave for the
//! device. A read during a batch's write waits for the rest of the batch. A shrinker that stands back
//! for too long writes when the pool is nearly full, whoever reads then.
//!
//! In another load [`BURST`] pages are evicted at once, more than the pool has room for. The pool
//! refuses some, and the program itself writes older ones out to make room. In the pause there is time
//! to make as much room as the next burst needs; a shrinker that stands back throughout leaves that to
//! the program.
//!
//! Compared are: never standing back; until half a second after the last read, as the kernel's
//! sixth patch does; and the engine's own judgement, some batches' time. The first two are put on
//! the engine from outside: where its clock stands still it never stands back.

use crate::support::report::Report;
use crate::support::sim::Machine;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, IoError, Memory, ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Options as Policies};
use ebb_engine::swap::{Config, CountersRef, Env, Place, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};
use serde::Deserialize;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// One line for the list of experiments.
pub const ABOUT: &str =
    "how long writeback stands back for page-ins: never, 500 ms, or some batches";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Bursts and pauses.
    pub rounds: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 400,
            seed: 1,
        }
    }
}

/// How long the shrinker stands back after somebody used the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StandsBack {
    Never,
    HalfASecond,
    SomeBatches,
}

const POLICIES: [(&str, StandsBack); 3] = [
    ("none", StandsBack::Never),
    ("500 ms", StandsBack::HalfASecond),
    ("ebb", StandsBack::SomeBatches),
];

/// Pages brought back in a burst, and what the program does with each.
const READS: usize = 32;
const THINK_NS: u64 = 100_000;
/// Pages evicted in a pause, and how long that is.
const STORES: usize = 128;
const WORK_NS: u64 = 40_000_000;
/// Pages evicted at once, and the pause after that.
const BURST: usize = 2048;
const PAUSE_NS: u64 = 120_000_000;
/// Pages evicted together.
const BATCH: usize = 16;

const READ_NS: u64 = 130_000;
/// A write's own cost, and each page's.
const WRITE_NS: u64 = 60_000;
const WRITE_PAGE_NS: u64 = 34_000;
/// How often an idle worker looks.
const POLL_NS: u64 = 1_000_000;
/// Bytes a page takes in the pool.
const SIZE: usize = 1024;
const POOL: u64 = 8 << 20;
/// Pages stored before it begins: the pool is above its threshold then.
const BEFORE: usize = 16_384;
const SLOTS: usize = 1 << 17;

const PROGRAM: usize = 0;
const WORKER: usize = 1;

/// Time of the program and of the worker, of whom one real thread drives now one, now the other, and
/// when the device is idle again.
#[derive(Default)]
struct World {
    actor: Mutex<usize>,
    now: [AtomicU64; 2],
    idle_from: AtomicU64,
    /// Flag: the clock stands still, for the engine alone.
    stopped: AtomicBool,
}

impl World {
    fn actor(&self) -> usize {
        *self.actor.lock().expect("no panic")
    }
    fn time(&self, actor: usize) -> u64 {
        self.now[actor].load(Relaxed)
    }
    fn spend(&self, ns: u64) {
        self.now[self.actor()].fetch_add(ns, Relaxed);
    }
    /// The actor waits until the device has done what it is at, and this.
    fn transfer(&self, ns: u64) {
        let now = &self.now[self.actor()];
        let done = now.load(Relaxed).max(self.idle_from.load(Relaxed)) + ns;
        self.idle_from.store(done, Relaxed);
        now.store(done, Relaxed);
    }
}

impl Clock for World {
    fn now_ns(&self) -> u64 {
        if self.stopped.load(Relaxed) {
            1
        } else {
            1 + self.time(self.actor())
        }
    }
}

struct Kept;
impl Memory for Kept {
    fn give_back(&self, _: &mut [u8]) {}
}

/// Keeps the first words of a page: all that these have.
struct Quarter;
impl Codecs for Quarter {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Quarter)
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}
impl Coder for Quarter {
    fn compress(&mut self, _: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        out[..SIZE].copy_from_slice(&page[..SIZE]);
        Some(SIZE)
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        page.fill(0);
        page[..SIZE].copy_from_slice(&data[..SIZE]);
        Ok(())
    }
}

struct Device {
    world: Arc<World>,
    pages: Mutex<Vec<Option<Box<PageBytes>>>>,
}

impl Store for Device {
    fn slots(&self) -> u64 {
        SLOTS as u64
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        let mut pages = self.pages.lock().expect("no panic");
        for op in ops {
            let data = op.data.as_chunks::<PAGE_SIZE>().0;
            self.world
                .transfer(WRITE_NS + WRITE_PAGE_NS * data.len() as u64);
            for (kept, page) in pages[op.slot as usize..].iter_mut().zip(data) {
                *kept = Some(Box::new(*page));
            }
        }
        results.fill(Ok(()));
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        let pages = self.pages.lock().expect("no panic");
        for op in ops {
            self.world.transfer(READ_NS);
            let page = pages[op.slot as usize].as_ref().expect("written before");
            op.data.copy_from_slice(&page[..]);
        }
        results.fill(Ok(()));
    }
}

/// The load of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    PageIns,
    Refused,
}

const LOADS: [(&str, Load); 2] = [
    ("page-ins", Load::PageIns),
    ("refused stores", Load::Refused),
];

/// The outcome of a run.
struct Outcome {
    elapsed_ns: u64,
    /// The times that each page from the device was waited for, or each batch of stores, shortest first.
    waits_ns: Vec<u64>,
    written: u64,
    refused: u64,
}

impl Outcome {
    fn mean_us(&self) -> f64 {
        self.waits_ns.iter().sum::<u64>() as f64 / 1e3 / self.waits_ns.len() as f64
    }
    fn p99_us(&self) -> f64 {
        self.waits_ns[self.waits_ns.len() * 99 / 100] as f64 / 1e3
    }
}

struct Bench {
    world: Arc<World>,
    swap: Swap,
    counters: Arc<Counters>,
    policy: StandsBack,
    /// The time when the program last used the device.
    last_use_ns: u64,
    next_page: u64,
    /// Pages that are out, oldest first.
    out: VecDeque<EntryId>,
}

impl Bench {
    fn new(policy: StandsBack) -> Self {
        let world = Arc::new(World::default());
        world
            .stopped
            .store(policy != StandsBack::SomeBatches, Relaxed);
        let counters = Arc::new(Counters::default());
        let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
        let devices = Devices::new(machine.clone(), Policies::default());
        let device = Device {
            world: world.clone(),
            pages: Mutex::new(vec![None; SLOTS]),
        };
        devices
            .add(Arc::new(device), DeviceSpec::default(), None)
            .expect("a device of this size");
        let env = Env {
            clock: world.clone(),
            topology: machine,
            memory: Arc::new(Kept),
            counters: CountersRef::Shared(counters.clone()),
            codecs: Arc::new(Quarter),
            checksums: ebb_engine::Checksums::default(),
        };
        let config = Config {
            pool_max_bytes: POOL,
            accept_threshold_percent: 80,
            ..Config::default()
        };
        let swap = Swap::new(config, env, Some(Arc::new(devices))).expect("settings in range");
        Self {
            world,
            swap,
            counters,
            policy,
            last_use_ns: 0,
            next_page: 0,
            out: VecDeque::new(),
        }
    }

    /// The worker does what it would have done until now.
    fn background(&self) {
        *self.world.actor.lock().expect("no panic") = WORKER;
        let until = self.world.time(PROGRAM);
        while self.world.time(WORKER) < until {
            let now = self.world.time(WORKER);
            let quiet = now.saturating_sub(self.last_use_ns) >= 500_000_000;
            let may =
                self.policy != StandsBack::HalfASecond || quiet || self.swap.needs_writeback();
            let did = may && self.swap.work(Cpu(0));
            if !did || self.world.time(WORKER) == now {
                self.world.spend(if did { 10_000 } else { POLL_NS });
            }
        }
        *self.world.actor.lock().expect("no panic") = PROGRAM;
    }

    /// Stores pages; how long that took.
    fn store(&mut self, count: usize) -> u64 {
        let before = self.world.time(PROGRAM);
        let pages: Vec<PageBytes> = (0..count)
            .map(|_| {
                self.next_page += 1;
                let mut page = [0; PAGE_SIZE];
                page[..8].copy_from_slice(&self.next_page.to_le_bytes());
                page
            })
            .collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let mut entries = vec![None; count];
        let stored = self
            .swap
            .store_each(Cpu(0), GroupId(0), &refs, &mut entries);
        assert_eq!(stored, Ok(count), "the device has room for all");
        self.out.extend(entries.into_iter().flatten());
        let now = self.world.time(PROGRAM);
        if now > before {
            self.last_use_ns = now;
        }
        now - before
    }

    /// Pages that are out and wanted no more go.
    fn drop_oldest(&mut self, count: usize) {
        for entry in self.out.drain(..count) {
            self.swap.free(Cpu(0), entry, 1);
        }
    }

    /// Brings back one of the older half of what is out, if it is on the device; how long that took.
    fn read(&mut self, random: &mut Random) -> Option<u64> {
        let which = random.below(self.out.len() / 2);
        let entry = self.out[which];
        if self.swap.place(entry) != Place::Slot {
            return None;
        }
        self.out.remove(which);
        let before = self.world.time(PROGRAM);
        self.swap
            .load(Cpu(0), entry, &mut [0; PAGE_SIZE], false)
            .expect("no fault is injected");
        self.last_use_ns = self.world.time(PROGRAM);
        Some(self.last_use_ns - before)
    }
}

fn measure(policy: StandsBack, load: Load, options: &Options) -> Outcome {
    let mut bench = Bench::new(policy);
    let mut random = Random::new(options.seed);
    for _ in 0..BEFORE / BATCH {
        bench.store(BATCH);
        bench.world.spend(BATCH as u64 * (WRITE_PAGE_NS + WRITE_NS));
        bench.background();
    }
    bench.world.spend(1_000_000_000);
    bench.background();
    let written = bench.counters.zswpwb.get();
    let refused = bench.counters.pool_limit_hit.get();
    let start = bench.world.time(PROGRAM);
    let mut waits_ns = Vec::new();
    for _ in 0..options.rounds {
        if load == Load::Refused {
            for _ in 0..BURST / BATCH {
                waits_ns.push(bench.store(BATCH));
                bench.background();
            }
            bench.drop_oldest(BURST);
            bench.world.spend(PAUSE_NS);
            bench.background();
            continue;
        }
        let mut reads = 0;
        while reads < READS {
            if let Some(ns) = bench.read(&mut random) {
                waits_ns.push(ns);
                reads += 1;
                bench.world.spend(THINK_NS);
            }
            bench.background();
        }
        // More or less of them, as bursts would else come at the same moment of each batch.
        let batches = STORES / BATCH;
        for _ in 0..batches / 2 + random.below(batches + 1) {
            bench.world.spend(WORK_NS * BATCH as u64 / STORES as u64);
            bench.background();
            bench.store(BATCH);
        }
    }
    waits_ns.sort_unstable();
    Outcome {
        elapsed_ns: bench.world.time(PROGRAM) - start,
        waits_ns,
        written: bench.counters.zswpwb.get() - written,
        refused: bench.counters.pool_limit_hit.get() - refused,
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&[
        "load",
        "stands_back",
        "elapsed_s",
        "page_in_mean_us",
        "page_in_p99_us",
        "store_mean_us",
        "store_p99_us",
        "zswpwb",
        "pool_limit_hit",
    ]);
    let rounded = |value: f64| json!((value * 1000.0).round() / 1000.0);
    for (load_name, load) in LOADS {
        for (name, policy) in POLICIES {
            let got = measure(policy, load, options);
            let waits = [got.mean_us(), got.p99_us()].map(rounded);
            let of = |which: Load| {
                waits
                    .clone()
                    .map(|us| if load == which { us } else { json!(null) })
            };
            let mut row = vec![
                load_name.into(),
                name.into(),
                rounded(got.elapsed_ns as f64 / 1e9),
            ];
            row.extend(of(Load::PageIns));
            row.extend(of(Load::Refused));
            row.extend([got.written.into(), got.refused.into()]);
            report.row(row);
        }
    }
    report.note(format!(
        "page-ins: {READS} pages from the device in each burst, {STORES} evicted in each pause of {} ms; a read takes {} us",
        WORK_NS / 1_000_000,
        READ_NS / 1000
    ));
    report.note(format!(
        "refused stores: {BURST} pages evicted in each burst, {BATCH} a store, then a pause of {} ms",
        PAUSE_NS / 1_000_000
    ));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_batches_are_better_than_nothing_and_than_half_a_second() {
        for seed in 1..=3 {
            let options = Options { rounds: 100, seed };
            let [none, long, ours] =
                POLICIES.map(|(_, policy)| measure(policy, Load::PageIns, &options));
            for (name, other, times) in [("none", &none, 1.5), ("500 ms", &long, 1.5)] {
                // Waiting beyond the read itself.
                let [theirs, own] = [other, &ours].map(|got| got.mean_us() - READ_NS as f64 / 1e3);
                assert!(
                    own * times < theirs,
                    "{name}: {theirs} us, {own} us, seed {seed}"
                );
                assert!(ours.elapsed_ns < other.elapsed_ns, "{name}, seed {seed}");
                assert!(ours.p99_us() <= other.p99_us(), "{name}, seed {seed}");
            }
            assert!(ours.written >= long.written, "it does its work");
        }
    }

    /// Room for refused stores is made while the program pauses: standing back throughout leaves that to
    /// the stores of the next burst.
    #[test]
    fn stores_that_are_refused_find_room_the_next_time() {
        let options = Options {
            rounds: 50,
            seed: 1,
        };
        let [none, long, ours] =
            POLICIES.map(|(_, policy)| measure(policy, Load::Refused, &options));
        let told = [&none, &long, &ours].map(|got| (got.refused, got.mean_us(), got.elapsed_ns));
        println!("{told:?}");
        assert!(ours.refused > 0, "the pool had room for all");
        assert!(2.0 * ours.mean_us() < long.mean_us(), "{told:?}");
        assert!(ours.mean_us() < 1.2 * none.mean_us(), "{told:?}");
        assert!(ours.elapsed_ns < long.elapsed_ns, "{told:?}");
    }
}
