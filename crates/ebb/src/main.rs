//! The `ebb` command.
//!
//! | verb | module | effect |
//! |---|---|---|
//! | `run` | [`run`] | a program, and all it starts, in less memory than they need |
//! | `swap` | [`swap`] | other swap devices for a running program |
//! | `limit` | [`limit`] | other limits for a running program |
//! | `top` | [`top`] | a live view |
//! | `stats` | [`figures`] | what a running tree uses, faults and waits |
//! | `size` | [`size`] | how much memory a program needs, and its time with less |
//! | `doctor` | [`doctor`] | whether that can work here, and the fix |
//! | `generate` | [`generate`] | man pages and completions |
//! | `lab` | [`lab`] | the engine's experiments |
//!
//! `ebb run` exits with the status of the program; `--help` lists the exceptions. Everything that ebb says goes
//! to stderr; stdout belongs to the program.
#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)] // They panic where nothing can be written: `say`.

mod ask;
mod available;
mod cgroups;
mod cli;
mod defaults;
mod doctor;
mod ending;
mod exhausted;
mod figures;
mod generate;
mod guard;
mod lab;
mod late_file;
mod library;
mod limit;
mod metrics;
mod outer;
mod program;
mod progress;
mod run;
mod say;
mod setup;
mod size;
mod stats;
mod summary;
mod swap;
mod system_kills;
mod table;
mod top;
mod wait;
mod words_of_top;
mod wrap;

use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status when ebb itself failed, as `env`, `timeout` and `docker run` have it.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as "errors" that belong on stdout.
            let written = error.print().and_then(|()| io::stdout().flush());
            if error.use_stderr() {
                return FAILED.into();
            }
            return ended(written.map(|()| ExitCode::SUCCESS).map_err(Into::into));
        }
    };
    let outcome = match cli.verb {
        cli::Verb::Run(args) => run::run(args),
        cli::Verb::Swap(args) => swap::swap(args),
        cli::Verb::Limit(args) => limit::limit(args),
        cli::Verb::Top(args) => top::top(args),
        cli::Verb::Stats(args) => figures::stats(args),
        cli::Verb::Size(args) => size::size(args),
        cli::Verb::TouchPages => size::cost::touch_pages(),
        cli::Verb::Lab(args) => lab::lab(args),
        cli::Verb::Doctor(args) => doctor::doctor(args),
        cli::Verb::Generate(args) => generate::generate(args),
        cli::Verb::EndGroup => wrap::end_group(),
        cli::Verb::Guard => guard::guard(),
    };
    ended(outcome)
}

fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say::now(&format!("ebb: {error:#}"));
            FAILED.into()
        }
    }
}

/// Whether the reader of our output has gone, as `head` does: there is nobody to tell.
fn is_unread(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let direct = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = || cause.downcast_ref::<serde_json::Error>()?.io_error_kind();
        direct.or_else(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_reader_that_has_gone_is_no_failure() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let json = serde_json::Error::io(pipe());
        let with_words = Err::<(), _>(pipe()).context("words").unwrap_err();
        for unread in [pipe().into(), json.into(), with_words] {
            assert!(is_unread(&unread), "{unread:?}");
        }
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(!is_unread(&full.into()) && !is_unread(&anyhow!("words")));
    }
}
