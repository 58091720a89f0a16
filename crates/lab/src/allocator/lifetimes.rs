//! Room for folios where lifetimes are kept apart: pages that stay long and pages that come and go share
//! one device, and then the second kind goes.
//!
//! The allocator knows no lifetimes. The allocator keeps sizes apart, by clusters of one order, and
//! processors, by the clusters in the hands of each. Pages that come and go together therefore lie
//! together as far as they have one size or one thread. Beside that the same load where neither tells
//! the two apart, and on an allocator that takes the lowest place there is. Nothing is moved, no copy
//! given up: what is found is found by placement alone.

use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::{CLUSTER_SLOTS, Cpu, EntryId};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// One line for the list of experiments.
pub const ABOUT: &str = "room for folios where pages that stay lie apart from those that go";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Slots of the device, a multiple of 512.
    pub slots: u32,
    /// The fill that is kept, in percent: half of that stays, half comes and goes.
    pub full: u32,
    /// The number of times that all that comes and goes is replaced. A tenth of the pages that stay are allocated in
    /// each part.
    pub rounds: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 1 << 16,
            full: 90,
            rounds: 20,
            seed: 1,
        }
    }
}

const FOLIO: u16 = 16;
/// A part of what comes and goes is freed at a time, and as much allocated.
const PARTS: usize = 8;

/// Pages that come and stay alike: their size, and the processor they are swapped out by.
#[derive(Clone, Copy)]
struct Kind {
    pages: u16,
    cpu: Cpu,
}

/// How those that stay and those that go differ besides.
struct Case {
    name: &'static str,
    stay: Kind,
    go: Kind,
    first_fit: bool,
}

const fn kind(pages: u16, cpu: u16) -> Kind {
    Kind {
        pages,
        cpu: Cpu(cpu),
    }
}

const CASES: [Case; 4] = [
    Case {
        name: "by size",
        stay: kind(FOLIO, 0),
        go: kind(1, 0),
        first_fit: false,
    },
    Case {
        name: "by processor",
        stay: kind(FOLIO, 0),
        go: kind(FOLIO, 1),
        first_fit: false,
    },
    Case {
        name: "not at all",
        stay: kind(FOLIO, 0),
        go: kind(FOLIO, 0),
        first_fit: false,
    },
    Case {
        name: "lowest place",
        stay: kind(FOLIO, 0),
        go: kind(1, 0),
        first_fit: true,
    },
];

/// Places runs of pages.
trait RunAllocator {
    /// In one extent or several.
    fn place(&mut self, kind: Kind) -> Vec<Extent>;
    fn free(&mut self, kind: Kind, owner: EntryId, extent: Extent);
}

struct Ours {
    devices: Devices,
    out: ExtentList,
}

impl RunAllocator for Ours {
    fn place(&mut self, kind: Kind) -> Vec<Extent> {
        self.out.clear();
        self.devices
            .allocate(kind.cpu, kind.pages, EntryId(0), &mut self.out)
            .expect("the device is not full");
        self.out.to_vec()
    }
    fn free(&mut self, kind: Kind, owner: EntryId, extent: Extent) {
        self.devices
            .free(kind.cpu, owner, extent)
            .expect("it was allocated");
    }
}

/// Takes the lowest place of a size.
struct FirstFit {
    used: Vec<bool>,
    /// The slot below which there is no free place of a size.
    lowest: HashMap<u16, usize>,
}

impl RunAllocator for FirstFit {
    fn place(&mut self, kind: Kind) -> Vec<Extent> {
        let pages = usize::from(kind.pages);
        let lowest = self.lowest.entry(kind.pages).or_default();
        let (at, window) = self
            .used
            .chunks_exact_mut(pages)
            .enumerate()
            .skip(*lowest / pages)
            .find(|(_, window)| !window.contains(&true))
            .expect("there is a place");
        window.fill(true);
        *lowest = at * pages;
        vec![Extent {
            device: ebb_engine::DeviceId(0),
            start: ebb_engine::SlotIndex(*lowest as u32),
            len: kind.pages,
        }]
    }
    fn free(&mut self, _: Kind, _: EntryId, extent: Extent) {
        let at = extent.start.0 as usize;
        self.used[at..at + usize::from(extent.len)].fill(false);
        for lowest in self.lowest.values_mut() {
            *lowest = at.min(*lowest);
        }
    }
}

