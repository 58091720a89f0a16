//! Allocations and frees per second against the number of threads, ours beside an older
//! allocator under one global lock. Each thread holds some folios and in each step
//! allocates one and frees its oldest. A thread is bound to its processor.
//!
//! The two are measured in turn, for short times and often: what else the machine does meets both,
//! and the best rounds of each are free of it.

use crate::report::{Plot, Report, Series};
use crate::rivals::{Legacy, SlotAllocator};
use crate::sim::{Blank, Machine};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId, SlotIndex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
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
    /// Measurements of each allocator, in turn.
    pub rounds: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: vec![1, 2, 4, 8, 16],
            duration: Duration::from_millis(10),
            rounds: 60,
        }
    }
}

/// Folios a thread holds.
const HELD: usize = 128;
/// Slots of the device.
const SLOTS: u32 = 1 << 20;

/// Something that allocates and frees, from a numbered thread.
trait Shared: Sync {
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

/// Binds the calling thread to one of the processors it may use, each number to its own.
fn bind(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    if let Some(processor) = processors.nth(thread) {
        let mut own = CpuSet::new();
        own.set(processor);
        // Where it is refused, the scheduler decides.
        let _ = sched_setaffinity(None, &own);
    }
}

/// Pairs per second of all threads together.
fn measure(shared: &dyn Shared, threads: usize, order: u8, duration: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    let pairs = AtomicU64::new(0);
    let start = Barrier::new(threads + 1);
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, pairs, start) = (&stop, &pairs, &start);
            scope.spawn(move || {
                bind(thread);
                let mut out = ExtentList::new();
                let mut held: VecDeque<u32> = VecDeque::with_capacity(HELD + 1);
                for _ in 0..HELD {
                    held.push_back(shared.allocate(thread, order, &mut out));
                }
                start.wait();
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..256 {
                        held.push_back(shared.allocate(thread, order, &mut out));
                        shared.free(thread, held.pop_front().expect("some are held"), order);
                    }
                    done += 256;
                }
                pairs.fetch_add(done, Ordering::Relaxed);
                for slot in held {
                    shared.free(thread, slot, order);
                }
            });
        }
        start.wait();
        let begun = Instant::now();
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        elapsed = begun.elapsed();
    });
    pairs.into_inner() as f64 / elapsed.as_secs_f64()
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

/// What is exceeded in a share of the rounds.
fn exceeded(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(|a, b| b.total_cmp(a));
    values[(values.len() as f64 * share) as usize]
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
    ]);
    let mut series: Vec<Series> = Vec::new();
    for order in [0u8, 4] {
        let names = ["ebb", "one-lock"];
        let mut points = [Vec::new(), Vec::new()];
        for &threads in options.threads.iter().filter(|t| **t <= cores) {
            let ours = ours(threads);
            let one_lock = OneLock(Mutex::new(Legacy::new(SLOTS)));
            let both: [&dyn Shared; 2] = [&ours, &one_lock];
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..options.rounds.max(1) {
                for (shared, rates) in both.iter().zip(&mut rates) {
                    rates.push(measure(*shared, threads, order, options.duration));
                }
            }
            let pairs = rates[0].iter().zip(&rates[1]);
            let mut ratios: Vec<f64> = pairs.map(|(ours, other)| 100.0 * ours / other).collect();
            let ratio = exceeded(&mut ratios, 0.5);
            for (i, name) in names.into_iter().enumerate() {
                let rate = exceeded(&mut rates[i], 0.1);
                report.row(vec![
                    name.into(),
                    order.into(),
                    threads.into(),
                    rate.round().into(),
                    (1e9 * threads as f64 / rate).into(),
                    if i == 0 { ratio } else { 100.0 }.into(),
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
        "pairs_per_s: exceeded in a tenth of {} rounds; ns_per_pair: of each thread; this machine has {cores} processors",
        options.rounds
    ));
    report.note("percent_of_one_lock: of the pairs in the same time, median of the rounds");
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
    fn both_allocators_make_progress_and_ours_keeps_to_its_cost() {
        // Short and often: a measurement in which other programs took the processor is dropped.
        let quick = Options {
            threads: vec![1, 2],
            duration: Duration::from_millis(4),
            rounds: 40,
        };
        let report = run(&quick);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(report.rows().count(), 4 * cores.min(2));
        assert!(
            report
                .rows()
                .all(|r| r["pairs_per_s"].as_f64().unwrap() > 0.0)
        );
        let ours = report
            .rows()
            .find(|r| r["allocator"] == "ebb" && r["order"] == 0 && r["threads"] == 1);
        let ns = ours.unwrap()["ns_per_pair"].as_f64().unwrap();
        // The promise is for a build without debug assertions, which look after the locks' order.
        let most = if cfg!(debug_assertions) { 300.0 } else { 150.0 };
        assert!(ns <= most, "an order-0 pair takes {ns:.0} ns");
    }
}
