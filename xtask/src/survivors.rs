//! `cargo xtask survivors`: changes that cargo-mutants makes to engine or pager, one at a time, of which no test takes
//! notice.
//!
//! A change that the package's unit tests pass goes to the simulator. One that survives that, too, has to be in
//! `xtask/survivors.toml`, with the reason why nothing finds it, or the test of real programs that does.
//!
//! There are thousands of changes, each of which takes a build: a share of them is tried at a time.

use crate::mutants::Field;
use crate::table;
use anyhow::{Context, Result, ensure};
use ebb_harness::tools;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Change functions of engine and pager, and see which changes no test finds
#[derive(clap::Args)]
pub struct Options {
    /// The package whose functions are changed
    #[arg(value_parser = ["engine", "pager"])]
    package: String,
    /// A share of all changes, as "1/40": about a hundred of the pager's, in half an hour; the first is 0
    #[arg(long, default_value = "0/40")]
    share: String,
    /// For how long the simulator looks for each that the tests pass, in minutes of a processor
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
}

/// The version of cargo-mutants.
const VERSION: &str = "27.1.0";

/// The list of those that are known.
#[derive(Deserialize)]
struct Explained {
    survivor: Vec<Survivor>,
}

/// A change that nothing finds.
#[derive(Deserialize)]
struct Survivor {
    file: String,
    /// The name of the change.
    change: String,
    /// The reason.
    why: String,
}

/// The report of cargo-mutants.
#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

/// The outcome of one.
#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
    diff_path: Option<PathBuf>,
}

/// A build that it tried.
#[derive(Deserialize)]
enum Scenario {
    /// No change.
    Baseline,
    /// A change.
    Mutant {
        /// The name, which begins with a place.
        name: String,
        /// The changed file.
        file: String,
    },
}

/// Tries a share of the changes; true if each was found or is explained.
///
/// # Errors
/// There is no cargo-mutants and it cannot be installed, or a patch does not apply.
pub fn survivors(options: &Options) -> Result<bool> {
    let project = tools::project();
    let text = fs::read_to_string(project.join("xtask/survivors.toml"))?;
    let explained: Explained = toml::from_str(&text)?;
    let output = project.join("target/survivors");
    change(options, &project, &output)?;
    let output = output.join("mutants.out");
    let outcomes = fs::read_to_string(output.join("outcomes.json"))?;
    let Outcomes { outcomes } = serde_json::from_str(&outcomes)?;
    let field = Field::new(project, options.minutes)?;
    let (mut rows, mut by_tests, mut by_simulator, mut good) = (Vec::new(), 0, 0, true);
    for outcome in outcomes {
        let Scenario::Mutant { name, file } = outcome.scenario else {
            continue;
        };
        match outcome.summary.as_str() {
            "MissedMutant" => {}
            "Unviable" => continue,
            _ => {
                by_tests += 1;
                continue;
            }
        }
        let patch = outcome.diff_path.context("a change without a patch")?;
        if field.finds(&file, &output.join(patch))? {
            by_simulator += 1;
            continue;
        }
        let change = name.split_once(": ").map_or(&*name, |(_, change)| change);
        let known = |s: &&Survivor| s.file == file && s.change == change;
        let why = explained.survivor.iter().find(known);
        good &= why.is_some();
        let why = why.map_or("not explained", |known| &known.why);
        eprintln!("{name} | {why}");
        rows.push(vec![name, why.to_owned()]);
    }
    print!("{}", table::markdown(&["survivor", "why"], &rows));
    println!("{by_tests} found by unit tests, {by_simulator} by the simulator");
    Ok(good)
}

/// Runs cargo-mutants.
fn change(options: &Options, project: &Path, output: &Path) -> Result<()> {
    let root = project.join("target/cargo-mutants");
    let program = root.join("bin/cargo-mutants");
    if !program.is_file() {
        let mut install = Command::new("cargo");
        install.args(["install", "--quiet", "--locked", "--version", VERSION]);
        install.args(["cargo-mutants", "--root"]).arg(root);
        ensure!(install.status()?.success(), "no cargo-mutants");
    }
    let package = format!("ebb-{}", options.package);
    let status = Command::new(program)
        .args(["mutants", "--no-shuffle", "--sharding", "round-robin"])
        .args(["--package", &package, "--test-package", &package])
        .args(["--shard", &options.share, "--timeout", "150"])
        .args(["--cargo-test-arg", "--lib", "--output"])
        .arg(output)
        .current_dir(project)
        // Enough to see a change, and soon.
        .env("PROPTEST_CASES", "24")
        .stdin(Stdio::null())
        .status()?;
    // 2: some were missed, 3: some took too long.
    let is_done = matches!(status.code(), Some(0 | 2 | 3));
    ensure!(is_done, "cargo-mutants ended with {status}");
    Ok(())
}
