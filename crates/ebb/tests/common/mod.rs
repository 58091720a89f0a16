//! Shared parts of the tests of real programs: the command under test, runs of a program with and
//! without it, and assertions on every such pair.
#![allow(dead_code)] // each test program uses a part of it

pub mod tree;

use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{LASTING_SLACK, MIB, SLACK, tested, tools, workloads};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// `ebb run` in 40 MiB and nowhere else, with a command for when a program is ended for memory.
pub fn ends_for_memory(hook: &str) -> [&str; 7] {
    ["run", "-m", "40M", "--swap", "none", "--on-exhausted", hook]
}

/// The command, with its preload library built beside it.
pub fn ebb() -> &'static Path {
    static EBB: OnceLock<&Path> = OnceLock::new();
    EBB.get_or_init(|| {
        tested::build_library(tested());
        tested()
    })
}

/// The program of the experiments, built beside the command.
pub fn lab() -> &'static Path {
    static LAB: OnceLock<PathBuf> = OnceLock::new();
    LAB.get_or_init(|| {
        tested::build_beside(
            tested(),
            &[&tested::PACKAGES[..], &["--bin", "ebb-lab"]].concat(),
        );
        tested().with_file_name("ebb-lab")
    })
}

/// The command under test: the one that is built with the tests, unless another is named.
fn tested() -> &'static Path {
    static TESTED: OnceLock<PathBuf> = OnceLock::new();
    TESTED.get_or_init(|| tested::command(Path::new(env!("CARGO_BIN_EXE_ebb"))))
}

/// One test of a program at a time: what one leaves on processors and devices decides what another sees.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// The middle of these figures.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Says why figures of the build under test mean nothing, if so; the caller then returns.
pub fn not_built_for_speed() -> bool {
    let released = tested::build_of(tested()).ends_with("release");
    if !released {
        println!("skipped: a benchmark, and this is a debug build");
    }
    !released
}

/// Says why this test does not run here, if so; the caller then returns.
pub fn cannot_page() -> bool {
    let output = Command::new(ebb())
        .args(["doctor", "--json"])
        .output()
        .expect("ebb runs");
    if output.status.success() {
        return false;
    }
    println!(
        "skipped: no userfaultfd here: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    true
}

/// Why a program cannot be had here, as the reason of a skip.
pub fn lacks(program: &str) -> bool {
    let missing = tools::in_path(program).is_none();
    if missing {
        println!("skipped: {program} is not installed");
    }
    missing
}

/// The same of another network namespace.
pub fn lacks_network_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "true"]).status();
    let lacks = !made.is_ok_and(|status| status.success());
    if lacks {
        println!("skipped: no network namespace can be made");
    }
    lacks
}

/// A C program of `tests/programs`, compiled.
pub fn c_program(name: &str) -> PathBuf {
    workloads::compile(&format!("crates/ebb/tests/programs/{name}.c"))
        .expect("the test program compiles")
}

/// How to run a program under `ebb`.
pub struct Under {
    /// The budget in bytes.
    pub budget: u64,
    /// Options of `ebb run` beside `--memory` and `--stats`.
    pub options: Vec<String>,
    /// The value of EBB_FAULTS.
    pub faults: Option<String>,
    /// Bytes that its cgroup has beside the budget.
    pub beside: u64,
    /// Flag: the program changes its memory without libc. Then pages may not be as the page map says.
    pub behind_libc: bool,
}

impl Under {
    /// A budget, and the default for everything else.
    pub fn budget(budget: u64) -> Self {
        Self {
            budget,
            options: Vec::new(),
            faults: None,
            beside: SLACK,
            behind_libc: false,
        }
    }

    /// Adds options.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|s| s.to_string()));
        self
    }

    /// Injects these faults into the devices.
    pub fn faults(mut self, faults: &str) -> Self {
        self.faults = Some(faults.into());
        self
    }

    /// Its cgroup has so many bytes beside the budget.
    pub fn beside(mut self, bytes: u64) -> Self {
        self.beside = bytes;
        self
    }

    /// The program changes its memory without libc.
    pub fn behind_libc(mut self) -> Self {
        self.behind_libc = true;
        self
    }

    /// Runs the job under `ebb`, in a cgroup of budget + slack where there can be one.
    pub fn run(&self, job: &Job) -> Managed {
        self.run_behind(&[], job)
    }

    /// The same with `ebb` itself behind another command: `wrapper ebb run ... -- job`.
    pub fn run_behind(&self, wrapper: &[OsString], job: &Job) -> Managed {
        let stats = tempfile::NamedTempFile::new().expect("a file");
        let mut front = wrapper.to_vec();
        front.extend([ebb().as_os_str().to_os_string(), "run".into()]);
        front.extend(["--memory".into(), self.budget.to_string().into()]);
        front.extend(["--stats".into(), stats.path().into()]);
        front.extend(self.options.iter().map(Into::into));
        front.push("--".into());
        let mut job = job.clone().behind(front).default_env("EBB_CHECK", "end");
        if let Some(faults) = &self.faults {
            job = job.env("EBB_FAULTS", faults);
        }
        let group = match cgroup::unavailable() {
            None => Some(
                Cgroup::new(self.budget + self.beside, KernelSwap::Forbidden).expect("a cgroup"),
            ),
            Some(why) => {
                println!("skipped in part: no limit by the kernel, as there is no cgroup: {why}");
                None
            }
        };
        let run = job.run(group.as_ref()).expect("ebb starts");
        let text = std::fs::read_to_string(stats.path()).unwrap_or_default();
        let stats = serde_json::from_str(&text).unwrap_or_default();
        let managed = Managed {
            run,
            stats,
            budget: self.budget,
            group,
        };
        if !self.behind_libc {
            managed.assert_agrees();
        }
        managed
    }
}

