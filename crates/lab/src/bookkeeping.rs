//! What the slot allocator keeps in memory for a device: idle, half full, and full.

use crate::report::Report;
use crate::sim::{Blank, Machine};
use ebb_engine::slots::{DeviceSpec, Devices, ExtentList, Options as Policies};
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
    let mut report = Report::new(&["slots", "used", "bytes", "bytes_per_slot", "bytes_per_used"]);
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
        let mut out = ExtentList::new();
        let mut used = 0;
        for target in [0, slots / 2, slots] {
            while used < target {
                out.clear();
                devices
                    .allocate(Cpu(0), 1, EntryId(used), &mut out)
                    .expect("the device is not full");
                used += 1;
            }
            let bytes = devices.bookkeeping_bytes() - without;
            report.row(vec![
                slots.into(),
                used.into(),
                bytes.into(),
                (bytes as f64 / f64::from(slots)).into(),
                (bytes as f64 / f64::from(used.max(1))).into(),
            ]);
        }
    }
    report.note("bytes: of the device, without what each processor keeps");
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
                _ => assert!(of("bytes_per_used") <= 6.0, "{row:?}"),
            }
        }
        assert_eq!(report.rows().count(), 3);
    }
}
