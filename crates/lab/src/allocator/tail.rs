//! The cost of freeing returned slots: latency of the free and fault paths, first when a free that finds
//! the return cache full frees the batch itself (inline), then when a worker frees it earlier
//! (asynchronous).
//!
//! Real threads on real processors; a slot is freed, the page of another is swapped out in a fault,
//! and the program computes for a while. Four loads:
//!
//! - `scattered`: the device is long in use, so each slot lies in a cluster of its own. A free then
//!   meets cold memory and a full cluster that has to change lists, unless the slot is recycled. The
//!   fault itself frees it.
//! - `discard`: the program drops 2 MiB at a time, which empties clusters, on a device that
//!   wants those discarded and takes its time.
//! - `shuffled`: the same page by page and in no order, so that slots go through the return cache. They
//!   are used again from there, and hardly a cluster is emptied.
//! - `batches`: two times 2 MiB so, one after the other. A batch of frees empties the first cluster, and
//!   an allocation that needs it waits until it is discarded.

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use crate::support::timing::{median_between, middle, processor_time};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{CLUSTER_SLOTS, Cpu, DeviceId, EntryId, SlotIndex};
use ebb_sys::thread::switches;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "latency of freeing slots, inline or by a worker";

/// How long the simulated device takes to discard a cluster: a hole of 2 MiB punched into
/// a file.
const DISCARD: Duration = Duration::from_micros(200);
/// A wait that nobody accepts.
const LONG: Duration = Duration::from_micros(100);
/// How often the worker looks whether it is wanted: about as often as a thread of the loads empties a
/// cluster. A look takes the processor from a program thread: looking alone, with nothing found, costs
/// 0.4% of the speed, and more where it is done more often.
const POLL: Duration = Duration::from_millis(2);

/// Parameters of the experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The loads, in turn.
    pub loads: Vec<Load>,
    /// Faulting threads. 0: one for each processor.
    pub threads: usize,
    /// Slots of the device of the scattered load.
    pub slots: u32,
    /// Computation of the program between two faults.
    pub think: Duration,
    /// The time for each measurement.
    pub duration: Duration,
    /// Rounds, each way of freeing in turn. Latencies are added up. Shares, and speeds as parts of the
    /// same round's inline speed, are medians, so that other programs that run in some rounds change
    /// nothing.
    pub rounds: u32,
    /// Flag: freeing without a return cache is measured too.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            loads: Load::ALL.to_vec(),
            threads: 0,
            slots: 1 << 22,
            think: Duration::from_micros(4),
            duration: Duration::from_millis(250),
            rounds: 21,
            direct: true,
        }
    }
}

/// Treatment of pages by the program: see the head of this module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// A page at a time, from anywhere.
    Scattered,
    /// 2 MiB in one piece.
    Discard,
    /// 2 MiB, a page at a time.
    Shuffled,
    /// 4 MiB, a page at a time.
    Batches,
}

impl Load {
    /// Each of them.
    pub const ALL: [Self; 4] = [
        Self::Scattered,
        Self::Discard,
        Self::Shuffled,
        Self::Batches,
    ];

    /// The name in rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Discard => "discard",
            Self::Shuffled => "shuffled",
            Self::Batches => "batches",
        }
    }

    /// Slots that the program drops at a time; none if faults free them one by one.
    fn drops(self) -> usize {
        match self {
            Self::Scattered => 0,
            Self::Discard | Self::Shuffled => CLUSTER_SLOTS,
            Self::Batches => 2 * CLUSTER_SLOTS,
        }
    }
}

/// The outcome of one way of freeing, in a round or in all.
struct Outcome {
    free: Histogram<u64>,
    fault: Histogram<u64>,
    /// Frees and faults that took over `LONG` because the thread waited for something.
    waited: [u64; 2],
    operations: u64,
    /// Time on a processor.
    processor: Duration,
}

/// The outcome of one way of freeing.
struct Outcomes {
    all: Outcome,
    /// The figures of each round, in percent: frees and faults over 10 and over 100 µs.
    over: [[Vec<f64>; 2]; 2],
    /// Operations per second, of each round.
    per_s: Vec<f64>,
    /// Operations per second of the faulting threads' processor time, less the worker's part of the
    /// processors: the speed on a machine that does nothing else.
    alone: Vec<f64>,
}

