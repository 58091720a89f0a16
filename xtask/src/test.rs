//! `cargo xtask test`: sets the machine up, runs every test, counts them, and does not let a
//! test be skipped that could have run here.

use crate::setup;
use crate::skips::AllowedSkips;
use anyhow::{Context, Result};
use ebb_harness::{tested, tools};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Unit and model tests only: no packages, no loom, no real programs
    #[arg(long)]
    quick: bool,
    /// Fail where a test is skipped because a program is not installed
    #[arg(long)]
    complete: bool,
    /// Real programs alone, by a build that looks at every assertion, overflow and order of locks
    #[arg(long, conflicts_with = "quick")]
    checked: bool,
    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
}

/// A group of tests that one cargo command runs.
struct Group {
    about: &'static str,
    args: Vec<String>,
    subject: Subject,
}

/// The code that a group tests.
#[derive(PartialEq, Eq)]
enum Subject {
    /// The code that is built with the tests.
    Own,
    /// The same, with loom's locks and atomics.
    Models,
    /// `ebb` and its library of this build, whichever way the tests themselves are built.
    Command(&'static str),
}

const UNITS: &[&str] = &[
    "test",
    "--workspace",
    "--exclude",
    "ebb",
    "--exclude",
    "ebb-preload",
];

const MODELS: &[&str] = &[
    "test",
    "-p",
    "ebb-engine",
    "-p",
    "ebb-tree",
    "--release",
    "--lib",
    "loom",
];

/// Tests of real programs. They are built without optimisation, which takes a tenth of the time.
const REAL: &[&str] = &["test", "-p", "ebb", "-p", "ebb-preload", "--bins"];

/// The folders of their test programs.
const PROGRAMS: [&str; 2] = ["crates/ebb/tests", "crates/preload/tests"];

/// The one that measures code of its own: it is built as that is released.
const COSTS: &[&str] = &["test", "-p", "ebb-lab", "--release", "--test", "costs"];

/// Those that measure how fast the command is, or test how it is packed: not run with checks.
const RELEASED: [&str; 6] = [
    "start",
    "scale",
    "workloads",
    "packages",
    "containers",
    "lab",
];

impl Group {
    fn quick() -> Self {
        let args = [UNITS, &["--lib", "--bins"]].concat();
        Self::new("unit and model tests", &args, Subject::Own)
    }

    fn full() -> Result<[Self; 4]> {
        let released = || Subject::Command("release");
        Ok([
            Self::new("unit, model and property tests", UNITS, Subject::Own),
            Self::new(
                "models of every interleaving (loom)",
                MODELS,
                Subject::Models,
            ),
            Self::real("real programs", released(), |_| true)?,
            Self::new("costs", COSTS, Subject::Own),
        ])
    }

    fn checked() -> Result<Self> {
        let checked = |name: &str| !RELEASED.contains(&name);
        Self::real(
            "real programs, checked",
            Subject::Command("checked"),
            checked,
        )
    }

    /// The test programs for which this holds.
    fn real(about: &'static str, subject: Subject, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let mut group = Self::new(about, REAL, subject);
        for program in programs(wanted)? {
            group.args.extend(["--test".into(), program]);
        }
        Ok(group)
    }

