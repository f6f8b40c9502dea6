//! Why a file is refused, with the line of the peer that is the reason.

use std::path::Path;

use warren_config::ConfigError;

/// Why the peers cannot be clients of this exit.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) line: usize,
    pub(super) sentence: String,
}

impl Refused {
    pub(super) fn of(self, file: &Path) -> ConfigError {
        ConfigError::at_line(file, self.line, self.sentence)
    }
}
