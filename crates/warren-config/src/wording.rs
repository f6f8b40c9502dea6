//! The wording that messages share: quoting a file, hiding keys, and suggesting the name that was meant.

use std::io;

/// Returns the known name that is most similar to a misspelt one. `None` if none is similar enough.
pub fn suggestion<'k>(unknown: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // A text that is much longer than any known name is similar to none.
    if unknown.len() > 64 {
        return None;
    }
    // Keys have underscores where people may write dashes or capitals.
    let lowered = unknown.to_lowercase().replace('-', "_");
    known
        .map(|name| (strsim::jaro_winkler(&lowered, name), name))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, name)| name)
}

/// An error and its causes in one line, without repetitions.
pub fn sentence(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string) {
        // Many errors already include their cause in their own text.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A number of things: "1 client", "2 clients".
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Text from a file between quotes: on one line, of limited length, and without keys.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", clipped(&without_keys(text)))
}

pub(super) fn clipped(text: &str) -> String {
    const LONGEST: usize = 60;
    // The text is escaped before it is truncated, because an escape sequence is longer than its character.
    let escaped = text.escape_debug().take(LONGEST + 1).collect::<String>();
    if escaped.chars().count() <= LONGEST {
        return escaped;
    }
    escaped.chars().take(LONGEST).chain("...".chars()).collect()
}

pub(super) fn alternatives(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The text with control characters escaped, so that file names and values cannot break a message into lines.
pub(super) fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Returns the text, in which each part that may be a key is hidden: 32 bytes in base64, which are 43 characters and an equals
/// sign. A private key in the wrong place must not be printed either.
pub(super) fn without_keys(text: &str) -> String {
    const CHARACTERS: usize = 43;
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut shown = String::with_capacity(text.len());
    // A key ends with an equals sign, so each part has at most one key, at its end.
    for part in text.split_inclusive('=') {
        let body = part.strip_suffix('=').unwrap_or(part);
        match body.len().checked_sub(CHARACTERS).and_then(|start| body.split_at_checked(start)) {
            Some((before, key)) if body.len() < part.len() && key.as_bytes().iter().all(is_base64) => {
                shown.push_str(before);
                shown.push_str("(a key, not shown)");
            }
            _ => shown.push_str(part),
        }
    }
    shown
}

/// An I/O error in the system's words, without Rust's `(os error N)`.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = words.chars();
    match letters.next() {
        // The first letter becomes lower case, because the text will be in the middle of a sentence.
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => "unknown error".to_owned(),
    }
}
