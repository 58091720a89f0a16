//! `ebb-lab mthp`: simulated, or with real memory through the pager.

use crate::cli::Options;
use crate::{ebb, own};
use anyhow::{Context, Result, bail};
use ebb_lab::Report;
use ebb_lab::allocator::mthp::{self, real};
use ebb_tree::{Ask, Reply, Request};
use std::process::{Command, Stdio};

/// Iterations of the experiment with real memory; the simulated one does 100.
const REAL_ITERATIONS: u32 = 20;
/// The budget of its programs: much less than they touch.
const REAL_BUDGET: &str = "24M";

/// The program of the mTHP test: a mode, or `MODE*ITERATIONS`. After the warm-up and after each
/// iteration it prints the counters of whoever pages it, if that is an `ebb run`.
pub fn work(mode: &str) -> Result<(), String> {
    let (mode, iterations) = match mode.split_once('*') {
        None => (mode, Ok(REAL_ITERATIONS)),
        Some((mode, times)) => (mode, times.parse()),
    };
    let iterations = iterations.map_err(|_| "give a number of iterations after the *")?;
    real::work(mode, iterations, 1, || {
        if let Ok(counters) = ask_counters() {
            println!("{counters}");
        }
    })
}

/// The mTHP test through the real pager: this very program, under `ebb run`.
fn run_real() -> Result<Report> {
    let (own, ebb) = (own()?, ebb()?);
    let mut rows = Vec::new();
    for mode in real::modes() {
        let swap = format!("{}:{}", "/var/tmp", real::SWAP_BYTES);
        let output = Command::new(&ebb)
            .args(["run", "--memory", REAL_BUDGET, "--pool", "none"])
            .args(["--swap", &swap, "--"])
            .arg(&own)
            .args(["mthp", "--work", mode])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start ebb")?;
        if !output.status.success() {
            bail!("mode {mode}: the program ended with {}", output.status);
        }
        let told = String::from_utf8_lossy(&output.stdout);
        let stored: Vec<_> = told.lines().map(stored).collect::<Result<_>>()?;
        if stored.len() != 1 + REAL_ITERATIONS as usize {
            bail!("mode {mode}: the program could not ask `ebb run` for its counters");
        }
        rows.push(real::Row { mode, stored });
    }
    Ok(real::report(&rows))
}

/// The folios stored according to a line of counters.
fn stored(line: &str) -> Result<real::Stored> {
    let counters: serde_json::Value = serde_json::from_str(line).context("no line of counters")?;
    let counter = |name: &str| counters[name].as_u64().unwrap_or(0);
    Ok(real::Stored {
        whole: counter("swpout_4"),
        fallback: counter("swpout_fallback_4"),
        writes: counter("swpout_runs"),
    })
}

pub fn run(args: &Options) -> Result<Report> {
    if args.real {
        if args.allocator.is_some() {
            bail!("--real measures the pager as it is: leave --allocator out");
        }
        return run_real();
    }
    let allocator = match &args.allocator {
        None => None,
        Some(name) => Some(name.parse().map_err(anyhow::Error::msg)?),
    };
    Ok(mthp::run(&mthp::Options {
        allocator,
        ..Default::default()
    }))
}

/// The counters of the `ebb run` that pages this process.
///
/// # Errors
/// None does.
fn ask_counters() -> Result<String> {
    let mut ask = Ask::send(std::process::id(), &Request::Counters)?;
    loop {
        match ask.reply()? {
            Reply::Progress(_) => {}
            Reply::Done(counters) => return Ok(counters),
            Reply::Failed(why) => bail!(why),
        }
    }
}
