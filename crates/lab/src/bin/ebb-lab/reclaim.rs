//! `ebb lab reclaim --memory SIZE -- COMMAND`: records what a program touches while it runs in a small budget.

use crate::cli::Options;
use crate::ebb;
use anyhow::{Context, Result, bail, ensure};
use ebb_lab::Report;
use ebb_lab::reclaim::{self, trace::Trace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The table for a record, or for a command that is recorded first.
///
/// # Errors
/// There is neither; the command fails; nothing of it was paged.
pub fn run(options: &Options) -> Result<Report> {
    let trace = match (&options.dump, &options.memory, &options.command[..]) {
        (Some(file), ..) => {
            Trace::read(file).with_context(|| format!("cannot read {}", file.display()))?
        }
        (None, Some(memory), [program, words @ ..]) => record(memory, program, words)?,
        _ => bail!(
            "give --memory SIZE -- COMMAND, with a quarter of the memory that COMMAND needs; or --dump FILE with a record"
        ),
    };
    ensure!(!trace.touches.is_empty(), "the record is empty");
    Ok(reclaim::run(&trace))
}

/// Runs a command in so much memory; the touches of the process that had most.
fn record(memory: &str, program: &str, words: &[String]) -> Result<Trace> {
    let directory = tempfile::tempdir().context("no directory for the record")?;
    let status = Command::new(ebb()?)
        .args(["run", "--memory", memory, "--", program])
        .args(words)
        .env("EBB_RECORD", directory.path())
        .stdout(Stdio::null())
        .status()
        .context("cannot start ebb run")?;
    ensure!(status.success(), "{program} ended with {status}");
    let longest = longest(directory.path())?
        .with_context(|| format!("{program} fits in {memory}: give less"))?;
    Trace::read(&longest).with_context(|| format!("cannot read {}", longest.display()))
}

/// The longest file of a directory.
fn longest(directory: &Path) -> Result<Option<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    Ok(files.into_iter().max().map(|(_, path)| path))
}
