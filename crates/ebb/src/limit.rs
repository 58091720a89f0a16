//! `ebb limit`: shows and changes the limits of a running tree. Supervisor and members do the work; this
//! module asks, and shows the outcome.

use crate::ask::ask;
use crate::cli::LimitArgs;
use crate::figures::paging;
use crate::setup::pool_max;
use crate::table::{self, Alignment};
use anyhow::{Context, Result, bail};
use ebb_stores::{Size, human};
use ebb_tree::{LimitChange, LimitsShown, Request};
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Asks for the change, and shows the limits.
///
/// # Errors
/// The process belongs to no tree, or the supervisor refused, with the allowed range.
pub fn limit(args: LimitArgs) -> Result<ExitCode> {
    if let Some(text) = &args.memory {
        text.parse::<Size>().context("--memory")?;
    }
    if let Some(text) = &args.pool.max {
        pool_max(text)?;
    }
    if args.only && args.pool.is_empty() && args.memory.is_none() {
        bail!("--only says whose limit is changed: give --pool-max or --writeback too");
    }
    let changes = args.memory.is_some() || !args.pool.is_empty();
    let change = LimitChange {
        process: args.only.then_some(args.pid),
        memory: args.memory,
        pool_max: args.pool.max,
        accept_percent: args.pool.accept,
        writeback: args.pool.writeback.map(bool::from),
    };
    let answer = ask(args.pid, &Request::Limit(change))?;
    let limits: LimitsShown = serde_json::from_str(&answer)
        .context("ask with the ebb that runs the program: the answer is of another version")?;
    let written = write(args.json, &limits);
    match changes {
        true => written.context("it was done, but standard output does not take the limits"),
        false => written,
    }?;
    Ok(ExitCode::SUCCESS)
}

fn write(json: bool, limits: &LimitsShown) -> Result<()> {
    let mut out = stdout().lock();
    match json {
        true => {
            serde_json::to_writer_pretty(&mut out, limits)?;
            writeln!(out)?;
        }
        false => show(&mut out, limits)?,
    }
    Ok(out.flush()?)
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn show(out: &mut impl Write, limits: &LimitsShown) -> Result<()> {
    let paging = paging(limits.paging);
    let (memory, used) = (human(limits.memory_bytes), human(limits.used_bytes));
    writeln!(out, "memory     {memory}, {used} in use; {paging}")?;
    let max = match (&limits.pool_max, limits.pool_max_bytes) {
        (Some(given), Some(bytes)) if given.ends_with('%') => {
            format!("{given} ({})", human(bytes))
        }
        (Some(given), _) => given.clone(),
        (None, _) => "none".into(),
    };
    writeln!(out, "pool-max   {max}, {} in use", human(limits.pool_bytes))?;
    writeln!(out, "accept     {}%", limits.accept_percent)?;
    writeln!(out, "writeback  {}", on_off(limits.writeback))?;
    if limits.processes.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let processes = limits.processes.iter().map(|p| {
        vec![
            p.pid.to_string(),
            human(p.used_bytes),
            human(p.pool_bytes),
            p.pool_max.clone().unwrap_or_else(|| "-".into()),
            on_off(p.writeback).into(),
            p.name.clone(),
        ]
    });
    table::write(out, Alignment::Right, &PROCESSES, processes)?;
    Ok(())
}

const PROCESSES: [&str; 6] = ["PID", "USED", "POOL", "POOL-MAX", "WRITEBACK", "NAME"];
