//! The report of `ebb size` as text and JSON.

use super::budgets::{Row, rows};
use super::picture::picture;
use super::touched::Touches;
use crate::cli::SizeArgs;
use crate::figures::seconds;
use crate::late_file::LateFile;
use crate::table::{self, Alignment};
use anyhow::{Context, Result};
use ebb_stores::human;
use ebb_tree::StatsShown;
use serde_json::{Value, json};
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::time::Duration;

/// A report.
pub struct Report {
    had: u64,
    /// Bytes; none once all processes have ended.
    resident: Option<u64>,
    /// Flag: another budget held for a part of the time.
    budget_changed: bool,
    windows: Vec<(Duration, u64)>,
    rows: Vec<Row>,
}

impl Report {
    /// Of a tree's figures after this time; `factor` as [`rows`] has it.
    pub fn of(stats: &StatsShown, ran: Duration, factor: f64, touches: &Touches) -> Self {
        Self {
            had: stats.peak_had_bytes,
            resident: (!stats.members.is_empty()).then(|| stats.resident_bytes()),
            budget_changed: stats.past_budget_bytes.is_some(),
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
        let mut report = json!({
            "had_bytes": self.had,
            "budget_changed": self.budget_changed,
            "touched": self.windows.iter().map(touched).collect::<Vec<_>>(),
            "budgets": self.rows.iter().map(row).collect::<Vec<_>>(),
        });
        if let Some(resident) = self.resident {
            report["resident_bytes"] = resident.into();
        }
        report
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
                (0, _) if self.budget_changed => "as it ran: the budget was another one at first",
                (0, true) => "as it ran: nothing was paged",
                (0, false) => "as it ran",
                (_, true) => "nothing is paged",
                (_, false) => "",
            };
            let (time, waited) = (seconds(row.time), seconds(row.waited));
            vec![row.budget(), time, from, to, waited, note.into()]
        });
        let heading = ["MEMORY", "TIME", "FROM", "TO", "WAITED", ""];
        table::write(&mut out, Alignment::Right, &heading, rows)?;
        Ok(out)
    }
}

/// Where reports go, and how they look.
pub struct Form {
    out: Box<dyn Write>,
    json: bool,
    plot: Option<(PathBuf, LateFile)>,
}

impl Form {
    /// As the options say.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn new(args: &SizeArgs) -> Result<Self> {
        let out: Box<dyn Write> = match (&args.output, args.pid) {
            (Some(path), _) => Box::new(LateFile::open("--output", path)?),
            (None, Some(_)) => Box::new(stdout()),
            (None, None) => Box::new(stderr()),
        };
        let plot = match &args.plot {
            Some(path) => Some((path.clone(), LateFile::open("--plot", path)?)),
            None => None,
        };
        Ok(Self {
            out,
            json: args.json,
            plot,
        })
    }

    /// Writes what is known so far of a program that goes on; whether it was written. JSON is not: it is one object, of
    /// the end.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write_so_far(&mut self, report: &Report) -> Result<bool> {
        if !self.json {
            self.write(report)?;
        }
        Ok(!self.json)
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
        self.out.flush()?;
        if let Some((path, file)) = &mut self.plot {
            file.replace(picture(&report.rows).as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser;
    use std::fs;

    /// What the file holds before anything is written, after a report in between, and after the last.
    fn written(options: &[&str], option: &str) -> [String; 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        fs::write(&path, "of yesterday").unwrap();
        let args = ["ebb", "size", "1", option, path.to_str().unwrap()];
        let Verb::Size(args) = Cli::parse_from(args.iter().chain(options)).verb else {
            panic!("another verb");
        };
        let mut form = Form::new(&args).unwrap();
        let mut report = Report {
            had: 1,
            resident: None,
            budget_changed: false,
            windows: Vec::new(),
            rows: Vec::new(),
        };
        let held = || fs::read_to_string(&path).unwrap();
        let before = held();
        let is_written = form.write_so_far(&report).unwrap();
        let between = held();
        report.had = 2;
        if !is_written || option == "--plot" {
            form.write(&report).unwrap();
        }
        [before, between, held()]
    }

    #[test]
    fn json_is_one_object_and_a_table_comes_at_once() {
        let [before, between, last] = written(&["--json"], "-o");
        assert_eq!((&*before, &*between), ("of yesterday", "of yesterday"));
        let report: Value = serde_json::from_str(&last).unwrap();
        assert_eq!(report["had_bytes"], 2);
        let [before, between, last] = written(&[], "-o");
        assert_eq!(before, "of yesterday");
        assert!(between.starts_with("The programs had"), "{between}");
        assert_eq!(between, last);
    }

    fn text(stats: &StatsShown) -> String {
        let report = Report::of(stats, Duration::from_secs(9), 1.0, &Touches::default());
        String::from_utf8(report.text().unwrap()).unwrap()
    }

    #[test]
    fn a_budget_that_changed_is_told_of() {
        let mut stats = StatsShown {
            budget_bytes: 20 << 20,
            peak_had_bytes: 100 << 20,
            paged: true,
            ..StatsShown::default()
        };
        assert!(!text(&stats).contains("another"));
        stats.past_budget_bytes = Some(200 << 20);
        let told = text(&stats);
        assert!(
            told.contains("as it ran: the budget was another one"),
            "{told}"
        );
    }

    #[test]
    fn a_first_row_below_the_budget_says_why() {
        let stats = StatsShown {
            budget_bytes: 500 << 20,
            peak_had_bytes: 100 << 20,
            ..StatsShown::default()
        };
        let told = text(&stats);
        assert!(told.contains("as it ran: nothing was paged"), "{told}");
    }

    #[test]
    fn a_picture_takes_the_place_of_the_last() {
        let [before, between, last] = written(&[], "--plot");
        assert_eq!(before, "of yesterday");
        assert!(between.starts_with("<svg"), "{between}");
        assert_eq!(between, last);
    }
}
