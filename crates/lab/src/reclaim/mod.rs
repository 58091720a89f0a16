//! Which policy of reclaim has the fewest faults: touches of a real program, recorded once, and replayed with each.
//!
//! A process that runs under `ebb run` in a small budget, with `EBB_RECORD`, writes the pages that come into its memory
//! in their order. Each policy then gets these touches in a memory of part of its pages. The pager's own is one of them:
//! the reclaim queue, and pages that wait before they are stored. Belady's policy, which knows the future, is the limit for all.
//!
//! The table leaves out the cost of a fault, the pool, and pages that come along with others. And touches within
//! the span for which a page stayed when they were recorded are hidden. That wrongs policies that see touches: on touches
//! at random, LRU seems to have a fifth more faults than others where half of the pages stayed. The span is measured, and
//! a note tells where it is long.

pub mod policies;
pub mod trace;

use crate::support::report::Report;
use ebb_pager::Replay;
use policies::{KNOWN, Policy, best};
use serde_json::{Value, json};
use trace::Trace;

/// One line for the list of experiments.
pub const ABOUT: &str = "reclaim: faults of each policy of reclaim on touches of a real program";

/// Shares of the touched pages that fit in memory, in percent.
const SHARES: [usize; 4] = [40, 50, 60, 75];

const COLUMNS: [&str; 7] = [
    "policy",
    "sees_touches",
    "faults_40",
    "faults_50",
    "faults_60",
    "faults_75",
    "of_ebb_50",
];

/// The faults of each policy on a trace, first touches left out.
#[must_use]
pub fn run(trace: &Trace) -> Report {
    let replays = SHARES.map(|share| replay(trace, share_of(trace, share)));
    let ours = replays.map(|(loads, _)| loads);
    let mut report = Report::new(&COLUMNS);
    let mut add = |name: &str, sees: Value, faults: [usize; 4]| {
        let mut values = vec![json!(name), sees];
        values.extend(faults.map(Value::from));
        values.push(json!(
            (faults[1] as f64 / ours[1].max(1) as f64 * 100.0).round() / 100.0
        ));
        report.row(values);
    };
    add("ebb", json!(false), ours);
    for known in KNOWN {
        let counts = row(trace, |capacity| {
            faults(trace, (known.new)(trace.pages, capacity))
        });
        add(known.name, json!(known.sees_touches), counts);
    }
    let least = row(trace, |capacity| {
        best(&trace.touches, trace.pages, capacity) - trace.touched
    });
    add("best possible", Value::Null, least);
    report.note(format!(
        "{} touches of {} pages. faults_50: pages that came back, in a memory of 50% of these pages; of_ebb_50: beside ebb's.",
        trace.touches.len(),
        trace.touched
    ));
    let half = replays[1].1;
    report.note(format!(
        "ebb: {half} touches at 50% were of pages that waited to be stored; such a touch costs a remap, and no load."
    ));
    let hidden = trace.hidden * 100 / trace.touched.max(1);
    if hidden > COARSE {
        report.note(format!(
            "A page that is touched twice within {hidden}% of the pages is on record once. In memories that are not several \
             times as large this wrongs policies that see touches: record in a smaller budget."
        ));
    }
    report
}

/// A count for each share of memory.
fn row(trace: &Trace, count: impl Fn(usize) -> usize) -> [usize; 4] {
    SHARES.map(|share| count(share_of(trace, share)))
}

/// Pages of a memory in which so many percent of the touched ones fit.
fn share_of(trace: &Trace, percent: usize) -> usize {
    (trace.touched * percent / 100).max(SMALLEST)
}

/// The pager's own policy: loads of pages that were there before, and touches of pages that wait to be stored.
fn replay(trace: &Trace, capacity: usize) -> (usize, usize) {
    let mut ours = Replay::new(capacity);
    let all = trace
        .touches
        .iter()
        .filter(|page| ours.touch(**page as usize));
    let loads = all.count() - trace.touched;
    ours.check();
    (loads, ours.remapped())
}

/// Percent of the pages within which touches may be hidden, for the smallest memory in the table.
const COARSE: usize = 15;
/// Pages of the smallest memory.
const SMALLEST: usize = 16;

/// Faults on pages that were there before.
fn faults(trace: &Trace, mut policy: Box<dyn Policy>) -> usize {
    let all = trace.touches.iter().filter(|page| policy.touch(**page));
    let count = all.count() - trace.touched;
    policy.check();
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    /// Pages that are touched in turn, and some that are touched at random all the time.
    fn mixed() -> Trace {
        let mut random = Random::new(3);
        let numbers = (0..60_000).map(|step| match step % 3 {
            0 => 10_000 + step / 3 % 3000,
            _ => random.below(1000) as u64,
        });
        Trace::of(&numbers.collect::<Vec<_>>())
    }

    #[test]
    fn the_table_has_the_queue_each_policy_and_the_limit() {
        let trace = mixed();
        let report = run(&trace);
        let rows: Vec<_> = report.rows().collect();
        assert_eq!(rows.len(), KNOWN.len() + 2);
        let faults = |row: &serde_json::Map<String, Value>| row["faults_50"].as_u64().unwrap();
        let least = faults(rows.last().unwrap());
        assert!(least > 0, "it does not fit");
        assert!(rows.iter().all(|row| faults(row) >= least));
        assert_eq!(rows[0]["of_ebb_50"], json!(1.0));
        // A stream past a hot set: a queue alone loses the set.
        let of = |name: &str| faults(rows.iter().find(|row| row["policy"] == name).unwrap());
        assert!(of("ebb") < of("fifo"), "{}", report.text());
    }
}
