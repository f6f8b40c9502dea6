//! Lines on standard error: the log of `warren fleet run`, and the warnings of the other commands.

use std::fmt;
use std::io::IsTerminal as _;

use anyhow::anyhow;
use clap::ValueEnum;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The format of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Starts logging. With a format, the lines are a log, with the time of each line. Otherwise they are the warnings of a command.
///
/// # Errors
/// If the text is not a filter.
pub(crate) fn start(filter: &str, format: Option<LogFormat>) -> anyhow::Result<()> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| {
        anyhow!("--log {filter:?} is not a filter: {error}; use a level such as info, or target=level")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        Some(LogFormat::Json) => builder.json().init(),
        // journald adds a timestamp itself.
        Some(LogFormat::Text) if std::env::var_os("JOURNAL_STREAM").is_some() => {
            builder.without_time().init()
        }
        Some(LogFormat::Text) => builder.init(),
        None => builder.event_format(OfCommand).init(),
    }
    Ok(())
}

/// Writes the lines of a command as `warren` writes them.
struct OfCommand;

impl<S, N> FormatEvent<S, N> for OfCommand
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let kind = match *event.metadata().level() {
            Level::ERROR => "",
            Level::WARN => "warning: ",
            Level::INFO | Level::DEBUG | Level::TRACE => "note: ",
        };
        write!(writer, "warren: {kind}")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
