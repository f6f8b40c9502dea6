//! `warren client run`: the client daemon in the foreground.

use std::path::Path;

use super::daemon::{self, ClientStart, MadeBeforeSandbox, Settings};
use super::exec_users::ExecUsers;
use super::fleet::Fleet;
use super::kill_switch::{self, Lockdown};
use super::learnt_keys::LearntKeys;
use super::leftover_dns;
use super::stub::StubSockets;
use crate::already::runs_already;
use crate::probe::EchoSockets;
use warren_config::{ClientProfile, load_profile};
use warren_control::ControlSocket;
use warren_daemon::daemon_directory::{self, DaemonDirectory, ForSuccessor};
use warren_daemon::device_watch;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::helper::Helper;
use warren_daemon::logging::LogSettings;
use warren_daemon::members;
use warren_daemon::notify;
use warren_daemon::output;
use warren_daemon::sandbox::{self, Files};
use warren_tunnel::Rings;

/// Runs a profile's daemon until it is stopped.
///
/// # Errors
/// With the reason and its exit code. The host is as it was before.
pub async fn client_run(
    directories: &Directories,
    log: &LogSettings,
    file: &Path,
    detached: bool,
) -> anyhow::Result<()> {
    let mut profile = load_profile(file)?;
    if detached {
        // Starts a session of its own, so that the daemon outlives the terminal of `up`. This fails only for the leader of a
        // process group, which a child of `up` never is.
        let _ = rustix::process::setsid();
    } else {
        // The warnings are printed only by a daemon in the foreground. For a detached daemon, `up` has already printed them.
        for setting in &profile.ineffective {
            output::warn(setting.to_string());
        }
    }
    let name = profile.name.to_string();
    let name = name.as_str();
    let directory = DaemonDirectory::new(&directories.runtime, name);
    directory.create()?;
    let Some(lock) = directory.lock_after_kill().await? else {
        return Err(runs_already(&directory, name).await.into());
    };
    let wanted_up = directory.take_wanted_up();
    let fleet = Fleet::load(&directories.state, &profile);
    let (first_exit, host_outside) = take_notes(&directory, &mut profile, &fleet);
    // A killed daemon's changes are undone first, because a journal that still lists them cannot be opened for new changes.
    clean_up_own(directories, &directory, name).await?;
    // The kill switch is closed before anything is sent, so that no packet leaves outside the tunnel from here on.
    let lockdown = lock_down(&profile, &fleet, &directory).await?;
    let is_closed = lockdown.is_closed();
    for other in daemon_directory::clean_up(&directories.runtime, ForSuccessor::Keep).await? {
        tracing::info!("removed what a killed daemon of {other} had left");
    }
    refuse_taken_device(&profile, file)?;
    let made = make_before_sandbox(&profile)?;
    // The helper starts before the sandbox, in which no program can be started.
    let (helper, process) = Helper::start(directories, log, name, &lock)?;
    helper.install_as_nft_runner();
    let name = name.to_owned();
    let start = ClientStart {
        settings: Settings {
            name: name.clone(),
            blocked_by: kill_switch::closed_by_others(&directories.runtime, &name)?,
            file: file.to_owned(),
            directory: directory.clone(),
            profile,
            first_exit,
            wanted_up,
            host_outside,
        },
        fleet,
        learnt_keys: LearntKeys::load(&directories.state, &name),
        lockdown,
        state_dir: directories.state.clone(),
        helper,
        made,
    };
    let outcome = run_sandboxed(start).await;
    if let Err(error) = &outcome {
        // The error is sent as a notification while `up` or systemd still listens. The log alone is not enough, because its disk
        // may be full.
        notify::status(&output::sentence(error));
    }
    // The helper holds the same lock, so the next daemon can start only after the helper has ended.
    let has_helper_ended = process.end().await;
    directory.clear(&lock);
    if is_closed {
        // During `warren down`, the warning is logged too, because `warren down` opens the kill switch only after the daemon has
        // ended.
        tracing::warn!("the kill switch of {name} is closed until `warren down {name}` opens it");
    }
    if has_helper_ended {
        // The lock is released explicitly, because the helper's nft process still holds it and may take a while to end.
        lock.release();
    }
    outcome
}

