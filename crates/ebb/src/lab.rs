//! `ebb lab`: becomes `ebb-lab`, the program of the engine's experiments, where that is installed.

use crate::cli::LabArgs;
use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PROGRAM: &str = "ebb-lab";

/// Replaces this process with `ebb-lab`; returns only if that fails.
///
/// # Errors
/// `ebb-lab` is not installed beside `ebb`, or cannot be executed.
pub fn lab(args: LabArgs) -> Result<ExitCode> {
    let program = program()?;
    let error = Command::new(&program).args(args.words).exec();
    Err(error).with_context(|| format!("cannot execute {}", program.display()))
}

fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where ebb itself is")?;
    let program = own.parent().unwrap_or(Path::new("/")).join(PROGRAM);
    if !program.is_file() {
        bail!(
            "{PROGRAM} is not installed: the experiments are a program of their own, which belongs beside ebb, as {}; build it with `cargo build --release -p {PROGRAM}` and copy it there",
            program.display()
        );
    }
    Ok(program)
}
