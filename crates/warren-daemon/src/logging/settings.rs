//! The log settings of a process.

/// What to log, and in which format.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// A level, or levels by module in the syntax of tracing filters.
    pub filter: String,
    /// The format of lines.
    pub format: LogFormat,
}

/// The format of log lines: text for people, or one JSON object per line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Every format, by name.
    pub const ALL: [Self; 2] = [Self::Text, Self::Json];

    /// The format's name for `--log-format`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}
