//! The same test on real memory: the program that somebody pages, and the table of what became of
//! its folios.
//!
//! Memory cannot be asked to go out, so new zeros, which need no slot, drive it out. Folios
//! are renewed as in the test: dropped, and written as fresh memory. At the end every page must hold
//! what was written last.
//!
//! The caller decides about the pager and its counters. It is told when the warm-up has ended and when
//! each iteration has; the counters' differences are an iteration's outcome ([`Stored`]).

use super::{COLUMNS, MODES, SLOTS, UNIT, UNITS, percent};
use crate::support::report::Report;
use ebb_engine::random::Random;
use ebb_sys::memory::PAGE;

/// The names of the modes.
pub fn modes() -> impl Iterator<Item = &'static str> {
    MODES.iter().map(|mode| mode.name)
}

/// Bytes of swap: 64 MiB, which with `-s` is a slot for each page that must go out, and none to spare.
pub const SWAP_BYTES: u64 = SLOTS as u64 * PAGE as u64;

/// Pages that the program has beside those of the test, in round numbers, and that go out as well. The
/// region of single pages is smaller by so many pages: the pager ends a program that it finds no room
/// for, where the kernel would leave a page in memory.
const BESIDE: usize = 160;
const SMALL: usize = super::SMALL - BESIDE;
const PAGES: usize = super::PAGES - BESIDE;

/// The workload on the memory of this very process. `paged_out` is called when everything has gone
/// out: after the warm-up and after each iteration.
///
/// # Errors
/// There is no such mode, or a page holds something else.
pub fn work(
    mode: &str,
    iterations: u32,
    seed: u64,
    mut paged_out: impl FnMut(),
) -> Result<(), String> {
    let mode = MODES.iter().find(|m| m.name == mode);
    let mode = mode.ok_or("there is no such mode")?;
    let mut memory = FolioMemory::new(seed);
    let all = if mode.small { PAGES } else { UNITS * UNIT };
    (0..all).for_each(|page| memory.write(page));
    memory.drive_out();
    paged_out();
    for _ in 0..iterations {
        for _ in 0..if mode.aligned { 256 } else { 4096 } {
            if mode.aligned {
                let unit = memory.random.below(UNITS) * UNIT;
                (unit..unit + UNIT).for_each(|page| memory.write(page));
            } else {
                let page = memory.random.below(UNITS * UNIT);
                memory.write(page);
            }
        }
        for _ in 0..256 {
            let unit = memory.random.below(UNITS) * UNIT;
            ebb_sys::memory::drop_content(memory.pages(unit, UNIT));
            (unit..unit + UNIT).for_each(|page| memory.write(page));
        }
        if mode.small {
            for _ in 0..256 {
                let page = UNITS * UNIT + memory.random.below(SMALL);
                memory.write(page);
            }
        }
        memory.drive_out();
        paged_out();
    }
    (0..all).try_for_each(|page| memory.check(page))
}

/// Bytes that the walk touches: more than a small budget holds.
const DRIVER: usize = 40 << 20;

/// Real memory with a folio's alignment.
struct FolioMemory {
    bytes: Vec<u8>,
    first: usize,
    versions: Vec<u32>,
    driver: Vec<u8>,
    random: Random,
}

impl FolioMemory {
    fn new(seed: u64) -> Self {
        let folio = UNIT * PAGE;
        let bytes = vec![0; PAGES * PAGE + folio];
        let first = bytes.as_ptr().align_offset(folio);
        Self {
            bytes,
            first,
            versions: vec![0; PAGES],
            driver: vec![0; DRIVER],
            random: Random::new(seed),
        }
    }

    fn pages(&mut self, first: usize, pages: usize) -> &mut [u8] {
        let at = self.first + first * PAGE;
        &mut self.bytes[at..at + pages * PAGE]
    }

