//! The kernel's mTHP swap allocator test ("mm: swap: mTHP swap allocator base on swap cluster order",
//! 2024): how often a folio of 64 KiB finds no place on a nearly full device when folios and single
//! pages come and go.
//!
//! A region of 60 MiB made of 64 KiB folios, optionally one of 4 MiB made of pages, and
//! 64 MiB of swap less one slot. Each iteration brings some of it back in, renews some
//! folios, and pages all of it out again. A folio swapped in page by page comes back as
//! pages; one that finds no place is split into pages.

pub mod real;

use crate::support::baselines::{FreeOnly, Legacy, SlotAllocator};
use crate::support::report::{Plot, Report, Series};
use crate::support::sim::{Blank, Machine};
use ebb_engine::random::Random;
use ebb_engine::slots::{
    DeviceSpec, Devices, Extent, ExtentList, Moved, Mover, Options as Policies,
};
use ebb_engine::{Cpu, DeviceId, EntryId, SlotIndex};
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// One line for the list of experiments.
pub const ABOUT: &str = "folios of 64 KiB on a nearly full device: how many find no place whole";

/// The allocators that place the folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocator {
    /// Ebbtide's: whole if possible, else scattered under contiguous entries.
    Ebb,
    /// As `Ebb`, and a touch brings a whole folio back, so that its slots return together.
    EbbLargeIn,
    /// As `Ebb`, with background compaction between the iterations, as `ebb run` has it.
    EbbCompact,
    /// The kernel with the series "mm: swap: mTHP swap allocator base on swap cluster order".
    Legacy,
    /// The kernel without it.
    FreeOnly,
}

impl Allocator {
    const ALL: [Self; 5] = [
        Self::Ebb,
        Self::EbbLargeIn,
        Self::EbbCompact,
        Self::Legacy,
        Self::FreeOnly,
    ];

    /// The name in rows and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebb => "ebb",
            Self::EbbLargeIn => "ebb-large-in",
            Self::EbbCompact => "ebb-compact",
            Self::Legacy => "legacy",
            Self::FreeOnly => "free-only",
        }
    }
}

impl std::str::FromStr for Allocator {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|a| a.name() == name);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|a| a.name()).collect();
            format!(
                "there is no allocator {name:?}; give one of {}",
                names.join(", ")
            )
        })
    }
}

/// Parameters of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The experiments; none: all of them.
    pub allocator: Option<Allocator>,
    /// Iterations after the warm-up.
    pub iterations: u32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allocator: None,
            iterations: 100,
            seed: 1,
        }
    }
}

const SLOTS: u32 = 16384;
const UNIT: usize = 16;
const ORDER: u8 = 4;
const UNITS: usize = 960;
const SMALL: usize = 1024;
const PAGES: usize = UNITS * UNIT + SMALL;

/// The test's flags: `-a` swaps in whole units, `-s` adds the region of single pages.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    aligned: bool,
    small: bool,
}

const MODES: [Mode; 4] = [
    Mode {
        name: "-a",
        aligned: true,
        small: false,
    },
    Mode {
        name: "-a -s",
        aligned: true,
        small: true,
    },
    Mode {
        name: "default",
        aligned: false,
        small: false,
    },
    Mode {
        name: "-s",
        aligned: false,
        small: true,
    },
];

/// The kernel's published result for a mode, short enough for a column.
fn reference(allocator: Allocator, mode: &Mode) -> Value {
    match (allocator, mode.name) {
        (Allocator::FreeOnly, "-a") => "85.71, then 100".into(),
        (Allocator::FreeOnly, _) => "100".into(),
        (Allocator::Legacy, "-a") => "0".into(),
        (Allocator::Legacy, "-a -s") => "0 to 5.38".into(),
        (Allocator::Legacy, "default") => "0, climbs to 96.07".into(),
        (Allocator::Legacy, _) => "0, climbs to 100".into(),
        _ => Value::Null,
    }
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    /// In memory, part of a whole folio.
    InFolio,
    /// In memory by itself.
    Single,
    Swapped(u32),
}