    fn new(about: &'static str, args: &[&str], subject: Subject) -> Self {
        Self {
            about,
            args: args.iter().map(|arg| arg.to_string()).collect(),
            subject,
        }
    }
}

/// The test programs for which this holds.
fn programs(wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in PROGRAMS {
        for entry in fs::read_dir(tools::project().join(folder))? {
            let path = entry?.path();
            let is_one =
                path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
            let name = path.file_stem().and_then(OsStr::to_str);
            names.extend(name.filter(|name| is_one && wanted(name)).map(String::from));
        }
    }
    names.sort();
    Ok(names)
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<Skip>,
    /// Tests that ran, but could not look at everything.
    in_part: Vec<Skip>,
    /// Output of the failed tests, repeated at the end: (test, lines).
    outputs: Vec<(String, Vec<String>)>,
    /// Test programs with the seconds that each took.
    programs: Vec<(String, f64)>,
}

/// Lines of a failed test's output that are repeated at the end: the last ones say what failed.
const REPEATED: usize = 40;

/// Test programs that are listed at the end as the slowest.
const SLOWEST: usize = 8;

/// A test that did not run, or not in full, and why.
#[derive(PartialEq, Eq)]
struct Skip {
    test: String,
    why: String,
}

/// Runs them; true if all that could run passed.
///
/// # Errors
/// cargo cannot be started.
pub fn test(options: &Options) -> Result<bool> {
    let start = Instant::now();
    let mut tally = Tally::default();
    if options.quick {
        run(&Group::quick(), options, &mut tally)?;
    } else if options.checked {
        setup::install(setup::Extent::Full);
        let build = ["build", "--profile", "checked"];
        setup::cargo(&[&build[..], &["-p", "ebb", "-p", "ebb-preload"]].concat())?;
        run(&Group::checked()?, options, &mut tally)?;
    } else {
        setup::install(setup::Extent::Full);
        setup::build_release()?;
        for group in &Group::full()? {
            run(group, options, &mut tally)?;
        }
    }
    let avoidable = report(&tally, &AllowedSkips::on_this_machine(options.complete));
    slowest(&mut tally.programs);
    println!("took {:.0} s", start.elapsed().as_secs_f64());
    println!(
        "{} passed, {} failed, {} skipped",
        tally.passed,
        tally.failed.len(),
        tally.skipped.len()
    );
    Ok(tally.failed.is_empty() && avoidable == 0)
}

fn run(group: &Group, options: &Options, tally: &mut Tally) -> Result<()> {
    eprintln!("\nxtask: {}", group.about);
    let mut command = Command::new("cargo");
    command.args(&group.args);
    // One failure must not hide what the other programs would have said.
    command.arg("--no-fail-fast").arg("--");
    command.arg("--show-output");
    command.args(&options.filter);
    let target = tools::project().join("target");
    match group.subject {
        Subject::Own => {}
        Subject::Models => {
            command
                .env("RUSTFLAGS", "--cfg loom")
                // Models are as fast without, and built sooner.
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_TARGET_DIR", target.join("loom"));
        }
        Subject::Command(build) => {
            command.env(tested::VARIABLE, target.join(build).join("ebb"));
            if build == "release" {
                // As `build_release` has built it.
                command.env(setup::EMBED, setup::library());
            }
        }
    }
    // Behind the system's own: redis-server may be there alone (`setup`).
    let mut path = tools::path();
    path.push(":");
    path.push(tools::project().join("target/tools"));
    command
        .env("PATH", path)
        .current_dir(tools::project())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let words = BufReader::new(child.stderr.take().context("no errors")?).lines();
    let failed_before = tally.failed.len();
    let running = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&running);
    let words = thread::spawn(move || pass_on(words, &noted));
    let mut program = String::new();
    let mut reader = Reader::default();
    for line in lines {
        let line = String::from_utf8_lossy(line?.as_bytes()).into_owned();
        reader.line(&line, tally);
        if line.starts_with("running ") {
            // Now, as cargo may begin the next program before the result of this one is read.
            program.clone_from(&running.lock().unwrap_or_else(PoisonError::into_inner));
        } else if let Some(seconds) = line.strip_prefix("test result:").and_then(seconds) {
            tally.programs.push((program.clone(), seconds));
        }
    }
    words.join().ok();
    if !child.wait()?.success() && tally.failed.len() == failed_before {
        // It did not build, or a test program died without saying a word.
        tally.failed.push(format!(
            "{}: cargo {} failed",
            group.about,
            group.args.join(" ")
        ));
    }
    Ok(())
}

/// Passes on what cargo says, and notes the program that it says it runs.
fn pass_on(words: impl Iterator<Item = std::io::Result<String>>, running: &Mutex<String>) {
    for line in words.map_while(Result::ok) {
        if let Some(program) = line.trim_start().strip_prefix("Running ") {
            // The path of the built program stands in brackets behind, and tells the crate.
            *running.lock().unwrap_or_else(PoisonError::into_inner) = program.into();
        }
        eprintln!("{line}");
    }
}

/// The seconds in a result such as `ok. 12 passed; .. finished in 1.23s`.
fn seconds(result: &str) -> Option<f64> {
    let (_, time) = result.rsplit_once("finished in ")?;
    time.trim().strip_suffix('s')?.parse().ok()
}

/// Lists the test programs that took longest.
fn slowest(programs: &mut [(String, f64)]) {
    programs.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (program, seconds) in programs.iter().take(SLOWEST) {
        println!("{seconds:6.0} s  {program}");
    }
}

