//! The time that a program would have taken with more memory than it had.
//!
//! ```text
//! time(budget) = time - lost * (spared(frames) + others(budget)) / waited
//! lost         = factor * time in which a thread waited
//! frames       = (budget - had) * ratio / (ratio - 1)
//! ```
//! `factor` is what a program loses for each second of its waits, on this machine as it is (`cost`). `spared` is the sum
//! of the waits for pages that came back and would have been kept by so many frames more (Mattson's stack distance;
//! `ebb_tree`, refaults). A page that stays also spares the pool its compressed copy: `ratio` is the pool's. `others` are
//! the waits for memory never touched before, which takes room from other pages: they fall evenly with the memory that
//! does not fit.
//!
//! Distances are a guess: true ones lie between half and 3/2 of them. Where memory is tight a wait takes longer, too,
//! which the guess does not know, and the pool need not give up the room that it is spared. So `least` is the time for
//! twice as many frames, with all of `factor`. `most` is the time for 2/3 of the frames that the budget itself adds,
//! without `factor`. Both are a tenth further. The guess between takes half of what `factor` adds.

use crate::setup::SMALLEST;
use ebb_engine::PAGE_SIZE;
use ebb_stores::{human, human_at_least};
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

impl Row {
    /// The budget for people: they give what they read, so one in which all fits is rounded up.
    pub fn budget(&self) -> String {
        match self.fits {
            true => human_at_least(self.bytes),
            false => human(self.bytes),
        }
    }
}

/// From the end of a bucket of distances to its middle.
const BUCKET: f64 = 1.1;
/// The most of its time that a program waits: the guess does not see its work.
const MOST_LOST: f64 = 0.95;
/// The least ratio of a pool: pages that hardly compress are not kept in it for long.
const LEAST_RATIO: f64 = 1.5;
const MIB: u64 = 1 << 20;
/// Rows beside the first.
const STEPS: u64 = 6;

/// The budget in which so much memory is never paged: one that `ebb run` takes.
pub fn without_paging(had: u64) -> u64 {
    let step = MIB / PAGE_SIZE as u64;
    let pages = had.div_ceil(PAGE_SIZE as u64);
    let fits = |budget: &u64| start_threshold(*budget as i64) > pages as i64;
    let budgets = (pages / step * step..).step_by(step as usize);
    let fitting = budgets.into_iter().find(fits).unwrap_or(pages) * PAGE_SIZE as u64;
    fitting.max(SMALLEST)
}

/// The waits that more memory would have spared: known at some points, and straight between them.
fn spared(stats: &StatsShown, more: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for point in &stats.more {
        let this = (point.bytes as f64 / BUCKET, point.spared_ns as f64);
        if more < this.0 {
            return before.1 + (this.1 - before.1) * (more - before.0) / (this.0 - before.0);
        }
        before = this;
    }
    before.1
}

/// Frames for each page of a larger budget.
fn gain(stats: &StatsShown) -> f64 {
    let bytes = stats.counter("zswpout") as f64 * PAGE_SIZE as f64;
    if stats.peak_pool_bytes == 0 || bytes == 0.0 {
        return 1.0;
    }
    let compressed = stats.counter("zswpout_bytes").max(1) as f64;
    let ratio = (bytes / compressed).max(LEAST_RATIO);
    ratio / (ratio - 1.0)
}

/// The budget that the tree had, which took the time `ran`, and larger ones up to where everything fits. `factor` is
/// what a program loses for each second of its waits.
pub fn rows(stats: &StatsShown, ran: Duration, factor: f64) -> Vec<Row> {
    let fitting = without_paging(stats.peak_had_bytes);
    let had = stats.budget_bytes;
    if !stats.paged {
        return vec![Row {
            fits: true,
            ..measured(ran, had.min(fitting), Duration::ZERO)
        }];
    }
    let some = Duration::from_nanos(stats.some_ns).min(ran);
    let mut rows = vec![measured(ran, had, some)];
    if fitting > had {
        let guess = Guess::of(stats, ran, factor);
        let step = (fitting - had) / STEPS;
        rows.extend((1..STEPS).map(|i| guess.row(round(had + i * step))));
        rows.retain(|row| row.bytes < fitting);
        // Guesses that read as the row before them. The last row is no guess: it stays.
        rows.dedup_by_key(|row| row.budget());
        rows.push(guess.fitting(fitting));
    }
    rows
}

