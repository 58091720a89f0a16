//! The `ebb` command: `ebb run` gives a program and all it starts less memory than they
//! need, `ebb swap` and `ebb limit` change the swap devices and the limits of one that runs,
//! `ebb doctor` says whether that can work here, `ebb lab` prints the engine's experiments.
//!
//! Exit status of `ebb run`: the program's own; 125 if ebb itself failed, 126 if the command
//! cannot be executed, 127 if it was not found, 128+N if signal N ended it. Everything ebb
//! says goes to stderr; stdout belongs to the program.
#![forbid(unsafe_code)]

mod ask;
mod cli;
mod doctor;
mod ending;
mod lab;
mod lab_shrinker;
mod library;
mod limit;
mod limits;
mod program;
mod run;
mod setup;
mod stats;
mod swap;
mod wait;

use clap::Parser;
use std::process::ExitCode;

/// Exit status when ebb itself failed, as `env`, `timeout` and `docker run` have it.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
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
    let outcome = match cli.verb {
        cli::Verb::Run(args) => run::run(args),
        cli::Verb::Swap(args) => swap::swap(args),
        cli::Verb::Limit(args) => limit::limit(args),
        cli::Verb::Lab(args) => lab::lab(args),
        cli::Verb::Doctor(args) => doctor::doctor(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ebb: {error:#}");
            FAILED.into()
        }
    }
}