/// A run under `ebb`.
pub struct Managed {
    /// The run.
    pub run: Outcome,
    /// Content of the file of `--stats`; null if there is none.
    pub stats: serde_json::Value,
    /// The budget in bytes.
    pub budget: u64,
    /// Group of the run; dropping it ends the children that are left.
    pub group: Option<Cgroup>,
}

impl Managed {
    /// A counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.stats["counters"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name} in {}", self.stats))
    }

    /// It ended as by itself, with the same output, and nothing was killed.
    pub fn assert_same(&self, free: &Outcome, what: &str) {
        let (run, stderr) = (&self.run, &self.run.stderr);
        let budget = self.budget / MIB;
        assert!(
            run.kills == 0,
            "{what} in {budget} MiB: killed for memory\n{stderr}"
        );
        assert_eq!(
            run.ending(),
            free.ending(),
            "{what} in {budget} MiB\n{stderr}"
        );
        assert!(
            run.stdout == free.stdout,
            "{what} in {budget} MiB printed something else\n{stderr}"
        );
    }

    /// Pages were as the page map said, all the time and at the end. There is no telling if `ebb` was killed.
    fn assert_agrees(&self) {
        let stderr = &self.run.stderr;
        let disagrees = self.stats["counters"]["map_disagrees"].as_u64();
        assert!(
            disagrees == Some(0) || disagrees.is_none() && self.stats.is_null(),
            "pages were not as the page map said: {disagrees:?}\n{stderr}"
        );
    }

    /// It stayed within its budget, and did page: else the test would show nothing.
    pub fn assert_paged_within_budget(&self, what: &str) {
        self.assert_paged_within(0, what);
    }

    /// The same, where so many bytes more may last.
    pub fn assert_paged_within(&self, more: u64, what: &str) {
        let peak = self.stats["peak_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no peak in {}", self.stats));
        println!(
            "{what}: peak {} of {} MiB, anonymous memory {}, lasting {}",
            peak / MIB,
            self.budget / MIB,
            self.run.peak / MIB,
            self.run.lasting / MIB
        );
        assert!(peak <= self.budget + SLACK, "{what} outgrew its budget");
        // The kernel's count knows nothing of charges and credits.
        let lasting = self.run.lasting;
        assert!(
            lasting <= self.budget + LASTING_SLACK + more,
            "{what} has memory that is charged to nobody: {} MiB",
            lasting / MIB
        );
        assert!(
            self.counter("evicted") > 0,
            "{what}: nothing was evicted: {}",
            self.stats
        );
    }

    /// It stayed within its budget but for this, by the charge and by what the kernel counted.
    pub fn assert_close_to_budget(&self, over: u64, what: &str) {
        let peak = self.stats["peak_bytes"].as_u64().expect("a peak");
        let anonymous = self.group.as_ref().map_or(0, |_| self.run.peak);
        for (what_of, peak) in [("charge", peak), ("cgroup", anonymous)] {
            let (peak, budget) = (peak / MIB, self.budget / MIB);
            assert!(
                peak <= budget + over / MIB,
                "{what}: {what_of} {peak} of {budget} MiB"
            );
        }
    }

    /// `ebb` had nothing to say.
    pub fn assert_quiet(&self, what: &str) {
        let ours: Vec<&str> = self
            .run
            .stderr
            .lines()
            .filter(|line| line.starts_with("ebb"))
            .collect();
        assert!(ours.is_empty(), "{what}: {ours:?}");
    }
}

/// The program by itself; it must succeed.
pub fn free(job: &Job, what: &str) -> Outcome {
    let group = Cgroup::unlimited().ok();
    let run = job.run(group.as_ref()).expect("the program starts");
    assert!(
        run.ok(),
        "{what} fails by itself: {}\n{}",
        run.ending(),
        run.stderr
    );
    run
}

/// The program prints the same in these parts of its peak memory (2: half), within the budget.
/// Answers how it ran by itself.
pub fn same_in_parts(job: &Job, what: &str, divisors: &[u64], options: &[&str]) -> Outcome {
    let free = free(job, what);
    let training = match options.iter().any(|option| option.contains("+dict")) {
        true => TRAINING,
        false => 0,
    };
    for divisor in divisors {
        let managed = Under::budget((free.peak / divisor).max(SMALLEST))
            .options(options)
            .run(job);
        let what = format!("{what}, 1/{divisor} of {} MiB {options:?}", free.peak / MIB);
        managed.assert_same(&free, &what);
        managed.assert_paged_within(training, &what);
        managed.assert_close_to_budget(CLOSE, &what);
        managed.assert_quiet(&what);
    }
    free
}

/// Bytes that a dictionary takes beside the budget while it is trained: for half a second where processors are busy.
const TRAINING: u64 = 12 * MIB;

/// Bytes that they may use over the budget: half of the promised slack.
const CLOSE: u64 = SLACK / 2;

/// The smallest budget of `ebb run`: no test asks for less.
pub const SMALLEST: u64 = 24 * MIB;

/// The helpers that a supervisor has started.
pub fn helpers(supervisor: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    let children = children.unwrap_or_default();
    let all = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let is_helper = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "ebb-helper\n")
    };
    all.filter(is_helper).collect()
}

/// How often threads of a process waited for something.
pub fn times_waited(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let waited = tasks.map(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse().unwrap_or(0))
    });
    waited.sum()
}

/// Processor time of all threads of a process.
pub fn processor_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let ran = tasks.map(|task| {
        let words = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let first = words.split(' ').next().and_then(|ns| ns.parse().ok());
        Duration::from_nanos(first.unwrap_or(0))
    });
    ran.sum()
}
