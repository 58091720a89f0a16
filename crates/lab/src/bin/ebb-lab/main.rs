//! `ebb-lab NAME`, or `ebb lab NAME`: the engine's experiments, each as a table, as JSON or as a plot.
#![forbid(unsafe_code)]

mod cli;
mod mthp;
mod real_shrinker;
mod reclaim;

use anyhow::{Context, Result, bail};
use clap::Parser;
use cli::Options;
use ebb_lab::{Report, allocator, corpus, devices, shrinker, vswap};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Exit status when an experiment could not be run, as `ebb` has it.
const FAILED: u8 = 125;

struct Experiment {
    name: &'static str,
    about: &'static str,
    run: fn(&Options) -> Result<Report>,
}

/// Those that take no option of their own but parameters.
macro_rules! plain {
    ($($module:ident)::+, $name:literal) => {
        Experiment {
            name: $name,
            about: ebb_lab::$($module)::+::ABOUT,
            run: |options| Ok(ebb_lab::$($module)::+::run(&options.parameters()?)),
        }
    };
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "mthp",
        about: allocator::mthp::ABOUT,
        run: mthp::run,
    },
    plain!(allocator::fill, "fill"),
    plain!(devices::drain, "drain"),
    plain!(allocator::policy, "policy"),
    plain!(allocator::lifetimes, "lifetimes"),
    plain!(devices::seeks, "seeks"),
    Experiment {
        name: "scattered",
        about: devices::scattered::ABOUT,
        run: |options| devices::scattered::run(&options.parameters()?).map_err(anyhow::Error::msg),
    },
    plain!(allocator::bookkeeping, "bookkeeping"),
    plain!(devices::numa, "numa"),
    plain!(allocator::scaling, "scaling"),
    plain!(allocator::tail, "tail"),
    plain!(threads, "threads"),
    Experiment {
        name: "vswap",
        about: vswap::ABOUT,
        run: |options| vswap::run(&options.parameters()?, vswap_elsewhere),
    },
    plain!(shrinker::writeback_backoff, "writeback-backoff"),
    Experiment {
        name: "shrinker",
        about: shrinker::ABOUT,
        run: |options| {
            if options.real {
                real_shrinker::run()
            } else {
                Ok(shrinker::run(&options.parameters()?))
            }
        },
    },
    Experiment {
        name: "corpus",
        about: corpus::ABOUT,
        run: run_corpus,
    },
    Experiment {
        name: "reclaim",
        about: ebb_lab::reclaim::ABOUT,
        run: reclaim::run,
    },
];

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help and version come as "errors" that belong on stdout.
            let _ = error.print();
            return if error.use_stderr() {
                FAILED.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match lab(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ebb-lab: {error:#}");
            FAILED.into()
        }
    }
}

/// This program.
///
/// # Errors
/// The system does not say where it is.
fn own() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell where ebb-lab itself is")
}

/// The command `ebb`, which experiments with the real pager need beside this program.
///
/// # Errors
/// It is not there.
fn ebb() -> Result<PathBuf> {
    let ebb = own()?.parent().unwrap_or(Path::new("/")).join("ebb");
    if !ebb.is_file() {
        bail!(
            "this needs the command ebb beside ebb-lab, as {}: install it there",
            ebb.display()
        );
    }
    Ok(ebb)
}

/// Runs the experiment the arguments name; lists them if they name none.
///
/// # Errors
/// An unknown name or option, or what the experiment reports.
fn lab(args: &Options) -> Result<()> {
    let mut out = stdout().lock();
    let Some(name) = &args.name else {
        for experiment in EXPERIMENTS {
            writeln!(out, "{:<18} {}", experiment.name, experiment.about)?;
        }
        return Ok(());
    };
    let Some(experiment) = EXPERIMENTS.iter().find(|e| e.name == name) else {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        bail!(
            "there is no experiment \"{name}\": there are {}",
            names.join(", ")
        );
    };
    args.check(name)?;
    if let Some(mode) = &args.work {
        let done = match name.as_str() {
            "mthp" => mthp::work(mode),
            "vswap" => vswap_work(mode),
            _ => shrinker::real::work(mode),
        };
        return done.map_err(anyhow::Error::msg);
    }
    let report = (experiment.run)(args)?;
    let text = if args.json {
        report.json()
    } else {
        report.text()
    };
    out.write_all(text.as_bytes())?;
    if let Some(file) = &args.plot {
        report.draw(file)?;
    }
    Ok(())
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
    let output = Command::new(own()?)
        .args(["vswap", "--work"])
        .arg(format!("{}:{gib}", backend as usize))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start ebb-lab again")?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: ended with {}", backend.name(), output.status))
}

fn run_corpus(args: &Options) -> Result<Report> {
    let from = match (args.pid, &args.dump, &args.command[..]) {
        (Some(pid), ..) => corpus::From::Process(pid),
        (None, Some(path), _) => corpus::From::Dump(path.clone()),
        (None, None, []) => bail!("give --pid PID, --dump FILE, or -- COMMAND"),
        (None, None, words) => corpus::From::Command(words.to_vec()),
    };
    Ok(corpus::run(&corpus::Options::from(from))?)
}
