//! What the slot allocator keeps in memory for a device: idle, in use in order, and scattered, after
//! some slots of a full device were freed.

use crate::report::Report;
use crate::sim::{Blank, Machine, Random};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId};
use serde_json::Value;
use std::sync::Arc;

/// One line for the list of experiments.
pub const ABOUT: &str = "memory of the slot allocator: bytes a slot, idle and in use";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slots of the devices.
    pub slots: Vec<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: vec![1 << 18, 1 << 21],
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

const LAID: [Laid; 10] = [
    Laid::InOrder(1),
    Laid::InOrder(2),
    Laid::Every(2),
    Laid::ByChance(2),
    Laid::Every(4),
    Laid::ByChance(4),
    Laid::ByChance(8),
    Laid::ByChance(10),
    Laid::ByChance(20),
    Laid::ByChance(100),
];

/// A device with nothing on it, and what is known of it.
struct Bench {
    devices: Devices,
    /// Bytes without the device.
    without: usize,
    /// Bytes of the device for its clusters as such, once they were used.
    idle: usize,
    slots: u32,
    held: Vec<(EntryId, Extent)>,
}

impl Bench {
    fn new(slots: u32) -> Self {
        let devices = Devices::new(Arc::new(Machine { cpus: 1, nodes: 1 }), Policies::default());
        let without = devices.bookkeeping_bytes();
        let store = Arc::new(Blank::new(u64::from(slots)));
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("large enough");
        Self {
            devices,
            without,
            idle: 0,
            slots,
            held: Vec::with_capacity(slots as usize),
        }
    }

    fn fill(&mut self, slots: u32) {
        let mut out = ExtentList::new();
        for owner in 0..slots {
            out.clear();
            self.devices
                .allocate(Cpu(0), 1, EntryId(owner), &mut out)
                .expect("the device is not full");
            self.held.push((EntryId(owner), out[0]));
        }
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
        while devices.work(Cpu(0), usize::MAX) > 0 {}
    }

    fn lay(&mut self, laid: Laid) {
        self.fill(self.slots);
        self.free(|| false);
        self.idle = self.bytes();
        if let Laid::InOrder(of) = laid {
            return self.fill(self.slots / of);
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
        "bytes_per_used_beside_idle",
    ]);
    for &slots in &options.slots {
        Bench::new(slots).row(&mut report, "idle");
        for laid in LAID {
            let mut bench = Bench::new(slots);
            bench.lay(laid);
            bench.row(&mut report, laid.name());
            if laid == LAID[0] {
                bench.free(|| false);
                bench.row(&mut report, "idle again");
            }
        }
    }
    report.note("bytes: of the device, without what each processor keeps");
    report.note(
        "every nth, by chance: of a full device, the other slots freed, and the worker at rest",
    );
    report
        .note("idle again: what each cluster costs that was ever used; beside idle: without that");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_slot_takes_a_tenth_of_a_byte_and_one_in_use_six() {
        let slots = 1 << 18;
        let report = run(&Options { slots: vec![slots] });
        for row in report.rows() {
            let of = |name: &str| row[name].as_f64().unwrap();
            if of("used") == 0.0 {
                // In use, a processor has a cluster at hand: 2 KiB.
                let at_hand = if row["laid"] == "idle" { 0.0 } else { 2176.0 };
                let beside = at_hand / f64::from(slots);
                assert!(of("bytes_per_slot") - beside < 0.1, "{row:?}");
                continue;
            }
            assert!(of("bytes_per_used_beside_idle") <= 6.0, "{row:?}");
            if of("used") > f64::from(slots) / 9.0 {
                assert!(of("bytes_per_used") <= 6.0, "{row:?}");
            }
        }
        assert_eq!(report.rows().count(), 2 + LAID.len());
    }
}
