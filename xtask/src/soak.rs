//! The soak: `bench/soak.c` under `ebb`, again and again, with another seed, budget and set of options
//! each time, until the time is up. It must print what it prints by itself.

use crate::setup;
use anyhow::{Result, ensure};
use clap::Args;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{MIB, SLACK, workloads};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a run has: sizes in MiB.
struct Setting {
    threads: u64,
    mib: u64,
    budget: u64,
    options: &'static [&'static str],
    /// Faults of devices, of which none may be seen from outside.
    faults: &'static str,
}

const OPTIONS: [&[&str]; 7] = [
    &[],
    &["--swap", "none"],
    &["--pool", "none"],
    &["--pool", "zstd:-1"],
    &["--pool", "lz4+zstd+dict"],
    &["--eager"],
    &["--pool-max", "8M", "--accept", "60"],
];

const FAULTS: [&str; 4] = [
    "",
    "write=1/500",
    "read=1/2000,delay=1/200:2ms",
    "short=1/500,delay=1/500:5ms",
];

/// Run what programs do to memory under ebb in all settings, for as long as you like
#[derive(Args)]
pub struct Options {
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The first seed; each run takes the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at most: 1 repeats one that failed
    #[arg(long)]
    runs: Option<u64>,
}

/// Runs it; true if every run was right.
///
/// # Errors
/// Something cannot be built or started.
pub fn soak(options: &Options) -> Result<bool> {
    ensure!(options.seed > 0, "seeds begin at 1");
    setup::install(setup::Extent::Small);
    let ebb = setup::build_release()?;
    let program = workloads::compile("bench/soak.c")?;
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let last = options.runs.map_or(u64::MAX, |runs| options.seed + runs);
    let (mut runs, mut wrong) = (0, 0);
    for seed in options.seed..last {
        if Instant::now() > end {
            break;
        }
        let setting = Setting::of(seed);
        runs += 1;
        if let Err(why) = setting.run(seed, &ebb, &program)? {
            wrong += 1;
            println!(
                "seed {seed}: {why}\n  again: cargo xtask soak --seed {seed} --runs 1 ({} threads, {} MiB in {}, {:?}, faults \"{}\")",
                setting.threads, setting.mib, setting.budget, setting.options, setting.faults
            );
        }
    }
    println!("{runs} runs, {wrong} wrong");
    Ok(wrong == 0)
}

impl Setting {
    /// What the run with this seed has: every combination comes.
    fn of(seed: u64) -> Self {
        let pick = |n: usize, step: u64| (seed / step) as usize % n;
        let options = OPTIONS[pick(OPTIONS.len(), 1)];
        let alone = options.contains(&"none") && options.contains(&"--swap");
        Self {
            threads: 1 + seed % 4,
            // Half of what it fills does not compress: without a device that has to fit.
            mib: if alone { 64 } else { 96 + 32 * (seed % 3) },
            budget: if alone { 64 } else { 48 },
            options,
            faults: FAULTS[pick(FAULTS.len(), 3)],
        }
    }

    /// Whether the output is what it is without `ebb`; else why not.
    fn run(&self, seed: u64, ebb: &Path, program: &Path) -> Result<Result<(), String>> {
        let arguments = [seed, self.threads, self.mib, 2000].map(|n| n.to_string().into());
        let argv = [program.as_os_str().to_os_string()].into_iter();
        let job = Job::new(argv.chain(arguments)).time_limit(Duration::from_secs(180));
        let free = job.run(None)?;
        ensure!(free.ok(), "soak fails by itself: {}", free.stderr);
        let mut front: Vec<OsString> = vec![ebb.into(), "run".into()];
        front.extend(["--memory".into(), format!("{}M", self.budget).into()]);
        front.extend(self.options.iter().map(Into::into));
        front.push("--".into());
        let job = job.behind(front).env("EBB_CHECK", "1");
        let job = match self.faults {
            "" => job,
            faults => job.env("EBB_FAULTS", faults),
        };
        let group = match cgroup::unavailable() {
            None => Some(Cgroup::new(
                self.budget * MIB + SLACK,
                KernelSwap::Forbidden,
            )?),
            Some(_) => None,
        };
        let run = job.run(group.as_ref())?;
        Ok(same(&run, &free))
    }
}

fn same(run: &Outcome, free: &Outcome) -> Result<(), String> {
    if run.kills > 0 {
        return Err(format!("killed for memory\n{}", run.stderr));
    }
    if !run.ok() {
        return Err(format!("{}\n{}", run.ending(), run.stderr));
    }
    if run.stdout != free.stdout {
        return Err("it printed something else".into());
    }
    Ok(())
}
