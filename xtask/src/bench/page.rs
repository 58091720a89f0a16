//! The benchmark's part of docs/BENCHMARKS.md: a row for each comparison, and the settings all of them were
//! measured with.
//!
//! A run of a few workloads alone (`--only`) puts its rows in the place of theirs and leaves the others as
//! they stand. So the page is read back before it is written. Rows measured with other settings do not
//! belong beside each other: then there is no page to add to.

use crate::table;
use ebb_harness::workloads::Workload;

const HEADING: [&str; 9] = [
    "program",
    "total MiB",
    "other side",
    "its seconds",
    "ebb's seconds",
    "ebb/other",
    "at most",
    "output",
    "runs",
];
const PHASES: [&str; 6] = ["program", "phase", "kernel", "ebb", "ebb/kernel", "at most"];
/// The heads of the phases, and the settings.
const OF_TOUCH: &str = "Phases of `touch`, microseconds a page:";
const MEDIANS: &str = "Medians of alternating runs; ";

/// A row of either table; its first cell says which comparison it is of.
pub type Row = Vec<String>;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    rows: Vec<Row>,
    phases: Vec<Row>,
    settings: String,
}

impl Page {
    /// Without rows.
    pub fn new(settings: String) -> Self {
        Self {
            rows: Vec::new(),
            phases: Vec::new(),
            settings,
        }
    }

    /// The page that `text` shows; none if it is no page.
    pub fn parse(text: &str) -> Option<Self> {
        let settings = text.lines().find_map(|line| line.strip_prefix(MEDIANS))?;
        let rows = table::rows(&HEADING, text);
        (!rows.is_empty()).then(|| Self {
            rows,
            phases: table::rows(&PHASES, text),
            settings: settings.to_string(),
        })
    }

    /// The settings of all rows.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Puts a comparison, and its phases, where it belongs, in the place of its rows that stand
    /// there.
    pub fn put(&mut self, row: Row, phases: Vec<Row>) {
        let same = |other: &Row| other[0] == row[0];
        self.rows.retain(|other| !same(other));
        self.phases.retain(|other| !same(other));
        self.rows.push(row);
        self.phases.extend(phases);
        self.rows.sort_by_key(|row| place(&row[0]));
        self.phases.sort_by_key(|row| place(&row[0]));
    }

    /// As Markdown.
    pub fn show(&self) -> String {
        let mut text = table::markdown(&HEADING, &self.rows);
        if !self.phases.is_empty() {
            text += &format!("\n{OF_TOUCH}\n\n");
            text += &table::markdown(&PHASES, &self.phases);
        }
        text + &format!("\n{MEDIANS}{}\n", self.settings)
    }
}

/// The order of the comparisons: by workload, then from much memory to little.
fn place(name: &str) -> (usize, usize) {
    let (workload, memory) = name.split_once(", ").unwrap_or((name, ""));
    let position = |mut names: std::vec::IntoIter<&str>, name| {
        let all = names.len();
        names.position(|n| n == name).unwrap_or(all)
    };
    let workloads: Vec<_> = Workload::ALL.iter().map(|w| w.name()).collect();
    (
        position(workloads.into_iter(), workload),
        position(vec!["all fits", "1/2", "1/4"].into_iter(), memory),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, seconds: &str) -> Row {
        [
            name, "64", "zram", "1.00", seconds, "2.00", "1.20", "same", "3",
        ]
        .map(String::from)
        .to_vec()
    }

    fn phase(name: &str, phase: &str) -> Row {
        [name, phase, "1.00", "2.00", "2.00", "-"]
            .map(String::from)
            .to_vec()
    }

    fn names(page: &Page) -> Vec<&str> {
        page.rows.iter().map(|row| &row[0][..]).collect()
    }

    #[test]
    fn a_page_is_read_as_it_was_shown() {
        let mut page = Page::new("2 cores; zram lz4.".into());
        page.put(row("redis, 1/2", "3.00"), Vec::new());
        assert_eq!(Page::parse(&page.show()), Some(page.clone()));
        let phases = vec![phase("touch, 1/2", "fill"), phase("touch, 1/2", "rand")];
        page.put(row("touch, 1/2", "killed for memory"), phases);
        assert_eq!(Page::parse(&page.show()), Some(page.clone()));
        assert_eq!(Page::parse(""), None);
    }

    #[test]
    fn a_row_takes_the_place_of_its_own_and_leaves_the_others() {
        let mut page = Page::new(String::new());
        for name in ["redis, 1/2", "touch, 1/4", "touch, all fits", "touch, 1/2"] {
            page.put(row(name, "1.00"), vec![phase(name, "fill")]);
        }
        page.put(row("touch, 1/2", "9.00"), vec![phase("touch, 1/2", "rand")]);
        let order = ["touch, all fits", "touch, 1/2", "touch, 1/4", "redis, 1/2"];
        assert_eq!(names(&page), order);
        let seconds: Vec<_> = page.rows.iter().map(|row| &row[4][..]).collect();
        assert_eq!(seconds, ["1.00", "9.00", "1.00", "1.00"]);
        let phases: Vec<_> = page.phases.iter().map(|row| &row[1][..]).collect();
        assert_eq!(phases, ["fill", "rand", "fill", "fill"]);
    }
}
