//! The cost of an allocation as a device fills up, from empty to the last slot.
//!
//! For each order alone, the device is filled in steps. Each step measures two costs: of the allocations
//! that filled the device so far, and of allocations after random folios were freed at that level, as on
//! a device in use. More is freed than a processor keeps at hand, and the worker runs before the next
//! allocation. So each place has to be searched for.
//!
//! And for mixed orders: folios of 64 KiB on a device full of single pages, whose free room is in holes
//! of four slots. None has a place as a whole; the baselines would split it.

use crate::support::baselines::{FreeOnly, Legacy, SlotAllocator};
use crate::support::report::{Plot, Report, Series};
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{
    CacheReclaim, DeviceSpec, Devices, Extent, ExtentList, Options as Policies,
};
use ebb_engine::{CLUSTER_SLOTS, Cpu, DeviceId, EntryId, MAX_ORDER, SlotIndex};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// One line for the list of experiments.
pub const ABOUT: &str = "cost of an allocation from an empty device to a full one, per order";

/// Parameters of the experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the device, a multiple of 512.
    pub slots: u32,
    /// Orders 0..=9.
    pub orders: Vec<u8>,
    /// Freed and allocated again at each level, in batches.
    pub churn: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 1 << 18,
            orders: (0..=MAX_ORDER).collect(),
            churn: 8192,
        }
    }
}

const LEVELS: [u32; 12] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100];
/// Folios freed together before as many are allocated: many more than a return cache holds.
const BATCH: usize = 512;
/// Of those held at most one in so many is freed at a time: else the level would not be the level.
const SHARE: usize = 64;
/// Allocations that are timed together.
const TIMED: usize = 64;

/// In the column of orders: what is scattered, and over what.
const MIXED: &str = "4 over 0";
/// The device is half full at least: at most half of a cluster's slots are in holes.
const MIXED_LEVELS: [u32; 6] = [50, 70, 80, 90, 95, 99];
/// Pages of a folio that is scattered, and of a hole.
const FOLIO: u16 = 16;
const HOLE: u32 = 4;

/// Nobody holds a copy. As in a program that pages, somebody can be asked.
struct NoCopies;

impl CacheReclaim for NoCopies {
    fn reclaim(&self, _: EntryId) -> bool {
        false
    }
}

struct Ours {
    devices: Devices,
    out: ExtentList,
}

impl Ours {
    fn new(slots: u32) -> Self {
        let devices = Devices::new(Arc::new(Machine { cpus: 1, nodes: 1 }), Policies::default());
        let store = Arc::new(Blank::new(u64::from(slots)));
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("large enough");
        Self {
            devices,
            out: ExtentList::new(),
        }
    }

    /// Frees slots of a folio, not necessarily its first ones.
    fn free_part(&mut self, start: u32, pages: u32) {
        let owner = self.devices.owner(DeviceId(0), SlotIndex(start));
        self.free_of(owner.expect("it was allocated"), start, pages);
    }

    fn free_of(&mut self, owner: EntryId, start: u32, pages: u32) {
        let extent = Extent {
            device: DeviceId(0),
            start: SlotIndex(start),
            len: pages as u16,
        };
        self.devices
            .free(Cpu(0), owner, extent)
            .expect("it was allocated");
    }
}

impl SlotAllocator for Ours {
    fn allocate(&mut self, order: u8) -> Option<u32> {
        self.out.clear();
        self.devices
            .allocate(Cpu(0), 1 << order, EntryId(0), &mut self.out)
            .ok()?;
        // With one order alone every free place is a whole one.
        assert_eq!(self.out.len(), 1);
        Some(self.out[0].start.0)
    }
    fn free(&mut self, start: u32, pages: u32) {
        self.free_of(EntryId(0), start, pages);
    }
    fn settle(&mut self) {
        while self.devices.work(Cpu(0), usize::MAX) > 0 {}
    }
    fn free_slots(&self) -> u32 {
        let usage = &self.devices.usage()[0];
        usage.slots - usage.used
    }
}

/// Costs at one level: nanoseconds an allocation, where there was any.
struct Cost {
    fill: Option<f64>,
    churn: Option<f64>,
}

/// Fills a device level by level; `capacity` folios fit.
fn measure(allocator: &mut dyn SlotAllocator, order: u8, slots: u32, times: usize) -> Vec<Cost> {
    let pages = 1u32 << order;
    let free = allocator.free_slots();
    // The baselines lose slot 0, and for large folios the cluster it is in.
    let usable = if free < slots && order > 0 {
        slots - CLUSTER_SLOTS as u32
    } else {
        free
    };
    let capacity = (usable / pages) as usize;
    let mut held: Vec<u32> = Vec::with_capacity(capacity);
    let mut random = Random::new(u64::from(order));
    let mut costs = Vec::new();
    for level in LEVELS {
        let target = capacity * level as usize / 100;
        let mut fill = Batches::default();
        while held.len() < target {
            fill.allocate(target - held.len(), || {
                held.push(allocator.allocate(order).expect("the device is not full"));
            });
        }
        let mut churn = Batches::default();
        let batch = BATCH.min(held.len().div_ceil(SHARE));
        for _ in 0..times.div_ceil(batch) {
            for _ in 0..batch {
                let start = held.swap_remove(random.below(held.len()));
                allocator.free(start, pages);
            }
            allocator.settle();
            let mut left = batch;
            while left > 0 {
                left -= churn.allocate(left, || {
                    held.push(allocator.allocate(order).expect("as many were just freed"));
                });
            }
        }
        costs.push(Cost {
            fill: fill.median(),
            churn: churn.median(),
        });
    }
    assert!(allocator.allocate(order).is_none(), "the device is full");
    costs
}

