//! Markdown tables that are aligned for a terminal.

use std::fmt;

/// A table. The first column is left-aligned, the others are right-aligned.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(str::to_owned).to_vec()] }
    }

    /// Makes a table whose number of columns is known only at run time. The first row is the header.
    pub(crate) fn from_rows(rows: Vec<Vec<String>>) -> Self {
        Self { rows }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) -> &mut Self {
        self.rows.push(cells.to_vec());
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let width = |row: &Vec<String>| cell(row, column).chars().count();
                self.rows.iter().map(width).max().unwrap_or(0).max(3)
            })
            .collect();
        for (index, row) in self.rows.iter().enumerate() {
            for (column, &width) in widths.iter().enumerate() {
                let text = cell(row, column);
                if column == 0 { write!(f, "| {text:<width$} ")? } else { write!(f, "| {text:>width$} ")? }
            }
            writeln!(f, "|")?;
            if index == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    if column == 0 {
                        write!(f, "|{:-<1$}", "", width + 2)?;
                    } else {
                        write!(f, "|{:-<1$}:", "", width + 1)?;
                    }
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats a number with about four significant digits.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 || size == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.01 => 3,
        _ => 6,
    };
    format!("{value:.decimals$}")
}

/// Formats a figure with about three significant digits. A figure below `below` has `places` decimal places.
pub(crate) fn figure(value: f64, (below, places): (f64, usize)) -> String {
    match value.abs() {
        size if size >= 1_000.0 => number(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        size if size < below => format!("{value:.places$}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_aligned_markdown() {
        let mut table = Table::new(["", "A", "mean"]);
        table.row(["goodput".to_owned(), "1".to_owned(), "1234".to_owned()]);
        let expected = "\
|         |   A | mean |
|---------|----:|-----:|
| goodput |   1 | 1234 |
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_keep_about_four_digits() {
        for (value, expected) in [
            (12_345.6, "12346"),
            (123.456, "123.5"),
            (12.3456, "12.35"),
            (0.123_456, "0.123"),
            (0.001_234, "0.001234"),
            (0.0, "0"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
