//! Time that a disk with one head spends on swapping out a MiB, with cursors for each processor and
//! size, and with one cursor of the device. The disk is simulated.
//!
//! Two processors take turns writing single pages and folios of 64 KiB, on a disk kept at a level:
//! random frees balance the writes, and the worker runs in between. Every run of slots is a transfer, in
//! the order in which they were allocated. The head is charged for its way. A transfer that follows on
//! costs nothing. A short gap costs the time in which it passes by, where that is less than finding the
//! place anew. Any other way costs a seek, growing with the root of the distance, and half a turn
//! (Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994).

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList};
use ebb_engine::{Cpu, EntryId};
use serde::Deserialize;
use std::sync::Arc;

/// One line for the list of experiments.
pub const ABOUT: &str = "one cursor a device or one a processor, on a simulated disk with a head";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the disk.
    pub slots: u32,
    /// The fill that is kept, in percent.
    pub full: Vec<u32>,
    /// Pages written at each level.
    pub pages: usize,
    /// Folios and pages in one turn, of one size.
    pub turns: Vec<usize>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 1 << 17,
            full: vec![30, 60, 90],
            pages: 400_000,
            turns: vec![1, 16],
            seed: 1,
        }
    }
}

const FOLIO: u16 = 16;
const CPUS: usize = 2;
/// Freed together before as much is written.
const BATCH: usize = 4096;
/// A disk of 7200 turns a minute and 150 MB/s. A seek across the device takes a few milliseconds, as
/// swap is a small part of the disk.
const SLOT_US: f64 = 27.3;
const TURN_US: f64 = 8333.0;
const STEP_US: f64 = 800.0;
const STROKE_US: f64 = 4000.0;

/// The head, and what it has done.
struct Head {
    slots: f64,
    at: u32,
    us: f64,
    seeks: u64,
    transfers: u64,
}

impl Head {
    fn new(slots: u32) -> Self {
        Self {
            slots: f64::from(slots),
            at: 0,
            us: 0.0,
            seeks: 0,
            transfers: 0,
        }
    }

    fn transfer(&mut self, run: Extent) {
        let way = f64::from(run.start.0) - f64::from(self.at);
        let seek = STEP_US + STROKE_US * (way.abs() / self.slots).sqrt() + TURN_US / 2.0;
        let pass = way * SLOT_US;
        if way != 0.0 {
            let passes = way > 0.0 && pass < seek;
            self.us += if passes { pass } else { seek };
            self.seeks += u64::from(!passes);
        }
        self.us += f64::from(run.len) * SLOT_US;
        self.at = run.start.0 + u32::from(run.len);
        self.transfers += 1;
    }
}

/// The outcome of one arrangement.
struct Outcome {
    head: Head,
    pages: u64,
    /// Folios, and the transfers of them.
    folios: u64,
    runs: u64,
}

impl Outcome {
    fn new(slots: u32) -> Self {
        Self {
            head: Head::new(slots),
            pages: 0,
            folios: 0,
            runs: 0,
        }
    }

    fn us_per_mib(&self) -> f64 {
        self.head.us / (self.pages as f64 / 256.0)
    }
}

fn measure(one: bool, full: u32, turn: usize, options: &Options) -> Outcome {
    let machine = Arc::new(Machine {
        cpus: CPUS,
        nodes: 1,
    });
    let devices = Devices::new(machine, Default::default());
    let spec = DeviceSpec {
        rotational: Some(one),
        ..DeviceSpec::default()
    };
    let store = Arc::new(Blank::new(u64::from(options.slots)));
    devices.add(store, spec, None).expect("large enough");
    let mut random = Random::new(options.seed);
    let mut out = ExtentList::new();
    let mut held: Vec<Vec<Extent>> = Vec::new();
    let mut outcome = Outcome::new(options.slots);
    let level = options.slots as usize * full as usize / 100;
    let (mut used, mut written) = (0, 0);
    while written < options.pages + level {
        // The first fill is not counted.
        if written < level {
            outcome = Outcome::new(options.slots);
        }
        while used + BATCH > level && !held.is_empty() {
            let mut owner = EntryId(0);
            for extent in held.swap_remove(random.below(held.len())) {
                used -= usize::from(extent.len);
                let freed = devices.free(Cpu(0), owner, extent);
                freed.expect("it was allocated");
                owner = owner.plus(u32::from(extent.len));
            }
        }
        while devices.work(Cpu(0), usize::MAX) > 0 {}
        let end = written + BATCH;
        while written < end {
            let cpu = Cpu(random.below(CPUS) as u16);
            let pages = [1, FOLIO][random.below(2)];
            for _ in 0..turn {
                out.clear();
                devices
                    .allocate(cpu, pages, EntryId(0), &mut out)
                    .expect("the disk is not full");
                out.iter().for_each(|run| outcome.head.transfer(*run));
                if pages == FOLIO {
                    outcome.folios += 1;
                    outcome.runs += out.len() as u64;
                }
                held.push(out.to_vec());
                outcome.pages += u64::from(pages);
                written += usize::from(pages);
                used += usize::from(pages);
            }
        }
    }
    outcome
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&[
        "cursors",
        "turn",
        "full_percent",
        "us_per_mib",
        "seeks_per_1000",
        "writes_per_folio",
    ]);
    for &turn in &options.turns {
        for &full in &options.full {
            for (name, one) in [("processor", false), ("device", true)] {
                let got = measure(one, full, turn, options);
                let head = &got.head;
                report.row(vec![
                    name.into(),
                    turn.into(),
                    full.into(),
                    got.us_per_mib().round().into(),
                    (1000.0 * head.seeks as f64 / head.transfers as f64).into(),
                    (got.runs as f64 / got.folios as f64).into(),
                ]);
            }
        }
    }
    report.note("us_per_mib: of the head, seeks and transfers; without seeks 6989");
    report.note("turn: pages or folios of 64 KiB that a processor writes before the next comes");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cursor_spares_the_head_the_way() {
        let options = Options {
            slots: 1 << 16,
            pages: 100_000,
            ..Options::default()
        };
        for &turn in &options.turns {
            for &full in &options.full {
                let [each, one] = [false, true].map(|one| measure(one, full, turn, &options));
                let gain = each.us_per_mib() / one.us_per_mib();
                println!("turns of {turn}, {full}% full: {gain:.3} times");
                let least = match (turn, full) {
                    // Sizes and processors change all the time, and there is room to go on in.
                    (1, ..=60) => 2.0,
                    (1, _) => 1.2,
                    // A processor keeps the cluster that it opens, and writes a turn into it without
                    // a seek: many cursors go about as far as one.
                    _ => 0.98,
                };
                assert!(
                    gain >= least,
                    "turns of {turn}, {full}% full: {gain:.2} times"
                );
                assert_eq!(each.pages, one.pages);
            }
        }
    }
}
