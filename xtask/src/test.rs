//! `cargo xtask test`: sets the machine up, runs every test, counts them, and does not let a
//! test be skipped that could have run here.
//!
//! All programs are built first. Then two run at a time: those of real programs, which often wait, and beside them
//! those that compute. Beside these two run those that mostly wait. Those that measure come last, alone.
//!
//! Not here: tests in comments. There are none, which `tests/comments.rs` checks.

mod run;
mod tally;

use crate::program::{self, Program};
use crate::setup;
use crate::skips::AllowedSkips;
use anyhow::Result;
use ebb_harness::{tested, tools};
use run::Run;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use tally::Tally;

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

/// All of the workspace at once: a part of it would have other features, and be built again. Examples too, which are
/// linted in CI as the rest, and not run.
const ALL: &[&str] = &["--workspace", "--tests", "--examples"];

/// The library has no tests of its own, and is linked as nothing else.
const UNITS: &[&str] = &["--workspace", "--exclude", "ebb-preload", "--lib", "--bins"];

/// Models of every interleaving, with loom's locks and atomics.
const MODELS: &[&str] = &["-p", "ebb-engine", "-p", "ebb-tree", "--release", "--lib"];

/// The packages that test the command. Their tests are built without optimisation, which takes a tenth of the time.
const REAL: [&str; 2] = ["ebb", "preload"];

/// Programs that wait for most of their time: both processors would have half of their time left beside two of them.
const WAITING: [&str; 3] = ["command", "processes", "watching"];

/// Programs that measure: nothing runs beside them.
const QUIET: [&str; 7] = [
    "costs",
    "ebb_stores",
    "lab",
    "runs",
    "scale",
    "size",
    "start",
];

/// Those that measure how fast the command is, or test how it is packed: not run with checks.
const RELEASED: [&str; 7] = [
    "costs",
    "start",
    "scale",
    "workloads",
    "packages",
    "containers",
    "lab",
];

/// Runs them; true if all that could run passed.
///
/// # Errors
/// The command does not build, or a program cannot be started.
pub fn test(options: &Options) -> Result<bool> {
    let start = Instant::now();
    let session = Session {
        filter: options.filter.as_deref(),
        tally: Mutex::default(),
    };
    if options.quick {
        session.one_by_one(session.build(UNITS, &[]))?;
    } else if options.checked {
        session.checked()?;
    } else {
        session.full()?;
    }
    let mut tally = unpoisoned(session.tally.into_inner());
    let avoidable = tally.report(&AllowedSkips::on_this_machine(options.complete));
    println!("took {:.0} s", start.elapsed().as_secs_f64());
    println!("{}", tally.counts());
    Ok(tally.failed.is_empty() && avoidable == 0)
}

/// One call of this command.
struct Session<'a> {
    filter: Option<&'a str>,
    tally: Mutex<Tally>,
}

impl Session<'_> {
    fn full(&self) -> Result<()> {
        let (ours, models) = thread::scope(|scope| {
            // It waits for the network, and for disks.
            scope.spawn(|| setup::install(setup::Extent::Full));
            // In directories of their own, so that builds need not wait for each other: the linker of one has but
            // one processor.
            let models = scope.spawn(|| self.models());
            setup::release_library()?;
            let commands = scope.spawn(setup::release_commands);
            let ours = self.build(ALL, &[(setup::EMBED, setup::library().into())]);
            commands.join().expect("a panic has been told")?;
            anyhow::Ok((ours, models.join().expect("a panic has been told")))
        })?;
        let ours = ours.into_iter().map(|run| testing("release", run));
        let (quiet, ours): (Vec<_>, Vec<_>) = ours.partition(|run| is_of(&run.program, &QUIET));
        let (waiting, ours): (Vec<_>, Vec<_>) = ours
            .into_iter()
            .partition(|run| is_of(&run.program, &WAITING));
        let (real, units): (Vec<_>, Vec<_>) = ours.into_iter().partition(|r| is_real(&r.program));
        let busy = real.into_iter().chain(units).chain(models);
        self.side_by_side(waiting, busy.collect())?;
        self.one_by_one(quiet)
    }

    /// Models of every interleaving.
    fn models(&self) -> Vec<Run> {
        let target = tools::project().join("target/loom");
        let variables = [
            ("RUSTFLAGS", "--cfg loom".into()),
            // Models are as fast without, and built sooner.
            ("CARGO_PROFILE_RELEASE_LTO", "off".into()),
            ("CARGO_TARGET_DIR", target.into()),
        ];
        let mut models = self.build(MODELS, &variables);
        for run in &mut models {
            run.filters.push("loom".into());
        }
        models
    }

    /// Real programs alone, by the command that is built with checks.
    fn checked(&self) -> Result<()> {
        setup::install(setup::Extent::Full);
        let build = ["build", "--profile", "checked"];
        setup::cargo(&[&build[..], &tested::PACKAGES].concat())?;
        let mut real = self.build(ALL, &[]);
        real.retain(|run| is_real(&run.program) && !is_of(&run.program, &RELEASED));
        self.one_by_one(real.into_iter().map(|run| testing("checked", run)))
    }

    /// Test programs that cargo builds. It is a failure, and no more, if one does not build.
    fn build(&self, words: &[&str], variables: &[(&str, OsString)]) -> Vec<Run> {
        let programs = program::build(words, variables).unwrap_or_else(|error| {
            unpoisoned(self.tally.lock()).failed.push(error.to_string());
            Vec::new()
        });
        let run = |program| Run {
            program,
            filters: self.filter.iter().map(ToString::to_string).collect(),
            command: None,
        };
        programs.into_iter().map(run).collect()
    }

    fn one_by_one(&self, runs: impl IntoIterator<Item = Run>) -> Result<()> {
        runs.into_iter().try_for_each(|run| {
            let tally = run.tally()?;
            unpoisoned(self.tally.lock()).add(tally);
            Ok(())
        })
    }

    /// Two busy ones at a time, one from each end, and beside them one that waits.
    fn side_by_side(&self, waiting: Vec<Run>, busy: VecDeque<Run>) -> Result<()> {
        let left = Mutex::new(busy);
        let from = |end: fn(&mut VecDeque<Run>) -> Option<Run>| {
            let next = || {
                let mut left = unpoisoned(left.lock());
                end(&mut left)
            };
            self.one_by_one(std::iter::from_fn(next))
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| self.one_by_one(waiting));
            let last = scope.spawn(|| from(VecDeque::pop_back));
            from(VecDeque::pop_front)?;
            last.join().expect("a panic has been told")?;
            waiting.join().expect("a panic has been told")
        })
    }
}

/// The same, testing the command of this build.
fn testing(build: &str, run: Run) -> Run {
    let command = tools::project().join("target").join(build).join("ebb");
    Run {
        command: Some(command),
        ..run
    }
}

fn is_real(program: &Program) -> bool {
    program.is_apart && REAL.contains(&program.package())
}

fn is_of(program: &Program, names: &[&str]) -> bool {
    names.contains(&program.name.as_str())
}

/// What a panic elsewhere left is as good as before.
fn unpoisoned<T>(value: Result<T, PoisonError<T>>) -> T {
    value.unwrap_or_else(PoisonError::into_inner)
}
