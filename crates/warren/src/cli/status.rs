//! `warren status`: a running daemon's state, as text or JSON.

mod condition;
mod fleet;
mod layout;
mod report;
mod summary;
pub(crate) mod units;
mod watch;

#[cfg(test)]
pub(crate) use watch::example;

use crate::cli::args::StatusArgs;
use crate::cli::one_daemon::{only_running, refuse_invalid_name, status_of, status_text_of};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Prints the status of one daemon: the named one, or the only one that runs.
///
/// # Errors
/// [`ExitCode::NotRunning`] when there is none.
pub(crate) async fn run(directories: &Directories, arguments: StatusArgs) -> anyhow::Result<()> {
    let StatusArgs { profile, json, watch, changes, all } = arguments;
    let name = profile.map(|name| name.to_string_lossy().into_owned());
    let name = name.as_deref();
    name.map_or(Ok(()), refuse_invalid_name)?;
    if watch {
        watch::refuse_without_terminal()?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => only_running(directories).await?,
        };
        return watch::watch(directories, &name).await;
    }
    if json {
        return output::print_json_text(&status_text_of(directories, name).await?);
    }
    let status = status_of(directories, name).await?;
    output::print(&match (all, changes) {
        (true, _) => report::report(&status),
        (false, true) => report::changes(&status),
        (false, false) => summary::summary(&status),
    })
}