impl Outcome {
    fn new() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order");
        Self {
            free: histogram(),
            fault: histogram(),
            waited: [0; 2],
            operations: 0,
            processor: Duration::ZERO,
        }
    }

    fn add(&mut self, other: &Self) {
        let same = "histograms of one kind";
        self.free.add(&other.free).expect(same);
        self.fault.add(&other.fault).expect(same);
        for (waited, more) in self.waited.iter_mut().zip(other.waited) {
            *waited += more;
        }
        self.operations += other.operations;
        self.processor += other.processor;
    }
}

impl Outcomes {
    fn new() -> Self {
        Self {
            all: Outcome::new(),
            over: Default::default(),
            per_s: Vec::new(),
            alone: Vec::new(),
        }
    }

    /// `threads` faulted for this long, and the worker took so much of a processor meanwhile.
    fn round(&mut self, outcome: &Outcome, threads: usize, elapsed: Duration, worker: Duration) {
        for (path, histogram) in [&outcome.free, &outcome.fault].into_iter().enumerate() {
            for (limit, time) in [LONG / 10, LONG].into_iter().enumerate() {
                self.over[path][limit].push(over(histogram, time.as_nanos() as u64));
            }
        }
        let operations = outcome.operations as f64;
        self.per_s.push(operations / elapsed.as_secs_f64());
        let worker = worker.as_secs_f64() / elapsed.as_secs_f64() / threads as f64;
        self.alone
            .push(operations / outcome.processor.as_secs_f64() * (1.0 - worker));
        self.all.add(outcome);
    }
}

/// The outcome of each round, in percent of the same round of another way. Rounds in which the threads
/// had no processor say nothing.
fn percents_of(rounds: &[f64], others: &[f64]) -> Vec<f64> {
    let pairs = rounds.iter().zip(others);
    let percents = pairs.map(|(a, b)| 100.0 * a / b);
    percents.filter(|percent| percent.is_normal()).collect()
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The slots of a thread.
#[derive(Clone, Default)]
struct Held {
    slots: Vec<u32>,
    /// The place where the discard load goes on.
    next: usize,
}

/// Tells how long things took, one after the other, and whether they waited.
struct Watch {
    begun: Instant,
    waits: u64,
}

impl Watch {
    fn start() -> Self {
        Self {
            waits: switches().voluntary,
            begun: Instant::now(),
        }
    }

    /// Counts the time since the start; `waited` counts long times in which the thread waited for
    /// something. A time that another program interrupted is long too, but is no wait for us.
    fn note(&mut self, times: &mut Histogram<u64>, waited: &mut u64) {
        let took = self.begun.elapsed();
        times.saturating_record(took.as_nanos() as u64);
        if took > LONG {
            let waits = std::mem::replace(&mut self.waits, switches().voluntary);
            *waited += u64::from(waits != self.waits);
        }
    }

    /// The next begins here.
    fn again(&mut self) {
        self.begun = Instant::now();
    }
}

/// Devices under a load.
struct Bench {
    load: Load,
    /// The way that single slots take back.
    returns: Returns,
    devices: Devices,
    held: Vec<Held>,
}

/// Ways that single slots take back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// Through the processor's return cache.
    Cached,
    /// One by one, at once.
    Direct,
}

impl Bench {
    fn new(load: Load, returns: Returns, threads: usize, options: &Options) -> Self {
        let machine = Arc::new(Machine {
            cpus: threads,
            nodes: 1,
        });
        let devices = Devices::new(machine, Policies::default());
        // The discard load goes round a smaller device: it must come back to what it freed.
        let (slots, percent, discard) = match load {
            Load::Scattered => (options.slots, 95, None),
            _ => (
                options
                    .slots
                    .min(threads as u32 * 16 * CLUSTER_SLOTS as u32),
                80,
                Some(DISCARD),
            ),
        };
        let store = Arc::new(Blank {
            discard,
            ..Blank::new(u64::from(slots))
        });
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("large enough");
        let step = load.drops().max(CLUSTER_SLOTS);
        let each = slots as usize * percent / 100 / threads / step * step;
        let mut held = vec![Held::default(); threads];
        let mut out = ExtentList::new();
        for i in 0..each * threads {
            // Scattered: every thread's slots everywhere. Else: each in its own clusters.
            let (thread, cpu) = match load {
                Load::Scattered => (i % threads, Cpu(0)),
                _ => (i / each, Cpu((i / each) as u16)),
            };
            out.clear();
            let slots = &mut held[thread].slots;
            devices
                .allocate(cpu, 1, EntryId(slots.len() as u32), &mut out)
                .expect("the device is not full");
            slots.push(out[0].start.0);
        }
        Self {
            load,
            returns,
            devices,
            held,
        }
    }

