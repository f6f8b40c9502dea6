//! `warren client close`: closes a kill switch without a daemon. With `--watch`, the command keeps running and closes the kill
//! switch again whenever another program opens it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};
use warren_host::kill_switch::{KillSwitch, KillSwitchError, KillSwitchRules, Standing, close_beside, look};
use warren_host::watch::Watch;
use warren_host::{HostError, facts};

use super::kill_switch::{self, is_closed};
use warren_config::{ClientProfile, load_profile};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::notify;

/// Closes a profile's kill switch. With `watch`, it runs until told to end, and closes the kill switch again whenever another program
/// has deleted or changed its table.
///
/// # Errors
/// When the kill switch cannot be closed, or the profile's daemon runs without a kill switch.
pub async fn client_close(directories: &Directories, file: &Path, watch: bool) -> anyhow::Result<()> {
    let profile = load_profile(file)?;
    let directory = DaemonDirectory::new(&directories.runtime, profile.name.as_str());
    directory.create()?;
    if !watch {
        return match close(&profile, &directory).await? {
            true => Ok(()),
            false => Err(Failure::new(
                ExitCode::Failed,
                format!("{} is up and keeps its kill switch itself", profile.name),
            )
            .into()),
        };
    }
    Guard { profile, directory, networks: None, reported: String::new() }.run().await
}

/// Closes the kill switch if no daemon runs. Returns false if a daemon runs.
async fn close(profile: &ClientProfile, directory: &DaemonDirectory) -> anyhow::Result<bool> {
    // While this process holds the lock, no daemon can start and `cleanup` cannot run. The lock file also marks the directory as
    // that of a daemon.
    let Some(_lock) = directory.lock_after_kill().await? else { return Ok(false) };
    kill_switch::close(profile, directory).await?;
    Ok(true)
}

/// Keeps a kill switch closed while no daemon is running to do so. The journal says whether the kill switch should be closed. So
/// if `warren down` has opened it, the guard leaves it open.
struct Guard {
    profile: ClientProfile,
    directory: DaemonDirectory,
    /// The networks that this host was on at the last check.
    networks: Option<Vec<IpNet>>,
    /// The state of the kill switch as last reported.
    reported: String,
}

impl Guard {
    async fn run(mut self) -> anyhow::Result<()> {
        const CANNOT_WATCH: &str = "cannot watch this host's firewall; run as root";
        let mut terminate = signal(SignalKind::terminate()).context(CANNOT_WATCH)?;
        let mut interrupt = signal(SignalKind::interrupt()).context(CANNOT_WATCH)?;
        // The watch begins before the kill switch is closed, so that no later change is missed.
        let mut watch = Watch::open_with(PAUSE).context(CANNOT_WATCH)?;
        self.begin().await?;
        notify::ready("");
        let mut is_settled = self.look_after().await;
        let mut watchdog = notify::Watchdog::of_this_process();
        let mut regular = interval(REGULAR);
        // After a sleep of the host one check is enough, so missed checks are not repeated.
        regular.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = watch.changed() => changed.context(CANNOT_WATCH)?,
                _ = regular.tick() => {}
                () = sleep(RETRY), if !is_settled => {}
                () = watchdog.due() => {
                    watchdog.alive();
                    continue;
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            is_settled = self.look_after().await;
        }
        notify::stopping();
        self.directory.forget_guard();
        Ok(())
    }

    /// Closes the kill switch. After a guard was killed, its replacement does not close the kill switch, because `warren down`
    /// may have opened it meanwhile.
    async fn begin(&self) -> anyhow::Result<()> {
        let (profile, directory) = (&self.profile, &self.directory);
        if !directory.has_guard() && !close(profile, directory).await? && !is_closed(directory)? {
            let name = &profile.name;
            let sentence = format!("{name} is up without a kill switch; run `warren down {name}` first");
            return Err(Failure::new(ExitCode::Failed, sentence).into());
        }
        // The directory is marked only after the kill switch was closed. If closing had failed, the next guard would try it
        // again.
        directory.note_guard()
    }

    /// Checks the kill switch, and closes it again if necessary. Returns false if the next check must come
    /// soon.
    async fn look_after(&mut self) -> bool {
        let (sentence, is_settled) = match self.keep().await {
            Ok(Kept::Open) => {
                ("the kill switch was opened by `warren down` or `warren cleanup`".to_owned(), true)
            }
            Ok(Kept::Closed) => (CLOSED.to_owned(), true),
            Ok(Kept::ClosedAgain) => {
                tracing::warn!("somebody has deleted or changed the kill switch's table; closed again");
                (CLOSED.to_owned(), true)
            }
            // The daemon is about to close the kill switch itself, or is ending.
            Ok(Kept::ByOther) => return false,
            Err(error) => (format!("cannot keep the kill switch closed: {error:#}"), false),
        };
        if sentence != self.reported {
            notify::status(&sentence);
            match is_settled {
                true => tracing::info!("{sentence}"),
                false => tracing::error!("{sentence}"),
            }
            self.reported = sentence;
        }
        is_settled
    }

    async fn keep(&mut self) -> anyhow::Result<Kept> {
        let (journal, name) = (self.directory.kill_switch(), self.profile.name.as_str());
        let standing = look(&journal, name).await?;
        if standing == Standing::Open {
            return Ok(Kept::Open);
        }
        let on_link = facts::networks().await?;
        let before = self.networks.replace(on_link.clone());
        // The rules contain the networks that this host was on. If the host has changed its network, the rules must be updated
        // even though the kill switch is closed.
        let has_moved = before.as_ref() != Some(&on_link);
        if standing == Standing::Closed && !has_moved {
            return Ok(Kept::Closed);
        }
        let mut closed = match KillSwitch::take_over(&journal, name) {
            Ok(Some(closed)) => closed,
            Ok(None) => return Ok(Kept::Open),
            // A running daemon holds the journal, and updates the rules itself when the host changes its network.
            Err(KillSwitchError::Host(HostError::Busy(_))) if standing == Standing::Closed => {
                return Ok(Kept::Closed);
            }
            // A running daemon holds the journal. If it has not restored the table by now, it may hang, so the guard makes the
            // table itself.
            Err(KillSwitchError::Host(HostError::Busy(_))) => {
                let was_made = close_beside(&journal, name).await?;
                return Ok(if was_made { Kept::ClosedAgain } else { Kept::ByOther });
            }
            // An earlier version of Warren has closed the kill switch, and kept no record of its rules.
            Err(KillSwitchError::Unrecorded(_)) if close(&self.profile, &self.directory).await? => {
                return Ok(Kept::ClosedAgain);
            }
            Err(error) => return Err(error.into()),
        };
        let was_gone = closed.repair().await?;
        closed.set(KillSwitchRules { on_link, ..closed.rules().clone() }).await?;
        Ok(if was_gone { Kept::ClosedAgain } else { Kept::Closed })
    }
}

/// The outcome of a check of the kill switch.
enum Kept {
    /// A command has opened the kill switch.
    Open,
    /// The kill switch is closed.
    Closed,
    /// The kill switch was not closed, and is now.
    ClosedAgain,
    /// The kill switch is not closed, and another process holds its journal.
    ByOther,
}

const CLOSED: &str = "the kill switch is closed";
/// The shortest time between two checks. It limits the work when several changes come in quick succession, such as the two
/// flushes of a firewall restart.
const PAUSE: Duration = Duration::from_millis(50);
/// The time between two checks while the kill switch should be closed but is open.
const RETRY: Duration = Duration::from_millis(250);
/// The time between two checks while the kernel reports no change.
const REGULAR: Duration = Duration::from_secs(30);
