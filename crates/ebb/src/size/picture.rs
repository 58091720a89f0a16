//! Time against budget as SVG: a line, and the range around it.

use super::budgets::Row;
use crate::figures::seconds;
use std::time::Duration;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = TOP + HEIGHT;

/// From values to places.
struct Scale {
    from: f64,
    to: f64,
    longest: f64,
}

impl Scale {
    fn of(rows: &[Row]) -> Self {
        let bytes = |row: Option<&Row>| row.map_or(0.0, |row| row.bytes as f64);
        let from = bytes(rows.first());
        let longest = rows.iter().map(|row| row.most.as_secs_f64());
        Self {
            from,
            to: bytes(rows.last()).max(from + 1.0),
            longest: longest.fold(0.001, f64::max),
        }
    }

    fn x(&self, row: &Row) -> f64 {
        LEFT + (row.bytes as f64 - self.from) / (self.to - self.from) * WIDTH
    }

    fn y(&self, time: Duration) -> f64 {
        TOP + HEIGHT * (1.0 - time.as_secs_f64() / self.longest)
    }

    fn points<'a>(
        &self,
        rows: impl Iterator<Item = &'a Row>,
        time: fn(&Row) -> Duration,
    ) -> String {
        let point = |row: &Row| format!("{:.1},{:.1}", self.x(row), self.y(time(row)));
        rows.map(point).collect::<Vec<_>>().join(" ")
    }
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

/// The picture of a report's rows.
pub fn picture(rows: &[Row]) -> String {
    let scale = Scale::of(rows);
    let budgets = rows.iter().step_by(2);
    let budgets = budgets.map(|row| label(scale.x(row), BOTTOM + 18.0, "middle", &row.budget()));
    let times = [0.0, 0.5, 1.0].map(|part| Duration::from_secs_f64(scale.longest * part));
    let times = times.map(|time| label(LEFT - 6.0, scale.y(time) + 4.0, "end", &seconds(time)));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>Time against memory</title>\n\
         <path d=\"M{LEFT},{TOP} V{BOTTOM} H{}\" fill=\"none\" stroke=\"#888\"/>\n\
         <polygon points=\"{} {}\" fill=\"#9cf\" fill-opacity=\"0.5\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>\n{}{}</svg>\n",
        LEFT + WIDTH + 40.0,
        BOTTOM + 40.0,
        LEFT + WIDTH,
        scale.points(rows.iter(), |row| row.most),
        scale.points(rows.iter().rev(), |row| row.least),
        scale.points(rows.iter(), |row| row.time),
        budgets.collect::<String>(),
        times.concat(),
    )
}
