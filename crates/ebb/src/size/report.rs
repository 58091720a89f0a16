//! The report of `ebb size` as text and JSON.

use super::budgets::{Row, rows};
use super::picture::picture;
use super::touched::Touches;
use crate::cli::SizeArgs;
use crate::figures::seconds;
use crate::table::{self, Alignment};
use anyhow::{Context, Result};
use ebb_stores::human;
use ebb_tree::StatsShown;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Write, stderr, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

/// A report.
pub struct Report {
    had: u64,
    resident: u64,
    windows: Vec<(Duration, u64)>,
    rows: Vec<Row>,
}

impl Report {
    /// Of a tree's figures after this time; `factor` as [`rows`] has it.
    pub fn of(stats: &StatsShown, ran: Duration, factor: f64, touches: &Touches) -> Self {
        Self {
            had: stats.peak_had_bytes,
            resident: stats.resident_bytes(),
            windows: touches.windows().to_vec(),
            rows: rows(stats, ran, factor),
        }
    }

    fn json(&self) -> Value {
        let number = |time: Duration| (time.as_secs_f64() * 1000.0).round() / 1000.0;
        let touched =
            |(window, bytes): &(Duration, u64)| json!({"seconds": number(*window), "bytes": bytes});
        let row = |row: &Row| {
            json!({
                "bytes": row.bytes,
                "seconds": number(row.time),
                "at_least": number(row.least),
                "at_most": number(row.most),
                "waited_seconds": number(row.waited),
                "fits": row.fits,
            })
        };
        json!({
            "had_bytes": self.had,
            "resident_bytes": self.resident,
            "touched": self.windows.iter().map(touched).collect::<Vec<_>>(),
            "budgets": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let windows = self.windows.iter();
        let touched: Vec<_> = windows
            .map(|(window, bytes)| format!("{} within {}", human(*bytes), seconds(*window)))
            .collect();
        write!(out, "The programs had {} at most", human(self.had))?;
        match touched.is_empty() {
            true => writeln!(out, ".")?,
            false => writeln!(out, ", and touched {}.", touched.join(", "))?,
        }
        let rows = self.rows.iter().enumerate().map(|(i, row)| {
            let (from, to) = match i {
                0 => (String::new(), String::new()),
                _ => (seconds(row.least), seconds(row.most)),
            };
            let note = match (i, row.fits) {
                (0, _) => "as it ran",
                (_, true) => "nothing is paged",
                (_, false) => "",
            };
            let (time, waited) = (seconds(row.time), seconds(row.waited));
            vec![human(row.bytes), time, from, to, waited, note.into()]
        });
        let heading = ["MEMORY", "TIME", "FROM", "TO", "WAITED", ""];
        table::write(&mut out, Alignment::Right, &heading, rows)?;
        Ok(out)
    }
}

/// Where reports go, and how they look.
pub struct Form {
    out: File,
    json: bool,
    plot: Option<(PathBuf, File)>,
}

impl Form {
    /// As the options say. Files are opened before the program starts, so that a bad path is refused in time.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn new(args: &SizeArgs) -> Result<Self> {
        let create = |option: &str, path: &PathBuf| {
            let refused = || {
                format!(
                    "{option} {}: give a file that can be written",
                    path.display()
                )
            };
            File::create(path).with_context(refused)
        };
        let out = match (&args.output, args.pid) {
            (Some(path), _) => create("--output", path)?,
            (None, Some(_)) => stdout().as_fd().try_clone_to_owned()?.into(),
            (None, None) => stderr().as_fd().try_clone_to_owned()?.into(),
        };
        let plot = match &args.plot {
            Some(path) => Some((path.clone(), create("--plot", path)?)),
            None => None,
        };
        Ok(Self {
            out,
            json: args.json,
            plot,
        })
    }

    /// Writes one; the picture is the last one's.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write(&mut self, report: &Report) -> Result<()> {
        let text = match self.json {
            true => format!("{}\n", report.json()).into_bytes(),
            false => report.text()?,
        };
        self.out.write_all(&text)?;
        if let Some((path, _)) = &self.plot {
            std::fs::write(path, picture(&report.rows))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
