//! `ebb lab NAME`: the engine's experiments.

use crate::cli::LabArgs;
use anyhow::{Result, bail};
use std::process::ExitCode;

/// Runs the experiment the arguments name.
///
/// # Errors
/// An unknown name, or what the experiment reports.
pub fn lab(args: LabArgs) -> Result<ExitCode> {
    match args.name {
        Some(name) => bail!("there is no experiment \"{name}\" in this build"),
        None => bail!("no experiment is part of this build"),
    }
}
