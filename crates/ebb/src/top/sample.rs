//! The figures of a tree at a time, and what two of them tell: rates.
//!
//! A recording is one JSON object a line, as `--once --json` prints it.

use anyhow::{Context, Result, bail};
use ebb_engine::PAGE_SIZE;
use ebb_tree::{FaultsShown, StatsShown};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::Path;

/// The figures of a tree at a time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of `ebb top`.
    pub seconds: f64,
    /// The supervisor's number.
    pub pid: u32,
    /// The figures.
    pub stats: StatsShown,
}

/// Change between two samples, for each second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rates {
    /// Faults by way: zero, cache, pool, device.
    pub faults: [f64; 4],
    /// Threads that waited for a page, on average.
    pub waiting: f64,
    /// Share of time in which threads waited, some and all.
    pub some: f64,
    pub full: f64,
    /// Bytes read from and written to devices.
    pub read: f64,
    pub written: f64,
}

/// The ways, in the order of [`Rates::faults`].
pub const WAYS: [&str; 4] = ["zero", "cache", "pool", "device"];

impl Rates {
    /// Of the whole tree.
    pub fn of_tree(before: &Sample, now: &Sample) -> Self {
        let Some(seconds) = elapsed(before, now) else {
            return Self::default();
        };
        let (before, now) = (&before.stats, &now.stats);
        let pages =
            |name| now.counter(name).saturating_sub(before.counter(name)) as f64 * PAGE_SIZE as f64;
        let change = |way, of: fn(FaultsShown) -> u64| {
            of(now.faults(way)).saturating_sub(of(before.faults(way)))
        };
        let waited: u64 = WAYS.iter().map(|way| change(way, |f| f.sum_ns)).sum();
        Self {
            faults: WAYS.map(|way| change(way, |f| f.count) as f64 / seconds),
            waiting: share(waited, 0, seconds),
            some: share(now.some_ns, before.some_ns, seconds),
            full: share(now.full_ns, before.full_ns, seconds),
            read: pages("pswpin") / seconds,
            written: pages("pswpout") / seconds,
        }
    }

    /// Of a process.
    pub fn of_member(before: &Sample, now: &Sample, pid: u32) -> Self {
        let find = |sample: &Sample| sample.stats.members.iter().find(|m| m.pid == pid).cloned();
        let (Some(seconds), Some(old), Some(new)) = (elapsed(before, now), find(before), find(now))
        else {
            return Self::default();
        };
        let count = |faults: &std::collections::BTreeMap<String, u64>, way| {
            faults.get(way).copied().unwrap_or(0)
        };
        let change = |way| count(&new.faults, way).saturating_sub(count(&old.faults, way));
        Self {
            faults: WAYS.map(|way| change(way) as f64 / seconds),
            waiting: share(new.waited_ns, old.waited_ns, seconds),
            some: share(new.some_ns, old.some_ns, seconds),
            full: share(new.full_ns, old.full_ns, seconds),
            ..Self::default()
        }
    }
}

/// The share of so many seconds that a sum of nanoseconds rose by.
fn share(new: u64, old: u64, seconds: f64) -> f64 {
    new.saturating_sub(old) as f64 / 1e9 / seconds
}

fn elapsed(before: &Sample, now: &Sample) -> Option<f64> {
    Some(now.seconds - before.seconds).filter(|seconds| *seconds > 0.0)
}

/// Adds a sample to a recording, by one write: whatever ends this process leaves no half of a line.
///
/// # Errors
/// The file cannot be written.
pub fn record(out: &mut impl Write, sample: &Sample) -> Result<()> {
    let mut line = serde_json::to_vec(sample)?;
    line.push(b'\n');
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// Reads a recording.
///
/// # Errors
/// It is damaged, or holds no sample; with the line.
pub fn read(path: &Path) -> Result<Vec<Sample>> {
    let shown = path.display();
    let file = std::fs::File::open(path)
        .with_context(|| format!("{shown}: give a file that `ebb top --record` has written"))?;
    let mut samples: Vec<Sample> = Vec::new();
    for (number, line) in std::io::BufReader::new(file).lines().enumerate() {
        let number = number + 1;
        let damaged =
            || format!("{shown} is damaged in line {number}: remove the lines from there on");
        let sample: Sample =
            serde_json::from_str(&line.with_context(damaged)?).with_context(damaged)?;
        if samples
            .last()
            .is_some_and(|last| last.seconds > sample.seconds)
        {
            bail!(
                "{shown} is damaged in line {number}: it is older than the line before: record again"
            );
        }
        samples.push(sample);
    }
    if samples.is_empty() {
        bail!("{shown} holds nothing: record again");
    }
    Ok(samples)
}
