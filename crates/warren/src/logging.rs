//! Logs: to standard error, filtered by `--log`, as text or JSON, and bounded.

mod limit;
mod standard_error;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use self::limit::LimitedLog;
pub(crate) use self::standard_error::write_to;
use crate::cli::args::{GlobalArgs, LogFormat};
use crate::exit_code::{ExitCode, Failure};

/// Starts logging for this process.
///
/// # Errors
/// [`ExitCode::Usage`] when the filter cannot be parsed.
pub(crate) fn start(global: &GlobalArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&global.log).map_err(|error| {
        let sentence = format!(
            "--log {:?} is not a filter: {error}; use a level such as info, or target=level",
            global.log
        );
        Failure::new(ExitCode::Usage, sentence)
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LimitedLog::new(global.log_format))
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    // journald stamps each line itself.
    let journald = std::env::var_os("JOURNAL_STREAM").is_some();
    match global.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text if journald => builder.without_time().init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}