/// The outcome of a case, in percent.
struct Outcome {
    /// Folios in one aligned extent.
    aligned: f64,
    /// The share, of the slots that are free when all that goes is gone, of those in clusters that are free whole.
    whole: f64,
}

struct Run {
    place: Box<dyn RunAllocator>,
    random: Random,
    folios: u64,
    aligned: u64,
}

impl Run {
    fn take(&mut self, kind: Kind, held: &mut Vec<Vec<Extent>>) {
        let extents = self.place.place(kind);
        if kind.pages == FOLIO {
            self.folios += 1;
            let starts = extents[0].start.0;
            let one = extents.len() == 1 && starts.is_multiple_of(u32::from(FOLIO));
            self.aligned += u64::from(one);
        }
        held.push(extents);
    }

    fn drop(&mut self, kind: Kind, extents: Vec<Extent>) {
        let mut owner = EntryId(0);
        for extent in extents {
            self.place.free(kind, owner, extent);
            owner = owner.plus(u32::from(extent.len));
        }
    }

    /// Frees some at random and allocates as many.
    fn renew(&mut self, kind: Kind, held: &mut Vec<Vec<Extent>>, some: usize) {
        for _ in 0..some {
            let gone = held.swap_remove(self.random.below(held.len()));
            self.drop(kind, gone);
        }
        (0..some).for_each(|_| self.take(kind, held));
    }
}

fn measure(case: &Case, options: &Options) -> Outcome {
    let place: Box<dyn RunAllocator> = if case.first_fit {
        Box::new(FirstFit {
            used: vec![false; options.slots as usize],
            lowest: HashMap::new(),
        })
    } else {
        let machine = Arc::new(Machine { cpus: 2, nodes: 1 });
        let devices = Devices::new(machine, Policies::default());
        let store = Arc::new(Blank::new(u64::from(options.slots)));
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("large enough");
        Box::new(Ours {
            devices,
            out: ExtentList::new(),
        })
    };
    let mut run = Run {
        place,
        random: Random::new(options.seed),
        folios: 0,
        aligned: 0,
    };
    let (mut stay, mut go) = (Vec::new(), Vec::new());
    let half = options.slots as usize * options.full as usize / 200;
    for _ in 0..half / usize::from(FOLIO) {
        run.take(case.stay, &mut stay);
        for _ in 0..FOLIO / case.go.pages {
            run.take(case.go, &mut go);
        }
    }
    for _ in 0..options.rounds * PARTS {
        let some = go.len() / PARTS;
        run.renew(case.go, &mut go, some);
        let few = stay.len() / (10 * options.rounds * PARTS);
        run.renew(case.stay, &mut stay, few.max(1));
    }
    for extents in go {
        run.drop(case.go, extents);
    }
    let mut used = vec![0usize; options.slots as usize / CLUSTER_SLOTS];
    for extent in stay.iter().flatten() {
        used[extent.start.cluster().index()] += usize::from(extent.len);
    }
    let free: usize = used.iter().map(|used| CLUSTER_SLOTS - used).sum();
    let whole = CLUSTER_SLOTS * used.iter().filter(|used| **used == 0).count();
    Outcome {
        aligned: 100.0 * run.aligned as f64 / run.folios as f64,
        whole: 100.0 * whole as f64 / free as f64,
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(&["apart", "aligned_percent", "whole_free_percent"]);
    for case in &CASES {
        let got = measure(case, options);
        report.row(vec![case.name.into(), got.aligned.into(), got.whole.into()]);
    }
    report.note("apart: by what the allocator can tell those that stay from those that go; both are folios of 64 KiB, but by size and lowest place, where single pages go");
    report.note("aligned_percent: of the folios, in one aligned extent; whole_free_percent: of the room that is free when those that go are gone, that in whole clusters");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separated_lifetimes_leave_whole_clusters() {
        let options = Options {
            slots: 1 << 15,
            ..Options::default()
        };
        let [size, processor, mixed, lowest] = CASES.each_ref().map(|case| measure(case, &options));
        for (got, whole) in [(&size, 95.0..=100.0), (&processor, 75.0..=100.0)] {
            assert!(whole.contains(&got.whole), "{}", got.whole);
        }
        for got in [&mixed, &lowest] {
            assert!(got.whole < 25.0, "{}", got.whole);
        }
        for got in [size, processor, mixed] {
            assert_eq!(got.aligned, 100.0);
        }
    }
}
