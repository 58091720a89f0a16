//! Tables that commands print for people.

use std::io::{self, Write};
pub use tabwriter::Alignment;
use tabwriter::TabWriter;

/// Writes rows under a heading, columns lined up and two spaces apart. The last one starts at the left always, and
/// is as wide as it likes.
///
/// # Errors
/// The output cannot be written to.
pub fn write(
    out: &mut dyn Write,
    alignment: Alignment,
    heading: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> io::Result<()> {
    let mut lines = vec![heading.join("\t")];
    let printable = |row: Vec<String>| row.iter().map(|cell| printable(cell)).collect::<Vec<_>>();
    lines.extend(rows.into_iter().map(|row| printable(row).join("\t")));
    write_lines(out, alignment, &lines)
}

/// A text that somebody else may have chosen, as a path, for a terminal: control characters are replaced.
pub fn printable(text: &str) -> String {
    let shown = text.chars();
    shown
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Lines whose columns are between tabs.
fn write_lines(out: &mut dyn Write, alignment: Alignment, lines: &[String]) -> io::Result<()> {
    let mut table = TabWriter::new(Vec::new()).alignment(alignment).padding(2);
    for line in lines {
        writeln!(table, "{line}")?;
    }
    let text = table
        .into_inner()
        .map_err(|e| io::Error::other(e.to_string()))?;
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_stand_to_the_right_and_names_to_the_left() {
        let mut out = Vec::new();
        let rows = [["1", "first"], ["1234", "a\tname\nwith\u{1b}spaces"]]
            .map(|row| row.map(String::from).to_vec());
        super::write(&mut out, super::Alignment::Right, &["PID", "NAME"], rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, " PID  NAME\n   1  first\n1234  a?name?with?spaces\n");
    }
}
