//! `warren up` and `warren down` for users other than root. systemd starts the units, and polkit decides which users may ask for
//! this.
//!
//! The rule in `configs/warren.rules` lets members of the group warren start two units of each profile in /etc/warren: the
//! tunnel's unit `warren@NAME.service`, and `warren-down@NAME.service`, which runs [`down`] as root.

use std::time::Duration;

use warren_config::{KillSwitchOpener, ProfileName, find_profile, load_profile};
use warren_control::ask_status;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

use crate::already::runs_already;
use crate::down::down;
use crate::kill_switch;
use crate::systemd_unit::{Unit, are_usual};
use crate::up::connected;

/// Whether this user must ask systemd, because only root can do the work directly.
pub fn is_member(directories: &Directories) -> bool {
    are_usual(directories) && !rustix::process::geteuid().is_root()
}

/// Starts the unit of a profile in /etc/warren. The user need not be able to read the profile.
///
/// # Errors
/// As [`crate::up()`], and when this user is not allowed to start the unit.
pub async fn up_as_member(directories: &Directories, name: &str, timeout: Duration) -> anyhow::Result<()> {
    let unit = Unit::tunnel(name);
    if unit.is_active().await {
        let directory = DaemonDirectory::new(&directories.runtime, name);
        return Err(runs_already(&directory, name).await.into());
    }
    unit.start_as_member(timeout, &Unit::down(name)).await?;
    let directory = DaemonDirectory::new(&directories.runtime, name);
    // The tunnel is up even if the daemon does not answer.
    let status = ask_status(&directory.socket()).await.ok();
    let name: ProfileName = name.parse().map_err(anyhow::Error::msg)?;
    output::print(&format!("{}\n", connected::line(&name, false, status.as_ref())))
}

/// Stops the tunnel of a profile and opens its kill switch, if the profile allows members to open it.
///
/// # Errors
/// As [`down`], and when this user is not allowed to start the unit.
pub async fn down_as_member(name: &str) -> anyhow::Result<()> {
    Unit::down(name).run_as_member().await
}

/// Does what [`down`] does, on behalf of a member of the group. systemd runs this as root.
///
/// # Errors
/// As [`down`], and when the kill switch is closed and only root may open it.
pub async fn down_for_member(directories: &Directories, name: &str) -> anyhow::Result<()> {
    let directory = DaemonDirectory::new(&directories.runtime, name);
    if kill_switch::is_closed(&directory)? {
        let file = find_profile(&directories.config, Some(name.as_ref()))?;
        if load_profile(&file)?.kill_switch.down != KillSwitchOpener::Group {
            let sentence = format!(
                "the kill switch of {name} is closed, and only root may open it; run `warren down {name}` as root, or set down = \"group\" in \
                 [kill_switch] of the profile"
            );
            return Err(Failure::new(ExitCode::Failed, sentence).into());
        }
    }
    down(directories, name).await
}
