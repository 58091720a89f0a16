//! `ebb stats`: the figures of a running tree. The supervisor has them; this module asks, and shows them.

use crate::ask::stats_of;
use crate::cli::StatsArgs;
use crate::table::{self, Alignment};
use anyhow::{Result, bail};
use ebb_stores::human;
use ebb_tree::StatsShown;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// Asks for them and shows them.
///
/// # Errors
/// The process belongs to no tree.
pub fn stats(mut args: StatsArgs) -> Result<ExitCode> {
    let watch = args.watch.as_deref();
    let pace = watch.map(|text| pace("--watch", text)).transpose()?;
    let mut stats = stats_of(&mut args.pid)?;
    loop {
        let mut out = stdout().lock();
        if args.prometheus {
            write!(out, "{}", crate::metrics::text(stats)?)?;
        } else if args.json && pace.is_some() {
            // One line each time, for programs that read along.
            serde_json::to_writer(&mut out, &stats)?;
            writeln!(out)?;
        } else if args.json {
            serde_json::to_writer_pretty(&mut out, &stats)?;
            writeln!(out)?;
        } else {
            show(&mut out, &stats)?;
        }
        out.flush()?;
        let Some(pace) = pace else { break };
        std::thread::sleep(pace);
        // Its end is the end of the watch.
        match stats_of(&mut args.pid) {
            Ok(next) => stats = next,
            Err(_) => break,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A time as users write it after an option.
///
/// # Errors
/// It is no time, or too short.
pub fn pace(option: &str, text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        _ => 0.0,
    };
    let seconds = digits.parse::<f64>().unwrap_or(0.0) * unit;
    match Duration::try_from_secs_f64(seconds) {
        Ok(pace) if pace >= Duration::from_millis(10) => Ok(pace),
        _ => bail!("{option} {text}: give a time of 10ms or more, like 1s, 500ms or 5m"),
    }
}

/// Nanoseconds for people.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// A time for people, where milliseconds are no matter.
pub fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 10.0 => format!("{short:.1} s"),
        long => format!("{long:.0} s"),
    }
}

/// Whether a tree pages, for people.
pub fn paging(pages: bool) -> &'static str {
    match pages {
        true => "it pages",
        false => "it does not page yet",
    }
}

fn show(out: &mut impl Write, stats: &StatsShown) -> Result<()> {
    let (used, budget) = (human(stats.used_bytes), human(stats.budget_bytes));
    writeln!(
        out,
        "memory   {used} of {budget} in use; {}",
        paging(stats.paged)
    )?;
    writeln!(out, "peak     {}", human(stats.peak_bytes))?;
    let (data, compressed) = (
        human(stats.pool.data_bytes),
        human(stats.pool.compressed_bytes),
    );
    writeln!(
        out,
        "pool     {}; {data} of pages, compressed to {compressed}",
        human(stats.pool_bytes)
    )?;
    let (some, full) = (stats.some_ns, stats.full_ns);
    writeln!(out, "waited   some {}, full {}", time(some), time(full))?;
    for device in &stats.devices {
        let (used, size) = (human(device.used_bytes), human(device.size_bytes));
        let path = table::printable(&device.path);
        writeln!(out, "device   {used} of {size}  {path}")?;
    }
    writeln!(out)?;
    let faults = stats.fault_latency.iter().map(|(way, faults)| {
        vec![
            faults.count.to_string(),
            time(faults.sum_ns),
            time(faults.p50_ns),
            time(faults.p99_ns),
            time(faults.max_ns),
            way.to_string(),
        ]
    });
    table::write(out, Alignment::Right, &FAULTS, faults)?;
    writeln!(out)?;
    let members = stats.members.iter().map(|member| {
        vec![
            member.pid.to_string(),
            human(member.used_bytes),
            human(member.pool_bytes),
            member.faults.values().sum::<u64>().to_string(),
            time(member.waited_ns),
            member.name.clone(),
        ]
    });
    table::write(out, Alignment::Right, &MEMBERS, members)?;
    Ok(())
}

const FAULTS: [&str; 6] = ["FAULTS", "WAITED", "MEDIAN", "P99", "LONGEST", "WAY"];
const MEMBERS: [&str; 6] = ["PID", "USED", "POOL", "FAULTS", "WAITED", "NAME"];
