//! `warren up`: starts a profile's daemon and waits until traffic flows.

pub(super) mod connected;
mod retry_refused;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::UnixDatagram;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::daemon::STOP_TIMEOUT;
use super::diagnose::what_to_check;
use super::kill_switch;
use super::ssh_session::SshSession;
use super::systemd_unit::Unit;
use crate::already::runs_already;
use crate::fleet::Fleet;
use warren_config::{ClientProfile, Endpoint, load_profile};
use warren_control::ask_status;
use warren_daemon::daemon_directory::{DaemonDirectory, StartLock};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::logging::LogSettings;
use warren_daemon::output;
use warren_daemon::own_program;

/// How long a user has to cancel an `up` that would cut the SSH session.
const TIME_TO_CANCEL: Duration = Duration::from_secs(5);

/// The options of `warren up`.
pub struct UpOptions {
    /// The daemon's log settings.
    pub log: LogSettings,
    /// The profile's file.
    pub profile: PathBuf,
    /// How long to wait for traffic to flow.
    pub timeout: Duration,
    /// Whether to close the kill switch even if the profile does not ask for a kill switch.
    pub kill_switch: bool,
    /// The exit to try first this time.
    pub exit: Option<String>,
    /// Whether the host's own traffic stays outside, for `warren exec`. In that case, `up` prints nothing on standard output.
    pub host_outside: bool,
}

/// Starts the daemon and returns when traffic flows through the tunnel. The daemon is a systemd unit where there is one, or a
/// process that is detached from this terminal.
///
/// # Errors
/// With the reason. When this returns an error, all changes of the daemon have been undone. [`ExitCode::Refused`] when the exit
/// refused. [`ExitCode::TimedOut`] when it did not answer, or when the reason why it cannot answer is known before the timeout. A
/// daemon that was running before this `up`, and that the exits had refused, keeps running with the tunnel's traffic blocked.
pub async fn up(directories: &Directories, options: UpOptions) -> anyhow::Result<()> {
    let mut profile = load_profile(&options.profile)?;
    let fleet = Fleet::load(&directories.state, &profile);
    if let Some(exit) = &options.exit {
        put_first(&mut profile, &fleet, exit)?;
    }
    for setting in &profile.ineffective {
        output::warn(setting.to_string());
    }
    let name = profile.name.as_str();
    let directory = DaemonDirectory::new(&directories.runtime, name);
    directory.create()?;
    // The lock prevents two simultaneous starts, which would take the notify socket and the log from each other.
    let Some(lock) = directory.start_lock()? else {
        let sentence =
            format!("another `warren up {name}` is starting it already; see `warren status {name}`");
        return Err(Failure::new(ExitCode::Failed, sentence).into());
    };
    // The lock is taken only for this check and released at once, because the daemon itself must take it.
    if directory.lock_after_kill().await?.is_none() {
        if retry_refused::can_ask_again(&directory).await {
            retry_refused::up(&directory, name, options.kill_switch, options.timeout).await?;
            return report(&directory, &profile).await;
        }
        return Err(runs_already(&directory, name).await.into());
    }
    let closes = options.kill_switch || profile.kill_switch.enabled;
    // If this profile has no kill switch of its own, those of other profiles block it.
    let others = kill_switch::closed_by_others(&directories.runtime, name)?;
    if !closes && !kill_switch::is_closed(&directory)? && !others.is_empty() {
        output::warn(kill_switch::blocked_by(name, &others));
    }
    // The daemon finds the kill switch closed and keeps it closed.
    let opened_on_failure = closes && close(&profile, &fleet, &directory).await?;
    if !closes {
        warn_without_firewall(&profile).await?;
    }
    if let Some(exit) = &options.exit {
        directory.note_first_exit(exit)?;
    }
    if options.host_outside {
        directory.note_host_outside()?;
    }
    if !profile.on_demand.trusted.is_empty() {
        directory.note_wanted_up()?;
    }
    let outcome = start(directories, &options, &profile, &directory, &lock).await;
    directory.take_host_outside();
    directory.take_wanted_up();
    // A daemon that could not be started has not taken the note.
    drop(directory.take_first_exit());
    if outcome.is_err() {
        // A failed `up` leaves the kill switch as it found it.
        if opened_on_failure {
            kill_switch::open(&directory).await?;
        }
        kill_switch::remind(name, &directory);
        return outcome;
    }
    if options.host_outside {
        return Ok(());
    }
    report(&directory, &profile).await
}

/// Makes an exit the first one. Refuses an unknown exit, and says which exits the profile has.
fn put_first(profile: &mut ClientProfile, fleet: &Fleet, exit: &str) -> anyhow::Result<()> {
    if profile.put_first(exit) || fleet.find(exit).is_some() {
        return Ok(());
    }
    let members = fleet.roster().into_iter().flat_map(|roster| &roster.exits).map(|exit| exit.name.clone());
    let known: Vec<String> = profile.exits().map(|exit| exit.endpoint.to_string()).chain(members).collect();
    let sentence = format!("{exit:?} is not an exit of {}; name one of {}", profile.name, known.join(", "));
    Err(Failure::new(ExitCode::Usage, sentence).into())
}

