//! Runs a test by itself and under `ebb`, and says in what the two differ.
//!
//! Every run has a directory, a memory cgroup and a time limit of its own. Root adds own mounts, own System
//! V objects and an own host name. Leftovers of a test go with these.
//!
//! Where the verdicts differ both sides run again: a test that is unsteady by itself may say under `ebb`
//! whatever it says without.

use super::Test;
use super::verdict::Verdict;
use anyhow::{Context, Result, ensure};
use ebb_harness::MIB;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::tools;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How a test runs under `ebb`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// With all its memory managed from the first instant.
    Eager,
    /// The same in so little memory that pages leave; for tests that use more than that.
    Paging,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Paging => "paging",
        })
    }
}

/// In what a test differs under `ebb`.
#[derive(Default)]
pub struct Difference {
    /// The lines of each run that differs: `-` and what the test says by itself, `+` and what it says under `ebb`.
    pub wrong: Vec<Vec<String>>,
    /// The number of runs.
    pub runs: usize,
}

/// Lines of a difference that are shown.
const SHOWN: usize = 12;

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, lines) in self.wrong.iter().enumerate() {
            // Most differ every time in the same way.
            if self.wrong[..at].contains(lines) {
                continue;
            }
            for line in lines.iter().take(SHOWN) {
                writeln!(f, "    {line}")?;
            }
            if lines.len() > SHOWN {
                writeln!(f, "    and {} more", lines.len() - SHOWN)?;
            }
            writeln!(f, "    --")?;
        }
        write!(f, "    in {} of {} runs", self.wrong.len(), self.runs)
    }
}

/// The resources of a test: no machine is brought down by one.
const MEMORY: u64 = 3 << 30;

/// The budget where pages are to leave.
const BUDGET: u64 = 40 * MIB;

/// How long a test may take by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs under `ebb` at most: how often it differs in these is what is said.
const TRIES: usize = 3;

/// Everything that tests run with.
pub struct Trial {
    ebb: PathBuf,
    logs: PathBuf,
    groups: bool,
    /// Goes before each command.
    apart: Vec<OsString>,
    /// The scratch directory, for all runs the same, as some tests print where they are.
    scratch: PathBuf,
}

/// One run, and what it said.
struct Run {
    outcome: Outcome,
    verdict: Verdict,
}

impl Trial {
    /// Looks what there is; `logs` is emptied.
    ///
    /// # Errors
    /// No such directory can be made.
    pub fn new(ebb: &Path, logs: &Path) -> Result<Self> {
        let _ = fs::remove_dir_all(logs);
        fs::create_dir_all(logs)?;
        let apart = ["unshare", "--mount", "--ipc", "--uts"];
        let works = Command::new(apart[0])
            .args(&apart[1..])
            .arg("true")
            .output();
        let apart = match works {
            Ok(output) if output.status.success() => apart.map(Into::into).to_vec(),
            _ => Vec::new(),
        };
        Ok(Self {
            ebb: ebb.into(),
            logs: logs.into(),
            groups: cgroup::unavailable().is_none(),
            apart,
            scratch: std::env::temp_dir().join(format!("conformance-{}", std::process::id())),
        })
    }

