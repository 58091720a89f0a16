//! Allocations and frees per second against the number of threads: ours, an older allocator under one
//! global lock, which keeps no owners of slots, and ours under one lock. Each thread holds some folios
//! and in each step allocates one and frees its oldest. A thread is bound to a processor, and allocates
//! as that one.
//!
//! They are measured in turn. Up to one thread for each processor: for short times and often, and only
//! the moments count in which no thread was without its processor. More threads than processors: for
//! longer, so that all of them get their turns, and are interrupted wherever they are, a lock in hand or
//! not. Each of them finds what those before it left, the other processors' threads too: clusters that
//! are partly in use, whose lines lie with whoever was there last. The cost of such a transfer depends
//! on the distance of the processors. It is counted in transfers of a line, measured in the same rounds.

use crate::support::baselines::{Legacy, SlotAllocator};
use crate::support::report::{Plot, Report, Series};
use crate::support::sim::{Blank, Machine};
use crate::support::timing::{
    Round, crowded, line_transfer_ns, middle, ratio, side_by_side, speed, undisturbed,
};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId, SlotIndex};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "allocate and free on 1 to N threads, against one global lock";

/// Parameters of the experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// The time for each measurement.
    pub duration: Duration,
    /// Measurements of each allocator, in turn with the other, in which there were such moments; at
    /// most `TRIES` times as many are made.
    pub rounds: usize,
    /// The same where processors are shared.
    pub shared: (Duration, usize),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: vec![1, 2, 4, 8, 16],
            duration: Duration::from_millis(2),
            rounds: 100,
            shared: (Duration::from_millis(60), 15),
        }
    }
}

const TRIES: usize = 4;
/// Pairs of allocation and free between two looks at the clock.
const CHUNK: usize = 256;
/// Folios a thread holds.
const HELD: usize = 128;
/// Slots of the device.
const SLOTS: u32 = 1 << 20;

/// Something that allocates and frees, from a numbered thread.
trait Shared: Send + Sync {
    fn allocate(&self, thread: usize, order: u8, out: &mut ExtentList) -> u32;
    fn free(&self, thread: usize, start: u32, order: u8);
}

struct Ours {
    devices: Devices,
    cpus: usize,
}

impl Ours {
    fn cpu(&self, thread: usize) -> Cpu {
        Cpu((thread % self.cpus) as u16)
    }
}

impl Shared for Ours {
    fn allocate(&self, thread: usize, order: u8, out: &mut ExtentList) -> u32 {
        out.clear();
        let cpu = self.cpu(thread);
        self.devices
            .allocate(cpu, 1 << order, EntryId(0), out)
            .expect("the device is not full");
        out[0].start.0
    }
    fn free(&self, thread: usize, start: u32, order: u8) {
        let device = ebb_engine::DeviceId(0);
        let extent = Extent {
            device,
            start: SlotIndex(start),
            len: 1 << order,
        };
        self.devices
            .free(self.cpu(thread), EntryId(0), extent)
            .expect("it was allocated");
    }
}

struct OneLock<T>(Mutex<T>);

impl Shared for OneLock<Ours> {
    fn allocate(&self, thread: usize, order: u8, out: &mut ExtentList) -> u32 {
        let ours = self.0.lock().expect("no panic");
        ours.allocate(thread, order, out)
    }
    fn free(&self, thread: usize, start: u32, order: u8) {
        let ours = self.0.lock().expect("no panic");
        ours.free(thread, start, order);
    }
}

impl Shared for OneLock<Legacy> {
    fn allocate(&self, _: usize, order: u8, _: &mut ExtentList) -> u32 {
        self.0
            .lock()
            .expect("no panic")
            .allocate(order)
            .expect("the device is not full")
    }
    fn free(&self, _: usize, start: u32, order: u8) {
        self.0.lock().expect("no panic").free(start, 1 << order);
    }
}

/// One allocator and what each thread holds.
struct Bench {
    shared: Box<dyn Shared>,
    held: Vec<Mutex<VecDeque<u32>>>,
    rounds: Vec<Round>,
}

