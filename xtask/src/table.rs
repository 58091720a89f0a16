//! A table as Markdown, columns aligned so that it reads well in a terminal too.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// Formats rows under a heading; numbers are the caller's to format.
pub fn markdown(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(heading).add_rows(rows);
    format!("{table}\n")
}

/// The rows of the table with this heading in a text; none if there is no such table.
pub fn rows(heading: &[&str], text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Option<Vec<String>> {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(inner.split('|').map(|cell| cell.trim().into()).collect())
    };
    text.lines()
        .map(cells)
        .skip_while(|row| row.as_deref().is_none_or(|row| row != heading))
        // The heading and the rule under it.
        .skip(2)
        .map_while(|row| row.filter(|row| row.len() == heading.len()))
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_are_read_as_they_were_written() {
        let rows = vec![
            vec!["wide".to_string(), "µ".into()],
            vec![String::new(), "1 2".into()],
        ];
        let one = super::markdown(&["a", "long"], &rows);
        let other = super::markdown(&["a", "other"], &[]);
        let text = format!("before\n\n{other}\n{one}\n| no | row |\n");
        assert_eq!(super::rows(&["a", "long"], &text), rows);
        assert!(super::rows(&["a", "other"], &text).is_empty());
        assert!(super::rows(&["b"], &text).is_empty());
    }

    #[test]
    fn columns_line_up() {
        let text = super::markdown(&["a", "long"], &[vec!["wide".into(), "µ".into()]]);
        assert_eq!(text, "| a    | long |\n|------|------|\n| wide | µ    |\n");
    }
}
