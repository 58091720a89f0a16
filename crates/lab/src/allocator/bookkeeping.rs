//! Memory that the slot allocator keeps for a device: idle, in use in order, and scattered, after some
//! slots of a full device were freed. Several processors have clusters at hand, for pages and for
//! folios.

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId, SlotIndex};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// One line for the list of experiments.
pub const ABOUT: &str = "memory of the slot allocator: bytes a slot, idle and in use";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the devices.
    pub slots: Vec<u32>,
    /// Processors that allocate.
    pub cpus: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: vec![1 << 12, 1 << 15, 1 << 18, 1 << 21],
            cpus: 4,
        }
    }
}

/// Which slots of a full device are in use in the end.
#[derive(Clone, Copy, PartialEq)]
enum Laid {
    /// One of so many, the others never were.
    InOrder(u32),
    /// Each of so many.
    Every(u32),
    /// One of so many, by chance.
    ByChance(u32),
}

impl Laid {
    fn name(self) -> &'static str {
        match self {
            Self::InOrder(_) => "in order",
            Self::Every(_) => "every nth",
            Self::ByChance(_) => "by chance",
        }
    }
}

const LAID: [Laid; 12] = [
    Laid::InOrder(1),
    Laid::InOrder(2),
    Laid::InOrder(10),
    Laid::Every(2),
    Laid::ByChance(2),
    Laid::Every(4),
    Laid::ByChance(4),
    Laid::ByChance(8),
    Laid::Every(10),
    Laid::ByChance(10),
    Laid::ByChance(20),
    Laid::ByChance(100),
];

/// A device with nothing on it, and what is known of it.
struct Bench {
    devices: Devices,
    cpus: u16,
    /// Bytes without the device.
    without: usize,
    /// Bytes of the device as such.
    fixed: usize,
    /// Bytes of those, and what its clusters took as such, once they were used.
    idle: usize,
    slots: u32,
    held: Vec<(EntryId, Extent)>,
}

/// Single slots in a row by one processor; a folio of as many comes after so many of these.
const RUN: u32 = 16;
const FOLIO_EVERY: u32 = 8;

impl Bench {
    fn new(slots: u32, cpus: u16) -> Self {
        let machine = Arc::new(Machine {
            cpus: cpus.into(),
            nodes: 1,
        });
        let devices = Devices::new(machine, Policies::default());
        let without = devices.bookkeeping_bytes();
        let store = Arc::new(Blank::new(u64::from(slots)));
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("large enough");
        let fixed = devices.bookkeeping_bytes() - without;
        Self {
            devices,
            cpus,
            without,
            fixed,
            idle: fixed,
            slots,
            held: Vec::with_capacity(slots as usize),
        }
    }

    /// The processors take turns.
    fn fill(&mut self, slots: u32) {
        let mut out = ExtentList::new();
        let mut take = |cpu: u32, owner: u32, pages: u32| {
            out.clear();
            let cpu = Cpu((cpu % u32::from(self.cpus)) as u16);
            self.devices
                .allocate(cpu, pages as u16, EntryId(owner), &mut out)
                .expect("the device is not full");
            let mut owner = EntryId(owner);
            for extent in out.iter() {
                for i in 0..extent.len {
                    let start = SlotIndex(extent.start.0 + u32::from(i));
                    let one = Extent {
                        start,
                        len: 1,
                        ..*extent
                    };
                    self.held.push((owner, one));
                    owner = owner.plus(1);
                }
            }
        };
        for run in 0..slots / RUN {
            let first = run * RUN;
            if (run + 1) % FOLIO_EVERY == 0 {
                take(run / FOLIO_EVERY, first, RUN);
            } else {
                (first..first + RUN).for_each(|owner| take(run, owner, 1));
            }
        }
        (slots / RUN * RUN..slots).for_each(|owner| take(0, owner, 1));
    }