/// Counts of a run.
#[derive(Clone, Copy, Default)]
struct Counts {
    whole: u64,
    fallback: u64,
    /// Whole folios in one aligned extent.
    aligned: u64,
    /// Writes that the whole ones took.
    extents: u64,
    /// Single pages that found no place and stayed in memory.
    refused: u64,
    /// Touches of a page that was out.
    faults: u64,
    /// Pages read in beside the one touched.
    extra_in: u64,
    moved: u64,
}

/// The page table, which compaction may change behind the workload's back.
type Pages = Arc<Mutex<Vec<Page>>>;

/// Places runs of pages, entries being page numbers.
trait PageAllocator {
    /// The slots of `1 << order` pages from `page` on, in order; None if they have no place
    /// together.
    fn place(&mut self, page: usize, order: u8, slots: &mut Vec<u32>) -> Option<u64>;
    /// Frees the slots of pages side by side, the first of which is `page`.
    fn free(&mut self, page: usize, start: u32, pages: u32);
    /// Between iterations.
    fn rest(&mut self) {}
    fn large_in(&self) -> bool {
        false
    }
}

struct Baseline(Box<dyn SlotAllocator>);

impl PageAllocator for Baseline {
    fn place(&mut self, _: usize, order: u8, slots: &mut Vec<u32>) -> Option<u64> {
        let start = self.0.allocate(order)?;
        slots.extend(start..start + (1 << order));
        Some(1)
    }
    fn free(&mut self, _: usize, start: u32, pages: u32) {
        self.0.free(start, pages);
    }
}

struct Ebb {
    devices: Devices,
    device: DeviceId,
    out: ExtentList,
    kind: Allocator,
}

/// Repoints the page table; the data itself is of no interest here.
struct Repoint {
    pages: Pages,
    moved: Arc<Mutex<u64>>,
}

impl Mover for Repoint {
    fn relocate(&self, _: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved {
        let Some(to) = to else { return Moved::NoPlace };
        let mut pages = self.pages.lock().expect("no panic");
        for i in 0..usize::from(from.len) {
            assert!(pages[owner.index() + i] == Page::Swapped(from.start.0 + i as u32));
            pages[owner.index() + i] = Page::Swapped(to.start.0 + i as u32);
        }
        *self.moved.lock().expect("no panic") += u64::from(from.len);
        Moved::Yes
    }
}

impl Ebb {
    fn new(kind: Allocator, mover: Repoint) -> Self {
        let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
        let devices = Devices::new(machine, Policies::default());
        let device = devices
            .add(
                Arc::new(Blank::new(u64::from(SLOTS))),
                DeviceSpec::default(),
                None,
            )
            .expect("the device is large enough");
        if kind == Allocator::EbbCompact {
            devices.set_mover(Arc::new(mover));
        }
        // The header's slot.
        let mut out = ExtentList::new();
        devices
            .allocate(Cpu(0), 1, EntryId(PAGES as u32), &mut out)
            .expect("the device is empty");
        devices
            .bad_slot(Cpu(0), device, out[0].start)
            .expect("it was allocated");
        out.clear();
        Self {
            devices,
            device,
            out,
            kind,
        }
    }
}

impl PageAllocator for Ebb {
    fn place(&mut self, page: usize, order: u8, slots: &mut Vec<u32>) -> Option<u64> {
        self.out.clear();
        self.devices
            .allocate(Cpu(0), 1 << order, EntryId(page as u32), &mut self.out)
            .ok()?;
        for e in self.out.iter() {
            slots.extend(e.start.0..e.start.0 + u32::from(e.len));
        }
        Some(self.out.len() as u64)
    }
    fn free(&mut self, page: usize, start: u32, pages: u32) {
        let extent = Extent {
            device: self.device,
            start: SlotIndex(start),
            len: pages as u16,
        };
        self.devices
            .free(Cpu(0), EntryId(page as u32), extent)
            .expect("the workload frees what it holds");
    }
    fn rest(&mut self) {
        if self.kind == Allocator::EbbCompact {
            while self.devices.work(Cpu(0), 16) > 0 {}
        }
    }
    fn large_in(&self) -> bool {
        self.kind == Allocator::EbbLargeIn
    }
}

struct Run {
    place: Box<dyn PageAllocator>,
    pages: Pages,
    moved: Arc<Mutex<u64>>,
    random: Random,
    counts: Counts,
    slots: Vec<u32>,
}

impl Run {
    fn new(allocator: Allocator, seed: u64) -> Self {
        let pages: Pages = Arc::new(Mutex::new(vec![Page::InFolio; PAGES]));
        pages.lock().expect("no panic")[UNITS * UNIT..].fill(Page::Single);
        let moved = Arc::new(Mutex::new(0));
        let mover = Repoint {
            pages: pages.clone(),
            moved: moved.clone(),
        };
        let place: Box<dyn PageAllocator> = match allocator {
            Allocator::Legacy => Box::new(Baseline(Box::new(Legacy::new(SLOTS)))),
            Allocator::FreeOnly => Box::new(Baseline(Box::new(FreeOnly::new(SLOTS)))),
            kind => Box::new(Ebb::new(kind, mover)),
        };
        let random = Random::new(seed);
        Self {
            place,
            pages,
            moved,
            random,
            counts: Counts::default(),
            slots: Vec::new(),
        }
    }

