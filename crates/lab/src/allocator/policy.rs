//! Order of search: empty clusters first on a device with discard, those begun by the same order first on one
//! without. Measured are the cost of an allocation of each size, the share of free room that stays whole
//! for larger folios, and the emptied clusters to discard.
//!
//! One device is kept at a level. Folios of 64 KiB and single pages, half of the slots each, are freed
//! at random and allocated again, more at a time than a return cache holds. The worker runs in between.
//! Both are measured in turn.

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use crate::support::timing::middle;
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{CLUSTER_SLOTS, Cpu, EntryId};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "empty clusters first with discard, begun ones without";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the device, a multiple of 512.
    pub slots: u32,
    /// The fill that is kept, in percent.
    pub full: Vec<u32>,
    /// Allocations at each level, in each round.
    pub churn: usize,
    /// Rounds of both orders in turn; they differ in their times alone.
    pub rounds: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 1 << 17,
            full: vec![50, 90, 99],
            churn: 200_000,
            rounds: 5,
            seed: 1,
        }
    }
}

const FOLIO: u16 = 16;
/// The sizes of what is allocated, in pages.
const SIZES: [u16; 2] = [1, FOLIO];
/// Freed together before as many are allocated: a program that ends or drops a buffer.
const BATCH: usize = 256;
/// Allocations that are timed together.
const TIMED: usize = 32;

/// The outcome of one order of search.
struct Outcome {
    /// The cost of an allocation in each batch, for each size.
    ns: [Vec<f64>; 2],
    /// Folios in one aligned extent, in percent.
    aligned: f64,
    /// Extents of a folio.
    extents: f64,
    /// Free slots at the end in clusters that are free as a whole, in percent of all free slots.
    whole: f64,
    /// Clusters discarded per 1000 clusters' worth of allocations.
    discards: f64,
}

/// The folios or pages held, each as its extents.
type Held = Vec<Vec<Extent>>;

/// The percentage of free slots that lie in whole clusters.
fn whole_percent<'a>(slots: u32, held: impl Iterator<Item = &'a Extent>) -> f64 {
    let mut used = vec![0usize; slots as usize / CLUSTER_SLOTS];
    for extent in held {
        used[extent.start.cluster().index()] += usize::from(extent.len);
    }
    let free: usize = used.iter().map(|used| CLUSTER_SLOTS - used).sum();
    let whole = CLUSTER_SLOTS * used.iter().filter(|used| **used == 0).count();
    100.0 * whole as f64 / free as f64
}

fn measure(discard: bool, full: u32, options: &Options) -> Outcome {
    let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
    let devices = Devices::new(machine, Policies::default());
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
    let mut ns = [Vec::new(), Vec::new()];
    let (mut steps, mut pages) = (0usize, 0usize);
    while steps < options.churn {
        let (size, held) = match random.below(2) {
            0 => (0, &mut singles),
            _ => (1, &mut folios),
        };
        for _ in 0..BATCH {
            let gone = held.swap_remove(random.below(held.len()));
            let mut owner = EntryId(0);
            for extent in gone {
                let freed = devices.free(Cpu(0), owner, extent);
                freed.expect("it was allocated");
                owner = owner.plus(u32::from(extent.len));
            }
        }
        while devices.work(Cpu(0), usize::MAX) > 0 {}
        for _ in 0..BATCH / TIMED {
            let begun = Instant::now();
            (0..TIMED).for_each(|_| take(SIZES[size], held));
            ns[size].push(begun.elapsed().as_nanos() as f64 / TIMED as f64);
        }
        steps += BATCH;
        pages += BATCH * usize::from(SIZES[size]);
    }
    let clusters = pages as f64 / CLUSTER_SLOTS as f64;
    let discarded = store.discarded.load(Relaxed) as f64 / CLUSTER_SLOTS as f64;
    Outcome {
        ns,
        aligned: 100.0 * aligned as f64 / placed as f64,
        extents: extents as f64 / placed as f64,
        whole: whole_percent(options.slots, folios.iter().chain(&singles).flatten()),
        discards: 1000.0 * discarded / clusters,
    }
}

/// The clusters that are looked at first, on a device without discard and with it.
const FIRST: [(&str, bool); 2] = [("begun", false), ("empty", true)];

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&[
        "first",
        "full_percent",
        "page_ns",
        "folio_ns",
        "aligned_percent",
        "writes_per_folio",
        "whole_free_percent",
        "discards_per_1000",
    ]);
    for &full in &options.full {
        let mut outcomes = FIRST.map(|(_, discard)| measure(discard, full, options));
        for _ in 1..options.rounds {
            for ((_, discard), outcome) in FIRST.into_iter().zip(&mut outcomes) {
                let again = measure(discard, full, options);
                for (all, more) in outcome.ns.iter_mut().zip(again.ns) {
                    all.extend(more);
                }
            }
        }
        for ((name, _), got) in FIRST.into_iter().zip(outcomes) {
            report.row(vec![
                name.into(),
                full.into(),
                middle(&got.ns[0]).into(),
                middle(&got.ns[1]).into(),
                got.aligned.into(),
                got.extents.into(),
                got.whole.into(),
                got.discards.into(),
            ]);
        }
    }
    report
        .note("first: begun clusters on a device without discard, empty ones on a device with it");
    report.note("page_ns, folio_ns: an allocation of a page, of a folio of 64 KiB; medians of batches of all rounds");
    report.note("whole_free_percent: of the free slots, those in clusters that are free as a whole: room for the largest folios");
    report.note("aligned_percent: of the folios, in one aligned extent; discards_per_1000: clusters discarded for 1000 clusters' worth of allocations");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begun_clusters_first_spares_whole_ones_and_empty_ones_first_discards() {
        let options = Options {
            slots: 1 << 16,
            churn: 40_000,
            ..Options::default()
        };
        for full in [50, 90] {
            let [begun, empty] = FIRST.map(|(_, discard)| measure(discard, full, &options));
            assert!(begun.whole > empty.whole);
            assert_eq!(begun.discards, 0.0, "the device has none");
            if full == 50 {
                assert!(empty.discards > 0.0, "none was emptied");
            }
        }
    }
}