/// Prints that the tunnel is up, and the warnings that the daemon reports.
async fn report(directory: &DaemonDirectory, profile: &ClientProfile) -> anyhow::Result<()> {
    // The tunnel is up even if a daemon of another version sends a status that cannot be read.
    let status = ask_status(&directory.socket()).await.ok();
    output::print(&format!(
        "{}\n",
        connected::line(&profile.name, !profile.other_exits.is_empty(), status.as_ref())
    ))?;
    for warning in status.and_then(|status| status.client).into_iter().flat_map(|client| client.warnings) {
        output::warn(warning);
    }
    Ok(())
}

/// Closes the kill switch. If that would cut off the user's SSH session, warns first. Returns whether the kill switch was open.
async fn close(profile: &ClientProfile, fleet: &Fleet, directory: &DaemonDirectory) -> anyhow::Result<bool> {
    let rules = kill_switch::rules(profile).await?;
    let warning = SshSession::current().and_then(|session| session.warning(&rules));
    if let Some(warning) = warning.filter(|_| !kill_switch::is_closed(directory).unwrap_or(false)) {
        give_time_to_cancel(&warning).await;
    }
    kill_switch::close_before_start(profile, fleet, directory).await
}

/// Warns the user if the tunnel will cut off their session because this host has no nft.
async fn warn_without_firewall(profile: &ClientProfile) -> anyhow::Result<()> {
    // Networks that the exit names are not known yet, so there is nothing to warn about.
    if warren_host::has_nft() || profile.routes.of_exit {
        return Ok(());
    }
    // Without nft, the LAN is unreachable unless the profile asks for it, just as with a kill switch. So the kill switch's rules
    // also describe this case.
    let rules = kill_switch::rules(profile).await?;
    if let Some(warning) = SshSession::current().and_then(|session| session.warning_without_firewall(&rules))
    {
        give_time_to_cancel(&warning).await;
    }
    Ok(())
}

async fn give_time_to_cancel(warning: &str) {
    output::warn(format!("{warning}; press Ctrl-C within {} s to stop", TIME_TO_CANCEL.as_secs()));
    tokio::time::sleep(TIME_TO_CANCEL).await;
}

/// Starts the daemon and waits until traffic flows. If that does not happen, ends the daemon.
async fn start(
    directories: &Directories,
    options: &UpOptions,
    profile: &ClientProfile,
    directory: &DaemonDirectory,
    lock: &StartLock,
) -> anyhow::Result<()> {
    if let Some(unit) = Unit::for_profile(directories, profile.name.as_str(), &options.profile).await {
        return unit.start(options.timeout).await;
    }
    let socket = NotifySocket::bind(&directory.notify_socket(), lock)?;
    let mut child = spawn(directories, options, directory)?;
    let outcome = wait(&mut child, &socket, directory, options.timeout, &profile.exit.endpoint).await;
    if outcome.is_err() {
        end(&mut child).await?;
    }
    outcome
}

fn spawn(
    directories: &Directories,
    options: &UpOptions,
    directory: &DaemonDirectory,
) -> anyhow::Result<Child> {
    let file = directory.log();
    // Each start begins a new log, from which `up` reads the daemon's final message.
    let log_file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&file).with_context(
            || {
                format!(
                    "cannot write {}; free space on that disk, or choose another --runtime-dir",
                    file.display()
                )
            },
        )?;
    // The daemon works in `/`, where a relative path would lead elsewhere.
    let profile = std::path::absolute(&options.profile)?;
    own_program::command_like_this(directories, &options.log)
        .args(["client", "run", "--detached", "--"])
        .arg(profile)
        .env("NOTIFY_SOCKET", directory.notify_socket())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file)
        .spawn()
        .context("cannot start the client daemon; check that the warren binary may be run")
}

/// Waits for READY=1, the daemon's end, or the timeout.
async fn wait(
    child: &mut Child,
    socket: &NotifySocket,
    directory: &DaemonDirectory,
    timeout: Duration,
    endpoint: &Endpoint,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut last_status = None;
    // `up` handles these signals, so that it can end the daemon when it is interrupted.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            message = socket.receive() => {
                let message = message?;
                if let Some(status) = message.status {
                    last_status = Some(status);
                }
                if message.ready {
                    return Ok(());
                }
            }
            _ = terminate.recv() => anyhow::bail!("interrupted; nothing was changed, and `warren up` can be run again"),
            _ = interrupt.recv() => anyhow::bail!("interrupted; nothing was changed, and `warren up` can be run again"),
            ended = child.wait() => {
                // The daemon has ended, but its last notification may still be unread.
                while let Some(message) = socket.received() {
                    last_status = message.status.or(last_status);
                }
                return Err(failure_of(ended?.code(), directory, last_status));
            }
            () = tokio::time::sleep_until(deadline) => {
                let seconds = timeout.as_secs_f64();
                let unknown = || format!("{endpoint} does not answer: {}", what_to_check(endpoint.port()));
                let sentence = format!("no tunnel within {seconds} s: {}", last_status.unwrap_or_else(unknown));
                return Err(Failure::new(ExitCode::TimedOut, sentence).into());
            }
        }
    }
}

