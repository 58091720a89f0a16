//! Faults a second of 1 to 64 threads of one process, each on a processor of its own. They share a descriptor and a lock,
//! or each has its own (shards); pages leave one by one, or in batches with one flush. So the design can be judged for
//! machines that are not at hand.
//!
//! The costs are measured where there were two processors ([`MEASURED`]); from there on it is a model. Beside it stand
//! figures that KVM's developers published, of one userfaultfd and of delivery to the thread that faults.

pub mod model;

use crate::support::report::{Plot, Report, Series};
use model::{Costs, Model, Way};
use serde::Deserialize;
use serde_json::{Value, json};

/// One line for the list of experiments.
pub const ABOUT: &str = "faults of 1 to 64 threads: one lock and flushes, shards, batches; a model";

/// Two processors of an AMD EPYC in a virtual machine, Linux 6.18; half of the touches fault.
pub const MEASURED: Costs = Costs {
    // A fault of one thread takes 17.5 in all: see `a_thread_alone_is_as_measured`.
    program: 5.0,
    queue: 0.5,
    // KVM's figures fall from 4 readers to 16 by a quarter of a microsecond for each.
    herd: 0.25,
    // By the scheduler's trace: 30 to 37% of the wakes go to the other processor, and take 11, and 10 until it runs.
    astray: 0.33,
    wake_far: 21.0,
    service: 10.65,
    state: 1.35,
    // `bench/capture.c`: a move of one page, alone and with a thread on the other processor.
    flush: 7.4,
    // Not measured: the processors are asked together, and the last one that answers counts.
    flush_more: 0.5,
    // The loss of a thread that computes.
    interrupt: 5.0,
    moves: 0.75,
    batch: 32.0,
    batch_page: 1.9,
};

/// Thousands of faults a second by threads, with one descriptor and delivered to the thread: linux-mm, 9 November 2023.
const PUBLISHED: [(usize, u64, u64); 3] = [(1, 150, 340), (4, 210, 809), (16, 130, 1595)];

const WAYS: [(&str, Way); 4] = [
    ("one descriptor, one lock", way(false, false)),
    ("the same, batches", way(false, true)),
    ("shards", way(true, false)),
    ("shards, batches", way(true, true)),
];

const fn way(shards: bool, batches: bool) -> Way {
    Way { shards, batches }
}

impl Default for Costs {
    fn default() -> Self {
        MEASURED
    }
}

/// Parameters of the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// The costs.
    pub costs: Costs,
    /// Simulated microseconds.
    pub us: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: vec![1, 2, 4, 8, 16, 32, 64],
            costs: MEASURED,
            us: 200_000.0,
            seed: 1,
        }
    }
}

/// Runs the experiment.
#[must_use]
pub fn run(options: &Options) -> Report {
    let columns = [
        "threads",
        "way",
        "kfaults_s",
        "of_one",
        "descriptor_%",
        "lock_%",
        "flushes_%",
    ];
    let mut report = Report::new(&columns);
    let mut plot = Plot {
        title: "Faults of one process (model)".into(),
        x: "threads, each on a processor".into(),
        y: "thousand faults a second".into(),
        series: Vec::new(),
    };
    for (name, way) in WAYS {
        let served =
            |threads| Model::new(options.costs, way, threads, options.seed).run(options.us);
        let one = served(1).faults;
        let mut points = Vec::new();
        for &threads in &options.threads {
            let outcome = served(threads);
            let percent = |share: f64| json!((share * 100.0).round());
            report.row(vec![
                json!(threads),
                json!(name),
                json!((outcome.faults / 1e3).round()),
                Value::from((outcome.faults / one * 100.0).round() / 100.0),
                percent(outcome.queue_held),
                percent(outcome.state_held),
                percent(outcome.flushing),
            ]);
            points.push((threads as f64, outcome.faults / 1e3));
        }
        plot.series.push(Series {
            name: name.into(),
            points,
        });
    }
    for (threads, one, direct) in PUBLISHED {
        report.note(format!(
            "published by KVM's developers, {threads} threads: {one} thousand with one userfaultfd, {direct} without"
        ));
    }
    report.note("descriptor_%, lock_%: the share of the time in which it is held; flushes_%: of the processors' time");
    report.set_plot(plot);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(threads: usize, way: Way) -> f64 {
        Model::new(MEASURED, way, threads, 7).run(200_000.0).faults
    }

    /// 57 to 60 thousand faults a second were measured.
    #[test]
    fn a_thread_alone_is_as_measured() {
        let one = faults(1, way(false, false));
        assert!((55e3..61e3).contains(&one), "{one}");
    }

    /// Two threads on two processors were measured at 0.75 to 0.95 of one, and two processes at twice as much.
    #[test]
    fn two_threads_gain_nothing_where_each_page_is_moved_alone() {
        let now = way(false, false);
        let times = faults(2, now) / faults(1, now);
        assert!((0.75..1.15).contains(&times), "{times}");
    }

    #[test]
    fn batches_and_shards_scale_and_neither_does_alone() {
        let of_one = |threads, way| faults(threads, way) / faults(1, way);
        assert!(
            of_one(2, way(false, true)) > 1.3,
            "one flush for many pages is enough for two"
        );
        assert!(
            of_one(64, way(true, false)) < 8.0,
            "each flush stops all others"
        );
        assert!(
            of_one(64, way(false, true)) < 16.0,
            "one lock, one descriptor"
        );
        assert!(of_one(64, way(true, true)) > 24.0);
    }

    #[test]
    fn with_nothing_shared_it_is_linear() {
        let costs = Costs {
            moves: 0.0,
            ..MEASURED
        };
        let served = |threads| {
            Model::new(costs, way(true, false), threads, 7)
                .run(200_000.0)
                .faults
        };
        let times = served(64) / served(1);
        assert!((62.0..66.0).contains(&times), "{times}");
    }
}
