//! `ebb lab NAME`: the engine's experiments.

use crate::ask::ask;
use crate::cli::LabArgs;
use crate::lab_shrinker;
use anyhow::{Context, Result, bail};
use ebb_lab::{Report, corpus, mthp, scattered, shrinker, vswap};
use ebb_tree::Request;
use std::io::{Write, stdout};
use std::process::{Command, ExitCode, Stdio};

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
    plain!(drain),
    plain!(policy),
    plain!(lifetimes),
    plain!(seeks),
    Experiment {
        name: "scattered",
        about: scattered::ABOUT,
        run: |_| scattered::run(&Default::default()).map_err(anyhow::Error::msg),
    },
    plain!(bookkeeping),
    plain!(numa),
    plain!(scaling),
    plain!(tail),
    Experiment {
        name: "vswap",
        about: vswap::ABOUT,
        run: |_| vswap::run(&Default::default(), vswap_elsewhere),
    },
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
    if args.real && name != "mthp" && name != "shrinker" {
        bail!("--real is an option of the experiments mthp and shrinker alone");
    }
    if args.work.is_some() && !["mthp", "shrinker", "vswap"].contains(&name.as_str()) {
        bail!("--work is for programs that experiments start");
    }
    if let Some(mode) = &args.work {
        let done = match name.as_str() {
            "mthp" => mthp_work(mode),
            "vswap" => vswap_work(mode),
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

/// The program of the mTHP test: a mode, or `MODE*ITERATIONS`. After the warm-up and after each
/// iteration it prints the counters of whoever pages it, if that is an `ebb run`.
fn mthp_work(mode: &str) -> Result<(), String> {
    let (mode, iterations) = match mode.split_once('*') {
        None => (mode, Ok(REAL_ITERATIONS)),
        Some((mode, times)) => (mode, times.parse()),
    };
    let iterations = iterations.map_err(|_| "give a number of iterations after the *")?;
    mthp::real::work(mode, iterations, 1, || {
        if let Ok(counters) = ask(std::process::id(), &Request::Counters) {
            println!("{counters}");
        }
    })
}

/// The mTHP test through the real pager: this very command is the program, under `ebb run`.
fn run_mthp_real() -> Result<Report> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let mut rows = Vec::new();
    for mode in mthp::real::modes() {
        let swap = format!("{}:{}", "/var/tmp", mthp::real::SWAP_BYTES);
        let output = Command::new(&own)
            .args(["run", "--memory", REAL_BUDGET, "--pool", "none"])
            .args(["--swap", &swap, "--"])
            .arg(&own)
            .args(["lab", "mthp", "--work", mode])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start ebb again")?;
        if !output.status.success() {
            bail!("mode {mode}: the program ended with {}", output.status);
        }
        let told = String::from_utf8_lossy(&output.stdout);
        let stored: Vec<_> = told.lines().map(stored).collect::<Result<_>>()?;
        if stored.len() != 1 + REAL_ITERATIONS as usize {
            bail!("mode {mode}: the program could not ask `ebb run` for its counters");
        }
        rows.push(mthp::real::Row { mode, stored });
    }
    Ok(mthp::real::report(&rows))
}

/// What a line of counters says was stored.
fn stored(line: &str) -> Result<mthp::real::Stored> {
    let counters: serde_json::Value = serde_json::from_str(line).context("no line of counters")?;
    let counter = |name: &str| counters[name].as_u64().unwrap_or(0);
    Ok(mthp::real::Stored {
        whole: counter("swpout_4"),
        fallback: counter("swpout_fallback_4"),
        writes: counter("swpout_runs"),
    })
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

/// Measures a backend of the virtual swap space, named by number and GiB, in this process: prints rows.
fn vswap_work(what: &str) -> Result<(), String> {
    let measured = what.split_once(':').and_then(|(backend, gib)| {
        let backend = *vswap::Backend::ALL.get(backend.parse::<usize>().ok()?)?;
        Some(vswap::measure(
            backend,
            gib.parse().ok()?,
            ebb_sys::heap::give_back_libc,
        ))
    });
    let rows = measured.ok_or("give the number of a backend, a colon, and a number of GiB")?;
    println!("{}", serde_json::Value::from(rows));
    Ok(())
}

/// The same in a process of its own: this very command.
fn vswap_elsewhere(backend: vswap::Backend, gib: u64) -> Result<Vec<Vec<serde_json::Value>>> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let output = Command::new(own)
        .args(["lab", "vswap", "--work"])
        .arg(format!("{}:{gib}", backend as usize))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start ebb again")?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: ended with {}", backend.name(), output.status))
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
