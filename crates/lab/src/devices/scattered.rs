//! The cost of a folio whose slots lie apart: written and read as several runs of slots, and as one run,
//! on a real file. The file is set up as `ebb run` does it: O_DIRECT where available, asynchronous reads,
//! encryption.
//!
//! A folio goes out in one batch, and comes in in one: all its runs are in flight at a time. The last
//! row is a folio that was split, each page somewhere else.
//!
//! Each round draws the layout anew, so that each way meets the same device.

use crate::support::report::Report;
use crate::support::timing::{middle, processor_time};
use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_stores::{Device, Keyring, Size, SwapSpec, SwapTarget};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One line for the list of experiments.
pub const ABOUT: &str = "a folio in several runs of slots beside one run, on a real file";

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The place where the file is made, without a name; none: where `ebb run` makes its own.
    pub directory: Option<PathBuf>,
    /// Runs of a folio, one among them.
    pub runs: Vec<usize>,
    /// Folios in a round.
    pub folios: usize,
    /// Rounds, each way in turn.
    pub rounds: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            directory: None,
            runs: vec![1, 2, 4, 6, FOLIO],
            folios: 64,
            rounds: 21,
        }
    }
}

/// Pages of a folio.
const FOLIO: usize = 16;
/// Slots of the file, a multiple of a folio's.
const SLOTS: u64 = 1 << 15;

/// A folio and where it goes.
struct Folio {
    pages: Vec<u8>,
    runs: Vec<(u64, std::ops::Range<usize>)>,
}

impl Folio {
    /// In so many runs of about the same length, at places that `free` gives.
    fn new(number: u64, runs: usize, mut free: impl FnMut() -> u64) -> Self {
        let mut random = Random::new(number);
        let pages = (0..FOLIO * PAGE_SIZE / 8).flat_map(|_| random.next().to_le_bytes());
        let ends = (0..=runs).map(|i| FOLIO * i / runs);
        let starts = ends.clone().zip(ends.skip(1));
        Self {
            pages: pages.collect(),
            runs: starts.map(|(from, to)| (free(), from..to)).collect(),
        }
    }

    fn bytes(pages: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        pages.start * PAGE_SIZE..pages.end * PAGE_SIZE
    }

