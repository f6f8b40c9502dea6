//! Lays text out to fit a terminal's width.

use std::fmt::Write as _;

/// The usual width of a terminal, in columns.
pub(super) const COLUMNS: usize = 80;

/// Lines with a label and a value. A long value continues on the next line, indented to the value's column.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn add(&mut self, label: &str, value: impl Into<String>) {
        self.0.push((label.to_owned(), value.into()));
    }

    /// Adds a line only if there is a value.
    pub(super) fn add_some(&mut self, label: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.add(label, value);
        }
    }
}

impl std::fmt::Display for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.0.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, value) in &self.0 {
            f.write_str(&hanging(&format!("  {label:<width$}  "), value))?;
        }
        Ok(())
    }
}

/// Returns `text` after `lead`, with line breaks between words to fit 80 columns. Further lines are indented to the first word.
pub(super) fn hanging(lead: &str, text: &str) -> String {
    hanging_within(COLUMNS, lead, text)
}

/// Like [`hanging`], for any number of columns. A word that is longer than a line is not broken.
pub(super) fn hanging_within(columns: usize, lead: &str, text: &str) -> String {
    let indent = lead.chars().count();
    let mut written = String::new();
    let mut line = lead.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > columns {
            // Writing to a string cannot fail.
            let _ = writeln!(written, "{}", line.trim_end());
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    // If there is no word, the spaces at the end of `lead` are trimmed.
    let _ = writeln!(written, "{}", line.trim_end());
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_as_wide_as_the_longest() {
        let mut fields = Fields::default();
        fields.add("exit", "exit.example.net:443");
        fields.add("kill switch", "closed");
        fields.add_some("none", None::<String>);
        assert_eq!(fields.to_string(), "  exit         exit.example.net:443\n  kill switch  closed\n");
    }

    #[test]
    fn long_text_goes_on_below_its_beginning_within_the_width() {
        let text = hanging("  queue_full  12  ", &"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 2, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(lines[1].starts_with("                  word"), "{text}");
        assert_eq!(text.matches("word").count(), 40);
    }

    #[test]
    fn word_that_is_too_long_for_any_line_stays_whole() {
        let word = "x".repeat(100);
        assert_eq!(hanging("  ", &word), format!("  {word}\n"));
    }
}
