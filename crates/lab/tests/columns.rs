//! The names of the columns of `--json`, which other programs read: they stay.

use ebb_harness::MIB;
use ebb_lab::allocator::{mthp, tail};
use ebb_lab::devices::numa;
use ebb_lab::{Report, shrinker, threads, vswap};
use std::time::Duration;

/// That every line of `--json` has these names, in this order; others may stand between.
fn names(report: &Report, expected: &[&str]) {
    let json = report.json();
    assert!(!json.is_empty());
    for line in json.lines() {
        let mut rest = line;
        for name in expected {
            let name = format!("\"{name}\":");
            let at = rest.find(&name);
            rest = &rest[at.unwrap_or_else(|| panic!("no {name} in its place in {line}"))..];
        }
    }
}

#[test]
fn the_columns_of_mthp() {
    let columns = [
        "allocator",
        "mode",
        "iterations",
        "swpout",
        "fallback",
        "overall_percent",
        "worst_percent",
    ];
    let options = mthp::Options {
        iterations: 1,
        ..mthp::Options::default()
    };
    names(&mthp::run(&options), &columns);
    let row = mthp::real::Row {
        mode: "-a",
        stored: vec![mthp::real::Stored::default(); 2],
    };
    names(&mthp::real::report(&[row]), &columns);
}

#[test]
fn the_columns_of_numa() {
    let options = numa::Options {
        pages: 2000,
        ..numa::Options::default()
    };
    names(
        &numa::run(&options),
        &["case", "tasks", "policy", "kb_per_s"],
    );
}

#[test]
fn the_columns_of_threads() {
    let report = threads::run(&threads::Options {
        threads: vec![1, 2],
        us: 1000.0,
        ..threads::Options::default()
    });
    let columns = ["threads", "way", "kfaults_s", "of_one"];
    names(&report, &columns);
}

#[test]
fn the_columns_of_tail() {
    let report = tail::run(&tail::Options {
        slots: 1 << 14,
        duration: Duration::from_millis(20),
        rounds: 1,
        ..tail::Options::default()
    });
    let columns = [
        "free",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "max_ns",
        "over_100us_percent",
        "ops_per_s",
    ];
    names(&report, &columns);
}

#[test]
fn the_columns_of_vswap() {
    let options = vswap::Options {
        gib: 1,
        threads: 1,
        pages: 1 << 10,
        rounds: 1,
    };
    let here = |backend, gib| Ok::<_, ()>(vswap::measure(backend, gib, || ()));
    let report = vswap::run(&options, here).expect("it cannot fail here");
    let columns = ["use_percent", "backend", "bytes_per_page", "mib_for_32gib"];
    names(&report, &columns);
}

#[test]
fn the_columns_of_shrinker() {
    let report = shrinker::run(&shrinker::Options {
        scale: 16,
        accesses: 20_000,
        ..shrinker::Options::default()
    });
    let columns = [
        "policy",
        "elapsed_s",
        "pswpin",
        "pswpout",
        "zswpin",
        "zswpout",
        "zswpwb",
        "pool_limit_hit",
        "rejected",
        "inverted_percent",
    ];
    names(&report, &columns);
    names(&report, &["benchmark", "across_inverted_percent"]);
    let row = shrinker::real::Row {
        bench: "active",
        policy: "ebb".into(),
        total: 64 * MIB,
        elapsed: Ok(1.0),
        counts: [Some(1); 7],
        inverted_percent: None,
        left_inverted_percent: Some(0.5),
        across_inverted_percent: Some(0.5),
    };
    let report = shrinker::real::report(&[row]);
    names(&report, &columns);
    let own = [
        "benchmark",
        "policy",
        "total_mib",
        "elapsed_s",
        "left_inverted_percent",
        "across_inverted_percent",
    ];
    names(&report, &own);
}
