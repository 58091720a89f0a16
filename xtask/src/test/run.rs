//! A run of a test program.

use super::tally::{Reader, Tally};
use crate::program::Program;
use anyhow::{Context, Result};
use ebb_harness::{tested, tools};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A test program, and what it runs with.
pub struct Run {
    pub program: Program,
    /// The words one of which is in the name of each test that runs; all run without any.
    pub filters: Vec<String>,
    /// The command that it tests, if not the one that is built with it.
    pub command: Option<PathBuf>,
}

impl Run {
    /// Passes on the results of its tests, and counts them.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn tally(&self) -> Result<Tally> {
        let label = format!("{}: {}", self.program.package(), self.program.name);
        eprintln!("xtask: {label}");
        let start = Instant::now();
        let child = self.command().spawn();
        let mut child = child.with_context(|| format!("cannot run {label}"))?;
        let mut tally = Tally::default();
        let mut reader = Reader::default();
        for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
            reader.line(&String::from_utf8_lossy(line?.as_bytes()), &mut tally);
        }
        let status = child.wait()?;
        if !status.success() && tally.failed.is_empty() {
            // It died without saying a word.
            tally.failed.push(format!("{label}: {status}"));
        }
        tally.programs.push((label, start.elapsed().as_secs_f64()));
        Ok(tally)
    }

    /// It, as cargo would start it.
    fn command(&self) -> Command {
        // Behind the system's own: redis-server may be there alone (`setup`).
        let mut path = tools::path();
        path.push(":");
        path.push(tools::project().join("target/tools"));
        let mut command = Command::new(&self.program.path);
        command
            .arg("--show-output")
            .args(&self.filters)
            .env("PATH", path)
            .env("CARGO_MANIFEST_DIR", &self.program.folder)
            .envs(self.command.iter().map(|path| (tested::VARIABLE, path)))
            .current_dir(&self.program.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }
}
