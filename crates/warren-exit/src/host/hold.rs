//! What becomes of the hold table ([`warren_host::exit_hold`]) when an exit ends.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use warren_host::HostError;
use warren_host::exit_hold::Hold;

use crate::ending::Ending;
use warren_daemon::daemon_dir::{DaemonDir, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::helper::Helper;
use warren_daemon::notify::SOCKET;

/// How long a stopped exit's flows wait for another exit to start.
const LINGER: Duration = Duration::from_secs(2);

/// Leaves the table for a successor. After a restart signal it stays until one comes; after a stop a process of its own
/// removes it in a moment, so that a person's stop and start keep flows alive and a stop alone leaves nothing. A service
/// manager says which of both it means, so under one a stop removes the table at once.
pub(crate) async fn leave(helper: &Helper, hold: Hold, ending: Ending) -> anyhow::Result<()> {
    if ending == Ending::Restart {
        return Ok(());
    }
    if std::env::var_os(SOCKET).is_some() {
        return Ok(hold.remove().await?);
    }
    match helper.release_hold().await {
        Ok(()) => drop(hold),
        Err(error) => {
            tracing::debug!("cannot start another process: {error}");
            hold.remove().await?;
        }
    }
    Ok(())
}

/// `warren exit release`: waits a moment, or for SIGTERM, and removes the table unless an exit has it.
pub async fn release(directories: &Directories) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        () = tokio::time::sleep(LINGER) => {}
        _ = terminate.recv() => {}
    }
    match warren_host::recover(&DaemonDir::new(&directories.runtime, EXIT).hold_journal()).await {
        Ok(_) | Err(HostError::Busy(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
