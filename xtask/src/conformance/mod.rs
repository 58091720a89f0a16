//! `cargo xtask conformance`: the kernel's self-tests and LTP's system-call tests, each by itself and under
//! `ebb run`, and what they say compared.
//!
//! A test's verdict is how it ended and the results it printed, without times and addresses (`verdict`).
//! Where the two verdicts differ, both sides run again (`trial`), so that a test that is unsteady by itself
//! is no difference. The rest is a documented limit (`accepted.toml`), a known defect (`defects.toml`,
//! which makes the command fail as long as there is one), or new. A list that is out of date makes the
//! command fail too (`lists`).
//!
//! Does not judge whether a test passes: one that fails in the same way on both sides is the same.

mod lists;
mod ltp;
mod selftests;
mod trial;
mod verdict;

use crate::setup;
use anyhow::{Context, Result, ensure};
use ebb_harness::tools;
use lists::{Judged, Lists};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;
use trial::{Difference, Mode, Trial};

/// Run the kernel's self-tests and LTP by themselves and under ebb, and compare
#[derive(clap::Args)]
pub struct Options {
    /// The few directories of self-tests that a change must pass
    #[arg(long)]
    quick: bool,
    /// An installed LTP, whose system-call tests run too
    #[arg(long, value_name = "DIR")]
    ltp: Option<PathBuf>,
    /// Kernel sources, unpacked, instead of those of the distribution's linux-source
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// Only tests whose name contains one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

/// One test of a suite: a command, and what it needs around it.
pub struct Test {
    /// "selftests/mm/mremap_test", "ltp/clone01".
    name: String,
    /// Program and arguments. A relative program lies in `home`.
    argv: Vec<OsString>,
    /// A directory that is copied for each run, and is the working directory then; an empty one without.
    home: Option<PathBuf>,
    /// Variables of its environment.
    env: Vec<(OsString, OsString)>,
}

/// Runs it; true if nothing differs but what is accepted, and the lists are up to date.
///
/// # Errors
/// Something cannot be installed, built or started.
pub fn conformance(options: &Options) -> Result<bool> {
    let start = Instant::now();
    setup::install(setup::Extent::Small);
    let ebb = setup::build_release()?;
    let lists = Lists::read(&tools::project().join("xtask/conformance"))?;
    let mut tests = selftests::tests(options.kernel.as_deref(), options.quick)?;
    if let Some(dir) = &options.ltp {
        tests.extend(ltp::tests(dir)?);
    }
    let wanted = |test: &Test| {
        let filters = &options.filters;
        filters.is_empty() || filters.iter().any(|filter| test.name.contains(filter))
    };
    tests.retain(wanted);
    let (tests, left_out): (Vec<_>, Vec<_>) = tests
        .into_iter()
        .partition(|test| lists.left_out(&test.name).is_none());
    ensure!(!tests.is_empty(), "there is no such test");
    let logs = tools::project().join("target/conformance/logs");
    let trial = Trial::new(&ebb, &logs)?;
    let mut report = Report::new(&lists);
    for test in &tests {
        eprintln!("xtask: {}", test.name);
        report.add(&test.name, &trial.compare(test)?);
    }
    let good = report.print();
    println!(
        "{} tests, {} left out; took {:.0} s; outputs of what differed are in {}",
        tests.len(),
        left_out.len(),
        start.elapsed().as_secs_f64(),
        logs.display()
    );
    Ok(good)
}

/// The findings, by kind.
struct Report<'a> {
    lists: &'a Lists,
    same: usize,
    accepted: usize,
    /// Tests that do not end in time by themselves.
    endless: Vec<String>,
    /// Differences that are a known defect: (test, mode, reason).
    defects: Vec<String>,
    /// Differences that nobody knows.
    new: Vec<String>,
    /// Entries of the lists that did not come true.
    outdated: Vec<String>,
}

impl<'a> Report<'a> {
    fn new(lists: &'a Lists) -> Self {
        Self {
            lists,
            same: 0,
            accepted: 0,
            endless: Vec::new(),
            defects: Vec::new(),
            new: Vec::new(),
            outdated: Vec::new(),
        }
    }

    /// Judges the outcome of one test in all modes in which it ran.
    fn add(&mut self, name: &str, outcomes: &BTreeMap<Mode, Option<Difference>>) {
        if outcomes.is_empty() {
            self.endless.push(name.into());
        }
        for (&mode, difference) in outcomes {
            let at = format!("{name} ({mode})");
            match (
                self.lists.judge(name, mode, difference.as_ref()),
                difference,
            ) {
                (Judged::Same, _) => self.same += 1,
                (Judged::Accepted, _) => {
                    self.accepted += 1;
                    println!("accepted  {at}");
                }
                (Judged::Defect(reason), _) => {
                    println!("defect    {at}: {reason}");
                    self.defects.push(format!("{at}: {reason}"));
                }
                (Judged::Outdated(list), _) => {
                    println!("outdated  {at}: in {list}");
                    self.outdated.push(format!("{at}: in {list}"));
                }
                (Judged::New, Some(difference)) => {
                    println!("NEW       {at}\n{difference}");
                    self.new.push(format!("{at}\n{difference}"));
                }
                (Judged::New, None) => unreachable!("what is the same is not new"),
            }
        }
    }

    /// Says it all; true if nothing is wrong.
    fn print(&self) -> bool {
        let list = |title: &str, items: &[String]| {
            if !items.is_empty() {
                println!("\n{title}");
                items.iter().for_each(|item| println!("  {item}"));
            }
        };
        list(
            "Not compared, as they do not end in time by themselves:",
            &self.endless,
        );
        list(
            "Known defects, which are to be mended (defects.toml):",
            &self.defects,
        );
        list(
            "The lists are out of date; these do not differ any more:",
            &self.outdated,
        );
        list(
            "New differences (mend them, or put a limit that docs/LIMITATIONS.md documents into accepted.toml):",
            &self.new,
        );
        println!(
            "\n{} the same, {} accepted, {} known defects, {} out of date, {} new",
            self.same,
            self.accepted,
            self.defects.len(),
            self.outdated.len(),
            self.new.len()
        );
        self.defects.is_empty() && self.outdated.is_empty() && self.new.is_empty()
    }
}

/// A file's text, with its name in the error.
fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