    /// Frees all slots but those that `keep` says, and lets the worker do what it does.
    fn free(&mut self, mut keep: impl FnMut() -> bool) {
        let devices = &self.devices;
        self.held.retain(|&(owner, slot)| {
            let kept = keep();
            if !kept {
                devices.free(Cpu(0), owner, slot).expect("it was allocated");
            }
            kept
        });
        self.rest();
    }

    /// The worker comes twice, and nobody else meanwhile: then nothing is in use.
    fn rest(&self) {
        for _ in 0..2 {
            while self.devices.work(Cpu(0), usize::MAX) > 0 {}
        }
    }

    fn lay(&mut self, laid: Laid) {
        self.fill(self.slots);
        self.free(|| false);
        self.idle = self.bytes();
        if let Laid::InOrder(of) = laid {
            self.fill(self.slots / of);
            return self.rest();
        }
        self.fill(self.slots);
        match laid {
            Laid::InOrder(_) => {}
            Laid::Every(of) => {
                let mut nth = 0;
                self.free(|| {
                    nth += 1;
                    nth % of == 0
                });
            }
            Laid::ByChance(of) => {
                let mut random = Random::new(1);
                self.free(|| random.below(of as usize) == 0);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.devices.bookkeeping_bytes() - self.without
    }

    fn row(&self, report: &mut Report, laid: &str) {
        let (used, bytes) = (self.held.len(), self.bytes());
        let per_used = |bytes: usize| match used {
            0 => Value::Null,
            _ => (bytes as f64 / used as f64).into(),
        };
        report.row(vec![
            self.slots.into(),
            used.into(),
            laid.into(),
            bytes.into(),
            (bytes as f64 / f64::from(self.slots)).into(),
            per_used(bytes),
            per_used(bytes - self.fixed),
            per_used(bytes.saturating_sub(self.idle)),
        ]);
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&[
        "slots",
        "used",
        "laid",
        "bytes",
        "bytes_per_slot",
        "bytes_per_used",
        "bytes_per_used_beside_fixed",
        "bytes_per_used_beside_idle",
    ]);
    for &slots in &options.slots {
        Bench::new(slots, options.cpus).row(&mut report, "idle");
        for laid in LAID {
            let mut bench = Bench::new(slots, options.cpus);
            bench.lay(laid);
            bench.row(&mut report, laid.name());
            if laid == LAID[0] {
                bench.free(|| false);
                bench.row(&mut report, "idle again");
            }
        }
    }
    report
        .note("bytes: of the device, without what each processor keeps whatever devices there are");
    report.note(
        "every nth, by chance: of a full device, the other slots freed, and the worker at rest",
    );
    report.note("idle again: what each cluster costs that was ever used");
    report.note("beside fixed: without what the device takes in the row idle; beside idle: without that in the row idle again");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_slot_takes_a_tenth_of_a_byte_and_one_in_use_six() {
        let options = Options {
            slots: vec![1 << 12, 1 << 15, 1 << 18],
            ..Options::default()
        };
        let report = run(&options);
        println!("{}", report.text());
        for row in report.rows() {
            let of = |name: &str| row[name].as_f64().unwrap();
            let (slots, used, bytes) = (of("slots"), of("used"), of("bytes"));
            // A device as such, 24 bytes for each 512 MiB of it, and a bit for each cluster.
            let bits = 8.0 * (slots / 32_768.0).ceil();
            let fixed = 768.0 + 24.0 * (slots / 131_072.0).ceil() + bits;
            if row["laid"] == "idle" {
                assert!(bytes <= fixed, "{row:?}");
            } else if used == 0.0 {
                assert!(bytes - fixed <= 0.1 * slots, "{row:?}");
            } else {
                // In order, only the clusters in use have weight.
                let least = if row["laid"] == "in order" { 1.0 } else { 10.3 };
                if used >= slots / least || least == 1.0 {
                    assert!(of("bytes_per_used_beside_fixed") <= 6.0, "{row:?}");
                }
                assert!(of("bytes_per_used_beside_idle") <= 6.0, "{row:?}");
            }
        }
        assert_eq!(report.rows().count(), 3 * (2 + LAID.len()));
    }
}
