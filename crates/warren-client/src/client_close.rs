//! `warren client close`: a kill switch that is closed without a daemon, and kept closed whatever others do to the firewall.

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

/// Closes a profile's kill switch and leaves it so; with `watch` stays until told to end, and closes it again whenever somebody
/// has deleted or changed its table.
///
/// # Errors
/// When it cannot be closed, or the profile's daemon runs without one.
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
    Guard { profile, directory, networks: None, told: String::new() }.run().await
}

/// Closes it if no daemon runs. Returns whether none does.
async fn close(profile: &ClientProfile, directory: &DaemonDirectory) -> anyhow::Result<bool> {
    // Held for this moment, so that no daemon starts or cleans up meanwhile; its file makes the directory a daemon's.
    let Some(_lock) = directory.lock_after_kill().await? else { return Ok(false) };
    kill_switch::close(profile, directory).await?;
    Ok(true)
}

/// Who keeps a kill switch closed while no daemon does. The journal says whether it is to be closed: `warren down` opens it for
/// this one too.
struct Guard {
    profile: ClientProfile,
    directory: DaemonDirectory,
    /// The networks that this host was on when that was last looked at.
    networks: Option<Vec<IpNet>>,
    /// What was said last of the kill switch.
    told: String,
}

impl Guard {
    async fn run(mut self) -> anyhow::Result<()> {
        const CANNOT_WATCH: &str = "cannot watch this host's firewall; run as root";
        let mut terminate = signal(SignalKind::terminate()).context(CANNOT_WATCH)?;
        let mut interrupt = signal(SignalKind::interrupt()).context(CANNOT_WATCH)?;
        // Before the kill switch is closed, so that nothing is missed.
        let mut watch = Watch::open_with(PAUSE).context(CANNOT_WATCH)?;
        self.begin().await?;
        notify::ready("");
        let mut is_settled = self.look_after().await;
        let mut watchdog = notify::Watchdog::of_this_process();
        let mut regular = interval(REGULAR);
        regular.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = watch.changed() => changed.context(CANNOT_WATCH)?,
                _ = regular.tick() => {}
                () = sleep(AGAIN), if !is_settled => {}
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

    /// Closes it, unless this replaces a guard that was killed: what was opened since is to stay open.
    async fn begin(&self) -> anyhow::Result<()> {
        let (profile, directory) = (&self.profile, &self.directory);
        if !directory.has_guard() && !close(profile, directory).await? && !is_closed(directory)? {
            let name = &profile.name;
            let sentence = format!("{name} is up without a kill switch; run `warren down {name}` first");
            return Err(Failure::new(ExitCode::Failed, sentence).into());
        }
        // Only now: one that could not close it is to be followed by one that does.
        directory.note_guard()
    }

    /// Looks, and closes it again if need be. Returns whether all is as it should be.
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
            // The daemon closes it itself, or is ending.
            Ok(Kept::ByOther) => return false,
            Err(error) => (format!("cannot keep the kill switch closed: {error:#}"), false),
        };
        if sentence != self.told {
            notify::status(&sentence);
            match is_settled {
                true => tracing::info!("{sentence}"),
                false => tracing::error!("{sentence}"),
            }
            self.told = sentence;
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
        let has_moved = before.as_ref() != Some(&on_link);
        if standing == Standing::Closed && !has_moved {
            return Ok(Kept::Closed);
        }
        let mut closed = match KillSwitch::take_over(&journal, name) {
            Ok(Some(closed)) => closed,
            Ok(None) => return Ok(Kept::Open),
            // A daemon follows the networks itself.
            Err(KillSwitchError::Host(HostError::Busy(_))) if standing == Standing::Closed => {
                return Ok(Kept::Closed);
            }
            // It has had a second to close it again.
            Err(KillSwitchError::Host(HostError::Busy(_))) => {
                let was_made = close_beside(&journal, name).await?;
                return Ok(if was_made { Kept::ClosedAgain } else { Kept::ByOther });
            }
            // An earlier version has closed it.
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

/// What a look has brought.
enum Kept {
    /// It was opened on purpose.
    Open,
    /// It is closed.
    Closed,
    /// It was not, and is now.
    ClosedAgain,
    /// It is not, and another process has it in hand.
    ByOther,
}

const CLOSED: &str = "the kill switch is closed";
/// The shortest time between two looks: a restart of a firewall flushes twice.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks while it is not closed and should be.
const AGAIN: Duration = Duration::from_millis(250);
/// Between two looks although nothing was heard of.
const REGULAR: Duration = Duration::from_secs(30);