    fn words(&self, page: usize) -> impl Iterator<Item = [u8; 8]> + use<> {
        let seed = page as u64 + (u64::from(self.versions[page]) << 32);
        let mut random = Random::new(seed);
        std::iter::repeat_with(move || random.next().to_le_bytes())
    }

    /// Fills a page with what does not compress, new each time.
    fn write(&mut self, page: usize) {
        self.versions[page] += 1;
        let words = self.words(page);
        let held = self.pages(page, 1).as_chunks_mut::<8>().0;
        for (to, word) in held.iter_mut().zip(words) {
            *to = word;
        }
    }

    fn check(&mut self, page: usize) -> Result<(), String> {
        let mut words = self.words(page);
        let held = self.pages(page, 1).as_chunks::<8>().0;
        let same = held.iter().all(|word| words.next().as_ref() == Some(word));
        same.then_some(())
            .ok_or_else(|| format!("page {page} holds something else"))
    }

    /// New memory each time, as what a walk brings back makes little leave but itself; twice, as pages
    /// brought in of late stay once.
    fn drive_out(&mut self) {
        for _ in 0..2 {
            self.driver = Vec::new();
            self.driver = vec![0; DRIVER];
            for byte in self.driver.iter_mut().step_by(PAGE) {
                *byte = std::hint::black_box(0);
            }
        }
    }
}

/// Folios stored, by the pager's counters.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stored {
    /// Folios of 64 KiB stored whole: entries side by side, slots in one or more runs.
    pub whole: u64,
    /// Folios that were split.
    pub fallback: u64,
    /// Writes that those stored whole took.
    pub writes: u64,
}

impl Stored {
    fn since(self, before: Self) -> Self {
        Self {
            whole: self.whole - before.whole,
            fallback: self.fallback - before.fallback,
            writes: self.writes - before.writes,
        }
    }

    fn fallback_percent(self) -> f64 {
        percent(self.fallback, self.whole + self.fallback)
    }
}

/// A run through the real pager.
pub struct Row {
    /// The mode.
    pub mode: &'static str,
    /// The counters after the warm-up, and after each iteration.
    pub stored: Vec<Stored>,
}

/// The report of runs through the real pager.
///
/// # Panics
/// If a row has no counters.
#[must_use]
pub fn report(rows: &[Row]) -> Report {
    let mut report = Report::new(&[&COLUMNS[..], &["writes_per_folio"]].concat());
    for row in rows {
        let [warm, .., last] = row.stored[..] else {
            panic!("mode {}: no iteration", row.mode);
        };
        let all = last.since(warm);
        let each = row.stored.windows(2).map(|pair| pair[1].since(pair[0]));
        let worst = each.map(Stored::fallback_percent).fold(0.0, f64::max);
        report.row(vec![
            "pager".into(),
            row.mode.into(),
            (row.stored.len() - 1).into(),
            all.whole.into(),
            all.fallback.into(),
            all.fallback_percent().into(),
            worst.into(),
            (all.writes as f64 / all.whole.max(1) as f64).into(),
        ]);
    }
    report.note("64 MiB of swap, with -s a slot for each page, and no pool under `ebb run`; its counters swpout_4 and swpout_fallback_4, less those of the warm-up");
    report.note("writes_per_folio: runs of slots of a folio stored whole; the cost of no fallback");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_counts_for_nothing_and_the_worst_iteration_is_told() {
        let stored = |whole, fallback| Stored {
            whole,
            fallback,
            writes: 2 * whole,
        };
        let row = Row {
            mode: "-a",
            stored: vec![stored(1000, 50), stored(1090, 60), stored(1150, 100)],
        };
        let report = report(&[row]);
        let row = report.rows().next().expect("a row");
        let number = |name: &str| row[name].as_f64().expect("a number");
        assert_eq!([number("iterations"), number("swpout")], [2.0, 150.0]);
        assert_eq!(
            [number("overall_percent"), number("worst_percent")],
            [25.0, 40.0]
        );
        assert_eq!(number("writes_per_folio"), 2.0);
    }
}