/// Costs of a folio of mixed orders, on a device of which so much is used in the beginning.
fn measure_mixed(level: u32, slots: u32, times: usize) -> Cost {
    let mut ours = Ours::new(slots);
    ours.devices.set_cache_reclaim(Arc::new(NoCopies));
    for _ in 0..slots {
        ours.allocate(0).expect("the device is not full");
    }
    let mut random = Random::new(u64::from(level));
    let mut clusters: Vec<u32> = (0..slots / CLUSTER_SLOTS as u32).collect();
    let holed = (clusters.len() * (100 - level as usize) / 50).max(1);
    for _ in 0..holed {
        let first = clusters.swap_remove(random.below(clusters.len())) * CLUSTER_SLOTS as u32;
        let slots = first..first + CLUSTER_SLOTS as u32;
        slots
            .filter(|slot| (slot / HOLE).is_multiple_of(2))
            .for_each(|slot| ours.free_part(slot, 1));
    }
    ours.settle();
    let room = holed * CLUSTER_SLOTS / 2 / usize::from(FOLIO);
    let batch = BATCH.min(room / 2);
    let mut held: Vec<Vec<Extent>> = Vec::with_capacity(batch);
    let take = |ours: &mut Ours, held: &mut Vec<Vec<Extent>>, batches: &mut Batches| {
        let mut left = batch - held.len();
        while left > 0 {
            left -= batches.allocate(left, || {
                ours.out.clear();
                ours.devices
                    .allocate(Cpu(0), FOLIO, EntryId(0), &mut ours.out)
                    .expect("there are twice as many holes");
                assert!(ours.out.len() > 1, "a place where there are holes alone");
                held.push(ours.out.to_vec());
            });
        }
    };
    let (mut fill, mut churn) = (Batches::default(), Batches::default());
    take(&mut ours, &mut held, &mut fill);
    for _ in 0..times.div_ceil(batch) {
        for _ in 0..batch.div_ceil(2) {
            for extent in held.swap_remove(random.below(held.len())) {
                ours.free_part(extent.start.0, extent.len.into());
            }
        }
        ours.settle();
        take(&mut ours, &mut held, &mut churn);
    }
    Cost {
        fill: fill.median(),
        churn: churn.median(),
    }
}

/// Batches timed one by one: their median is not disturbed by what else the machine does.
#[derive(Default)]
struct Batches(Vec<f64>);

impl Batches {
    /// Times some allocations, at most `left`; says how many.
    fn allocate(&mut self, left: usize, mut one: impl FnMut()) -> usize {
        let some = left.min(TIMED);
        let begun = Instant::now();
        (0..some).for_each(|_| one());
        self.0.push(begun.elapsed().as_nanos() as f64 / some as f64);
        some
    }
    fn median(mut self) -> Option<f64> {
        self.0.sort_by(f64::total_cmp);
        self.0.get(self.0.len() / 2).copied()
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&["allocator", "order", "full_percent", "fill_ns", "churn_ns"]);
    let mut series = Vec::new();
    for name in ["ebb", "legacy", "free-only"] {
        for &order in &options.orders {
            let mut allocator: Box<dyn SlotAllocator> = match name {
                "ebb" => Box::new(Ours::new(options.slots)),
                "legacy" => Box::new(Legacy::new(options.slots)),
                _ => Box::new(FreeOnly::new(options.slots)),
            };
            // Folios on a device where some were freed at random find nothing there: nothing to time.
            let finds = name != "free-only" || order == 0 || order == MAX_ORDER;
            let churn = if finds { options.churn } else { 0 };
            let costs = measure(&mut *allocator, order, options.slots, churn);
            let mut points = Vec::new();
            for (level, cost) in LEVELS.into_iter().zip(&costs) {
                report.row(vec![
                    name.into(),
                    order.into(),
                    level.into(),
                    cost.fill.into(),
                    cost.churn.into(),
                ]);
                points.extend(cost.churn.map(|ns| (f64::from(level), ns)));
            }
            series.push(Series {
                name: format!("{name}, order {order}"),
                points,
            });
        }
    }
    let mut points = Vec::new();
    for level in MIXED_LEVELS {
        let cost = measure_mixed(level, options.slots, options.churn);
        report.row(vec![
            "ebb".into(),
            MIXED.into(),
            level.into(),
            cost.fill.into(),
            cost.churn.into(),
        ]);
        points.extend(cost.churn.map(|ns| (f64::from(level), ns)));
    }
    series.push(Series {
        name: format!("ebb, order {MIXED}"),
        points,
    });
    report.note("fill_ns: an allocation while filling up to this level; churn_ns: after random folios were freed");
    report.note(format!(
        "both are medians over batches of {TIMED} allocations; freed were up to {BATCH} folios, a 64th of all at most"
    ));
    report.note(format!(
        "order {MIXED}: folios of {FOLIO} pages over holes of {HOLE} slots between single pages; the baselines split them"
    ));
    report.note("free-only finds no place for orders 1 to 8 once folios were freed at random: it has a fill_ns alone there");
    report.set_plot(Plot {
        title: "cost of an allocation after random frees".into(),
        x: "device used, %".into(),
        y: "ns".into(),
        series,
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_fills_the_device_to_its_last_slot() {
        // `measure` itself insists on it.
        let report = run(&Options {
            slots: 8192,
            churn: 256,
            ..Options::default()
        });
        assert_eq!(
            report.rows().count(),
            LEVELS.len() * (10 + 10 + 10) + MIXED_LEVELS.len()
        );
    }
}
