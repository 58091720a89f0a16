//! `ebb lab NAME`: the engine's experiments.

use crate::cli::LabArgs;
use anyhow::{Result, bail};
use ebb_lab::{Report, corpus, mthp};
use std::io::{Write, stdout};
use std::process::ExitCode;

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
    plain!(numa),
    plain!(scaling),
    plain!(tail),
    plain!(vswap),
    plain!(shrinker),
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
            writeln!(out, "{:<9} {}", experiment.name, experiment.about)?;
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

fn run_mthp(args: &LabArgs) -> Result<Report> {
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
