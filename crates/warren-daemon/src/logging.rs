//! Logs: to standard error, filtered by `--log`, as text or JSON, and bounded.

mod limit;
mod standard_error;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use self::limit::LimitedLog;
pub use self::standard_error::write_to;
use crate::exit_code::{ExitCode, Failure};

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

/// Starts logging for this process.
///
/// # Errors
/// [`ExitCode::Usage`] when the filter cannot be parsed.
pub fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.filter).map_err(|error| {
        let sentence = format!(
            "--log {:?} is not a filter: {error}; use a level such as info, or target=level",
            settings.filter
        );
        Failure::new(ExitCode::Usage, sentence)
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LimitedLog::new(settings.format))
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    // journald stamps each line itself.
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    match settings.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text if journald => builder.without_time().init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}
