//! The same program on both sides: what the table says of it, and what it misses.

use super::bound;
use super::page::Row;
use super::side::Side;
use super::{median, rounded};
use ebb_harness::MIB;
use ebb_harness::job::Outcome;
use ebb_harness::workloads::Workload;

/// See the module.
pub struct Comparison {
    /// The name of the row.
    pub name: String,
    /// The workload.
    pub workload: Workload,
    /// The other side.
    pub side: Side,
    /// Bytes that each side had.
    pub total: u64,
    /// The runs of the other side.
    pub other: Vec<Outcome>,
    /// The figures of ebb.
    pub ebb: Vec<Outcome>,
    /// The program's own output.
    pub expected: Vec<u8>,
}

/// A figure on both sides.
struct Figure {
    other: f64,
    ebb: f64,
    at_most: Option<f64>,
}

impl Figure {
    /// As it is shown, so that what stands in the table decides.
    fn ratio(&self) -> f64 {
        rounded(self.ebb / self.other)
    }

    fn at_most(&self) -> String {
        shown(self.at_most)
    }

    /// A note for the row if it misses its bound.
    fn miss(&self, name: &str, unit: &str) -> Option<String> {
        let at_most = self.at_most.filter(|&bound| self.ratio() > bound)?;
        Some(format!(
            "{name}: {:.2} times, at most {at_most:.2} ({:.2} against {:.2} {unit})",
            self.ratio(),
            self.ebb,
            self.other
        ))
    }
}

impl Comparison {
    /// Nothing has run yet.
    pub fn new(name: String, workload: Workload, side: Side, free: &Outcome) -> Self {
        Self {
            name,
            workload,
            side,
            total: 0,
            other: Vec::new(),
            ebb: Vec::new(),
            expected: free.stdout.clone(),
        }
    }

    /// The program's row.
    pub fn row(&self) -> Row {
        let whole = self.whole();
        vec![
            self.name.clone(),
            (self.total / MIB).to_string(),
            self.side.name().into(),
            time(&self.other),
            time(&self.ebb),
            shown(whole.as_ref().map(Figure::ratio)),
            shown(Some(self.bound())),
            self.output().into(),
            self.ebb.len().to_string(),
        ]
    }

    /// Those of the phases of `touch`.
    pub fn phase_rows(&self) -> Vec<Row> {
        let row = |(phase, figure): (&str, Figure)| {
            vec![
                self.name.clone(),
                phase.into(),
                format!("{:.2}", figure.other),
                format!("{:.2}", figure.ebb),
                format!("{:.2}", figure.ratio()),
                figure.at_most(),
            ]
        };
        self.phases().into_iter().map(row).collect()
    }

    /// Broken promises, with the figures.
    pub fn misses(&self) -> Vec<String> {
        let name = &self.name;
        if let Some(run) = self.ebb.iter().find(|run| !run.ok()) {
            return vec![format!("{name}: {}", run.ending())];
        }
        let output = (self.output() != SAME).then(|| format!("{name}: printed something else"));
        let whole = self.whole().and_then(|whole| whole.miss(name, "s"));
        let phases = self
            .phases()
            .into_iter()
            .filter_map(|(phase, figure)| figure.miss(&format!("{name}, {phase}"), "us a page"));
        output.into_iter().chain(whole).chain(phases).collect()
    }

    /// Lines that ebb's runs printed, beside the program's own.
    fn output(&self) -> &'static str {
        let same = |run: &Outcome| run.stdout == self.expected;
        match self.ebb.iter().all(Outcome::ok) {
            true if self.ebb.iter().all(same) => SAME,
            true => "WRONG",
            false => "none",
        }
    }

    fn bound(&self) -> f64 {
        bound::whole(
            self.side,
            self.workload,
            &walls(&self.other),
            &walls(&self.ebb),
        )
    }

    /// The time of the whole run; none if a run of either side did not finish.
    fn whole(&self) -> Option<Figure> {
        Some(Figure {
            other: seconds(&self.other)?,
            ebb: seconds(&self.ebb)?,
            at_most: Some(self.bound()),
        })
    }

    /// The phases of `touch` where not all fits.
    fn phases(&self) -> Vec<(&'static str, Figure)> {
        use Workload::{Touch, TouchFourThreads, TouchThreads};
        let touch = matches!(self.workload, Touch | TouchThreads | TouchFourThreads);
        if !touch || self.side == Side::Plain {
            return Vec::new();
        }
        let of = |runs: &[Outcome], phase: &str| {
            let all = runs.iter().map(Outcome::phases);
            median(all.filter_map(|phases| phases.get(phase).copied()))
        };
        let figure = |phase: &'static str| {
            let figure = Figure {
                other: of(&self.other, phase)?,
                ebb: of(&self.ebb, phase)?,
                at_most: bound::phase(self.side, self.workload, phase),
            };
            Some((phase, figure))
        };
        let phases = ["fill", "seq1", "seq2", "rand"];
        phases.into_iter().filter_map(figure).collect()
    }
}

/// Output as it should be.
const SAME: &str = "same";

/// In hundredths.
fn shown(figure: Option<f64>) -> String {
    figure.map_or("-".into(), |figure| format!("{figure:.2}"))
}