    /// Frees the slots of the entries from `first` on.
    fn free(&self, cpu: Cpu, first: usize, slots: &[u32]) {
        let mut owner = EntryId(first as u32);
        let follows = |a: &u32, b: &u32| a + 1 == *b && !b.is_multiple_of(CLUSTER_SLOTS as u32);
        for run in slots.chunk_by(follows) {
            let extent = Extent {
                device: DeviceId(0),
                start: SlotIndex(run[0]),
                len: run.len() as u16,
            };
            let freed = match self.returns {
                Returns::Cached => self.devices.free(cpu, owner, extent),
                Returns::Direct => self.devices.free_now(cpu, owner, extent),
            };
            freed.expect("the slots are ours");
            owner = owner.plus(u32::from(extent.len));
        }
    }

    /// Frees the slots of whole clusters that the program drops, those of the entries from `first` on.
    /// Calls `freed` after each call for which the program waits: of a cluster, or of a page.
    fn drop(
        &self,
        cpu: Cpu,
        first: usize,
        slots: &[u32],
        order: &[usize],
        mut freed: impl FnMut(),
    ) {
        for (nth, slots) in slots.chunks_exact(CLUSTER_SLOTS).enumerate() {
            let first = first + nth * CLUSTER_SLOTS;
            if self.load == Load::Discard {
                self.free(cpu, first, slots);
                freed();
                continue;
            }
            for &i in order {
                self.free(cpu, first + i, &slots[i..=i]);
                freed();
            }
        }
    }

    /// A faulting thread: its slots are freed and replaced.
    fn fault(&self, cpu: Cpu, held: &mut Held, stop: &AtomicBool, think: Duration) -> Outcome {
        let mut outcome = Outcome::new();
        let processor = processor_time();
        let mut random = Random::new(u64::from(cpu.0));
        let mut order: [usize; CLUSTER_SLOTS] = std::array::from_fn(|i| i);
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut out = ExtentList::new();
        while !stop.load(Ordering::Relaxed) {
            let at = match self.load {
                Load::Scattered => random.below(held.slots.len()),
                _ => held.next,
            };
            held.next = (at + 1) % held.slots.len();
            let drops = self.load.drops();
            let mut watch = Watch::start();
            if drops == 0 {
                self.free(cpu, at, &held.slots[at..=at]);
                watch.note(&mut outcome.free, &mut outcome.waited[0]);
            } else if at % drops == 0 {
                self.drop(cpu, at, &held.slots[at..at + drops], &order, || {
                    watch.note(&mut outcome.free, &mut outcome.waited[0]);
                    watch.again();
                });
            }
            out.clear();
            let owner = EntryId(at as u32);
            self.devices
                .allocate(cpu, 1, owner, &mut out)
                .expect("there is room");
            watch.note(&mut outcome.fault, &mut outcome.waited[1]);
            held.slots[at] = out[0].start.0;
            outcome.operations += 1;
            spin(think);
        }
        outcome.processor = processor_time() - processor;
        outcome
    }

    fn measure(&mut self, worker: bool, options: &Options, total: &mut Outcomes) {
        let mut round = Outcome::new();
        let (mut elapsed, mut working) = (Duration::ZERO, Duration::ZERO);
        let mut held = std::mem::take(&mut self.held);
        let stop = AtomicBool::new(false);
        let start = Barrier::new(held.len() + 1);
        std::thread::scope(|scope| {
            let (stop, start, bench) = (&stop, &start, &*self);
            let threads: Vec<_> = held
                .iter_mut()
                .enumerate()
                .map(|(cpu, held)| {
                    scope.spawn(move || {
                        start.wait();
                        bench.fault(Cpu(cpu as u16), held, stop, options.think)
                    })
                })
                .collect();
            let worker = worker.then(|| {
                scope.spawn(move || {
                    let processor = processor_time();
                    while !stop.load(Ordering::Relaxed) {
                        if bench.devices.wants_work() {
                            bench.devices.work(Cpu(0), 16);
                        }
                        std::thread::sleep(POLL);
                    }
                    processor_time() - processor
                })
            });
            start.wait();
            let begun = Instant::now();
            std::thread::sleep(options.duration);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                round.add(&thread.join().expect("no panic"));
            }
            elapsed = begun.elapsed();
            working = worker.map_or(working, |worker| worker.join().expect("no panic"));
        });
        total.round(&round, held.len(), elapsed, working);
        self.held = held;
    }
}

