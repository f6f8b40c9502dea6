//! Output of commands: results on standard output, warnings and errors on standard error.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use anyhow::{Context, anyhow, bail};
use rustix::fs::FileType;
use serde::Serialize;

use warren_config::describe;

/// Writes text to standard output. Control characters are escaped, because other machines and users may have written
/// part of it.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(harmless(text).as_bytes())
}

/// Writes bytes to standard output. If the reader has closed the pipe, as `head` does, this is no error.
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    match write_stdout(bytes) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| unwritten(&error)),
    }
}

/// Writes text to standard output that must not be lost. If the reader has closed the pipe, this is an error.
pub fn print_all(text: &str) -> anyhow::Result<()> {
    write_stdout(text.as_bytes()).map_err(|error| unwritten(&error))
}

/// Refuses to continue when standard output is closed or `/dev/null`, because `what` would be lost.
pub fn refuse_to_lose(what: &str) -> anyhow::Result<()> {
    if is_null(io::stdout()) {
        bail!("standard output is closed or /dev/null, so {what} would be lost; name a file with --output");
    }
    Ok(())
}

fn is_null(descriptor: impl AsFd) -> bool {
    // Device 1:3 is /dev/null. A closed standard output looks the same, because Rust opens it as /dev/null at start.
    rustix::fs::fstat(descriptor).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == rustix::fs::makedev(1, 3)
    })
}

fn unwritten(error: &io::Error) -> anyhow::Error {
    anyhow!("cannot write to standard output: {}; check where it goes", describe(error))
}

/// Writes a value as JSON, and a line break, to standard output.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    print(&format!("{text}\n"))
}

/// Writes valid JSON, laid out for people, and a line break to standard output. The text is not parsed into values, so even a
/// long text takes little memory.
pub fn print_json_text(text: &str) -> anyhow::Result<()> {
    print(&format!("{}\n", laid_out(text)))
}

/// Formats valid JSON as `serde_json` does, with a line for each entry and two spaces for each level.
fn laid_out(text: &str) -> String {
    let mut out = String::with_capacity(2 * text.len());
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    let mut before = ' ';
    for next in text.chars() {
        if is_in_string {
            out.push(next);
            (is_in_string, is_escaped) = (is_escaped || next != '"', !is_escaped && next == '\\');
            continue;
        }
        if next.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(next, '}' | ']');
        depth = if closes { depth.saturating_sub(1) } else { depth };
        let is_first = matches!(before, '{' | '[');
        if before == ',' || is_first != closes {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        }
        out.push(next);
        match next {
            '"' => is_in_string = true,
            ':' => out.push(' '),
            '{' | '[' => depth += 1,
            _ => {}
        }
        before = next;
    }
    out
}

/// Writes a warning to standard error in one line.
pub fn warn(sentence: impl Display) {
    write_stderr(&format!("warren: warning: {sentence}"));
}

/// Writes a line for the user to standard error, next to a result that another program may read.
pub fn note(sentence: impl Display) {
    write_stderr(&sentence.to_string());
}

/// Writes an error and its causes to standard error in one line.
pub fn report(error: &anyhow::Error) {
    write_stderr(&format!("warren: {}", sentence(error)));
}

/// An error and its causes in one line, without repetitions.
pub fn sentence(error: &anyhow::Error) -> String {
    warren_config::sentence(error.as_ref())
}

/// Formats a header and rows in aligned columns, two spaces apart.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths = header.iter().map(|cell| cell.chars().count()).collect::<Vec<_>>();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(header.iter().copied(), &widths);
    for row in rows {
        text += &line(row.iter().map(String::as_str), &widths);
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let padded = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
}

fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Writes a line to standard error. A failure is ignored, because it cannot be reported anywhere.
fn write_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

/// Escapes control characters other than line breaks and tabs as JSON does. JSON text keeps its meaning.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let steers = |letter: char| {
        // The listed characters change the direction of the following text (Unicode's Bidi_Control).
        (letter.is_control() && !matches!(letter, '\n' | '\t'))
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let escaped = |letter: char| match steers(letter) {
        // Four hexadecimal digits are enough, because all of these characters are below U+10000.
        true => format!("\\u{:04x}", u32::from(letter)),
        false => letter.to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_text_is_laid_out_as_a_value_is() {
        for text in [
            r#"{"a":[1,-2.5,{"b":[]},{}],"c":"x: {\"[,\\\\","d":null,"e":[[],[true]]}"#,
            "[]",
            "{}",
            r#""one""#,
            r#" [ 1 , { "a" : "b" } ] "#,
        ] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(laid_out(text), serde_json::to_string_pretty(&value).unwrap());
        }
    }

    #[test]
    fn table_columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let rows = [vec!["laptop".to_owned(), "10.0.0.2".to_owned()], vec!["pi".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "ADDRESS"], &rows), "NAME    ADDRESS\nlaptop  10.0.0.2\npi\n");
    }

    #[test]
    fn nothing_that_is_printed_steers_the_terminal() {
        let hostile = "a\tb\u{1b}]0;title\u{7}\u{9b}31m\r\u{202e}c\n";
        assert_eq!(harmless(hostile), "a\tb\\u001b]0;title\\u0007\\u009b31m\\u000d\\u202ec\n");
        let json = serde_json::to_string(&hostile).unwrap();
        let read: String = serde_json::from_str(&harmless(&json)).unwrap();
        assert_eq!(read, hostile);
        assert!(matches!(harmless("plain: äöü\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn output_to_nobody_is_told_from_one_that_is_read() {
        let open = |path| std::fs::File::options().write(true).open(path).unwrap();
        assert!(is_null(open("/dev/null")));
        assert!(!is_null(open("/dev/full")) && !is_null(tempfile::tempfile().unwrap()));
    }

    #[test]
    fn full_disk_is_told_without_a_number() {
        let error = open_full().write_all(b"key").unwrap_err();
        assert_eq!(
            sentence(&unwritten(&error)),
            "cannot write to standard output: no space left on device; check where it goes"
        );
    }

    fn open_full() -> std::fs::File {
        std::fs::File::options().write(true).open("/dev/full").unwrap()
    }

    #[test]
    fn error_with_causes_is_one_line() {
        let error = anyhow::anyhow!("disk\n  full").context("cannot write x");
        assert_eq!(sentence(&error), "cannot write x: disk full");
    }

    #[test]
    fn cause_that_was_said_is_not_said_again() {
        let error = anyhow::anyhow!("denied").context("cannot use x: denied; run it as root").context("down");
        assert_eq!(sentence(&error), "down: cannot use x: denied; run it as root");
    }
}