fn measured(ran: Duration, bytes: u64, waited: Duration) -> Row {
    Row {
        bytes,
        time: ran,
        least: ran,
        most: ran,
        waited,
        fits: false,
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
    factor: f64,
    /// Nanoseconds of all waits.
    waited_ns: f64,
    /// Nanoseconds of the waits for pages that came back.
    refaults_ns: f64,
    /// Memory that does not fit.
    over: f64,
}

impl<'a> Guess<'a> {
    fn of(stats: &'a StatsShown, ran: Duration, factor: f64) -> Self {
        let ran = ran.as_secs_f64();
        let all = stats.more.last().map_or(0, |more| more.spared_ns) as f64;
        let fitting = without_paging(stats.peak_had_bytes);
        Self {
            stats,
            ran,
            some: (stats.some_ns as f64 / 1e9).min(ran),
            factor,
            waited_ns: (stats.waited_ns() as f64).max(all).max(1.0),
            refaults_ns: all,
            over: fitting.saturating_sub(stats.budget_bytes).max(1) as f64,
        }
    }

    /// The part of the waits that so much more memory spares, of which each page makes room for `gain` frames.
    fn part(&self, more: f64, gain: f64) -> f64 {
        let others = (self.waited_ns - self.refaults_ns) * (more / self.over).min(1.0);
        ((spared(self.stats, more * gain) + others) / self.waited_ns).min(1.0)
    }

    fn time(&self, part: f64, factor: f64) -> Duration {
        let lost = (self.some * factor).min(self.ran * MOST_LOST);
        Duration::from_secs_f64((self.ran - lost * part).max(0.0))
    }

    fn row_of(&self, bytes: u64, [least, part, most]: [f64; 3]) -> Row {
        Row {
            bytes,
            time: self.time(part, f64::midpoint(1.0, self.factor)),
            least: self.time(least, self.factor).mul_f64(0.9),
            most: self.time(most, 1.0).mul_f64(1.1),
            waited: Duration::from_secs_f64(self.some * (1.0 - part)),
            fits: false,
        }
    }

    fn row(&self, bytes: u64) -> Row {
        let more = bytes.saturating_sub(self.stats.budget_bytes) as f64;
        let gain = gain(self.stats);
        let frames = [(2.0, gain), (1.0, gain), (2.0 / 3.0, 1.0)];
        self.row_of(
            bytes,
            frames.map(|(part, gain)| self.part(more * part, gain)),
        )
    }

    /// Where nothing is paged, no wait is left.
    fn fitting(&self, bytes: u64) -> Row {
        Row {
            fits: true,
            ..self.row_of(bytes, [1.0; 3])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_stores::Size;
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
        let rows = rows(&stats, ran, 1.25);
        assert_eq!((rows[0].bytes, rows[0].time), (200 << 20, ran));
        assert!(!rows[0].fits, "it was paged, if for no time");
        assert_eq!((rows[0].least, rows[0].most), (ran, ran), "it was measured");
        // 8 s of waits cost 10, of which the guess takes 9.
        let last = rows.last().unwrap();
        assert_eq!(last.time.as_secs_f64().round(), 21.0);
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
        // Half way to the middle of the first bucket.
        let quarter = Guess::of(&stats, ran, 1.25).row((200 << 20) + (25 << 20) * 10 / 11);
        assert!(
            (quarter.time.as_secs_f64() - (30.0 - 9.0 / 8.0)).abs() < 0.01,
            "{quarter:?}"
        );
    }

    #[test]
    fn the_row_without_paging_stays_beside_a_guess_that_reads_alike() {
        let mut stats = stats(true, &[(150, 8_000_000_000)]);
        let ran = Duration::from_secs(30);
        for had in (1024..2048).map(|mib| mib << 20) {
            (stats.budget_bytes, stats.peak_had_bytes) = (had / 8 * 7, had);
            let rows = rows(&stats, ran, 1.25);
            let (first, last) = (rows[0], rows[rows.len() - 1]);
            assert_eq!((first.bytes, first.time), (had / 8 * 7, ran));
            assert_eq!((last.bytes, last.fits), (without_paging(had), true));
            let enough: Size = last.budget().parse().unwrap();
            assert!(enough.of(0) >= last.bytes, "{had}: {last:?}");
            let mut texts: Vec<_> = rows.iter().map(Row::budget).collect();
            texts.dedup();
            assert_eq!(texts.len(), rows.len(), "{had}");
        }
        // Cut, a guess of 1248 MiB and the row without paging would both read 1.2G.
        assert_eq!(human(without_paging(1126 << 20)), human(1248 << 20));
    }

    #[test]
    fn a_page_that_stays_spares_the_pool_its_copy() {
        let mut stats = stats(true, &[(150, 6_000_000_000)]);
        assert_eq!(gain(&stats), 1.0);
        stats.peak_pool_bytes = 1;
        stats.counters = [
            ("zswpout".into(), 1000),
            ("zswpout_bytes".into(), 1000 * 4096 / 3),
        ]
        .into();
        assert!((gain(&stats) - 1.5).abs() < 0.01);
        let waited = |stats: &StatsShown| {
            Guess::of(stats, Duration::from_secs(30), 1.0)
                .row(280 << 20)
                .waited
        };
        let with_pool = waited(&stats);
        stats.peak_pool_bytes = 0;
        assert!(with_pool < waited(&stats));
    }

    #[test]
    fn what_was_not_paged_has_one_row() {
        let rows = rows(&stats(false, &[]), Duration::from_secs(3), 2.0);
        assert_eq!(rows.len(), 1);
        assert!(
            rows[0].fits && rows[0].time == Duration::from_secs(3),
            "{rows:?}"
        );
    }

    #[test]
    fn no_budget_is_one_that_a_run_refuses() {
        let mut stats = stats(false, &[]);
        stats.peak_had_bytes = 4 << 20;
        assert_eq!(rows(&stats, Duration::from_secs(3), 2.0)[0].bytes, SMALLEST);
    }

    #[test]
    fn the_budget_without_paging_is_the_least() {
        let pages = |bytes: u64| (bytes / PAGE_SIZE as u64) as i64;
        assert_eq!(without_paging(MIB), SMALLEST);
        for had in [30, 100, 500, 5000].map(|mib| mib * MIB) {
            let budget = without_paging(had);
            assert!(start_threshold(pages(budget)) > pages(had), "{had}");
            assert!(start_threshold(pages(budget - MIB)) <= pages(had), "{had}");
        }
    }
}
