//! `ebb generate`: man pages and completions, from the one definition of the options.

use crate::cli::{Cli, GenerateArgs, Generated};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Writes them.
///
/// # Errors
/// The directory or stdout cannot be written.
pub fn generate(args: GenerateArgs) -> Result<ExitCode> {
    let mut command = Cli::command();
    let shell = match args.what {
        Generated::Man => {
            let pages = args.directory.unwrap_or_else(|| ".".into());
            std::fs::create_dir_all(&pages)
                .and_then(|()| clap_mangen::generate_to(command, &pages))
                .with_context(|| {
                    format!("{}: give a directory that can be written", pages.display())
                })?;
            return Ok(ExitCode::SUCCESS);
        }
        Generated::Bash => Shell::Bash,
        Generated::Zsh => Shell::Zsh,
        Generated::Fish => Shell::Fish,
    };
    // Not straight to stdout: it panics where that is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "ebb", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
