//! The soak: `bench/soak` under `ebb`, again and again, with another seed, budget, set of options and set of
//! elements each time, until the time is up. It must print what it prints by itself.
//!
//! Elements are what programs do beside memory calls: signals, exec, kills and so on (`bench/soak/elements.h`).
//! Each may be switched off, and a failure says how to repeat it, and keeps what was printed.

use crate::setup;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{LASTING_SLACK, MIB, SLACK, tools, workloads};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The options of a run beside memory calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Element {
    /// Signals at any time: in forks and executions too
    Signals,
    /// Children that execute the program again
    Exec,
    /// Transfers past the page cache, into memory that pages
    Direct,
    /// The same by io_uring, with registered buffers and without
    Uring,
    /// Processes that are killed at any moment
    Kills,
    /// Memory calls on the smallest stacks
    Stacks,
    /// Workers of root's that become another user
    Users,
    /// Memory calls by instruction, which no library sees
    Raw,
}

impl Element {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().into())
    }
}

/// The resources of a run: sizes in MiB.
struct Setting {
    elements: Vec<Element>,
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
    /// Elements that no run has
    #[arg(long, value_delimiter = ',', value_name = "ELEMENT,...")]
    without: Vec<Element>,
    /// The only elements that runs have, all of them in every run
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ELEMENT,...",
        conflicts_with = "without"
    )]
    only: Vec<Element>,
}

impl Options {
    /// The elements of the run with this seed: of those that may be, each in every other run.
    fn elements(&self, seed: u64) -> Vec<Element> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let all = Element::value_variants().iter().copied();
        // Multiplied, so that runs that share their other settings differ in these.
        let drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        all.filter(|element| !self.without.contains(element))
            .filter(|element| drawn >> (*element as u64) & 1 == 1)
            .collect()
    }
}

/// Runs it; true if every run was right.
///
/// # Errors
/// Something cannot be built or started.
pub fn soak(options: &Options) -> Result<bool> {
    ensure!(options.seed > 0, "seeds begin at 1");
    setup::install(setup::Extent::Small);
    let ebb = setup::build_release()?;
    let program = workloads::compile("bench/soak/soak.c")?;
    let logs = tools::project().join("target/soak");
    fs::create_dir_all(&logs)?;
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let last = options.runs.map_or(u64::MAX, |runs| options.seed + runs);
    let (mut runs, mut wrong) = (0, 0);
    for seed in options.seed..last {
        if Instant::now() > end {
            break;
        }
        let setting = Setting::of(seed, options.elements(seed));
        runs += 1;
        if let Err(why) = setting.run(seed, &ebb, &program)? {
            wrong += 1;
            let log = logs.join(format!("seed-{seed}.log"));
            let text = format!("{}\n{why}\n", setting.described(seed));
            fs::write(&log, &text)?;
            println!("{text}  kept in {}", log.display());
        }
    }
    println!("{runs} runs, {wrong} wrong");
    Ok(wrong == 0)
}

impl Setting {
    /// The resources of the run with this seed: every combination comes.
    fn of(seed: u64, mut elements: Vec<Element>) -> Self {
        let pick = |n: usize, step: u64| (seed / step) as usize % n;
        let options = OPTIONS[pick(OPTIONS.len(), 1)];
        // A worker that gave up the tree's user pages into the pool alone.
        let has_pool = !options.contains(&"--pool-max") && options != ["--pool", "none"];
        elements.retain(|element| has_pool || *element != Element::Users);
        let alone = options == ["--swap", "none"] || elements.contains(&Element::Users);
        Self {
            elements,
            threads: 1 + seed % 4,
            // Half of what it fills does not compress: without a device that has to fit.
            mib: if alone { 64 } else { 96 + 32 * (seed % 3) },
            budget: if alone { 64 } else { 48 },
            options,
            faults: FAULTS[pick(FAULTS.len(), 3)],
        }
    }

    /// The names of its elements, as the program and the options take them.
    fn names(&self) -> String {
        let names: Vec<String> = self.elements.iter().map(|e| e.name()).collect();
        names.join(",")
    }

    /// The run, and how to repeat it.
    fn described(&self, seed: u64) -> String {
        // Without any, those of no option are none.
        let elements = match self.elements.as_slice() {
            [] => {
                let all: Vec<String> = Element::value_variants().iter().map(|e| e.name()).collect();
                format!("--without {}", all.join(","))
            }
            _ => format!("--only {}", self.names()),
        };
        format!(
            "seed {seed}: {} threads, {} MiB in {}, {:?}, faults \"{}\", elements \"{}\"\n  again: cargo xtask soak --seed {seed} --runs 1 {elements}",
            self.threads,
            self.mib,
            self.budget,
            self.options,
            self.faults,
            self.names()
        )
    }

    /// Whether the output is what it is without `ebb`; else why not.
    fn run(&self, seed: u64, ebb: &Path, program: &Path) -> Result<Result<(), String>> {
        let arguments = [seed, self.threads, self.mib, 2000].map(|n| n.to_string().into());
        let argv = [program.as_os_str().to_os_string()].into_iter();
        let names = (!self.elements.is_empty()).then(|| self.names().into());
        let job = Job::new(argv.chain(arguments).chain(names)).time_limit(Duration::from_secs(600));
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
        Ok(same(&run, &free).and_then(|()| {
            if run.lasting > self.budget * MIB + LASTING_SLACK {
                return Err(format!("{} MiB for long", run.lasting / MIB));
            }
            Ok(())
        }))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(without: &[Element], only: &[Element]) -> Options {
        Options {
            minutes: 1,
            seed: 1,
            runs: None,
            without: without.to_vec(),
            only: only.to_vec(),
        }
    }

    #[test]
    fn every_element_comes_and_none_that_is_switched_off() {
        let some = options(&[Element::Kills], &[]);
        for element in Element::value_variants() {
            let comes = (1..20).any(|seed| some.elements(seed).contains(element));
            assert_eq!(comes, *element != Element::Kills, "{element:?}");
        }
    }

    #[test]
    fn a_run_is_repeated_with_its_own_elements() {
        let only = options(&[], &[Element::Raw, Element::Signals]);
        let setting = Setting::of(7, only.elements(7));
        assert!(
            setting
                .described(7)
                .ends_with("--seed 7 --runs 1 --only raw,signals")
        );
    }

    #[test]
    fn the_program_knows_the_elements() {
        let text = fs::read_to_string(tools::project().join("bench/soak/elements.h")).unwrap();
        let quoted: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
        for element in Element::value_variants() {
            assert!(quoted.contains(&element.name().as_str()), "{element:?}");
        }
    }
}
