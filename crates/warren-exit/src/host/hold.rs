//! Decides what happens to the hold table ([`warren_host::exit_hold`]) when an exit ends. The table keeps flows alive until the
//! next exit starts.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use warren_host::HostError;
use warren_host::exit_hold::Hold;

use crate::ending::Ending;
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::helper::Helper;
use warren_daemon::notify::SOCKET;

/// How long a stopped exit's flows wait for another exit to start.
const LINGER: Duration = Duration::from_secs(2);

/// Leaves the table for a successor, or removes it.
///
/// After a restart signal, the table stays until the successor takes it.
/// After a stop, another process removes the table a moment later. So flows survive a stop and a start by hand, and a stop alone
/// leaves nothing behind.
/// Under a service manager, a stop removes the table at once, because a service manager uses another signal for a restart.
pub(crate) async fn leave(helper: &Helper, hold: Hold, ending: Ending) -> anyhow::Result<()> {
    if ending == Ending::Restart {
        return Ok(());
    }
    if std::env::var_os(SOCKET).is_some() {
        return Ok(hold.remove().await?);
    }
    match helper.release_hold().await {
        // Unlocks the journal and leaves the table to the other process. With the journal locked, that process would assume that a
        // new exit has taken the table.
        Ok(()) => drop(hold),
        Err(error) => {
            tracing::debug!("cannot start another process: {error}");
            hold.remove().await?;
        }
    }
    Ok(())
}

/// `warren exit release`: waits a moment, or until SIGTERM, and then removes the table unless an exit has taken it.
pub async fn release(directories: &Directories) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        () = tokio::time::sleep(LINGER) => {}
        _ = terminate.recv() => {}
    }
    match warren_host::recover(&DaemonDirectory::new(&directories.runtime, EXIT).hold_journal()).await {
        // A busy journal means that an exit has taken the table.
        Ok(_) | Err(HostError::Busy(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
