//! Settings that have no effect in this version.

use std::fmt;
use std::path::PathBuf;

use super::document::Section;
use super::wording::one_line;

/// A setting in a file that has no effect in this version. It prints as a one-line warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IneffectiveSetting {
    path: PathBuf,
    /// The key with its section, e.g. `[routes] exclude`.
    pub key: String,
    /// The line of the key, counted from 1.
    pub line: usize,
    /// What happens instead.
    pub consequence: &'static str,
}

impl IneffectiveSetting {
    pub(super) fn new(
        section: &Section<'_>,
        key: impl Into<String>,
        line: usize,
        consequence: &'static str,
    ) -> Self {
        Self { path: section.path().to_path_buf(), key: key.into(), line, consequence }
    }
}

impl fmt::Display for IneffectiveSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = one_line(&self.path.to_string_lossy());
        write!(
            formatter,
            "{path}:{}: {} has no effect in this version: {}",
            self.line, self.key, self.consequence
        )
    }
}