    fn get(&self, page: usize) -> Page {
        self.pages.lock().expect("no panic")[page]
    }

    fn set(&self, first: usize, pages: usize, to: Page) {
        self.pages.lock().expect("no panic")[first..first + pages].fill(to);
    }

    /// Frees the slots of the pages that are swapped out, runs of slots at once.
    fn release(&mut self, first: usize, pages: usize) {
        // Of pages side by side: the first, its slot, and how many.
        let mut run: Option<(usize, u32, u32)> = None;
        for page in first..first + pages {
            let Page::Swapped(slot) = self.get(page) else {
                continue;
            };
            match &mut run {
                Some((first, start, len))
                    if *first + *len as usize == page
                        && *start + *len == slot
                        && slot % 512 != 0 =>
                {
                    *len += 1;
                }
                _ => {
                    if let Some((first, start, len)) = run.replace((page, slot, 1)) {
                        self.place.free(first, start, len);
                    }
                }
            }
        }
        if let Some((first, start, len)) = run {
            self.place.free(first, start, len);
        }
    }

    fn swap_in(&mut self, page: usize) {
        let Page::Swapped(_) = self.get(page) else {
            return;
        };
        self.counts.faults += 1;
        let unit = page / UNIT * UNIT;
        let swapped = |p| matches!(self.get(p), Page::Swapped(_));
        if self.place.large_in() && page < UNITS * UNIT && (unit..unit + UNIT).all(swapped) {
            self.release(unit, UNIT);
            self.set(unit, UNIT, Page::InFolio);
            self.counts.extra_in += UNIT as u64 - 1;
        } else {
            self.release(page, 1);
            self.set(page, 1, Page::Single);
        }
    }

    fn page_out(&mut self, first: usize, pages: usize) {
        let mut page = first;
        while page < first + pages {
            match self.get(page) {
                Page::Swapped(_) => page += 1,
                Page::Single => {
                    self.out_single(page);
                    page += 1;
                }
                Page::InFolio => {
                    self.slots.clear();
                    match self.place.place(page, ORDER, &mut self.slots) {
                        Some(extents) => {
                            self.counts.whole += 1;
                            self.counts.extents += extents;
                            let start = self.slots[0];
                            self.counts.aligned +=
                                u64::from(extents == 1 && start.is_multiple_of(1 << ORDER));
                            for (i, &slot) in self.slots.iter().enumerate() {
                                self.set(page + i, 1, Page::Swapped(slot));
                            }
                        }
                        None => {
                            self.counts.fallback += 1;
                            self.set(page, UNIT, Page::Single);
                            for i in 0..UNIT {
                                self.out_single(page + i);
                            }
                        }
                    }
                    page += UNIT;
                }
            }
        }
    }

    fn out_single(&mut self, page: usize) {
        self.slots.clear();
        match self.place.place(page, 0, &mut self.slots) {
            Some(_) => self.set(page, 1, Page::Swapped(self.slots[0])),
            None => self.counts.refused += 1,
        }
    }

    fn out_all(&mut self, mode: &Mode) {
        self.page_out(0, UNITS * UNIT);
        if mode.small {
            self.page_out(UNITS * UNIT, SMALL);
        }
    }

