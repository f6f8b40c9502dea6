//! `warren reload` and `warren exit drain`: requests to a running daemon.

use std::time::{Duration, Instant};

use super::one_daemon::ask_one;
use warren_control::{Reloaded, Request};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// How often to check whether the exit has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long an exit takes to stop, beyond the time that its clients get.
const STOPPING: Duration = Duration::from_secs(5);

/// Makes one daemon read its configuration again: the named one, or the only one that runs.
///
/// # Errors
/// Why the daemon keeps its old configuration; [`ExitCode::NotRunning`] when there is none.
pub(crate) async fn reload(directories: &Directories, name: Option<&str>) -> anyhow::Result<()> {
    let (name, answer) = ask_one(directories, name, &Request::Reload).await?;
    // An older daemon does not say what has changed.
    let reloaded: Option<Reloaded> = serde_json::from_value(answer).unwrap_or_default();
    let changed = reloaded.map(|reloaded| format!(": {reloaded}")).unwrap_or_default();
    output::print(&format!("Reloaded {name}{changed}.\n"))
}

/// Makes the exit send its clients away, and returns once the exit has ended.
///
/// # Errors
/// [`ExitCode::NotRunning`] when no exit runs, [`ExitCode::TimedOut`] when it does not end.
pub(crate) async fn drain(directories: &Directories, timeout: Duration) -> anyhow::Result<()> {
    let milliseconds = u64::try_from(timeout.as_millis())?;
    ask_one(directories, Some(EXIT), &Request::Drain { milliseconds }).await?;
    let directory = DaemonDirectory::new(&directories.runtime, EXIT);
    let deadline = Instant::now() + timeout + STOPPING;
    while directory.is_running()? {
        if Instant::now() > deadline {
            let status = directories.command("status exit");
            let sentence = format!("the exit was told to end but still runs; see `{status}` and its log");
            return Err(Failure::new(ExitCode::TimedOut, sentence).into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    output::print("Drained; the exit has stopped.\n")
}
