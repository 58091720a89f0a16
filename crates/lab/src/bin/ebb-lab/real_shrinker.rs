//! `ebb lab shrinker --real`: the benchmarks of [`ebb_lab::shrinker::real`] through `ebb run`, and
//! under the kernel's own swap where this machine lets us turn it on.
//!
//! The kernel goes first: a cgroup of [`LIMIT`] holds the programs, the rest goes to a swap file, behind
//! zswap or not. Version 1 charges zswap's pool to no cgroup. So the pool's measured peak is added, and
//! `ebb run` gets that much memory. Where the kernel cannot be asked, the reason stands in the notes.

use crate::{ebb, own};
use anyhow::{Context, Result};
use ebb_harness::MIB;
use ebb_harness::cgroup::{Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::kernel_swap::{SwapFile, vmstat, zswap_fact};
use ebb_lab::Report;
use ebb_lab::shrinker::real::{
    self, ACROSS_INVERTED, BENCHES, ELAPSED, INVERTED, LEFT_INVERTED, Row,
};
use std::path::Path;
use std::time::Duration;

/// Bytes that the kernel's cgroup holds.
const LIMIT: u64 = 48 * MIB;
/// Bytes of its swap file.
const SWAP: u64 = 512 * MIB;
/// A pool that does not hold what is out.
const SMALL: u64 = 12 * MIB;
/// After this a run is ended.
const PATIENCE: Duration = Duration::from_secs(300);
/// The kernel's names of what the rows count, but for the last two.
const VMSTAT: [&str; 5] = ["pswpin", "pswpout", "zswpin", "zswpout", "zswpwb"];
/// zswap's counters of refused stores.
const REJECTED: [&str; 4] = [
    "reject_compress_fail",
    "reject_alloc_fail",
    "reject_reclaim_fail",
    "reject_compress_poor",
];

/// Runs the benchmarks under every policy that can be had here.
///
/// # Errors
/// `ebb run` cannot be started, or fails.
pub fn run() -> Result<Report> {
    let (own, ebb) = (own()?, ebb()?);
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for bench in BENCHES {
        let mut total = LIMIT;
        for zswap in [false, true] {
            match kernel(&own, bench, zswap) {
                Ok(row) => {
                    total = total.max(row.total);
                    rows.push(row);
                }
                Err(why) => missing.push(format!("{why:#}")),
            }
        }
        for (pool, max) in [("none", None), ("lz4", None), ("lz4", Some(SMALL))] {
            rows.push(ours(&own, &ebb, bench, pool, max, total)?);
        }
    }
    let mut report = real::report(&rows);
    missing.dedup();
    for why in missing {
        report.note(format!("the kernel's side is missing: {why}"));
    }
    Ok(report)
}

fn job(own: &Path, bench: &str) -> Job {
    Job::new([
        own.as_os_str(),
        "shrinker".as_ref(),
        "--work".as_ref(),
        bench.as_ref(),
    ])
    .time_limit(PATIENCE)
}

/// The number on the program's line that begins so.
fn told(outcome: &Outcome, what: &str) -> Option<f64> {
    let text = String::from_utf8_lossy(&outcome.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|line| line.parse().ok())
}

fn elapsed(outcome: &Outcome) -> Result<f64, String> {
    match told(outcome, ELAPSED) {
        Some(seconds) if outcome.ok() => Ok(seconds),
        _ => Err(outcome.ending()),
    }
}

fn kernel(own: &Path, bench: &'static str, zswap: bool) -> Result<Row> {
    let swap = SwapFile::on(SWAP, zswap)?;
    let group = Cgroup::new(LIMIT, KernelSwap::Allowed)?;
    let facts = || -> [Option<u64>; 7] {
        let rejected = || {
            REJECTED
                .iter()
                .map(|name| zswap_fact(name))
                .sum::<Option<u64>>()
        };
        std::array::from_fn(|i| match i {
            _ if i < VMSTAT.len() => vmstat(VMSTAT[i]),
            5 => zswap_fact("pool_limit_hit"),
            _ => rejected(),
        })
    };
    let before = facts();
    let outcome = job(own, bench).run(Some(&group))?;
    let after = facts();
    Ok(Row {
        bench,
        policy: if zswap { "kernel zswap" } else { "kernel file" }.into(),
        total: LIMIT + swap.peak(),
        elapsed: elapsed(&outcome),
        counts: std::array::from_fn(|i| Some(after[i]?.saturating_sub(before[i]?))),
        inverted_percent: told(&outcome, INVERTED),
        left_inverted_percent: told(&outcome, LEFT_INVERTED),
        across_inverted_percent: told(&outcome, ACROSS_INVERTED),
    })
}

fn ours(
    own: &Path,
    ebb: &Path,
    bench: &'static str,
    pool: &str,
    max: Option<u64>,
    total: u64,
) -> Result<Row> {
    let stats = std::env::temp_dir().join(format!("ebb-shrinker-{}.json", std::process::id()));
    let outcome = job(own, bench)
        .behind([
            ebb.as_os_str(),
            "run".as_ref(),
            "--memory".as_ref(),
            total.to_string().as_ref(),
            "--swap".as_ref(),
            "/var/tmp".as_ref(),
            "--pool".as_ref(),
            pool.as_ref(),
            "--pool-max".as_ref(),
            max.map_or("none".into(), |max| max.to_string()).as_ref(),
            "--stats".as_ref(),
            stats.as_os_str(),
            "--".as_ref(),
        ])
        .run(None)?;
    let text = std::fs::read_to_string(&stats);
    let _ = std::fs::remove_file(&stats);
    let stats: serde_json::Value = serde_json::from_str(
        &text.with_context(|| format!("no statistics were written: {}", outcome.stderr))?,
    )?;
    let counter = |name: &str| stats["counters"][name].as_u64();
    Ok(Row {
        bench,
        policy: match max {
            None => format!("ebb, pool {pool}"),
            Some(max) => format!("ebb, pool {pool}, {} MiB", max / MIB),
        },
        total,
        elapsed: elapsed(&outcome),
        counts: std::array::from_fn(|i| match i {
            _ if i < VMSTAT.len() => counter(VMSTAT[i]),
            5 => counter("pool_limit_hit"),
            _ => counter("reject_pool"),
        }),
        inverted_percent: told(&outcome, INVERTED),
        left_inverted_percent: told(&outcome, LEFT_INVERTED),
        across_inverted_percent: told(&outcome, ACROSS_INVERTED),
    })
}
