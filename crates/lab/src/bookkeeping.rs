//! What the slot allocator keeps in memory for a device: idle, half full, full, and half full after
//! every other slot, by chance, was freed.

use crate::report::Report;
use crate::sim::{Blank, Machine, Random};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{Cpu, EntryId};
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
    ]);
    for &slots in &options.slots {
        let devices = Devices::new(Arc::new(Machine { cpus: 1, nodes: 1 }), Policies::default());
        let without = devices.bookkeeping_bytes();
        devices
            .add(
                Arc::new(Blank::new(u64::from(slots))),
                DeviceSpec::default(),
                None,
            )
            .expect("large enough");
        let mut row = |used: u32, laid: &str| {
            let bytes = devices.bookkeeping_bytes() - without;
            report.row(vec![
                slots.into(),
                used.into(),
                laid.into(),
                bytes.into(),
                (bytes as f64 / f64::from(slots)).into(),
                (bytes as f64 / f64::from(used.max(1))).into(),
            ]);
        };
        let mut out = ExtentList::new();
        let mut held: Vec<Extent> = Vec::with_capacity(slots as usize);
        for target in [0, slots / 2, slots] {
            while held.len() < target as usize {
                out.clear();
                devices
                    .allocate(Cpu(0), 1, EntryId(0), &mut out)
                    .expect("the device is not full");
                held.push(out[0]);
            }
            row(target, "in order");
        }
        let mut random = Random::new(1);
        while held.len() > slots as usize / 2 {
            let slot = held.swap_remove(random.below(held.len()));
            devices
                .free(Cpu(0), EntryId(0), slot)
                .expect("it was allocated");
        }
        while devices.work(Cpu(0), usize::MAX) > 0 {}
        row(held.len() as u32, "scattered");
    }
    report.note("bytes: of the device, without what each processor keeps");
    report.note("scattered: the full device, after half of its slots were freed at random; what is known of a cluster's slots stays until the last is free");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_slot_takes_a_tenth_of_a_byte_and_one_in_use_six() {
        let report = run(&Options {
            slots: vec![1 << 16],
        });
        for row in report.rows() {
            let of = |name: &str| row[name].as_f64().unwrap();
            match row["used"].as_u64().unwrap() {
                0 => assert!(of("bytes_per_slot") < 0.1, "{row:?}"),
                // Every cluster has used slots, and what a full one has.
                _ if row["laid"] == "scattered" => assert!(of("bytes_per_slot") <= 6.0, "{row:?}"),
                _ => assert!(of("bytes_per_used") <= 6.0, "{row:?}"),
            }
        }
        assert_eq!(report.rows().count(), 4);
    }
}