/// Closes the kill switch if the profile asks for one, or keeps it closed, and forgets that an earlier daemon has opened it at home.
async fn lock_down(
    profile: &ClientProfile,
    fleet: &Fleet,
    directory: &DaemonDirectory,
) -> anyhow::Result<Lockdown> {
    let lockdown = Lockdown::of(profile, fleet, directory).await?;
    directory.forget_opened_at_home()?;
    Ok(lockdown)
}

/// Applies the notes that `up` and `warren exec` have left for this daemon: the exit to try first, and whether the host's own
/// traffic stays outside.
fn take_notes(
    directory: &DaemonDirectory,
    profile: &mut ClientProfile,
    fleet: &Fleet,
) -> (Option<String>, bool) {
    let first_exit = directory.take_first_exit();
    if let Some(exit) = &first_exit
        && !profile.put_first(exit)
        && fleet.find(exit).is_none()
    {
        tracing::warn!("{exit} is no longer an exit of {}; the profile's order counts", profile.name);
    }
    let host_outside = directory.take_host_outside();
    if host_outside {
        profile.leave_host_outside();
    }
    (first_exit, host_outside)
}

/// Undoes what a killed daemon of this profile left on the host, and the resolvers that killed daemons of any profile set.
async fn clean_up_own(
    directories: &Directories,
    directory: &DaemonDirectory,
    name: &str,
) -> anyhow::Result<()> {
    let recovered = warren_host::recover(&directory.journal()).await?;
    if !recovered.undone.is_empty() {
        tracing::info!("removed what a killed daemon of {name} had left");
    }
    for owner in leftover_dns::clean_up(&directories.state).await? {
        tracing::info!("put back the resolvers that a killed daemon of {owner} had set");
    }
    Ok(())
}

/// Refuses to start while another program's device has the name that the profile asks for.
fn refuse_taken_device(profile: &ClientProfile, file: &Path) -> anyhow::Result<()> {
    let Some(device) = &profile.tun.device else { return Ok(()) };
    if !device_watch::exists(device)? {
        return Ok(());
    }
    let sentence = format!(
        "a network device named {device} exists already; stop what uses it, or set another `name` in [tun] of {}",
        file.display()
    );
    Err(Failure::new(ExitCode::Failed, sentence).into())
}

fn make_before_sandbox(profile: &ClientProfile) -> anyhow::Result<MadeBeforeSandbox> {
    Ok(MadeBeforeSandbox {
        stub: bind_stub(profile)?,
        rings: Rings::make(profile.transport.workers()),
        echo_sockets: EchoSockets::make(),
    })
}

/// The sockets of the stub resolver that a profile with domains needs. systemd-resolved can do without one.
fn bind_stub(profile: &ClientProfile) -> anyhow::Result<Option<StubSockets>> {
    if profile.dns.domains.is_empty() {
        return Ok(None);
    }
    match StubSockets::bind() {
        Ok(sockets) => Ok(Some(sockets)),
        Err(error) if warren_host::dns::needs_stub() => Err(error),
        Err(error) => {
            tracing::debug!("{error:#}");
            Ok(None)
        }
    }
}

async fn run_sandboxed(start: ClientStart) -> anyhow::Result<()> {
    let Settings { directory, profile, .. } = &start.settings;
    // Made before the sandbox, which allows no new listening socket.
    let control = ControlSocket::bind_for(&directory.socket(), members::admit(directory))?;
    let users = ExecUsers::of(profile, directory)?;
    sandbox::enter(&files_of(&start.settings))?;
    daemon::run(start, control, users).await
}

fn files_of(settings: &Settings) -> Files {
    let files = Files::new().reading(&settings.file).writing_in(settings.directory.path());
    settings.profile.key_file.iter().fold(files, |files, key| files.reading(key))
}