/// Follows the output of the test programs.
#[derive(Default)]
struct Reader {
    /// The test whose captured output is being shown.
    shown: Option<String>,
    /// Flag: the section that repeats the failures' output has begun.
    failures: bool,
}

impl Reader {
    fn line(&mut self, line: &str, tally: &mut Tally) {
        // A line of a test's output may look like a result: results come before any output.
        if self.shown.is_none()
            && let Some((name, result)) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.rsplit_once(" ... "))
        {
            match result {
                "ok" => tally.passed += 1,
                // With the time it took, as a test program with a main of its own says it.
                timed if timed.starts_with("ok (") => tally.passed += 1,
                // With the status it ended with, from the same.
                failed if failed == "FAILED" || failed.starts_with("FAILED: ") => {
                    tally.failed.push(name.into());
                }
                _ => {
                    let why = result
                        .strip_prefix("ignored")
                        .unwrap_or(result)
                        .trim_start_matches([',', ' ']);
                    tally.skipped.push(Skip {
                        test: name.into(),
                        why: why.into(),
                    });
                }
            }
            println!("{line}");
        } else if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.shown = Some(name.into());
            if self.failures {
                println!("{line}");
                tally.outputs.push((name.into(), Vec::new()));
            }
        } else if line == "successes:" {
            self.failures = false;
        } else if line == "failures:" {
            self.failures = true;
        } else if line.starts_with("test result:") {
            *self = Self::default();
        } else if let Some(why) = line.strip_prefix("skipped in part: ") {
            let test = self.shown.clone().unwrap_or_else(|| "?".into());
            let skip = Skip {
                test,
                why: why.into(),
            };
            // Said for each run of a program.
            if !tally.in_part.contains(&skip) {
                tally.in_part.push(skip);
            }
        } else if let Some(why) = line.strip_prefix("skipped: ") {
            // It returned early, so it was counted as passed.
            tally.passed = tally.passed.saturating_sub(1);
            let test = self.shown.clone().unwrap_or_else(|| "?".into());
            tally.skipped.push(Skip {
                test,
                why: why.into(),
            });
        } else if self.failures {
            println!("{line}");
            if let Some((_, output)) = tally.outputs.last_mut() {
                output.push(line.into());
            }
        }
    }
}

/// Lists failures and skips; returns how many of the skips should not have been.
fn report(tally: &Tally, skips: &AllowedSkips) -> usize {
    println!();
    for (name, lines) in &tally.outputs {
        println!("---- {name} ----");
        for line in &lines[lines.len().saturating_sub(REPEATED)..] {
            println!("{line}");
        }
    }
    for name in &tally.failed {
        println!("failed: {name}");
    }
    let mut avoidable = 0;
    let whole = tally.skipped.iter().map(|skip| ("skipped", skip));
    let in_part = tally.in_part.iter().map(|skip| ("skipped in part", skip));
    for (how, Skip { test, why }) in whole.chain(in_part) {
        let allowed = skips.allows(why);
        avoidable += usize::from(!allowed);
        let note = if allowed {
            ""
        } else {
            "  <- must run on this machine"
        };
        println!("{how}: {test}: {why}{note}");
    }
    avoidable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_test_programs_print() {
        let mut tally = Tally::default();
        let mut reader = Reader::default();
        let text = "test own_main ... ok (0.02 s)\ntest own_other ... FAILED: exit status 101 (0.02 s)\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ok\n\nsuccesses:\n\n\
                    ---- b stdout ----\nskipped in part: no cgroup\nskipped in part: no cgroup\n---- d stdout ----\nskipped: needs root\ntest e ... FAILED\n\n\nsuccesses:\n    a::b\n\nfailures:\n\n---- c stdout ----\n\
                    boom\n\nfailures:\n    c\n\ntest result: FAILED. 2 passed";
        text.lines().for_each(|line| reader.line(line, &mut tally));
        let failed = vec!["own_other".to_string(), "c".to_string()];
        assert_eq!((tally.passed, tally.failed), (2, failed));
        assert_eq!(tally.outputs[0].0, "c");
        assert_eq!(tally.outputs[0].1[0], "boom");
        assert_eq!(
            (
                tally.skipped[0].test.as_str(),
                tally.skipped[0].why.as_str()
            ),
            ("d", "needs root")
        );
        assert_eq!((tally.in_part.len(), tally.skipped.len()), (1, 1));
    }
}
