//! Allocations and frees per second against the number of threads, ours beside an older
//! allocator under one global lock. Each thread holds some folios and in each step
//! allocates one and frees its oldest. A thread is bound to its processor.
//!
//! The two are measured in turn, for short times and often; rounds that were interrupted do not count.

use crate::report::{Plot, Report, Series};
use crate::rivals::{Legacy, SlotAllocator};
use crate::rounds::{Round, ratio, speed, together, undisturbed};
use crate::sim::{Blank, Machine};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId, SlotIndex};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "allocate and free on 1 to N threads, against one global lock";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of threads; those beyond the processors there are, are left out.
    pub threads: Vec<usize>,
    /// For each measurement.
    pub duration: Duration,
    /// Measurements of each allocator, in turn with the other.
    pub rounds: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: vec![1, 2, 4, 8, 16],
            duration: Duration::from_millis(2),
            rounds: 300,
        }
    }
}

/// Folios a thread holds.
const HELD: usize = 128;
/// Slots of the device.
const SLOTS: u32 = 1 << 20;

/// Something that allocates and frees, from a numbered thread.
trait Shared: Send + Sync {
    fn allocate(&self, thread: usize, order: u8, out: &mut ExtentList) -> u32;
    fn free(&self, thread: usize, start: u32, order: u8);
}

struct Ours(Devices);

impl Shared for Ours {
    fn allocate(&self, thread: usize, order: u8, out: &mut ExtentList) -> u32 {
        out.clear();
        let cpu = Cpu(thread as u16);
        self.0
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
        self.0
            .free(Cpu(thread as u16), extent)
            .expect("it was allocated");
    }
}

struct OneLock(Mutex<Legacy>);

impl Shared for OneLock {
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
    fn measure(&mut self, order: u8, duration: Duration) {
        let work = |thread: usize| {
            let mut held = self.held[thread].lock().expect("no panic");
            let mut out = ExtentList::new();
            let (begun, mut done) = (Instant::now(), 0);
            while begun.elapsed() < duration {
                for _ in 0..256 {
                    held.push_back(self.shared.allocate(thread, order, &mut out));
                    let oldest = held.pop_front().expect("some are held");
                    self.shared.free(thread, oldest, order);
                }
                done += 256;
            }
            done
        };
        let round = together(self.held.len(), work);
        self.rounds.push(round);
    }
}

fn ours(threads: usize) -> Ours {
    let machine = Arc::new(Machine {
        cpus: threads,
        nodes: 1,
    });
    let devices = Devices::new(machine, Policies::default());
    let store = Arc::new(Blank::new(u64::from(SLOTS)));
    devices
        .add(store, DeviceSpec::default(), None)
        .expect("large enough");
    Ours(devices)
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut report = Report::new(&[
        "allocator",
        "order",
        "threads",
        "pairs_per_s",
        "ns_per_pair",
        "percent_of_one_lock",
        "rounds",
    ]);
    let mut series: Vec<Series> = Vec::new();
    for order in [0u8, 4] {
        let names = ["ebb", "one-lock"];
        let mut points = [Vec::new(), Vec::new()];
        for &threads in options.threads.iter().filter(|t| **t <= cores) {
            let one_lock = OneLock(Mutex::new(Legacy::new(SLOTS)));
            let mut both = [
                Bench::new(Box::new(ours(threads)), threads, order),
                Bench::new(Box::new(one_lock), threads, order),
            ];
            for _ in 0..options.rounds.max(1) {
                for bench in &mut both {
                    bench.measure(order, options.duration);
                }
            }
            let of_one_lock = 100.0 * ratio(&both[0].rounds, &both[1].rounds);
            for (i, bench) in both.iter().enumerate() {
                let rate = speed(&bench.rounds);
                report.row(vec![
                    names[i].into(),
                    order.into(),
                    threads.into(),
                    rate.round().into(),
                    (1e9 * threads as f64 / rate).into(),
                    if i == 0 { of_one_lock } else { 100.0 }.into(),
                    undisturbed(&bench.rounds).into(),
                ]);
                points[i].push((threads as f64, rate));
            }
        }
        for (name, points) in names.into_iter().zip(points) {
            series.push(Series {
                name: format!("{name}, order {order}"),
                points,
            });
        }
    }
    report.note(format!(
        "ns_per_pair: of each thread; this machine has {cores} processors",
    ));
    report.note("medians of the rounds in which nothing else ran on the processors; rounds: how many of these there were (under 5: medians of all)");
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
    fn a_pair_keeps_to_its_cost_and_two_threads_beat_one_lock() {
        let quick = Options {
            threads: vec![1, 2],
            duration: Duration::from_millis(2),
            rounds: 20,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // The promise is for a build without debug assertions, which look after the locks' order.
        let most = if cfg!(debug_assertions) { 300.0 } else { 150.0 };
        // Other programs may have the processors for a whole run, not for each of several.
        let mut seen = Vec::new();
        for _ in 0..8 {
            let report = run(&quick);
            assert_eq!(report.rows().count(), 4 * cores.min(2));
            let some = |row: serde_json::Map<String, serde_json::Value>| {
                row["pairs_per_s"].as_f64().expect("a number") > 0.0
            };
            assert!(report.rows().all(some));
            let of = |order: u32, threads: u32, column: &str| {
                let mut rows = report.rows();
                let row = rows.find(|r| {
                    r["allocator"] == "ebb" && r["order"] == order && r["threads"] == threads
                });
                row.map(|row| row[column].as_f64().expect("a number"))
            };
            let ns = of(0, 1, "ns_per_pair").expect("a row");
            // In a build with assertions the older allocator has the fewer of them.
            let than_one_lock = [0, 4].map(|order| of(order, 2, "percent_of_one_lock"));
            let better = than_one_lock.iter().flatten().all(|p| *p > 100.0);
            if ns <= most && (better || cfg!(debug_assertions)) {
                return;
            }
            seen.push((ns, than_one_lock));
        }
        panic!("ns of an order-0 pair, two threads in percent of one lock: {seen:?}");
    }
}