    fn write(&self, store: &dyn Store) {
        let op = |(slot, pages): &(u64, std::ops::Range<usize>)| WriteOp {
            slot: *slot,
            data: &self.pages[Self::bytes(pages)],
        };
        let ops: Vec<_> = self.runs.iter().map(op).collect();
        let mut results = vec![Ok(()); ops.len()];
        store.write(&ops, &mut results);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    /// Reads it into `room`.
    fn read(&self, store: &dyn Store, mut room: &mut [u8]) {
        let mut ops = Vec::with_capacity(self.runs.len());
        for (slot, pages) in &self.runs {
            let data = room.split_off_mut(..pages.len() * PAGE_SIZE);
            ops.push(ReadOp {
                slot: *slot,
                data: data.expect("a folio long"),
            });
        }
        let mut results = vec![Ok(()); ops.len()];
        store.read(&mut ops, &mut results);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

/// Time for each folio, and processor time, of one round.
#[derive(Clone, Copy, Default)]
struct Cost {
    us: f64,
    cpu_us: f64,
}

fn timed(folios: usize, work: impl FnOnce()) -> Cost {
    let (cpu, begun) = (processor_time(), Instant::now());
    work();
    let us = |time: Duration| time.as_secs_f64() * 1e6 / folios as f64;
    Cost {
        us: us(begun.elapsed()),
        cpu_us: us(processor_time() - cpu),
    }
}

/// One round of one way: folios go out, and come in.
fn round(store: &dyn Store, runs: usize, folios: usize, random: &mut Random) -> [Cost; 2] {
    // Places that lie apart, none twice.
    let mut places: Vec<u64> = (0..SLOTS).step_by(FOLIO).collect();
    let mut place = || places.swap_remove(random.below(places.len()));
    let folios: Vec<_> = (0..folios)
        .map(|number| Folio::new(number as u64, runs, &mut place))
        .collect();
    let out = timed(folios.len(), || folios.iter().for_each(|f| f.write(store)));
    let mut back = vec![0; folios.len() * FOLIO * PAGE_SIZE];
    let rooms = back.chunks_exact_mut(FOLIO * PAGE_SIZE);
    let fault = |(folio, room): (&Folio, &mut [u8])| folio.read(store, room);
    let back_in = timed(folios.len(), || folios.iter().zip(rooms).for_each(fault));
    for (folio, room) in folios.iter().zip(back.chunks_exact(FOLIO * PAGE_SIZE)) {
        assert!(folio.pages == room, "what was read is not what was written");
    }
    [out, back_in]
}

fn open(options: &Options) -> Result<Device, String> {
    let place = SwapTarget {
        path: options.directory.clone(),
        size: Some(Size::Bytes(SLOTS * PAGE_SIZE as u64)),
        ..SwapTarget::default()
    };
    // A file of our own, in which there is nothing to look through.
    let look = ebb_stores::SearchTime::AtMost(Duration::ZERO);
    let opened =
        ebb_stores::open(&SwapSpec::At(place), &look).map_err(|error| error.to_string())?;
    let opened = opened.expect("a place was named");
    let keys = std::sync::Arc::<Keyring>::default();
    Ok(Device::new(opened.fd, opened.facts, 0, Some(&keys), None))
}

/// Runs the experiment.
///
/// # Errors
/// The file cannot be made; says why.
///
/// # Panics
/// A transfer fails, or gives back something else than was written.
pub fn run(options: &Options) -> Result<Report, String> {
    let device = open(options)?;
    let store = &*device.store;
    // Blocks are given to a file as it is first written, which is not what is to be measured.
    let first = vec![0; FOLIO * PAGE_SIZE];
    for slot in (0..SLOTS).step_by(FOLIO) {
        let op = WriteOp { slot, data: &first };
        let mut result = [Ok(())];
        store.write(&[op], &mut result);
        result[0].map_err(|error| format!("the file cannot be written: {error}"))?;
    }
    let mut random = Random::new(1);
    let mut costs = vec![[const { Vec::new() }; 2]; options.runs.len()];
    for nth in 0..options.rounds {
        let mut ways: Vec<_> = (0..options.runs.len()).collect();
        // There and back, so that none has always the same one before it.
        if nth % 2 == 1 {
            ways.reverse();
        }
        for way in ways {
            let cost = round(store, options.runs[way], options.folios, &mut random);
            costs[way]
                .iter_mut()
                .zip(cost)
                .for_each(|(c, cost)| c.push(cost));
        }
    }
    Ok(report(options, &costs, &device))
}

fn report(options: &Options, costs: &[[Vec<Cost>; 2]], device: &Device) -> Report {
    let mut report = Report::new(&[
        "way",
        "runs",
        "us_per_folio",
        "cpu_us_per_folio",
        "percent_of_one_run",
        "cpu_percent_of_one_run",
    ]);
    let one = options.runs.iter().position(|&runs| runs == 1);
    let one = &costs[one.expect("one run is among them")];
    for (way, name) in ["write", "read"].into_iter().enumerate() {
        for (&runs, costs) in options.runs.iter().zip(costs) {
            let all = |of: fn(&Cost) -> f64| middle(&costs[way].iter().map(of).collect::<Vec<_>>());
            let percent = |of: fn(&Cost) -> f64| {
                let pairs = costs[way].iter().zip(&one[way]);
                let ratios: Vec<_> = pairs.map(|(a, b)| 100.0 * of(a) / of(b)).collect();
                middle(&ratios)
            };
            report.row(vec![
                name.into(),
                runs.into(),
                all(|cost| cost.us).into(),
                all(|cost| cost.cpu_us).into(),
                percent(|cost| cost.us).into(),
                percent(|cost| cost.cpu_us).into(),
            ]);
        }
    }
    let facts = device.file.facts();
    report.note(format!(
        "a folio of {FOLIO} pages in one batch, encrypted, {}, {}",
        if facts.direct {
            "past the page cache"
        } else {
            "through the page cache"
        },
        match device.file.refusal() {
            None => "several runs are read at once".to_owned(),
            Some(errno) =>
                format!("one run after the other, as asynchronous reads are refused ({errno})"),
        }
    ));
    report.note("medians of rounds, percents of one run those of the same round; cpu: of the thread that transfers, with what the kernel does in it");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs are read at a time: what they share of a folio's cost is not paid for each. They are written one after the
    /// other. By processor time, as what a disk does at the moment decides the rest.
    #[test]
    fn runs_of_a_folio_cost_less_than_so_many_transfers() {
        let options = Options {
            runs: vec![1, 6, FOLIO],
            folios: 32,
            rounds: 9,
            ..Options::default()
        };
        let report = run(&options).expect("a file can be made");
        println!("{}", report.text());
        assert_eq!(report.rows().count(), 6);
        if report.text().contains("are refused") {
            return println!("skipped: no asynchronous reads");
        }
        for row in report.rows() {
            let percent = row["cpu_percent_of_one_run"].as_f64().unwrap();
            let runs = row["runs"].as_f64().unwrap();
            // Reads one after the other: 300 and 700. Here 110 and 120.
            let most = if row["way"] == "read" {
                200.0
            } else {
                100.0 * runs
            };
            assert!(percent <= most, "{row:?}");
        }
    }
}
