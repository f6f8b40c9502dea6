//! `warren portal`: opens a network's login page under a closed kill switch.
//!
//! If run by root, this process opens the portal. Otherwise it asks the daemon to open it. Then a second process ([`inside`]) is
//! started in the portal's cgroup, as the calling user. The second process finds the page and starts the browser.

pub(super) mod browser;
mod inside;
mod page;

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use warren_host::exec_groups::{ExecGroup, Side};

pub(crate) use self::page::PlainUrl;
use super::account::Account;
use super::args::PortalArgs;
use super::exec;
use super::exec::names::Shadowed;
use crate::runtime::block_on;
use warren_client as client;
use warren_client::portal::{OpenPortal, refuse};
use warren_config::{find_profile, load_profile};
use warren_control::status::State;
use warren_control::{AskError, Request, ask, ask_status};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::{output, own_program, resolvers};

/// Keeps the login page open until its browser ends, the tunnel is up, or the time is over.
///
/// # Errors
/// Why the portal cannot be opened, or why it was closed too early.
pub(crate) fn run(directories: &Directories, arguments: &PortalArgs) -> anyhow::Result<()> {
    if arguments.inside {
        return block_on(inside::run(directories, arguments));
    }
    match rustix::process::geteuid().is_root() {
        true => block_on(as_root(directories, arguments)),
        false => block_on(as_user(directories, arguments)),
    }
}

async fn as_root(directories: &Directories, arguments: &PortalArgs) -> anyhow::Result<()> {
    let (name, file) = exec::profile(directories, arguments.profile.as_ref())?;
    let file = file.map_or_else(|| find_profile(&directories.config, Some(name.as_ref())), Ok)?;
    refuse(directories, &load_profile(&file)?)?;
    let caller = Account::of_sudo()?;
    if caller.is_root() && arguments.command.is_empty() {
        bail!(
            "a browser must not run as root; run `sudo warren portal {name}` as yourself, or name a program after `--`"
        );
    }
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    directory.create()?;
    let has_daemon = refuse_connected(&directory, &name).await?;
    let resolvers = network_resolvers(&directory).await?;
    let group = ExecGroup::of_portal(&name)?;
    group.make()?;
    let shadowed = Shadowed::for_root(Side::Outside, &resolvers, directory.path())?;
    let was_closed = client::kill_switch::is_closed(&directory)?;
    // From here on, the portal is closed no matter how this function returns.
    let opened = OpenPortal::open(&directory, &name, caller.number, resolvers, arguments.timeout).await?;
    let watched = Watched { directory: &directory, has_daemon, was_closed };
    let ended = match start_as(&caller, &group, &shadowed, directories, &name, arguments) {
        Ok(mut child) => {
            let ended = watched.wait(&mut child, arguments.timeout).await;
            // The portal is closed before the browser is ended, because a browser may take a while to end.
            let closed = opened.close().await;
            end(&mut child).await;
            closed.and(ended)
        }
        Err(error) => opened.close().await.and(Err(error)),
    };
    tokio::task::spawn_blocking(move || group.end()).await?;
    report(&name, ended?)
}

async fn as_user(directories: &Directories, arguments: &PortalArgs) -> anyhow::Result<()> {
    let none = "no running profile lets users open a login page; run `sudo warren portal`, or have root set portal = \"group\" in \
                [kill_switch] of the profile";
    let name = exec::listening_profile(directories, arguments.profile.as_ref(), none)?;
    let mut command = Command::new(own_program::program());
    command.args(inside_words(directories, &name, arguments)).kill_on_drop(true);
    let mut child = command.spawn().context("cannot start a second warren")?;
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    // The daemon itself closes the portal. This process does not ask the daemon for the reason, because this user may not be
    // allowed to.
    let watched = Watched { directory: &directory, has_daemon: false, was_closed: false };
    let ended = watched.wait(&mut child, arguments.timeout).await;
    end(&mut child).await;
    report(&name, ended?)
}

