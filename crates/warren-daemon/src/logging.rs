//! Logs: written to standard error, filtered by `--log`, as text or JSON, and limited in rate.

mod limit;
mod settings;
mod standard_error;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use self::limit::LimitedLog;
pub use self::settings::{LogFormat, LogSettings};
pub(crate) use self::standard_error::write_to;
use crate::exit_code::{ExitCode, Failure};

/// Starts logging for this process.
///
/// # Errors
/// [`ExitCode::Usage`] when the filter is invalid.
pub fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.filter).map_err(|error| {
        let sentence = format!(
            "--log {:?} is not a filter: {error}; use a level such as info, or target=level",
            settings.filter
        );
        Failure::new(ExitCode::Usage, sentence)
    })?;
    // The log of the `boringtun` library is switched off, because it warns each time a phone goes to sleep.
    let filter = match "boringtun=off".parse() {
        Ok(quiet) if !settings.filter.contains("boringtun") => filter.add_directive(quiet),
        _ => filter,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LimitedLog::new(settings.format))
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    // journald adds a timestamp itself.
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    match settings.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text if journald => builder.without_time().init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}