    fn iteration(&mut self, mode: &Mode) {
        if mode.aligned {
            for _ in 0..256 {
                let unit = self.random.below(UNITS) * UNIT;
                for page in unit..unit + UNIT {
                    self.swap_in(page);
                }
            }
        } else {
            for _ in 0..4096 {
                let page = self.random.below(UNITS * UNIT);
                self.swap_in(page);
            }
        }
        for _ in 0..256 {
            let unit = self.random.below(UNITS) * UNIT;
            self.release(unit, UNIT);
            self.set(unit, UNIT, Page::InFolio);
        }
        if mode.small {
            for _ in 0..256 {
                let page = UNITS * UNIT + self.random.below(SMALL);
                self.swap_in(page);
            }
        }
        self.out_all(mode);
    }
}

/// The first columns of a row, here and on real memory.
const COLUMNS: [&str; 7] = [
    "allocator",
    "mode",
    "iterations",
    "swpout",
    "fallback",
    "overall_percent",
    "worst_percent",
];

/// Runs the four modes for one allocator or all.
#[must_use]
pub fn run(options: &Options) -> Report {
    let more = [
        "published_percent",
        "aligned_percent",
        "writes_per_folio",
        "in_faults",
        "extra_in_pages",
        "moved_pages",
        "refused",
    ];
    let mut report = Report::new(&[&COLUMNS[..], &more].concat());
    let mut plot = Plot {
        title: "folios of 64 KiB that had to be split".into(),
        x: "iteration".into(),
        y: "fallback, %".into(),
        series: Vec::new(),
    };
    let chosen = |a: &Allocator| options.allocator.is_none_or(|only| only == *a);
    for allocator in Allocator::ALL.into_iter().filter(chosen) {
        for mode in &MODES {
            let (total, percents) = measure(allocator, mode, options);
            report.row(vec![
                allocator.name().into(),
                mode.name.into(),
                options.iterations.into(),
                total.whole.into(),
                total.fallback.into(),
                percent(total.fallback, total.whole + total.fallback).into(),
                percents.iter().copied().fold(0.0, f64::max).into(),
                reference(allocator, mode),
                percent(total.aligned, total.whole).into(),
                (total.extents as f64 / total.whole.max(1) as f64).into(),
                total.faults.into(),
                total.extra_in.into(),
                total.moved.into(),
                total.refused.into(),
            ]);
            plot.series.push(Series {
                name: format!("{} {}", allocator.name(), mode.name),
                points: (1..).map(f64::from).zip(percents).collect(),
            });
        }
    }
    report.note("fallback: the folio was split into pages, each with an entry of its own");
    report.note(
        "writes_per_folio: extents of a folio that was swapped out whole; the cost of no fallback",
    );
    report.note("in_faults: touches of a page that was out; extra_in_pages: read in beside the page touched; moved_pages: read and written again by compaction");
    report.note("refused: times that a single page found no place and stayed in memory; with -s there is one slot less than pages");
    report.note("published_percent: the published result of the kernel test, per iteration");
    report.set_plot(plot);
    report
}

fn measure(allocator: Allocator, mode: &Mode, options: &Options) -> (Counts, Vec<f64>) {
    let mut run = Run::new(allocator, options.seed);
    run.out_all(mode);
    run.counts = Counts::default();
    let mut percents = Vec::new();
    for _ in 0..options.iterations {
        let before = run.counts;
        run.iteration(mode);
        let fallback = run.counts.fallback - before.fallback;
        percents.push(percent(
            fallback,
            fallback + run.counts.whole - before.whole,
        ));
        run.place.rest();
    }
    run.counts.moved = *run.moved.lock().expect("no panic");
    (run.counts, percents)
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overall(allocator: Allocator, iterations: u32) -> Vec<(f64, f64)> {
        let options = Options {
            allocator: Some(allocator),
            iterations,
            ..Options::default()
        };
        let get = |row: &serde_json::Map<String, Value>, name: &str| row[name].as_f64().unwrap();
        run(&options)
            .rows()
            .map(|row| (get(&row, "overall_percent"), get(&row, "worst_percent")))
            .collect()
    }

    #[test]
    fn no_folio_of_ours_is_split() {
        for kind in [Allocator::Ebb, Allocator::EbbLargeIn, Allocator::EbbCompact] {
            assert_eq!(overall(kind, 100), [(0.0, 0.0); 4], "{}", kind.name());
        }
    }

    /// A scattered folio is whole because it is written as few runs: a page each would be 16.
    #[test]
    fn folios_are_written_as_few_runs() {
        /// Of each mode, a little more than measured.
        const MOST: [f64; 4] = [1.01, 1.1, 4.2, 6.0];
        /// Pages that compaction moves for each folio.
        const MOVED: [f64; 4] = [0.4, 0.01, 0.01, 0.01];
        for kind in [Allocator::Ebb, Allocator::EbbCompact] {
            let options = Options {
                allocator: Some(kind),
                iterations: 50,
                ..Options::default()
            };
            for row in run(&options).rows() {
                let mode = MODES.iter().position(|m| row["mode"] == m.name).unwrap();
                let number = |name: &str| row[name].as_f64().unwrap();
                let writes = number("writes_per_folio");
                assert!((1.0..=MOST[mode]).contains(&writes), "{row:?}");
                let moved = number("moved_pages") / number("swpout");
                assert!(moved <= MOVED[mode], "{row:?}");
            }
        }
    }

    /// Costs and benefits of bringing whole folios back: reads of pages that nobody touched, fewer
    /// faults, and folios in one write each.
    #[test]
    fn large_swap_in_costs_reads_and_spares_faults_and_writes() {
        let rows = |kind| {
            let options = Options {
                allocator: Some(kind),
                iterations: 50,
                ..Options::default()
            };
            let report = run(&options);
            println!("{}", report.text());
            let of = |row: serde_json::Map<String, Value>| {
                ["in_faults", "extra_in_pages", "writes_per_folio"]
                    .map(|n| row[n].as_f64().unwrap())
            };
            report.rows().map(of).collect::<Vec<_>>()
        };
        /// Of each mode: pages read for each that is read one by one, faults, and writes a folio, at
        /// most. Without `-a` a quarter of a folio's pages are touched before it leaves again.
        const MOST: [[f64; 3]; 4] = [
            [1.001, 0.065, 1.001],
            [1.001, 0.12, 1.05],
            [4.3, 0.27, 1.001],
            [4.1, 0.31, 1.05],
        ];
        let (one_by_one, whole) = (rows(Allocator::Ebb), rows(Allocator::EbbLargeIn));
        for (mode, (one, whole)) in one_by_one.into_iter().zip(whole).enumerate() {
            let ([faults, none, _], [fewer, extra, writes]) = (one, whole);
            assert_eq!(none, 0.0);
            let got = [(fewer + extra) / faults, fewer / faults, writes];
            println!("{}: {got:?}", MODES[mode].name);
            for (got, most) in got.into_iter().zip(MOST[mode]) {
                assert!(got <= most, "{}: {got} is over {most}", MODES[mode].name);
            }
            // A folio comes whole, with the page touched, and no more does.
            assert!(extra <= 15.0 * fewer);
        }
    }

    /// The kernel's test prints this many iterations, and 100, for which the figures of the kernel of
    /// 6.18 are known too. They are the same in every run, so another allocator's baseline does not
    /// pass.
    #[test]
    fn the_baselines_are_near_the_published() {
        /// The first printed iterations without `-a`: folios split and not, as published.
        const PRINTED: [(u32, f64, f64); 2] = [(17, 3145.0, 700.0), (16, 3168.0, 454.0)];
        for (mode, (iterations, split, whole)) in [2, 3].into_iter().zip(PRINTED) {
            let ours = overall(Allocator::Legacy, iterations)[mode].0;
            let seed = 100.0 * split / (split + whole);
            assert!((ours - seed).abs() <= 3.0, "{ours} is not near {seed}");
        }
        let rows = overall(Allocator::Legacy, 100);
        // Overall: of the kernel. The worst iteration with `-a`: as published.
        let near = |a: f64, b: f64, off: f64| (a - b).abs() <= off;
        assert!(rows[0] == (0.0, 0.0), "{rows:?}");
        assert!(
            near(rows[1].0, 0.2, 0.5) && near(rows[1].1, 5.38, 1.5),
            "{rows:?}"
        );
        assert!(near(rows[2].0, 92.90, 2.0), "{rows:?}");
        assert!(near(rows[3].0, 97.46, 2.0), "{rows:?}");
        let rows = overall(Allocator::FreeOnly, 100);
        assert!(rows.iter().all(|row| near(row.0, 100.0, 0.5)), "{rows:?}");
    }
}
