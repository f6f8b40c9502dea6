//! The log settings of a process.

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// A level, or levels by module as tracing filters have it.
    pub filter: String,
    /// How lines are written.
    pub format: LogFormat,
}

/// How log lines are written: as text for people, or as one JSON object a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl LogFormat {
    /// Every format, by name.
    pub const ALL: [Self; 2] = [Self::Text, Self::Json];

    /// What `--log-format` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}
