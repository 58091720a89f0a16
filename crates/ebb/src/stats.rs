//! `--stats FILE`: counters and latencies of the tree, as JSON.
//!
//! Names of counters are the kernel's where the kernel has them. Durations are nanoseconds,
//! percentiles exact to 1/16; sizes are bytes.

use crate::wait::End;
use anyhow::{Result, anyhow};
use ebb_engine::PAGE_SIZE;
use ebb_tree::{Mode, Totals};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file, opened before the program starts, so that a bad path is refused in time.
pub struct StatsFile {
    path: PathBuf,
    file: File,
}

impl StatsFile {
    /// Opens it; its content stays until there is something to write.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| {
                anyhow!(
                    "--stats {}: {error}: give a file that can be written",
                    path.display()
                )
            })?;
        Ok(Self {
            path: path.into(),
            file,
        })
    }

    /// Replaces its content.
    ///
    /// # Errors
    /// Those of write(2): a full disk.
    pub fn write(&mut self, stats: &Value) -> Result<()> {
        let text = format!("{stats:#}\n");
        let mut put = || -> std::io::Result<()> {
            self.file.rewind()?;
            // Fails on pipes and terminals, which have no length and take the text all the same.
            let _ = self.file.set_len(0);
            self.file.write_all(text.as_bytes())
        };
        put().map_err(|error| {
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
