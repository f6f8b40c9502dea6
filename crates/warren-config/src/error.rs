//! What is wrong with a configuration file, as the one sentence a user reads.

use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used; its `Display` is `FILE:LINE: what is wrong; what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    line: Option<usize>,
    sentence: String,
}

impl ConfigError {
    /// An error of a whole file, such as one that does not exist.
    pub fn of_file(path: &Path, sentence: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), line: None, sentence: sentence.into() }
    }

    /// An error at a line, counted from 1.
    pub fn at_line(path: &Path, line: usize, sentence: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), line: Some(line), sentence: sentence.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", one_line(&self.path.to_string_lossy()))?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        write!(formatter, ": {}", one_line(&without_keys(&self.sentence)))
    }
}

impl std::error::Error for ConfigError {}

/// The text with every control character escaped, so that no file name or value breaks a message into lines.
pub(super) fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// The text without its keys: 32 bytes in base64, 43 characters and an equals sign. A private key under the wrong name is still secret.
pub(super) fn without_keys(text: &str) -> String {
    const CHARACTERS: usize = 43;
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut shown = String::with_capacity(text.len());
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
