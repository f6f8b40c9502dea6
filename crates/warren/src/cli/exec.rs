//! `warren exec`: runs one program inside the tunnel, or outside of it.

pub(super) mod names;

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use warren_host::exec_groups::{ExecGroup, Side};

use self::names::Shadowed;
use super::account::Account;
use super::args::ExecArgs;
use super::one_daemon::refuse_invalid_name;
use super::portal::browser::{leaves_its_group, on_path};
use crate::runtime::block_on;
use warren_client as client;
use warren_config::{find_profile, load_profile};
use warren_control::{AskError, Request, ask, exec_socket};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::logging::LogSettings;
use warren_daemon::output;

/// Replaces this process by the program, inside or outside of the tunnel.
///
/// # Errors
/// Why it cannot be put there, or cannot be started.
pub(crate) fn run(directories: &Directories, log: &LogSettings, arguments: &ExecArgs) -> anyhow::Result<()> {
    let side = if arguments.outside { Side::Outside } else { Side::Inside };
    let is_root = rustix::process::geteuid().is_root();
    let account = match &arguments.user {
        Some(_) if !is_root => {
            let sentence = "--user is for root; run the command with sudo, or leave --user out";
            return Err(Failure::new(ExitCode::Usage, sentence.to_owned()).into());
        }
        Some(user) => Some(Account::of_user(user)?),
        None => None,
    };
    let program = arguments.command.first().map(OsString::as_os_str).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    refuse_snap(program, &path)?;
    let (name, shadowed) = match is_root {
        true => block_on(enter_as_root(directories, log, arguments, side))?,
        false => block_on(enter_as_user(directories, arguments, side))?,
    };
    // The daemon's answer is not trusted. The kernel shows in which cgroup this process really is.
    let listing = std::fs::read_to_string("/proc/self/cgroup").context("cannot see this process's cgroup")?;
    if !ExecGroup::of(&name, side)?.has_in(&listing) {
        bail!("the daemon of {name} has not moved this process; see `warren logs {name}`");
    }
    if let Some(program) = session_program(program) {
        output::warn(format!(
            "{program} may open a login session or have systemd start the program, which then leaves its side of the tunnel; to run \
             a program as another user, run: sudo warren exec --user USER {name} -- COMMAND"
        ));
    }
    let mut words = account.as_ref().map(|account| account.words(false)).unwrap_or_default();
    words.extend_from_slice(&arguments.command);
    let words = shadowed.around(&words);
    let Some((program, rest)) = words.split_first() else { bail!("name a program after `--`") };
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(account) = &account {
        command.env_clear().envs(account.variables(std::env::vars_os()));
    }
    let error = command.exec();
    // The exit codes are those that a shell uses, so that scripts can distinguish these cases from failures of the program.
    let code =
        if error.kind() == io::ErrorKind::NotFound { ExitCode::NotFound } else { ExitCode::NotStarted };
    let sentence = format!("cannot start {}: {error}; check the program's name", program.display());
    Err(Failure::new(code, sentence).into())
}

/// Refuses a snap or a flatpak, because systemd moves it to a cgroup of its own. `snap` and `flatpak` themselves are session
/// programs.
fn refuse_snap(program: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let is_one = on_path(program, path).is_some_and(|file| leaves_its_group(&file));
    if !is_one || session_program(program).is_some() {
        return Ok(());
    }
    let sentence = format!(
        "{} is a snap or a flatpak, and these leave their side of the tunnel; install the program from another package",
        program.display()
    );
    Err(Failure::new(ExitCode::NotStarted, sentence))
}

/// Returns the program's name if it may open a login session (PAM), or ask systemd to start a program. In both cases, systemd puts
/// the program into a cgroup of its own.
fn session_program(program: &OsStr) -> Option<&'static str> {
    let name = Path::new(program).file_name()?;
    SESSION_PROGRAMS.into_iter().find(|known| name == *known)
}

const SESSION_PROGRAMS: [&str; 11] = [
    "su",
    "sudo",
    "doas",
    "login",
    "runuser",
    "pkexec",
    "run0",
    "systemd-run",
    "machinectl",
    "snap",
    "flatpak",
];

async fn enter_as_root(
    directories: &Directories,
    log: &LogSettings,
    arguments: &ExecArgs,
    side: Side,
) -> anyhow::Result<(String, Shadowed)> {
    let (name, file) = profile(directories, arguments.profile.as_ref())?;
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    let group = ExecGroup::of(&name, side)?;
    let request = Request::Exec { side };
    let answer = match ask(&directory.socket(), &request).await {
        Err(AskError::NotRunning) if side == Side::Outside => {
            let sentence = format!(
                "{name} is not up, so there is no tunnel to stay out of; run the program without `warren exec`, or run `{}` first",
                directories.command(&format!("up {name}"))
            );
            return Err(Failure::new(ExitCode::NotRunning, sentence).into());
        }
        Err(AskError::NotRunning) => {
            bring_up(directories, log, &name, file, &directory).await?;
            ask(&directory.socket(), &request).await?
        }
        answer => answer?,
    };
    let servers: Vec<IpAddr> = serde_json::from_value(answer).unwrap_or_default();
    let shadowed = Shadowed::for_root(side, &servers, directory.path())?;
    group.take_in(0)?;
    Ok((name, shadowed))
}

