//! `ebb lab NAME`: the engine's experiments.

use crate::cli::LabArgs;
use crate::lab_shrinker;
use anyhow::{Context, Result, bail};
use ebb_lab::{Report, corpus, mthp, shrinker};
use std::io::{Write, stdout};
use std::process::{Command, ExitCode};

struct Experiment {
    name: &'static str,
    about: &'static str,
    run: fn(&LabArgs) -> Result<Report>,
}

/// Those that take no option of their own.
macro_rules! plain {
    ($name:ident) => {
        Experiment {
            name: stringify!($name),
            about: ebb_lab::$name::ABOUT,
            run: |_| Ok(ebb_lab::$name::run(&Default::default())),
        }
    };
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "mthp",
        about: mthp::ABOUT,
        run: run_mthp,
    },
    plain!(fill),
    plain!(policy),
    plain!(lifetimes),
    plain!(seeks),
    plain!(bookkeeping),
    plain!(numa),
    plain!(scaling),
    plain!(tail),
    plain!(vswap),
    plain!(quiet),
    Experiment {
        name: "shrinker",
        about: shrinker::ABOUT,
        run: |args| {
            if args.real {
                lab_shrinker::run()
            } else {
                Ok(shrinker::run(&Default::default()))
            }
        },
    },
    Experiment {
        name: "corpus",
        about: corpus::ABOUT,
        run: run_corpus,
    },
];

/// Runs the experiment the arguments name; lists them if they name none.
///
/// # Errors
/// An unknown name or option, or what the experiment reports.
pub fn lab(args: LabArgs) -> Result<ExitCode> {
    let mut out = stdout().lock();
    let Some(name) = &args.name else {
        for experiment in EXPERIMENTS {
            writeln!(out, "{:<11} {}", experiment.name, experiment.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some(experiment) = EXPERIMENTS.iter().find(|e| e.name == name) else {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        bail!(
            "there is no experiment \"{name}\": there are {}",
            names.join(", ")
        );
    };
    if args.allocator.is_some() && name != "mthp" {
        bail!("--allocator is an option of the experiment mthp alone");
    }
    if (args.pid.is_some() || args.dump.is_some() || !args.command.is_empty()) && name != "corpus" {
        bail!("--pid, --dump and a command are for the experiment corpus alone");
    }
    if (args.real || args.work.is_some()) && name != "mthp" && name != "shrinker" {
        bail!("--real is an option of the experiments mthp and shrinker alone");
    }
    if let Some(mode) = &args.work {
        let done = match name.as_str() {
            "mthp" => mthp_work(mode),
            _ => shrinker::real::work(mode),
        };
        done.map_err(anyhow::Error::msg)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = (experiment.run)(&args)?;
    let text = if args.json {
        report.json()
    } else {
        report.text()
    };
    out.write_all(text.as_bytes())?;
    if let Some(file) = &args.plot {
        report.draw(file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Iterations of the experiment with real memory; the simulated one does 100.
const REAL_ITERATIONS: u32 = 20;
/// The budget of its programs: much less than they touch.
const REAL_BUDGET: &str = "24M";

/// The program of the mTHP test: a mode, or `MODE*ITERATIONS`.
fn mthp_work(mode: &str) -> Result<(), String> {
    let (mode, iterations) = match mode.split_once('*') {
        None => (mode, Ok(REAL_ITERATIONS)),
        Some((mode, times)) => (mode, times.parse()),
    };
    let iterations = iterations.map_err(|_| "give a number of iterations after the *")?;
    mthp::work(mode, iterations, 1)
}

/// The mTHP test through the real pager: this very command is the program, under `ebb run`.
fn run_mthp_real() -> Result<Report> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let mut rows = Vec::new();
    for mode in mthp::modes() {
        let stats = std::env::temp_dir().join(format!("ebb-mthp-{}.json", std::process::id()));
        let swap = format!("{}:{}", "/var/tmp", mthp::swap_bytes(mode));
        let status = Command::new(&own)
            .args([
                "run",
                "--memory",
                REAL_BUDGET,
                "--pool",
                "none",
                "--swap",
                &swap,
            ])
            .arg("--stats")
            .arg(&stats)
            .arg("--")
            .arg(&own)
            .args(["lab", "mthp", "--work", mode])
            .status()
            .context("cannot start ebb again")?;
        let text = std::fs::read_to_string(&stats);
        let _ = std::fs::remove_file(&stats);
        if !status.success() {
            bail!("mode {mode}: the program ended with {status}");
        }
        let stats: serde_json::Value =
            serde_json::from_str(&text.context("no statistics were written")?)?;
        let counter = |name: &str| stats["counters"][name].as_u64().unwrap_or(0);
        let folios: u64 = (0..=9).map(|n| counter(&format!("swpout_{n}"))).sum();
        rows.push(mthp::RealRow {
            mode,
            whole: counter("swpout_4"),
            fallback: counter("swpout_fallback_4"),
            writes: counter("swpout_runs") as f64 / folios.max(1) as f64,
        });
    }
    Ok(mthp::real(&rows, REAL_ITERATIONS))
}

fn run_mthp(args: &LabArgs) -> Result<Report> {
    if args.real {
        if args.allocator.is_some() {
            bail!("--real measures the pager as it is: leave --allocator out");
        }
        return run_mthp_real();
    }
    let allocator = match &args.allocator {
        None => None,
        Some(name) => Some(name.parse().map_err(anyhow::Error::msg)?),
    };
    Ok(mthp::run(&mthp::Options {
        allocator,
        ..Default::default()
    }))
}

fn run_corpus(args: &LabArgs) -> Result<Report> {
    let from = match (args.pid, &args.dump, &args.command[..]) {
        (Some(pid), ..) => corpus::From::Process(pid),
        (None, Some(path), _) => corpus::From::Dump(path.clone()),
        (None, None, []) => bail!("give --pid PID, --dump FILE, or -- COMMAND"),
        (None, None, words) => corpus::From::Command(words.to_vec()),
    };
    Ok(corpus::run(&corpus::Options::from(from))?)
}
