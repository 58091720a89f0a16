//! `--stats FILE`: counters and latencies of the tree, as JSON.
//!
//! Names of counters are the kernel's where the kernel has them. Durations are nanoseconds,
//! percentiles exact to 1/16; sizes are bytes.

use crate::late_file::LateFile;
use crate::wait::End;
use anyhow::{Result, anyhow};
use ebb_engine::PAGE_SIZE;
use ebb_tree::{Mode, Totals};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file, opened before the program starts.
pub struct StatsFile {
    path: PathBuf,
    /// The file; none of a pipe that has had its figures, whose reader waits for its end.
    file: Option<LateFile>,
}

impl StatsFile {
    /// Opens it; its content stays until there is something to write.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.into(),
            file: Some(LateFile::open("--stats", path)?),
        })
    }

    /// Replaces its content.
    ///
    /// # Errors
    /// Those of write(2): a full disk.
    pub fn write(&mut self, stats: &Value) -> Result<()> {
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        let written = file.replace(format!("{stats:#}\n").as_bytes());
        self.file = Some(file).filter(LateFile::is_regular);
        written.map_err(|error| {
            anyhow!(
                "cannot write {}: {error}: give another file the next time",
                self.path.display()
            )
        })
    }
}

/// The figures of the tree until now.
pub fn stats(command: &[OsString], totals: &Totals, end: End, wall: Duration) -> Value {
    let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
    let latency: Map<String, Value> = totals
        .latency
        .iter()
        .map(|(way, s)| {
            let figures = json!({
                "count": s.count, "sum_ns": s.sum, "p50_ns": s.p50, "p99_ns": s.p99, "p999_ns": s.p999, "max_ns": s.max,
            });
            (way.name().to_string(), figures)
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": command.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>(),
        "exit_status": end.status(),
        "wall_seconds": wall.as_secs_f64(),
        "processes": totals.processes,
        "paged": totals.mode == Mode::Paging,
        "budget_bytes": bytes(totals.budget_pages),
        "peak_bytes": bytes(totals.peak_pages),
        "peak_pool_bytes": totals.peak_pool_bytes,
        "peak_had_bytes": bytes(totals.peak_had_pages),
        "faults": totals.counters.fault.get(),
        "counters": totals.counters_by_name(),
        "fault_latency": latency,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pipe_has_figures_once_and_then_its_end() {
        let (mut read, write) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", write.as_raw_fd());
        let mut file = StatsFile::open(Path::new(&path)).unwrap();
        drop(write);
        file.write(&json!({"faults": 1})).unwrap();
        file.write(&json!({"faults": 2})).unwrap();
        let mut got = String::new();
        // The file is open still, so only its end of the pipe can have been closed.
        read.read_to_string(&mut got).unwrap();
        assert_eq!(got, "{\n  \"faults\": 1\n}\n");
        drop(file);
    }

    #[test]
    fn a_file_has_the_last_figures() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let mut file = StatsFile::open(&path).unwrap();
        file.write(&json!({"faults": 1000})).unwrap();
        file.write(&json!({"faults": 2})).unwrap();
        let got = std::fs::read_to_string(path).unwrap();
        assert_eq!(got, "{\n  \"faults\": 2\n}\n");
    }
}