fn walls(runs: &[Outcome]) -> Vec<f64> {
    runs.iter().map(|run| run.wall).collect()
}

/// Median seconds; none if a run did not finish.
fn seconds(runs: &[Outcome]) -> Option<f64> {
    let all = runs.iter().all(Outcome::ok);
    all.then(|| median(walls(runs).into_iter()))?
}

/// The same in a table, or how a run ended that did not finish.
fn time(runs: &[Outcome]) -> String {
    match seconds(runs) {
        Some(seconds) => format!("{seconds:.2}"),
        None => runs
            .iter()
            .find(|run| !run.ok())
            .map_or_else(String::new, Outcome::ending),
    }
}

#[cfg(test)]
mod tests {
    use super::super::side::Kernel;
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// A run of so many seconds; its phases as long as it is.
    fn run(wall: f64) -> Outcome {
        let phase = |name| format!("phase {name} us_per_page {wall}\n");
        Outcome {
            status: Some(ExitStatus::from_raw(0)),
            stdout: b"42\n".to_vec(),
            stderr: ["fill", "seq1", "seq2", "rand"].map(phase).concat(),
            wall,
            user: 0.0,
            system: 0.0,
            lasting: 0,
            peak: 0,
            group_peak: 0,
            kills: 0,
        }
    }

    fn killed() -> Outcome {
        Outcome {
            status: Some(ExitStatus::from_raw(9)),
            kills: 1,
            ..run(1.0)
        }
    }

    fn compared(workload: Workload, side: Side, other: Outcome, ebb: Outcome) -> Comparison {
        let name = format!("{}, 1/2", workload.name());
        let mut compared = Comparison::new(name, workload, side, &run(1.0));
        compared.total = 64 * MIB;
        compared.other.push(other);
        compared.ebb.push(ebb);
        compared
    }

    const ZRAM: Side = Side::Kernel(Kernel::Zram);
    const ZSWAP: Side = Side::Kernel(Kernel::Zswap);

    #[test]
    fn a_row_slower_than_promised_is_missed() {
        let misses = |side, ebb| compared(Workload::Redis, side, run(1.0), run(ebb)).misses();
        for (side, bound) in [(Side::Plain, 1.05), (ZRAM, 1.2), (ZSWAP, 1.0)] {
            // Shown as the bound itself: no miss.
            assert!(misses(side, bound + 0.004).is_empty(), "{side:?}");
            let missed = misses(side, bound + 0.006);
            assert_eq!(missed.len(), 1, "{side:?} {missed:?}");
        }
        let said = "redis, 1/2: 1.35 times, at most 1.20 (1.35 against 1.00 s)";
        assert_eq!(misses(ZRAM, 1.35), [said]);
    }

    #[test]
    fn phases_have_bounds_of_their_own() {
        let misses = |workload, side| compared(workload, side, run(1.0), run(0.8)).misses();
        assert_eq!(
            misses(Workload::Touch, ZRAM),
            [
                "touch, 1/2, seq1: 0.80 times, at most 0.50 (0.80 against 1.00 us a page)",
                "touch, 1/2, seq2: 0.80 times, at most 0.50 (0.80 against 1.00 us a page)",
            ]
        );
        assert!(misses(Workload::TouchThreads, ZRAM).is_empty());
        assert!(misses(Workload::Touch, ZSWAP).is_empty());
        assert!(misses(Workload::Touch, Side::Plain).is_empty());
    }

    #[test]
    fn rows_say_what_is_allowed() {
        let both = |workload| compared(workload, ZRAM, run(1.0), run(0.8));
        let row = both(Workload::TouchThreads).row();
        let shown = ["64", "zram", "1.00", "0.80", "0.80", "1.20", "same", "1"];
        assert_eq!(row[1..], shown);
        let at_most = |workload| {
            both(workload)
                .phase_rows()
                .into_iter()
                .map(|row| row[5].clone())
        };
        let of: Vec<_> = at_most(Workload::Touch).collect();
        assert_eq!(of, ["1.20", "0.50", "0.50", "1.20"]);
        let of: Vec<_> = at_most(Workload::TouchThreads).collect();
        assert_eq!(of, ["-"; 4]);
        assert!(both(Workload::Redis).phase_rows().is_empty());
    }

    #[test]
    fn a_run_that_is_killed_or_prints_something_else_misses() {
        let misses = |other, ebb| compared(Workload::Redis, ZRAM, other, ebb).misses();
        assert_eq!(
            misses(run(1.0), killed()),
            ["redis, 1/2: killed for memory"]
        );
        let wrong = Outcome {
            stdout: b"41\n".to_vec(),
            ..run(1.0)
        };
        assert_eq!(
            misses(run(1.0), wrong),
            ["redis, 1/2: printed something else"]
        );
        // A row that the kernel does not finish cannot be slower.
        assert!(misses(killed(), run(9.0)).is_empty());
    }

    #[test]
    fn a_side_with_a_run_that_did_not_finish_has_no_time() {
        let row = compared(Workload::Redis, ZRAM, killed(), run(9.0)).row();
        assert_eq!(row[3..6], ["killed for memory", "9.00", "-"]);
    }
}
