//! `cargo xtask simulate`: pager and engine in the simulator (`crates/sim`), seed after seed.

use anyhow::{Context, Result};
use ebb_harness::tools;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Simulate pager and engine: programs, devices and the system, as seeds decide
#[derive(clap::Args)]
pub struct Options {
    /// Run this seed alone, twice, and compare
    #[arg(long)]
    seed: Option<u64>,
    /// The first of many seeds
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Go on for so many minutes of a processor
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Random subsets of what may go wrong and of what programs do
    #[arg(long)]
    swarm: bool,
    /// Build as tests are built, which takes less time, instead of optimised with checks
    #[arg(long)]
    dev: bool,
    /// More options of ebb-sim, such as --trace, or those that a failure prints
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Runs simulations; true if none failed.
///
/// # Errors
/// The simulator does not build.
pub fn simulate(options: &Options) -> Result<bool> {
    let project = tools::project();
    let profile = if options.dev { "dev" } else { "simulated" };
    let simulator = build(&project, &project.join("target"), profile, false)?;
    let simulator = simulator.context("the simulator does not build")?;
    let mut command = Command::new(simulator);
    // Each run fills fresh memory, of which huge pages spare it most faults, where the heap grows by many at once: a
    // twentieth of its time.
    command.env(
        "GLIBC_TUNABLES",
        "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432",
    );
    match options.seed {
        Some(seed) => command.args(["--seed", &seed.to_string()]),
        None => command
            .args(["--from", &options.from.to_string()])
            .args(["--seconds", &seconds(options.minutes)]),
    };
    if options.swarm {
        command.arg("--swarm");
    }
    Ok(command.args(&options.more).status()?.success())
}

/// Minutes as an option of ebb-sim.
pub fn seconds(minutes: f64) -> String {
    format!("{:.0}", minutes * 60.0)
}

/// The simulator, built from a tree; none: it does not build.
///
/// # Errors
/// There is no cargo.
pub fn build(tree: &Path, target: &Path, profile: &str, quiet: bool) -> Result<Option<PathBuf>> {
    let status = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--workspace",
            "--bin",
            "ebb-sim",
            "--profile",
            profile,
        ])
        // The tests' build is there already, and has features that only tests need: with a test it serves here, too.
        .args(["--test", "seeds"].iter().filter(|_| profile == "dev"))
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target)
        .stdin(Stdio::null())
        .stderr(if quiet {
            Stdio::null()
        } else {
            Stdio::inherit()
        })
        .status()?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(status
        .success()
        .then(|| target.join(folder).join("ebb-sim")))
}
