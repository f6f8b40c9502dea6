//! Errors in configuration files, each as a sentence for the user.

use std::fmt;
use std::path::{Path, PathBuf};

use super::wording::{one_line, without_keys};

/// An error in a configuration. It prints as `FILE:LINE: what is wrong; what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    line: Option<usize>,
    sentence: String,
}

impl ConfigError {
    /// An error of a whole file, such as a missing one.
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
        // Control characters in a file's name are escaped. Keys are hidden, because the sentence may quote a key that was written
        // in the wrong place.
        write!(formatter, "{}", one_line(&self.path.to_string_lossy()))?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        write!(formatter, ": {}", one_line(&without_keys(&self.sentence)))
    }
}

impl std::error::Error for ConfigError {}