/// The daemon's error message with its exit code: read from its log or, if the disk is full, from its last notification.
fn failure_of(code: Option<i32>, directory: &DaemonDirectory, notified: Option<String>) -> anyhow::Error {
    // A daemon that fails has another exit code, so somebody has stopped this one.
    if code == Some(0) {
        let sentence = "the daemon was stopped before traffic flowed, for instance by `warren down`; run `warren up` \
                        again to connect";
        return Failure::new(ExitCode::Failed, sentence).into();
    }
    let log = || format!("the client daemon ended; see {}", directory.log().display());
    let sentence = directory.last_error().or(notified).unwrap_or_else(log);
    Failure::new(ExitCode::of_daemon(code), sentence).into()
}

/// Ends a daemon that did not come up. The daemon undoes its changes to the host before it ends.
async fn end(child: &mut Child) -> anyhow::Result<()> {
    let Some(id) = child.id() else { return Ok(()) };
    let Some(id) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) else { return Ok(()) };
    // The signal fails if the daemon has ended by now.
    let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        child.kill().await.context("cannot end the client daemon; run `warren down`")?;
    }
    Ok(())
}

/// A socket that receives sd_notify(3) messages, like systemd's.
struct NotifySocket {
    path: PathBuf,
    socket: UnixDatagram,
}

/// The parts of a notification that `up` acts on.
#[derive(Debug, Default, PartialEq)]
struct Notification {
    ready: bool,
    status: Option<String>,
}

impl NotifySocket {
    fn bind(path: &Path, _lock: &StartLock) -> anyhow::Result<Self> {
        // A killed `up` may have left its socket. It can be removed, because the lock shows that no other `up` runs.
        drop(std::fs::remove_file(path));
        let socket = UnixDatagram::bind(path).with_context(|| {
            format!("cannot bind {}; choose a short --runtime-dir that can be written to", path.display())
        })?;
        Ok(Self { path: path.to_owned(), socket })
    }

    async fn receive(&self) -> anyhow::Result<Notification> {
        let mut buffer = [0; 4096];
        let length = self
            .socket
            .recv(&mut buffer)
            .await
            .context("cannot receive the daemon's messages; run `warren up` again")?;
        Ok(Notification::of(&buffer, length))
    }

    /// A notification that has arrived already, if there is one.
    fn received(&self) -> Option<Notification> {
        let mut buffer = [0; 4096];
        let length = self.socket.try_recv(&mut buffer).ok()?;
        Some(Notification::of(&buffer, length))
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

impl Notification {
    fn of(buffer: &[u8], length: usize) -> Self {
        Self::parse(&buffer.get(..length).map(String::from_utf8_lossy).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut notification = Self::default();
        for line in text.lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => notification.ready = true,
                Some(("STATUS", status)) => notification.status = Some(status.to_owned()),
                _ => {}
            }
        }
        notification
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_has_readiness_and_status() {
        let parsed = Notification::parse("READY=1\nSTATUS=connected\nMAINPID=7\n");
        assert_eq!(parsed, Notification { ready: true, status: Some("connected".to_owned()) });
        assert_eq!(Notification::parse("STOPPING=1"), Notification::default());
    }

    #[test]
    fn daemons_last_words_are_the_sentence() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        directory.create().unwrap();
        std::fs::write(directory.log(), "INFO trying\nwarren: the exit said no\n").unwrap();
        let error = failure_of(Some(4), &directory, Some("connecting".to_owned()));
        assert_eq!(error.to_string(), "the exit said no");
        assert_eq!(ExitCode::of(&error), ExitCode::Refused);
    }

    #[test]
    fn daemon_that_somebody_stopped_is_reported_as_stopped() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        let error = failure_of(Some(0), &directory, Some("cannot reach the exit".to_owned()));
        assert!(error.to_string().contains("stopped"), "{error}");
    }

    #[test]
    fn last_notification_counts_where_the_log_could_not_be_written() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        directory.create().unwrap();
        std::fs::write(directory.log(), "").unwrap();
        let error = failure_of(Some(1), &directory, Some("the disk is full".to_owned()));
        assert_eq!(error.to_string(), "the disk is full");
    }
}
