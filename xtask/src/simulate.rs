//! `cargo xtask simulate`: pager and engine in the simulator (`crates/sim`), seed after seed.
//! `cargo xtask mutants`: the defects of `xtask/mutants.toml`, planted one at a time in a copy of the tree, and whether
//! the simulator finds them.

use crate::table;
use anyhow::{Context, Result, bail, ensure};
use ebb_harness::tools;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Simulate pager and engine: programs, devices and the system, as seeds decide
#[derive(clap::Args)]
pub struct Options {
    /// Run this seed alone, twice, and compare
    #[arg(long)]
    seed: Option<u64>,
    /// The first of many seeds
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Go on for so long
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

/// Plant defects, and see that the simulator finds each
#[derive(clap::Args)]
pub struct MutantOptions {
    /// Only defects whose names hold this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// For how long the simulator looks for each
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

#[derive(Deserialize)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A defect.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    file: String,
    find: String,
    plant: String,
}

/// Runs simulations; true if none failed.
///
/// # Errors
/// The simulator does not build.
pub fn simulate(options: &Options) -> Result<bool> {
    let project = tools::project();
    let profile = if options.dev { "dev" } else { "checked" };
    let simulator = build(&project, &project.join("target"), profile, false)?;
    let simulator = simulator.context("the simulator does not build")?;
    let mut command = Command::new(simulator);
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

fn seconds(minutes: f64) -> String {
    format!("{:.0}", minutes * 60.0)
}

/// The simulator, built from a tree; none: it does not build.
fn build(tree: &Path, target: &Path, profile: &str, quiet: bool) -> Result<Option<PathBuf>> {
    let status = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--package",
            "ebb-sim",
            "--profile",
            profile,
        ])
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

/// Plants each defect; true if all were found.
///
/// # Errors
/// A defect cannot be planted, or does not build.
pub fn mutants(options: &MutantOptions) -> Result<bool> {
    let project = tools::project();
    let list = fs::read_to_string(project.join("xtask/mutants.toml"))?;
    let list: Mutants = toml::from_str(&list)?;
    let wanted = |mutant: &&Mutant| {
        options
            .only
            .as_ref()
            .is_none_or(|text| mutant.name.contains(text))
    };
    let top = project.join("target/mutants");
    let tree = top.join("tree");
    copy_tree(&project, &tree)?;
    for mutant in &list.mutant {
        // A run that was ended has left its defect behind.
        let text = fs::read_to_string(project.join(&mutant.file))?;
        if fs::read_to_string(tree.join(&mutant.file))? != text {
            fs::write(tree.join(&mutant.file), text)?;
        }
    }
    let (mut rows, mut good) = (Vec::new(), true);
    for mutant in list.mutant.iter().filter(wanted) {
        let found = plant(
            mutant,
            &project,
            &tree,
            &top.join("target"),
            options.minutes,
        );
        let found = found.with_context(|| mutant.name.clone())?;
        good &= found.is_some();
        let (result, why) = found.unwrap_or_else(|| ("not found".into(), String::new()));
        eprintln!("{}: {result} {why}", mutant.name);
        rows.push(vec![mutant.name.clone(), result, why]);
    }
    ensure!(!rows.is_empty(), "no defect of that name");
    print!(
        "{}",
        table::markdown(&["defect", "found after", "as"], &rows)
    );
    Ok(good)
}

/// Copies the sources that the simulator is built of.
fn copy_tree(project: &Path, tree: &Path) -> Result<()> {
    fs::create_dir_all(tree)?;
    // Times stay, so that only what differs is built again.
    let status = Command::new("cp")
        .args([
            "--archive",
            "--update",
            "crates",
            "xtask",
            "Cargo.toml",
            "Cargo.lock",
        ])
        .arg(tree)
        .current_dir(project)
        .status()?;
    ensure!(status.success(), "the tree cannot be copied");
    Ok(())
}

/// Plants a defect and looks for it: after how long it was found, and as what.
fn plant(
    mutant: &Mutant,
    project: &Path,
    tree: &Path,
    target: &Path,
    minutes: f64,
) -> Result<Option<(String, String)>> {
    let text = fs::read_to_string(project.join(&mutant.file))?;
    let places = text.matches(&mutant.find).count();
    ensure!(
        places == 1,
        "{} holds what is to be replaced {places} times",
        mutant.file
    );
    let file = tree.join(&mutant.file);
    fs::write(&file, text.replace(&mutant.find, &mutant.plant))?;
    let simulator = build(tree, target, "dev", true);
    let found = simulator.and_then(|simulator| match simulator {
        Some(simulator) => look(&simulator, minutes),
        None => bail!("it does not build"),
    });
    fs::write(&file, text)?;
    found
}

fn look(simulator: &Path, minutes: f64) -> Result<Option<(String, String)>> {
    let begin = Instant::now();
    let output = Command::new(simulator)
        .args(["--quick", "--swarm", "--seconds", &seconds(minutes)])
        .stderr(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = said.lines().next().unwrap_or_default();
    let why: String = first.chars().take(110).collect();
    Ok(Some((
        format!("{:.0} s", begin.elapsed().as_secs_f64()),
        why,
    )))
}