fn over(histogram: &Histogram<u64>, ns: u64) -> f64 {
    percent(
        histogram.len() - histogram.count_between(0, ns),
        histogram.len(),
    )
}

fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// Name, way back, whether there is a worker.
const WAYS: [(&str, Returns, bool); 3] = [
    ("inline", Returns::Cached, false),
    ("async", Returns::Cached, true),
    ("direct", Returns::Direct, false),
];

const COLUMNS: [&str; 18] = [
    "load",
    "free",
    "path",
    "calls",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "over_10us_percent",
    "over_100us_percent",
    "waited_percent",
    "ops_per_s",
    "ops_percent_of_inline",
    "ops_at_least",
    "ops_at_most",
    "alone_percent_of_inline",
    "alone_at_least",
    "alone_at_most",
];

/// Adds the rows of a way of freeing: one for frees and one for faults.
fn add_rows(report: &mut Report, load: Load, name: &str, outcome: &Outcomes, inline: &Outcomes) {
    let per_s = middle(&outcome.per_s);
    let clock = percents_of(&outcome.per_s, &inline.per_s);
    let alone = percents_of(&outcome.alone, &inline.alone);
    let bounds = [&clock, &alone].map(|percents| median_between(percents));
    for (i, path, h) in [
        (0, "free", &outcome.all.free),
        (1, "fault", &outcome.all.fault),
    ] {
        let over = &outcome.over[i];
        report.row(vec![
            load.name().into(),
            name.into(),
            path.into(),
            h.len().into(),
            h.value_at_quantile(0.5).into(),
            h.value_at_quantile(0.99).into(),
            h.value_at_quantile(0.999).into(),
            h.max().into(),
            middle(&over[0]).into(),
            middle(&over[1]).into(),
            percent(outcome.all.waited[i], h.len()).into(),
            per_s.round().into(),
            middle(&clock).into(),
            bounds[0].0.into(),
            bounds[0].1.into(),
            middle(&alone).into(),
            bounds[1].0.into(),
            bounds[1].1.into(),
        ]);
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 {
        cores
    } else {
        options.threads
    };
    let mut report = Report::new(&COLUMNS);
    let ways = &WAYS[..if options.direct { 3 } else { 2 }];
    for &load in &options.loads {
        // The inline way and the worker's are measured on the same devices where possible: the tables'
        // addresses matter more than the difference that is measured. But a worker leaves discarded
        // clusters behind.
        let share = load == Load::Scattered;
        let mut benches: Vec<Bench> = Vec::new();
        let mut ways: Vec<_> = ways
            .iter()
            .map(|&(name, returns, worker)| {
                if !(share && worker) {
                    benches.push(Bench::new(load, returns, threads, options));
                }
                (name, benches.len() - 1, worker, Outcomes::new())
            })
            .collect();
        for round in 0..options.rounds {
            // There and back, so that none has always the same one before it.
            let mut measure = |(_, bench, worker, outcomes): &mut (_, usize, bool, Outcomes)| {
                benches[*bench].measure(*worker, options, outcomes);
            };
            if round % 2 == 0 {
                ways.iter_mut().for_each(&mut measure);
            } else {
                ways.iter_mut().rev().for_each(&mut measure);
            }
        }
        for (name, .., outcome) in &ways {
            add_rows(&mut report, load, name, outcome, &ways[0].3);
        }
    }
    report
        .note("free: inline, by the free that finds the return cache full; async, by a worker; direct, no return cache, each slot freed at once");
    report.note("shares over a time, ops_per_s and percents of inline: medians of the rounds; waited: of all rounds, over 100 µs for a lock or a discard, not for a processor");
    report.note("alone: by the processor time that the faulting threads had, less the worker's part of the processors; between at_least and at_most the median lies at 99.8%");
    report.note(format!(
        "{threads} threads on {cores} processors; a fault allocates a slot, and frees one where that is not done 512 or 1024 at a time before"
    ));
    report
}