/// Brings the profile up only for programs that `warren exec` starts.
async fn bring_up(
    directories: &Directories,
    log: &LogSettings,
    name: &str,
    file: Option<PathBuf>,
    directory: &DaemonDirectory,
) -> anyhow::Result<()> {
    let file = match file {
        Some(file) => file,
        None => find_profile(&directories.config, Some(name.as_ref()))?,
    };
    let profile = load_profile(&file)?;
    if profile.kill_switch.enabled || client::kill_switch::is_closed(directory)? {
        let sentence = format!(
            "{name} is not up, and its kill switch is for the whole host; run `{}` first",
            directories.command(&format!("up {name}"))
        );
        return Err(Failure::new(ExitCode::NotRunning, sentence).into());
    }
    let options = client::UpOptions {
        log: log.clone(),
        profile: file,
        timeout: TIME_TO_CONNECT,
        kill_switch: false,
        exit: None,
        host_outside: true,
    };
    client::up(directories, options).await?;
    output::note(format!(
        "{name} is up for programs of `warren exec` alone, and this host stays outside; `{}` ends that",
        directories.command(&format!("down {name}"))
    ));
    Ok(())
}

/// The profile's name, and its file if that is known.
pub(super) fn profile(
    directories: &Directories,
    argument: Option<&OsString>,
) -> anyhow::Result<(String, Option<PathBuf>)> {
    if let Some(argument) = argument {
        let name = client::profile_name(argument)?;
        let is_file = argument.to_string_lossy() != name.as_str();
        return Ok((name, is_file.then(|| PathBuf::from(argument))));
    }
    match client::candidates(directories)?.as_slice() {
        [name] => Ok((name.clone(), None)),
        [] => {
            let file = find_profile(&directories.config, None)?;
            Ok((client::profile_name(file.as_os_str())?, Some(file)))
        }
        several => {
            let sentence = format!("{} are up; name one", several.join(", "));
            Err(Failure::new(ExitCode::Usage, sentence).into())
        }
    }
}

/// Returns the name of the profile whose daemon a user's command should ask: `name` or, without it, the only profile whose daemon
/// listens to users. If there is none, fails with the message in `none`.
pub(super) fn listening_profile(
    directories: &Directories,
    argument: Option<&OsString>,
    none: &'static str,
) -> anyhow::Result<String> {
    let name = match (argument, exec_socket::names(&directories.runtime).as_slice()) {
        (Some(name), _) => name.to_string_lossy().into_owned(),
        (None, [name]) => name.clone(),
        (None, []) => bail!(none),
        (None, several) => {
            let sentence = format!("several profiles may allow that: {}; name one", several.join(", "));
            return Err(Failure::new(ExitCode::Usage, sentence).into());
        }
    };
    refuse_invalid_name(&name)?;
    Ok(name)
}

async fn enter_as_user(
    directories: &Directories,
    arguments: &ExecArgs,
    side: Side,
) -> anyhow::Result<(String, Shadowed)> {
    let none = "no profile allows users to run programs inside; run this as root, or ask root to list you in users under [exec] of the profile";
    let name = listening_profile(directories, arguments.profile.as_ref(), none)?;
    let shadowed = Shadowed::for_user(side)?;
    match exec_socket::ask_for(&directories.runtime, &name, side.into()).await {
        Err(AskError::NotRunning) => {
            let sentence = format!(
                "{name} is not up, or lets only root use `warren exec`; ask root to run `warren up {name}`, and to set users in [exec] \
                 of the profile"
            );
            Err(Failure::new(ExitCode::NotRunning, sentence).into())
        }
        asked => asked.map(|()| (name, shadowed)).map_err(Into::into),
    }
}

const TIME_TO_CONNECT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_open_a_session_are_known_by_name_or_path() {
        assert_eq!(session_program("sudo".as_ref()), Some("sudo"));
        assert_eq!(session_program("/usr/bin/su".as_ref()), Some("su"));
        for other in ["curl", "/usr/bin/sudoedit", "subl", "/"] {
            assert_eq!(session_program(other.as_ref()), None);
        }
    }

    #[test]
    fn snaps_are_refused_and_other_programs_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["snap", "curl"] {
            std::fs::copy("/bin/true", bin.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("snap", bin.join("firefox")).unwrap();
        let refused = |program: &OsStr| refuse_snap(program, bin.as_os_str()).is_err();
        assert!(refused("firefox".as_ref()) && refused(bin.join("firefox").as_os_str()));
        for other in ["curl", "snap", "missing", ""] {
            assert!(!refused(other.as_ref()), "{other}");
        }
    }
}
