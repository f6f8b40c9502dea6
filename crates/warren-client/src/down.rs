//! `warren down`: stops a profile's daemon, which then restores the host. Also undoes the changes that a
//! killed daemon left.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;
use warren_host::dns::DnsError;

use super::daemon::STOP_TIMEOUT;
use super::kill_switch;
use super::systemd_unit::Unit;
use warren_config::ProfileName;
use warren_control::{AskError, Request, ask};
use warren_daemon::daemon_directory::{self, DaemonDirectory, DaemonLock, refuse_unknown};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};

/// The time between two checks of whether the daemon has ended. A check costs only two system calls.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long the helper process of a killed daemon may take to end on a busy machine.
const TIME_TO_DIE: Duration = Duration::from_secs(2);

/// Stops a profile's daemon and waits until it has ended and the host is restored.
///
/// # Errors
/// [`ExitCode::NotRunning`] when there is no daemon, and a killed daemon has left nothing.
pub async fn down(directories: &Directories, name: &str) -> anyhow::Result<()> {
    let directory = DaemonDirectory::new(&directories.runtime, name);
    if kill_switch::is_closed(&directory).unwrap_or(false) {
        // An nft process is started in advance while the daemon ends. This process needs it to open the kill switch afterwards.
        tokio::spawn(warren_host::get_nft_ready());
    }
    let unit = Unit::running(directories, name).await;
    // systemd restarts a unit that fails, so only systemd itself may stop it.
    if let Some(unit) = &unit {
        unit.stop().await?;
    }
    let (was_answered, lock) = stop(&directory, name).await?;
    let was_running = unit.is_some() || was_answered;
    let dns = restore_dns(&directories.state, name).await?;
    let left_over = warren_host::recover(&directory.journal()).await?;
    // Opens the kill switch last, so that nothing leaves outside the tunnel while the daemon's other changes are undone.
    let was_closed = kill_switch::open(&directory).await?;
    if directory.exists() {
        directory.forget_opened_at_home()?;
    }
    let had_exec = directory.release_exec().await?;
    directory.release_portal().await?;
    if let Some(lock) = &lock {
        directory.clear(lock);
    }
    if !was_running && !was_closed && !had_exec && left_over.undone.is_empty() && dns.is_empty() {
        refuse_unknown(directories, &directory, name)?;
        return Err(Failure::new(
            ExitCode::NotRunning,
            format!("{name} is not up; `warren up {name}` connects"),
        )
        .into());
    }
    Ok(())
}

/// Restores the resolvers that a killed daemon had replaced. The daemon's helper may hold the lock on their record for a moment
/// longer.
async fn restore_dns(state_dir: &Path, name: &str) -> Result<Vec<String>, DnsError> {
    let deadline = Instant::now() + TIME_TO_DIE;
    loop {
        match warren_host::dns::recover(state_dir, name).await {
            Err(DnsError::Busy(_)) if Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
            outcome => return outcome,
        }
    }
}

/// Stops a daemon that no systemd unit has started, and waits until it and its helper have ended. Returns whether there was a
/// daemon, and the daemon's lock if its file exists. The lock keeps another daemon from starting while the caller undoes the
/// remaining changes.
async fn stop(directory: &DaemonDirectory, name: &str) -> anyhow::Result<(bool, Option<DaemonLock>)> {
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut was_running = false;
    loop {
        if !was_running {
            // The daemon is asked again in each round, because a daemon that is just starting holds the lock
            // before it listens.
            was_running = match ask(&directory.socket(), &Request::Stop).await {
                Ok(_) => true,
                Err(AskError::NotRunning) => false,
                Err(error) => return Err(error.into()),
            };
        }
        if !directory.has_lock_file() {
            return Ok((was_running, None));
        }
        if let Some(lock) = directory.lock()? {
            return Ok((was_running, Some(lock)));
        }
        if Instant::now() > deadline {
            return Err(Failure::new(ExitCode::TimedOut, did_not_stop(directory, name, was_running)).into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn did_not_stop(directory: &DaemonDirectory, name: &str, was_asked: bool) -> String {
    if was_asked {
        return format!(
            "the daemon of {name} did not stop within 5 s; run `warren down {name}` again, or see `warren status {name}`"
        );
    }
    let lock = directory.lock_file();
    format!(
        "the daemon of {name} runs but cannot be asked to stop, because its control socket is gone; end it with `fuser -k \
         -TERM {}`, then run `warren down {name}` again",
        lock.display()
    )
}

/// The profile to which an argument of `down` refers. The argument is the profile's name, or the file that
/// was given to `up`.
///
/// # Errors
/// When it cannot be a profile's name.
pub fn profile_name(argument: &OsStr) -> anyhow::Result<String> {
    Ok(ProfileName::of_file(Path::new(argument))?.to_string())
}

/// The names of the client daemons that run or have left something behind.
///
/// # Errors
/// When this user may not read the runtime directory.
pub fn candidates(directories: &Directories) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, directory) in daemon_directory::all(&directories.runtime)? {
        if name != daemon_directory::EXIT && (directory.is_running()? || directory.has_remains()) {
            names.push(name);
        }
    }
    // After a power cut only the record of the resolvers is left. The kernel's state and the runtime directory are gone.
    for owner in warren_host::dns::owners(&directories.state)? {
        if !names.contains(&owner) {
            names.push(owner);
        }
    }
    Ok(names)
}
