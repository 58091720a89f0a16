//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, by libFuzzer and with the stable toolchain. The compiler's
//! own pass counts coverage, so no nightly toolchain and no sanitizer is needed; the code under test forbids
//! `unsafe`, or asserts what it must not do.
//!
//! Targets run side by side, one on each processor. What they learn stays in `target/fuzz/corpus`, what the
//! project gives them to begin with is in `fuzz/corpus`. An input that fails is kept in `target/fuzz/findings`.

use crate::table;
use anyhow::{Context, Result, bail, ensure};
use ebb_harness::tools;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Feed what comes from outside to the code that reads it, steered by coverage
#[derive(clap::Args)]
pub struct Options {
    /// For how long each target runs
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Run this one input, as a finding names it
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// One target alone: a file's name in fuzz/fuzz_targets
    #[arg(value_name = "TARGET")]
    target: Option<String>,
}

/// Coverage counters, and comparisons that are shown to the fuzzer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Flags for instrumented code alone reach no build script where the target is named.
const MACHINE: &str = "x86_64-unknown-linux-gnu";

/// Seconds that one input may take.
const INPUT_LIMIT: u64 = 10;
/// Seconds beside its time that a target may take to end.
const END: u64 = 60;

/// Runs the targets; true if none found anything.
///
/// # Errors
/// They do not build, or do not start.
pub fn fuzz(options: &Options) -> Result<bool> {
    let targets = targets()?;
    let wanted: Vec<String> = match &options.target {
        None => targets,
        Some(target) if targets.contains(target) => vec![target.clone()],
        Some(target) => bail!("no target {target}: there are {}", targets.join(", ")),
    };
    let top = tools::project().join("target/fuzz");
    build(&top)?;
    let programs = top.join(MACHINE).join("release");
    if let Some(input) = &options.input {
        let status = Command::new(programs.join(&wanted[0]))
            .arg(input)
            .status()?;
        return Ok(status.success());
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut waiting: VecDeque<String> = wanted.into();
    let mut running: Vec<Run> = Vec::new();
    let mut rows = Vec::new();
    let mut good = true;
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < processors
            && let Some(target) = waiting.pop_front()
        {
            running.push(Run::start(&top, &programs, target, options.seconds)?);
        }
        std::thread::sleep(Duration::from_millis(100));
        let ended = running.extract_if(.., |run| run.has_ended());
        for run in ended.collect::<Vec<Run>>() {
            let outcome = run.outcome()?;
            good &= outcome.good;
            rows.push(outcome.row);
        }
    }
    rows.sort();
    let heading = ["target", "result", "inputs", "coverage", "corpus"];
    print!("{}", table::markdown(&heading, &rows));
    Ok(good)
}

/// Names of the targets, in order.
fn targets() -> Result<Vec<String>> {
    let dir = tools::project().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(String::from));
    }
    names.sort();
    Ok(names)
}

fn build(top: &Path) -> Result<()> {
    crate::setup::packages(&[("g++", "g++")])?;
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--target", MACHINE])
        .current_dir(tools::project().join("fuzz"))
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", top)
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "the fuzz targets do not build");
    Ok(())
}

/// A target under way.
struct Run {
    target: String,
    child: Child,
    log: PathBuf,
    findings: PathBuf,
    /// The time when it is ended, if it has not.
    until: Instant,
}

impl Run {
    fn start(top: &Path, programs: &Path, target: String, seconds: u64) -> Result<Self> {
        let dir = |name: &str| -> Result<PathBuf> {
            let dir = top.join(name).join(&target);
            fs::create_dir_all(&dir)?;
            Ok(dir)
        };
        let (learned, findings) = (dir("corpus")?, dir("findings")?);
        for old in fs::read_dir(&findings)? {
            fs::remove_file(old?.path())?;
        }
        let log = top.join(format!("{target}.log"));
        let given = tools::project().join("fuzz/corpus").join(&target);
        ensure!(
            given.is_dir(),
            "{} has no corpus: {}",
            target,
            given.display()
        );
        let output = fs::File::create(&log)?;
        let child = Command::new(programs.join(&target))
            .args([&learned, &given])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_LIMIT}"))
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .args([
                "-use_value_profile=1",
                "-max_len=16384",
                "-print_final_stats=1",
            ])
            .current_dir(tools::project())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {target}"))?;
        eprintln!("xtask: {target}");
        Ok(Self {
            target,
            child,
            log,
            findings,
            until: Instant::now() + Duration::from_secs(seconds + END),
        })
    }

    fn has_ended(&mut self) -> bool {
        if Instant::now() > self.until {
            let _ = self.child.kill();
        }
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn outcome(mut self) -> Result<Outcome> {
        let status = self.child.wait()?;
        let text = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        if !status.success() {
            let lines: Vec<&str> = text.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
            for finding in fs::read_dir(&self.findings)? {
                println!(
                    "again: cargo xtask fuzz {} --input {}",
                    self.target,
                    finding?.path().display()
                );
            }
        }
        let result = if status.success() {
            "ok"
        } else {
            "FOUND SOMETHING"
        };
        Ok(Outcome {
            good: status.success(),
            row: vec![
                self.target.clone(),
                result.into(),
                number_after(&text, "stat::number_of_executed_units:"),
                number_after(&text, " cov:"),
                number_after(&text, " corp:"),
            ],
        })
    }
}

/// The end of a run.
struct Outcome {
    good: bool,
    row: Vec<String>,
}

/// The number behind the last of these words; nothing if there is none.
fn number_after(text: &str, word: &str) -> String {
    let rest = text.rsplit_once(word).map_or("", |(_, rest)| rest);
    rest.trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_corpus_and_is_built() {
        let manifest = fs::read_to_string(tools::project().join("fuzz/Cargo.toml")).unwrap();
        for target in targets().unwrap() {
            assert!(
                manifest.contains(&format!("name = \"{target}\"")),
                "{target}"
            );
            let corpus = tools::project().join("fuzz/corpus").join(&target);
            assert!(fs::read_dir(corpus).unwrap().count() > 0, "{target}");
        }
    }

    #[test]
    fn numbers_of_the_last_line_are_read() {
        let text = "#1 INITED cov: 8 ft: 8 corp: 1/1b\n#9 DONE cov: 11 ft: 11 corp: 4/13b\nstat::number_of_executed_units: 4742\n";
        assert_eq!(number_after(text, " cov:"), "11");
        assert_eq!(number_after(text, " corp:"), "4");
        assert_eq!(
            number_after(text, "stat::number_of_executed_units:"),
            "4742"
        );
        assert_eq!(number_after(text, "none"), "");
    }
}
