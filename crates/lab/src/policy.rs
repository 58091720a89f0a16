//! Which clusters are looked at first, empty ones or those begun by the same order, on devices
//! with and without discard: what a policy costs, how whole folios stay, how many emptied
//! clusters there are to discard.
//!
//! One device, kept at a level; folios of 64 KiB and single pages, half of the slots each, are
//! freed at random and allocated again. The worker runs between the steps.

use crate::report::Report;
use crate::rounds::middle;
use crate::sim::{Blank, Machine, Random};
use ebb_engine::slots::{
    ClusterPolicy, DeviceSpec, Devices, Extent, ExtentList, Options as Policies,
};
use ebb_engine::{CLUSTER_SLOTS, Cpu, EntryId};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "empty clusters first or begun ones, with and without discard";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slots of the device, a multiple of 512.
    pub slots: u32,
    /// How full it is kept, in percent.
    pub full: Vec<u32>,
    /// Allocations at each level.
    pub churn: usize,
    /// Of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 1 << 17,
            full: vec![50, 90],
            churn: 400_000,
            seed: 1,
        }
    }
}

const FOLIO: u16 = 16;
/// Freed together before as many are allocated: a program that ends or drops a buffer.
const BATCH: usize = 32;

/// What one policy gave.
struct Outcome {
    ns: f64,
    /// Folios in one aligned extent, in percent.
    aligned: f64,
    /// Extents of a folio.
    extents: f64,
    /// Clusters discarded per 1000 clusters' worth of allocations.
    discards: f64,
}

/// The folios or pages held, each as its extents.
type Held = Vec<Vec<Extent>>;

fn measure(policy: ClusterPolicy, discard: bool, full: u32, options: &Options) -> Outcome {
    let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
    let policies = Policies {
        clusters: policy,
        ..Policies::default()
    };
    let devices = Devices::new(machine, policies);
    let store = Arc::new(Blank {
        discard: discard.then_some(Duration::ZERO),
        ..Blank::new(u64::from(options.slots))
    });
    devices
        .add(store.clone(), DeviceSpec::default(), None)
        .expect("large enough");
    let mut out = ExtentList::new();
    let mut random = Random::new(options.seed);
    let (mut folios, mut singles): (Held, Held) = (Vec::new(), Vec::new());
    let half = options.slots as usize * full as usize / 200;
    let (mut aligned, mut extents, mut placed) = (0u64, 0u64, 0u64);
    let mut take = |pages: u16, held: &mut Held| {
        out.clear();
        devices
            .allocate(Cpu(0), pages, EntryId(0), &mut out)
            .expect("the device is not full");
        if pages == FOLIO {
            placed += 1;
            extents += out.len() as u64;
            aligned += u64::from(out.len() == 1 && out[0].start.0.is_multiple_of(u32::from(FOLIO)));
        }
        held.push(out.to_vec());
    };
    for _ in 0..half / usize::from(FOLIO) {
        take(FOLIO, &mut folios);
        (0..FOLIO).for_each(|_| take(1, &mut singles));
    }
    let mut costs = Vec::new();
    let (mut steps, mut pages) = (0usize, 0usize);
    while steps < options.churn {
        let (size, held) = match random.below(2) {
            0 => (FOLIO, &mut folios),
            _ => (1, &mut singles),
        };
        for _ in 0..BATCH {
            let gone = held.swap_remove(random.below(held.len()));
            for extent in gone {
                devices.free(Cpu(0), extent).expect("it was allocated");
            }
        }
        let begun = Instant::now();
        (0..BATCH).for_each(|_| take(size, held));
        costs.push(begun.elapsed().as_nanos() as f64 / BATCH as f64);
        steps += BATCH;
        pages += BATCH * usize::from(size);
        while devices.work(Cpu(0), 16) > 0 {}
    }
    let clusters = pages as f64 / CLUSTER_SLOTS as f64;
    let discarded = store.discarded.load(Relaxed) as f64 / CLUSTER_SLOTS as f64;
    Outcome {
        ns: middle(&costs),
        aligned: 100.0 * aligned as f64 / placed as f64,
        extents: extents as f64 / placed as f64,
        discards: 1000.0 * discarded / clusters,
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&[
        "policy",
        "discard",
        "full_percent",
        "ns",
        "aligned_percent",
        "writes_per_folio",
        "discards_per_1000",
    ]);
    for discard in [false, true] {
        for (name, policy) in [
            ("free-first", ClusterPolicy::FreeFirst),
            ("nonfull-first", ClusterPolicy::NonFullFirst),
            ("auto", ClusterPolicy::Auto),
        ] {
            for &full in &options.full {
                let got = measure(policy, discard, full, options);
                report.row(vec![
                    name.into(),
                    discard.into(),
                    full.into(),
                    got.ns.into(),
                    got.aligned.into(),
                    got.extents.into(),
                    got.discards.into(),
                ]);
            }
        }
    }
    report.note("ns: an allocation, folios of 64 KiB and pages in equal number, median of batches");
    report.note("aligned_percent: of the folios, in one aligned extent; discards_per_1000: clusters discarded for 1000 clusters' worth of allocations");
    report.note("auto is free-first with discard, nonfull-first without");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discards_come_where_they_are_wanted_and_auto_is_one_of_the_two() {
        let options = Options {
            slots: 1 << 14,
            churn: 40_000,
            ..Options::default()
        };
        for full in [50, 90] {
            let of = |policy, discard| measure(policy, discard, full, &options);
            for policy in [ClusterPolicy::FreeFirst, ClusterPolicy::NonFullFirst] {
                assert_eq!(of(policy, false).discards, 0.0);
            }
            // The same choices, so the same places.
            let pairs = [
                (ClusterPolicy::FreeFirst, true),
                (ClusterPolicy::NonFullFirst, false),
            ];
            for (policy, discard) in pairs {
                let (auto, named) = (of(ClusterPolicy::Auto, discard), of(policy, discard));
                assert_eq!(auto.extents, named.extents);
                assert_eq!(auto.discards, named.discards);
            }
        }
        let discards = |policy| measure(policy, true, 50, &options).discards;
        assert!(discards(ClusterPolicy::FreeFirst) > 0.0, "none was emptied");
    }
}