    /// Whether and in what a test differs, in every mode that is for it. In none where the test itself does
    /// not end in time: nothing can be compared with that.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn compare(&self, test: &Test) -> Result<BTreeMap<Mode, Option<Difference>>> {
        let mut plain = vec![self.run(test, None, PATIENCE)?];
        let mut modes = vec![Mode::Eager];
        if plain[0].outcome.peak > BUDGET {
            modes.push(Mode::Paging);
        }
        let mut outcomes = BTreeMap::new();
        if plain[0].outcome.status.is_some() {
            for mode in modes {
                outcomes.insert(mode, self.differs(test, mode, &mut plain)?);
            }
        }
        Ok(outcomes)
    }

    /// Runs it in a mode, again where it differs; and by itself once more, for all modes.
    fn differs(&self, test: &Test, mode: Mode, plain: &mut Vec<Run>) -> Result<Option<Difference>> {
        let patience = Duration::from_secs_f64((20.0 + 5.0 * plain[0].outcome.wall).min(120.0));
        let mut difference = Difference::default();
        while difference.runs < TRIES {
            let run = self.run(test, Some(mode), patience)?;
            difference.runs += 1;
            if !known(plain, &run) && plain.len() == 1 {
                plain.push(self.run(test, None, PATIENCE)?);
            }
            if !known(plain, &run) {
                self.log(test, mode, &plain[0], &run)?;
                difference
                    .wrong
                    .push(plain[0].verdict.lines_to(&run.verdict));
                // A hang costs all the time there is: twice is enough.
                if run.outcome.status.is_none() && difference.runs > 1 {
                    break;
                }
            } else if difference.wrong.is_empty() {
                break;
            }
        }
        Ok((!difference.wrong.is_empty()).then_some(difference))
    }

    /// One run, by itself or in a mode.
    fn run(&self, test: &Test, mode: Option<Mode>, patience: Duration) -> Result<Run> {
        let _ = fs::remove_dir_all(&self.scratch);
        fs::create_dir(&self.scratch)?;
        // Tests that become another user want to get there.
        fs::set_permissions(&self.scratch, fs::Permissions::from_mode(0o755))?;
        let dir = self.scratch.join("test");
        match &test.home {
            Some(home) => copy(home, &dir)?,
            None => fs::create_dir(&dir)?,
        }
        let stats = self.scratch.join("stats.json");
        let mut front = self.apart.clone();
        if let Some(mode) = mode {
            front.extend([self.ebb.clone().into(), "run".into(), "--eager".into()]);
            front.extend(["--stats".into(), stats.clone().into()]);
            if mode == Mode::Paging {
                front.extend(["--memory".into(), BUDGET.to_string().into()]);
            }
            front.push("--".into());
        }
        let mut job = Job::new(&test.argv).behind(front).dir(&dir);
        for (name, value) in &test.env {
            job = job.env(name, value);
        }
        let job = job
            .env("TMPDIR", &dir)
            .env("EBB_CHECK", "1")
            .time_limit(patience);
        let group = match self.groups {
            true => Some(Cgroup::new(MEMORY, KernelSwap::Forbidden)?),
            false => None,
        };
        let outcome = job.run(group.as_ref())?;
        let mut verdict = Verdict::of(&outcome);
        if disagrees(&stats) {
            verdict = verdict.and("ebb: pages were not as the page map said");
        }
        Ok(Run { outcome, verdict })
    }

    /// Keeps what both sides printed.
    fn log(&self, test: &Test, mode: Mode, plain: &Run, run: &Run) -> Result<()> {
        let name = format!("{}.{mode}.txt", test.name.replace(['/', ' '], "_"));
        let part = |title: &str, run: &Run| {
            let outcome = &run.outcome;
            let stdout = String::from_utf8_lossy(&outcome.stdout);
            let (ending, stderr) = (outcome.ending(), &outcome.stderr);
            format!("==== {title}: {ending}\n{stdout}\n---- stderr\n{stderr}\n")
        };
        let text = format!(
            "{:?}\n{}{}",
            test.argv,
            part("by itself", plain),
            part("under ebb", run)
        );
        fs::write(self.logs.join(name), text)?;
        Ok(())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Whether the test says that by itself too.
fn known(plain: &[Run], run: &Run) -> bool {
    plain.iter().any(|plain| plain.verdict == run.verdict)
}

/// Whether the pager found pages in another state than it had noted.
fn disagrees(stats: &Path) -> bool {
    let text = fs::read_to_string(stats).unwrap_or_default();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    stats["counters"]["map_disagrees"].as_u64() > Some(0)
}

/// A directory with links and modes as they are.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let cp = tools::in_path("cp").context("cp is not installed")?;
    let status = Command::new(cp).arg("-a").args([from, to]).status()?;
    ensure!(status.success(), "cannot copy {}", from.display());
    Ok(())
}