/// Refuses a profile that is connected. Returns whether its daemon runs.
async fn refuse_connected(directory: &DaemonDirectory, name: &str) -> anyhow::Result<bool> {
    match ask_status(&directory.socket()).await {
        Ok(status) if status.state == State::Up => {
            bail!("{name} is connected, so no login page is in the way; see `warren status {name}`")
        }
        Ok(_) => Ok(true),
        Err(AskError::NotRunning) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn network_resolvers(directory: &DaemonDirectory) -> anyhow::Result<Vec<IpAddr>> {
    let found: Vec<IpAddr> = match ask(&directory.socket(), &Request::NetworkResolvers).await {
        Ok(answer) => serde_json::from_value(answer)?,
        Err(AskError::NotRunning) => resolvers::listed(),
        Err(error) => return Err(error.into()),
    };
    if found.is_empty() {
        output::warn(
            "this network has given no resolver, so the browser cannot resolve names; join the network again, or wait \
             for DHCP"
                .to_owned(),
        );
    }
    Ok(found)
}

/// The arguments with which this program runs [`inside`].
fn inside_words(directories: &Directories, name: &str, arguments: &PortalArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--runtime-dir".into(), (&directories.runtime).into()];
    words.extend(["portal".into(), "--inside".into(), "--url".into(), arguments.url.to_string().into()]);
    words.extend([name.into(), "--".into()]);
    words.extend(arguments.command.iter().cloned());
    words
}

/// Starts [`inside`] as the user, in the cgroup.
fn start_as(
    caller: &Account,
    group: &ExecGroup,
    shadowed: &Shadowed,
    directories: &Directories,
    name: &str,
    arguments: &PortalArgs,
) -> anyhow::Result<Child> {
    let mut words = caller.words(true);
    words.push(own_program::program().into());
    words.extend(inside_words(directories, name, arguments));
    let mut command = Command::new("sh");
    // The shell moves itself into the cgroup, and then replaces itself by the program.
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.entrance());
    command.args(shadowed.around(&words)).envs(caller.environment()).kill_on_drop(true);
    command.spawn().context("cannot start the browser's process")
}

/// Asks the process inside to end, and waits for it for a moment.
async fn end(child: &mut Child) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    let Some(id) = id else { return };
    // Sending the signal fails if the process has ended or has changed its user.
    let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    drop(timeout(TIME_TO_END, child.wait()).await);
}

/// Why a portal was closed.
enum Ended {
    /// The portal's program has ended, with this exit code.
    Program(Option<i32>),
    Interrupted,
    Timeout,
    Connected,
    Opened,
    DaemonGone,
}

/// The events that end a portal, apart from the end of its program.
struct Watched<'a> {
    directory: &'a DaemonDirectory,
    has_daemon: bool,
    /// Whether the kill switch was closed at the start.
    was_closed: bool,
}

impl Watched<'_> {
    async fn wait(&self, child: &mut Child, time: Duration) -> anyhow::Result<Ended> {
        let deadline = Instant::now() + time;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let is_root = rustix::process::geteuid().is_root();
        loop {
            tokio::select! {
                ended = child.wait() => return Ok(Ended::Program(ended?.code())),
                () = sleep_until(deadline) => return Ok(Ended::Timeout),
                _ = terminate.recv() => return Ok(Ended::Interrupted),
                _ = interrupt.recv() => return Ok(Ended::Interrupted),
                _ = hangup.recv() => return Ok(Ended::Interrupted),
                _ = looks.tick(), if is_root => if let Some(ended) = self.look().await? { return Ok(ended) },
            }
        }
    }

    /// Returns why the portal must be closed, if the tunnel, its daemon or the kill switch is the reason.
    async fn look(&self) -> anyhow::Result<Option<Ended>> {
        if self.was_closed && !client::kill_switch::is_closed(self.directory)? {
            return Ok(Some(Ended::Opened));
        }
        Ok(match ask_status(&self.directory.socket()).await {
            Ok(status) => (status.state == State::Up).then_some(Ended::Connected),
            Err(AskError::NotRunning) if self.has_daemon => Some(Ended::DaemonGone),
            // A daemon that takes long to answer has not ended, so the portal stays open. The kernel closes it in time in any
            // case.
            Err(_) => None,
        })
    }
}

fn report(name: &str, ended: Ended) -> anyhow::Result<()> {
    match ended {
        Ended::Program(Some(0)) | Ended::Interrupted => output::note("the login page is closed".to_owned()),
        Ended::Program(Some(code)) => {
            bail!("the program in front of the login page has ended with exit code {code}")
        }
        Ended::Program(None) => {
            bail!(
                "the login page was closed: {name} is connected, its daemon has stopped, or five minutes are over; see `warren status {name}`"
            )
        }
        Ended::Connected => output::note(format!("{name} is connected; the login page is closed")),
        Ended::Opened => output::note(format!("the kill switch of {name} is open; the login page is closed")),
        Ended::Timeout => {
            let sentence =
                "the time is over and the login page is closed; run `warren portal` again if you need it";
            return Err(Failure::new(ExitCode::TimedOut, sentence).into());
        }
        Ended::DaemonGone => {
            bail!(
                "the daemon of {name} has stopped and the login page is closed; run `warren up {name}`, or `warren portal {name}` again"
            )
        }
    }
    Ok(())
}

/// How often the daemon is asked.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a browser may take to end by itself.
const TIME_TO_END: Duration = Duration::from_secs(2);