impl Bench {
    fn new(shared: Box<dyn Shared>, threads: usize, order: u8) -> Self {
        let mut out = ExtentList::new();
        let held = (0..threads).map(|thread| {
            let folios = (0..HELD).map(|_| shared.allocate(thread, order, &mut out));
            Mutex::new(folios.collect())
        });
        Self {
            held: held.collect(),
            shared,
            rounds: Vec::new(),
        }
    }

    /// Pairs per second of all threads together.
    fn measure(&mut self, order: u8, duration: Duration, shared: bool) {
        let chunk = |thread: usize| {
            // Taken out, so that no thread writes where those of others begin.
            let mut mine = self.held[thread].lock().expect("no panic");
            let mut held = std::mem::take(&mut *mine);
            let mut out = ExtentList::new();
            for _ in 0..CHUNK {
                held.push_back(self.shared.allocate(thread, order, &mut out));
                let oldest = held.pop_front().expect("some are held");
                self.shared.free(thread, oldest, order);
            }
            *mine = held;
            CHUNK
        };
        let round = if shared {
            crowded(self.held.len(), |thread| {
                let begun = Instant::now();
                let chunks = std::iter::repeat_with(|| chunk(thread));
                chunks.take_while(|_| begun.elapsed() < duration).sum()
            })
        } else {
            side_by_side(self.held.len(), duration, chunk)
        };
        self.rounds.push(round);
    }
}

fn ours(cpus: usize) -> Ours {
    let machine = Arc::new(Machine { cpus, nodes: 1 });
    let devices = Devices::new(machine, Policies::default());
    let store = Arc::new(Blank::new(u64::from(SLOTS)));
    devices
        .add(store, DeviceSpec::default(), None)
        .expect("large enough");
    Ours { devices, cpus }
}

const NAMES: [&str; 3] = ["ebb", "one-lock", "ebb-one-lock"];

/// Ours and the others, for a number of threads.
fn all(threads: usize, cores: usize, order: u8) -> [Bench; 3] {
    let ours = || ours(threads.min(cores));
    let allocators: [Box<dyn Shared>; 3] = [
        Box::new(ours()),
        Box::new(OneLock(Mutex::new(Legacy::new(SLOTS)))),
        Box::new(OneLock(Mutex::new(ours()))),
    ];
    allocators.map(|allocator| Bench::new(allocator, threads, order))
}

/// Extra time of a pair in a crowd over one thread for each processor, in transfers of a line: the
/// median of the rounds.
fn lines_per_pair(crowd: &Bench, unshared: &Bench, lines: &[f64], cores: usize) -> f64 {
    let ns = |round: &Round| 1e9 * cores as f64 / round.per_s;
    let rounds = crowd.rounds.iter().zip(&unshared.rounds).zip(lines);
    let each = rounds.map(|((crowd, unshared), line)| (ns(crowd) - ns(unshared)) / line);
    middle(&each.collect::<Vec<_>>())
}

const COLUMNS: [&str; 16] = [
    "allocator",
    "order",
    "threads",
    "pairs_per_s",
    "ns_per_pair",
    "percent_of_one_lock",
    "one_lock_rounds",
    "percent_of_own_one_lock",
    "own_one_lock_rounds",
    "percent_of_unshared",
    "clock_percent_of_unshared",
    "line_transfer_ns",
    "lines_per_pair",
    "percent_of_one_thread",
    "one_thread_rounds",
    "rounds",
];

/// Measures every allocator with so many threads, and, beside that, with one for each processor or with one
/// alone; also the transfers of a cache line in the same rounds, where threads share processors.
fn measure_all(
    options: &Options,
    threads: usize,
    cores: usize,
    order: u8,
) -> (Vec<[Bench; NAMES.len()]>, Vec<f64>) {
    let shared = threads > cores;
    let (duration, rounds, tries) = if shared {
        (options.shared.0, options.shared.1, 1)
    } else {
        (options.duration, options.rounds, TRIES)
    };
    let counts = match threads {
        1 => vec![1],
        _ if shared => vec![threads, cores],
        _ => vec![threads, 1],
    };
    let mut benches: Vec<_> = counts.into_iter().map(|n| all(n, cores, order)).collect();
    let mut lines = Vec::new();
    for _ in 0..rounds.max(1) * tries {
        lines.extend(shared.then(line_transfer_ns).flatten());
        for bench in benches.iter_mut().flatten() {
            bench.measure(order, duration, shared);
        }
        // An allocator that is compared with ours must have had its moments in the same rounds.
        let first = &benches[0][0];
        let enough = |bench: &Bench| ratio(&first.rounds, &bench.rounds).pairs >= rounds;
        if !shared && benches.iter().flatten().all(enough) {
            break;
        }
    }
    (benches, lines)
}

