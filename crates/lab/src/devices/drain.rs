//! The cost of emptying a device, by its size: the slot allocator's part, in steps as `ebb run` makes
//! them. Nothing is transferred, and no entry is asked.

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{
    DeviceSpec, Devices, Drain, DrainError, Extent, ExtentList, Moved, Mover, Options as Policies,
};
use ebb_engine::{Cpu, DeviceId, EntryId};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Instant;

/// One line for the list of experiments.
pub const ABOUT: &str = "emptying a device that is half full: what it costs, by its size";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the devices.
    pub slots: Vec<u32>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: vec![1 << 18, 1 << 21, 1 << 23],
            seed: 1,
        }
    }
}

/// Pages moved in a step.
const STEP: usize = 64;

/// Every move succeeds.
struct Willing;

impl Mover for Willing {
    fn relocate(&self, _: Cpu, _: EntryId, _: Extent, to: Option<Extent>) -> Moved {
        to.map_or(Moved::NoPlace, |_| Moved::Yes)
    }
}

/// Two devices of this size, the first half full.
fn half_full(slots: u32, holes: bool, seed: u64) -> (Devices, DeviceId) {
    let devices = Devices::new(Arc::new(Machine { cpus: 1, nodes: 1 }), Policies::default());
    devices.set_mover(Arc::new(Willing));
    let add = || {
        let store = Arc::new(Blank::new(u64::from(slots)));
        let added = devices.add(store, DeviceSpec::default(), None);
        added.expect("large enough")
    };
    let first = add();
    let mut out = ExtentList::new();
    let mut allocate = |owner| {
        out.clear();
        let found = devices.allocate(Cpu(0), 1, owner, &mut out);
        found.expect("the device is not full");
        out[0]
    };
    let all = if holes { slots } else { slots / 2 };
    let mut held: Vec<(EntryId, Extent)> = (0..all)
        .map(EntryId)
        .map(|owner| (owner, allocate(owner)))
        .collect();
    let mut random = Random::new(seed);
    held.retain(|&(owner, slot)| {
        let stays = !holes || random.below(2) == 0;
        if !stays {
            devices.free(Cpu(0), owner, slot).expect("it was allocated");
        }
        stays
    });
    add();
    (devices, first)
}

/// Runs the experiment.
///
/// # Panics
/// If a page finds no place.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&["device_mib", "laid", "pages", "drain_ms", "ns_per_page"]);
    for &slots in &options.slots {
        for (laid, holes) in [("in order", false), ("by chance", true)] {
            let (devices, first) = half_full(slots, holes, options.seed);
            let begun = Instant::now();
            let mut pages = 0;
            while let Drain::Moved(moved) = devices
                .drain_step(Cpu(0), first, STEP)
                .expect("there is room")
            {
                pages += moved;
            }
            while let Err(why) = devices.remove(Cpu(0), first) {
                assert_eq!(why, DrainError::Unfinished(first), "it is empty");
            }
            let taken = begun.elapsed().as_secs_f64();
            report.row(vec![
                (slots / 256).into(),
                laid.into(),
                pages.into(),
                (taken * 1e3).into(),
                (taken * 1e9 / pages as f64).into(),
            ]);
        }
    }
    report.note(
        "laid: the used half of the slots in order, or what is left of all when half were freed",
    );
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Were each step to look at all of the device, a page would cost sixteen times as much.
    #[test]
    fn a_page_costs_no_more_on_a_large_device() {
        // Nanoseconds for a page: small in order, small by chance, large in order, large by chance. The least of some
        // runs is what it costs where nobody else takes the processor.
        let mut least = [f64::INFINITY; 4];
        for _ in 0..5 {
            let report = run(&Options {
                slots: vec![1 << 16, 1 << 20],
                ..Options::default()
            });
            for (least, row) in least.iter_mut().zip(report.rows()) {
                *least = least.min(row["ns_per_page"].as_f64().expect("a number"));
            }
        }
        println!("{least:?} ns");
        for laid in 0..2 {
            // Tables that fit into a cache, and tables that do not.
            assert!(least[laid + 2] < 4.0 * least[laid], "{least:?}");
        }
    }
}
