//! `warren reload`: a running daemon reads its configuration again.

use super::one_daemon::ask_one;
use warren_control::{Reloaded, Request};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Makes one daemon read its configuration again: the named one, or the only one that runs.
///
/// # Errors
/// Why the daemon keeps its old configuration. [`ExitCode::NotRunning`] when there is no daemon.
pub(crate) async fn reload(directories: &Directories, name: Option<&str>) -> anyhow::Result<()> {
    let (name, answer) = ask_one(directories, name, &Request::Reload).await?;
    // An older daemon answers null instead of the changes.
    let reloaded: Option<Reloaded> = serde_json::from_value(answer).unwrap_or_default();
    let changed = reloaded.map(|reloaded| format!(": {reloaded}")).unwrap_or_default();
    output::print(&format!("Reloaded {name}{changed}.\n"))
}