fn add_notes(report: &mut Report, cores: usize) {
    report.note(format!(
        "ns_per_pair: of a processor's time; this machine has {cores}, which more threads share",
    ));
    report.note("one-lock: the kernel allocator of baseline 'legacy' under one global lock, which knows no owners; ebb-one-lock: ours under one more lock, for all threads; percent_of_own_one_lock: beside that");
    report.note("percent_of_unshared: more threads than processors, of what one thread for each gets done in rounds in turn; percent_of_one_thread: of what one thread alone does, in the same way");
    report.note("medians of the rounds in which there were moments when all threads ran; rounds: how many of these there were (under 5: medians of all), one_lock_rounds and one_thread_rounds: in how many what is compared with had them too; where threads share processors: by the time that they had these");
    report.note("line_transfer_ns: what a cache line takes from one processor to another; lines_per_pair: what a pair takes longer than with one thread for each processor, in such transfers");
    report.note("clock_percent_of_unshared: by the clock, so that waits of all count, and so do other programs");
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut report = Report::new(&COLUMNS);
    let mut series: Vec<Series> = Vec::new();
    for order in [0u8, 4] {
        let mut points = NAMES.map(|_| Vec::new());
        for &threads in &options.threads {
            let shared = threads > cores;
            let (benches, lines) = measure_all(options, threads, cores, order);
            for (i, name) in NAMES.into_iter().enumerate() {
                let of = |bench: &Bench| ratio(&benches[0][i].rounds, &bench.rounds);
                let [one_lock, own] = [1, 2].map(|other| of(&benches[0][other]));
                let fewer = benches.get(1).map(|b| of(&b[i]));
                let (unshared, one) = if shared { (fewer, None) } else { (None, fewer) };
                let more = benches.get(1).filter(|_| !lines.is_empty());
                let more = more.map(|b| lines_per_pair(&benches[0][i], &b[i], &lines, cores));
                let rate = speed(&benches[0][i].rounds);
                report.row(vec![
                    name.into(),
                    order.into(),
                    threads.into(),
                    rate.round().into(),
                    (1e9 * threads.min(cores) as f64 / rate).into(),
                    (100.0 * one_lock.of_speed).into(),
                    one_lock.pairs.into(),
                    (100.0 * own.of_speed).into(),
                    own.pairs.into(),
                    unshared.map(|ratio| 100.0 * ratio.of_speed).into(),
                    unshared.map(|ratio| 100.0 * ratio.by_clock).into(),
                    more.map(|_| middle(&lines)).into(),
                    more.into(),
                    one.map(|ratio| 100.0 * ratio.of_speed).into(),
                    one.map(|ratio| ratio.pairs).into(),
                    undisturbed(&benches[0][i].rounds).into(),
                ]);
                points[i].push((threads as f64, rate));
            }
        }
        for (name, points) in NAMES.into_iter().zip(points) {
            series.push(Series {
                name: format!("{name}, order {order}"),
                points,
            });
        }
    }
    add_notes(&mut report, cores);
    report.set_plot(Plot {
        title: "allocate and free".into(),
        x: "threads".into(),
        y: "pairs per second".into(),
        series,
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_measured_alone_together_and_in_turns() {
        let report = run(&Options {
            threads: vec![1, 2, 8],
            duration: Duration::from_millis(1),
            rounds: 2,
            shared: (Duration::from_millis(10), 2),
        });
        assert_eq!(report.rows().count(), 18);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        for row in report.rows() {
            assert!(row["pairs_per_s"].as_f64().is_some_and(|n| n > 0.0));
            let lines = ["line_transfer_ns", "lines_per_pair"].map(|column| row[column].as_f64());
            let crowd = cores > 1 && row["threads"].as_u64() > Some(cores);
            assert_eq!(lines.map(|n| n.is_some()), [crowd; 2]);
            assert!(
                lines[0].is_none_or(|ns| (1.0..10_000.0).contains(&ns)),
                "{lines:?}"
            );
        }
    }
}
