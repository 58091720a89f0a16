//! The outcome of an experiment: rows of named values, as a text table, as JSON lines or as a plot.
//! Formats only; what the values mean is the experiment's to say, in its notes.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use plotters::prelude::*;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// The outcome of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
    notes: Vec<String>,
    plot: Option<Plot>,
}

/// A line plot.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x: String,
    /// The vertical axis, with its unit.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line of a plot.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Why no plot was written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The experiment has nothing to draw.
    #[error("this experiment has no plot; leave out --plot")]
    Nothing,
    /// The file could not be written.
    #[error("cannot write the plot to {path}: {why}")]
    Write {
        /// The file.
        path: String,
        /// The system's message.
        why: String,
    },
}

impl Report {
    /// An empty report with these columns.
    #[must_use]
    pub fn new(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one value for each column.
    pub fn row(&mut self, values: Vec<Value>) {
        assert_eq!(values.len(), self.columns.len(), "a value for each column");
        self.rows.push(values);
    }

    /// Adds a line of explanation, shown under the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Sets what [`Report::draw`] draws.
    pub fn set_plot(&mut self, plot: Plot) {
        self.plot = Some(plot);
    }

    /// The rows as JSON objects.
    pub fn rows(&self) -> impl Iterator<Item = serde_json::Map<String, Value>> + '_ {
        let named = |row: &Vec<Value>| {
            self.columns
                .iter()
                .map(|c| (*c).to_owned())
                .zip(row.iter().cloned())
                .collect()
        };
        self.rows.iter().map(named)
    }

    /// One JSON object a line, keys in the order of the columns.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let fields: Vec<String> = self
                .columns
                .iter()
                .zip(row)
                .map(|(c, v)| format!("{}:{v}", Value::from(*c)))
                .collect();
            let _ = writeln!(out, "{{{}}}", fields.join(","));
        }
        out
    }

    /// A table with aligned columns, numbers to the right, and the notes.
    #[must_use]
    pub fn text(&self) -> String {
        let numeric = |i: usize| {
            self.rows
                .iter()
                .all(|row| row[i].is_number() || row[i].is_null())
        };
        let mut table = Table::new();
        table.load_preset(NOTHING).set_header(&self.columns);
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if numeric(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.add_rows(self.rows.iter().map(|row| row.iter().map(cell)));
        let mut out = table.trim_fmt() + "\n";
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        out
    }

    /// Writes the plot as SVG.
    ///
    /// # Errors
    /// There is nothing to draw, or the file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<(), PlotError> {
        let plot = self
            .plot
            .as_ref()
            .filter(|p| !p.series.is_empty())
            .ok_or(PlotError::Nothing)?;
        draw(plot, path).map_err(|why| PlotError::Write {
            path: path.display().to_string(),
            why: why.to_string(),
        })
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(n) if n.is_f64() => {
            let x = n.as_f64().unwrap_or(f64::NAN);
            if x.abs() >= 1000.0 {
                format!("{x:.0}")
            } else {
                format!("{x:.2}")
            }
        }
        other => other.to_string(),
    }
}

fn draw(plot: &Plot, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let (mut right, mut top) = (f64::MIN_POSITIVE, f64::MIN_POSITIVE);
    let mut left = f64::MAX;
    for (x, y) in points() {
        right = right.max(*x);
        left = left.min(*x);
        top = top.max(*y);
    }
    let area = SVGBackend::new(path, (900, 540)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(left..right, 0.0..top * 1.05)?;
    chart
        .configure_mesh()
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .draw()?;
    for (i, series) in plot.series.iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        chart
            .draw_series(LineSeries::new(
                series.points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shown_three_ways() {
        let mut report = Report::new(&["name", "percent", "count"]);
        report.row(vec!["a \"b\"".into(), 0.5.into(), 1.into()]);
        report.row(vec!["c".into(), 12345.6.into(), Value::Null]);
        report.note("a note");
        assert_eq!(
            report.json(),
            "{\"name\":\"a \\\"b\\\"\",\"percent\":0.5,\"count\":1}\n{\"name\":\"c\",\"percent\":12345.6,\"count\":null}\n"
        );
        assert_eq!(
            report.text(),
            "name   percent  count\na \"b\"     0.50      1\nc        12346      -\n\na note\n"
        );
        let file = std::env::temp_dir().join(format!("ebb-report-{}.svg", std::process::id()));
        assert!(matches!(report.draw(&file), Err(PlotError::Nothing)));
        report.set_plot(Plot {
            title: "t".into(),
            x: "x".into(),
            y: "y".into(),
            series: vec![Series {
                name: "s".into(),
                points: vec![(0.0, 1.0), (2.0, 3.0)],
            }],
        });
        report.draw(&file).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().contains("polyline"));
        std::fs::remove_file(&file).unwrap();
        let nowhere = Path::new("/nonexistent/plot.svg");
        assert!(
            report
                .draw(nowhere)
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/plot.svg")
        );
    }
}
