//! The time that a program would have taken with more memory than it had.
//!
//! ```text
//! time(budget) = time - lost * spared(budget - had) / waited
//! lost         = time in which a thread waited, and 2 us of the kernel's for each fault
//! ```
//! `spared(more)` is the sum of the waits for pages that came back and would have been kept by so much more memory
//! (Mattson's stack distance; `ebb_tree`, refaults). Distances are a guess: true ones lie between 2/3 and 3/2 of them.
//! So `least` and `most` are the times for that much more or less memory, and a tenth further.

use ebb_engine::PAGE_SIZE;
use ebb_stores::human;
use ebb_tree::{StatsShown, start_threshold};
use std::time::Duration;

/// A budget, and the time with it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// The budget.
    pub bytes: u64,
    /// The time that the program would take.
    pub time: Duration,
    /// The least that it may be.
    pub least: Duration,
    /// The most.
    pub most: Duration,
    /// The part of it that the program waits for pages.
    pub waited: Duration,
    /// Flag: nothing would be paged.
    pub fits: bool,
}

/// The kernel's part of a fault: it is not in the waits that service measures.
const OVERHEAD_NS: f64 = 2000.0;
const MIB: u64 = 1 << 20;
/// Rows beside the first.
const STEPS: u64 = 6;

/// The budget in which so much memory is never paged.
pub fn without_paging(had: u64) -> u64 {
    let step = MIB / PAGE_SIZE as u64;
    let pages = had.div_ceil(PAGE_SIZE as u64);
    let fits = |budget: &u64| start_threshold(*budget as i64) > pages as i64;
    let budgets = (pages / step * step..).step_by(step as usize);
    budgets.into_iter().find(fits).unwrap_or(pages) * PAGE_SIZE as u64
}

/// The waits that more memory would have spared: known at some points, and straight between them.
fn spared(stats: &StatsShown, more: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for point in &stats.more {
        let this = (point.bytes as f64, point.spared_ns as f64);
        if more < this.0 {
            return before.1 + (this.1 - before.1) * (more - before.0) / (this.0 - before.0);
        }
        before = this;
    }
    before.1
}

/// The budget that the tree had, which took the time `ran`, and larger ones up to where everything fits.
pub fn rows(stats: &StatsShown, ran: Duration) -> Vec<Row> {
    let fitting = without_paging(stats.peak_had_bytes);
    let had = stats.budget_bytes;
    if !stats.paged {
        return vec![measured(ran, had.min(fitting), Duration::ZERO)];
    }
    let some = Duration::from_nanos(stats.some_ns).min(ran);
    let mut rows = vec![measured(ran, had, some)];
    if fitting > had {
        let guess = Guess::of(stats, ran);
        let step = (fitting - had) / STEPS;
        rows.extend((1..STEPS).map(|i| guess.row(round(had + i * step))));
        rows.retain(|row| row.bytes < fitting);
        rows.push(guess.fitting(fitting));
    }
    rows.dedup_by_key(|row| human(row.bytes));
    rows
}

fn measured(ran: Duration, bytes: u64, waited: Duration) -> Row {
    Row {
        bytes,
        time: ran,
        least: ran,
        most: ran,
        waited,
        fits: waited.is_zero(),
    }
}

/// To what people write.
fn round(bytes: u64) -> u64 {
    let step = (bytes.next_power_of_two() / 64).max(MIB);
    bytes.next_multiple_of(step)
}

/// The equation of the module, with one tree's figures. In seconds.
struct Guess<'a> {
    stats: &'a StatsShown,
    ran: f64,
    some: f64,
    lost: f64,
    waited_ns: f64,
}

impl<'a> Guess<'a> {
    fn of(stats: &'a StatsShown, ran: Duration) -> Self {
        let ran = ran.as_secs_f64();
        let waited_ns = stats.waited_ns().max(1) as f64;
        let faults: u64 = stats.fault_latency.values().map(|way| way.count).sum();
        let some = (stats.some_ns as f64 / 1e9).min(ran);
        let kernel = OVERHEAD_NS * faults as f64 / waited_ns;
        Self {
            stats,
            ran,
            some,
            lost: (some * (1.0 + kernel)).min(ran),
            waited_ns,
        }
    }

