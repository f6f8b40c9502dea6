//! A profile's systemd unit, `warren@NAME.service`, which `up` and `down` use to start and stop the daemon where systemd
//! runs.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::members::GROUP;

const NO_SYSTEMCTL: &str =
    "cannot run systemctl; check that it works, or start the daemon with `warren client run`";

/// A unit of one profile.
#[derive(Debug)]
pub(crate) struct Unit {
    name: String,
}

impl Unit {
    /// Returns the unit for this profile. `None` where systemd does not run or has no `warren@.service`. The unit uses
    /// `/etc/warren/NAME.toml` and the default directories. So the result is also `None` if `up` was asked for another file or
    /// directory.
    pub(crate) async fn for_profile(directories: &Directories, name: &str, file: &Path) -> Option<Self> {
        let is_usual = file == directories.config.join(format!("{name}.toml"));
        let unit = Self::of(directories, name).filter(|_| is_usual)?;
        (unit.property("LoadState").await.ok()? == "loaded").then_some(unit)
    }

    /// The unit that runs a daemon of this name now, or is about to restart it.
    pub(crate) async fn running(directories: &Directories, name: &str) -> Option<Self> {
        let unit = Self::of(directories, name)?;
        unit.is_active().await.then_some(unit)
    }

    fn of(directories: &Directories, name: &str) -> Option<Self> {
        // Only root uses the unit directly. Other users have to be members of a group.
        let is_possible = are_usual(directories) && rustix::process::geteuid().is_root();
        is_possible.then(|| Self::tunnel(name))
    }

    /// The unit of a profile's daemon, whether or not it exists.
    pub(crate) fn tunnel(name: &str) -> Self {
        Self { name: format!("warren@{name}.service") }
    }

    /// The unit that takes a profile's tunnel down.
    pub(crate) fn down(name: &str) -> Self {
        Self { name: format!("warren-down@{name}.service") }
    }

    /// Whether the unit runs, starts or stops now.
    pub(crate) async fn is_active(&self) -> bool {
        let state = self.property("ActiveState").await.unwrap_or_default();
        !["", "inactive", "failed"].contains(&state.as_str())
    }

    /// Starts the unit like [`Self::start`], for a user who may start Warren's units but not stop them. After a failure, starts
    /// `down` to stop the unit.
    ///
    /// # Errors
    /// As [`Self::start`], and when this user may not start it.
    pub(crate) async fn start_as_member(&self, timeout: Duration, down: &Self) -> anyhow::Result<()> {
        let failure = tokio::select! {
            started = self.run_as_member() => match started {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
            () = tokio::time::sleep(timeout) => self.timed_out(timeout).await,
        };
        // Without this stop, systemd would keep restarting the daemon. A user who may not start one of the two units may not
        // start the other either.
        drop(down.run_as_member().await);
        Err(failure)
    }

    /// Starts the unit and waits until it is ready, or has done its work.
    ///
    /// # Errors
    /// With the unit's own sentence and exit code, or when this user may not start the unit.
    pub(crate) async fn run_as_member(&self) -> anyhow::Result<()> {
        let mut start = systemctl(&["--no-ask-password", "start", &self.name]);
        let output = start.stderr(Stdio::piped()).output().await.context(NO_SYSTEMCTL)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        if ["access denied", "authentication", "authorized", "permission denied"]
            .iter()
            .any(|word| said.contains(word))
        {
            let sentence = format!(
                "this user may not start {}; run this as root, or become a member of the group {GROUP} by `usermod -aG {GROUP} USER` and log in \
                 again",
                self.name
            );
            return Err(Failure::new(ExitCode::Failed, sentence).into());
        }
        Err(self.failure().await)
    }

    /// Starts the unit and returns when it is ready.
    ///
    /// # Errors
    /// The daemon's error message with its exit code, or [`ExitCode::TimedOut`] after `timeout`. In both cases the unit is stopped.
    pub(crate) async fn start(&self, timeout: Duration) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut start = systemctl(&["start", &self.name]).spawn().context(NO_SYSTEMCTL)?;
        let failure = tokio::select! {
            ended = start.wait() => {
                if ended?.success() {
                    return Ok(());
                }
                self.failure().await
            }
            () = tokio::time::sleep(timeout) => self.timed_out(timeout).await,
            _ = terminate.recv() => anyhow::anyhow!("interrupted; nothing was changed, and `warren up` can be run again"),
            _ = interrupt.recv() => anyhow::anyhow!("interrupted; nothing was changed, and `warren up` can be run again"),
        };
        // Without the stop, systemd would keep restarting the daemon although the user is told that `up` has failed.
        self.stop().await?;
        Err(failure)
    }

    /// Stops the unit, and returns when its daemon has restored the host.
    ///
    /// # Errors
    /// When systemd cannot stop the unit.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let output = systemctl(&["stop", &self.name]).stderr(Stdio::piped()).output().await?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            anyhow::bail!("systemd cannot stop {}: {}; see `systemctl status`", self.name, reason.trim());
        }
        // `up` says why the unit failed, so systemd need not list it as failed.
        drop(systemctl(&["reset-failed", &self.name]).status().await);
        Ok(())
    }

    /// Why the daemon ended before it was ready.
    async fn failure(&self) -> anyhow::Error {
        let status = self.property("ExecMainStatus").await.ok();
        let code = ExitCode::of_daemon(status.and_then(|status| status.parse().ok()));
        let see_the_log = || format!("{} failed; see `journalctl -u {}`", self.name, self.name);
        Failure::new(code, self.sentence().await.unwrap_or_else(see_the_log)).into()
    }

    async fn timed_out(&self, timeout: Duration) -> anyhow::Error {
        let see_the_log = || format!("see `journalctl -u {}`", self.name);
        let status = self.sentence().await.unwrap_or_else(see_the_log);
        let sentence = format!("no tunnel within {} s: {status}", timeout.as_secs_f64());
        Failure::new(ExitCode::TimedOut, sentence).into()
    }

    /// The daemon's last `STATUS=` notification.
    async fn sentence(&self) -> Option<String> {
        self.property("StatusText").await.ok().filter(|text| !text.is_empty())
    }

    async fn property(&self, property: &str) -> anyhow::Result<String> {
        let mut show = systemctl(&["show", "--value", "--property", property, &self.name]);
        let output = show.stdout(Stdio::piped()).output().await.context(NO_SYSTEMCTL)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Whether systemd runs, and these are the default directories. The units use no others.
pub(crate) fn are_usual(directories: &Directories) -> bool {
    let directories = [
        (&directories.config, "/etc/warren"),
        (&directories.runtime, "/run/warren"),
        (&directories.state, "/var/lib/warren"),
    ];
    let are_usual = directories.iter().all(|(directory, usual)| directory.as_path() == Path::new(usual));
    are_usual && sd_notify::booted().unwrap_or(false)
}

fn systemctl(arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // systemctl runs in a process group of its own, so that Ctrl-C reaches only `up`, which then stops the unit.
    command.kill_on_drop(true).process_group(0);
    command
}