    /// The part of the waits that so much more memory spares.
    fn part(&self, more: f64) -> f64 {
        (spared(self.stats, more) / self.waited_ns).min(1.0)
    }

    fn time(&self, part: f64) -> Duration {
        Duration::from_secs_f64((self.ran - self.lost * part).max(0.0))
    }

    fn waited(&self, part: f64) -> Duration {
        Duration::from_secs_f64(self.some * (1.0 - part))
    }

    fn row(&self, bytes: u64) -> Row {
        let more = bytes.saturating_sub(self.stats.budget_bytes) as f64;
        let part = self.part(more);
        Row {
            bytes,
            time: self.time(part),
            least: self.time(self.part(more * 1.5)).mul_f64(0.9),
            most: self.time(self.part(more / 1.5)).mul_f64(1.1),
            waited: self.waited(part),
            fits: false,
        }
    }

    /// Where nothing is paged, no wait is left, and none of the work for it.
    fn fitting(&self, bytes: u64) -> Row {
        Row {
            time: self.time(1.0),
            least: self.time(1.0).mul_f64(0.7),
            waited: Duration::ZERO,
            fits: true,
            ..self.row(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_tree::{FaultsShown, MoreShown};

    fn stats(paged: bool, more: &[(u64, u64)]) -> StatsShown {
        let pool = FaultsShown {
            count: 1_000_000,
            sum_ns: 8_000_000_000,
            ..FaultsShown::default()
        };
        let more = more.iter().map(|&(mib, ns)| MoreShown {
            bytes: mib << 20,
            spared_ns: ns,
        });
        StatsShown {
            budget_bytes: 200 << 20,
            peak_had_bytes: 400 << 20,
            paged,
            some_ns: 8_000_000_000,
            more: more.collect(),
            fault_latency: [("pool".to_owned(), pool)].into(),
            ..StatsShown::default()
        }
    }

    #[test]
    fn time_falls_from_what_it_was_to_that_without_waits() {
        let stats = stats(true, &[(50, 2_000_000_000), (150, 8_000_000_000)]);
        let ran = Duration::from_secs(30);
        let rows = rows(&stats, ran);
        assert_eq!((rows[0].bytes, rows[0].time), (200 << 20, ran));
        assert_eq!((rows[0].least, rows[0].most), (ran, ran), "it was measured");
        // 8 s of waits, and 2 us for each of a million faults.
        let last = rows.last().unwrap();
        assert_eq!(last.time.as_secs_f64().round(), 20.0);
        assert!(last.fits && last.waited.is_zero() && last.bytes == without_paging(400 << 20));
        for pair in rows.windows(2) {
            assert!(
                pair[0].bytes < pair[1].bytes && pair[0].time >= pair[1].time,
                "{pair:?}"
            );
        }
        for row in &rows {
            assert!(row.least <= row.time && row.time <= row.most, "{row:?}");
        }
        // Half way to the first point.
        let quarter = Guess::of(&stats, ran).row(225 << 20);
        assert!(
            (quarter.time.as_secs_f64() - (30.0 - 10.0 / 8.0)).abs() < 0.01,
            "{quarter:?}"
        );
    }

    #[test]
    fn what_was_not_paged_has_one_row() {
        let rows = rows(&stats(false, &[]), Duration::from_secs(3));
        assert_eq!(rows.len(), 1);
        assert!(
            rows[0].fits && rows[0].time == Duration::from_secs(3),
            "{rows:?}"
        );
    }

    #[test]
    fn the_budget_without_paging_is_the_least() {
        let pages = |bytes: u64| (bytes / PAGE_SIZE as u64) as i64;
        for had in [1, 30, 100, 500, 5000].map(|mib| mib * MIB) {
            let budget = without_paging(had);
            assert!(start_threshold(pages(budget)) > pages(had), "{had}");
            assert!(start_threshold(pages(budget - MIB)) <= pages(had), "{had}");
        }
    }
}
