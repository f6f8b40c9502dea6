//! `warren logs`: shows a daemon's log, from the journal or from the log file of a daemon that `up` has started in the background.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::args::LogsArgs;
use super::one_daemon::{only_running, refuse_invalid_name};
use warren_config::describe;
use warren_daemon::daemon_directory::{self, DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};

/// Shows the log of one daemon: the named one, or the only existing one. Replaces this process by the program that prints
/// it.
///
/// # Errors
/// [`ExitCode::NotRunning`] if there is no log. The message says where a log may be.
pub(crate) async fn run(directories: &Directories, arguments: &LogsArgs) -> anyhow::Result<()> {
    let name = match &arguments.profile {
        Some(name) => name.to_string_lossy().into_owned(),
        None => match only_running(directories).await {
            Ok(name) => name,
            // No daemon runs, for example after a failed `up`. In that case the user wants to see the log of the daemon that has
            // ended.
            Err(error) => only_log(directories).ok_or(error)?,
        },
    };
    refuse_invalid_name(&name)?;
    // The exit has no log file, because it never runs detached. Its directory belongs to its own user, and root must not follow
    // links of that user.
    let file = (name != EXIT).then(|| DaemonDirectory::new(&directories.runtime, &name).log());
    let file = file.filter(|file| file.is_file());
    let unit = unit_of(directories, &name);
    let mut command = match (unit, file) {
        (Some(unit), None) if has_run(&unit) => journalctl(&unit, arguments),
        (Some(unit), Some(_)) if is_active(&unit) => journalctl(&unit, arguments),
        (_, Some(file)) => {
            if let Err(error) = File::open(&file) {
                bail!("cannot read {}: {}; run this as root", file.display(), describe(&error));
            }
            tail(&file, arguments)
        }
        (_, None) => {
            let starter = if name == EXIT {
                "systemd has not started it".to_owned()
            } else {
                let up = directories.command(&format!("up {name}"));
                format!("neither a unit of systemd nor `{up}` has started it")
            };
            let sentence = format!(
                "there is no log of {name}: {starter}; a daemon in the foreground logs where it was started"
            );
            return Err(Failure::new(ExitCode::NotRunning, sentence).into());
        }
    };
    let program = command.get_program().to_string_lossy().into_owned();
    // This process is replaced, so that Ctrl-C or a closed pager ends the program that prints the log.
    Err(command.exec()).with_context(|| format!("cannot run {program}; check that it is installed"))
}

/// The only profile with a log file or a unit that has run. `None` if there are several.
fn only_log(directories: &Directories) -> Option<String> {
    let all = daemon_directory::all(&directories.runtime).ok()?;
    let has_log = |(name, directory): &(String, DaemonDirectory)| {
        name != EXIT
            && (directory.log().is_file() || unit_of(directories, name).is_some_and(|unit| has_run(&unit)))
    };
    let mut with_log = all.into_iter().filter(has_log);
    let (name, _) = with_log.next()?;
    with_log.next().is_none().then_some(name)
}

/// The systemd unit of a daemon. `None` if systemd does not run, or the runtime directory is not the default, because units use
/// only the default.
fn unit_of(directories: &Directories, name: &str) -> Option<String> {
    let are_usual = directories.runtime == Path::new("/run/warren");
    let unit = if name == EXIT { "warren-exit.service".to_owned() } else { format!("warren@{name}.service") };
    (are_usual && sd_notify::booted().unwrap_or(false)).then_some(unit)
}

/// Whether systemd runs the unit, or tries to start it.
fn is_active(unit: &str) -> bool {
    property(unit, "ActiveState").is_some_and(|state| !["inactive", "failed"].contains(&state.as_str()))
}

/// Whether systemd has started the unit since the boot.
fn has_run(unit: &str) -> bool {
    property(unit, "ExecMainStartTimestampMonotonic").is_some_and(|time| time != "0")
}

fn property(unit: &str, name: &str) -> Option<String> {
    let shown =
        Command::new("systemctl").args(["show", "--value", "--property", name, unit]).output().ok()?;
    let value = String::from_utf8_lossy(&shown.stdout).trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn journalctl(unit: &str, arguments: &LogsArgs) -> Command {
    let mut command = Command::new("journalctl");
    // The host name is left out, as in a log file. Times are added by journalctl, because the daemon writes none into the
    // journal.
    command.args(["--unit", unit, "--output", "short-iso", "--no-hostname"]);
    command.args(["--lines", &lines(arguments)]);
    if arguments.follow {
        command.arg("--follow");
    }
    command
}

fn tail(file: &Path, arguments: &LogsArgs) -> Command {
    let mut command = Command::new("tail");
    let count = match arguments.lines {
        Some(count) => count.to_string(),
        // `+1` means from the first line on.
        None => "+1".to_owned(),
    };
    command.args(["--lines", &count]);
    if arguments.follow {
        // `tail` follows the name and not the open file, because each start of the daemon creates a new file.
        command.args(["--follow=name", "--retry", "--quiet"]);
    }
    command.arg("--").arg(file);
    command
}

fn lines(arguments: &LogsArgs) -> String {
    arguments.lines.map_or("all".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_unit_logs_to_the_journal_and_a_detached_daemon_to_its_file() {
        let all = LogsArgs { profile: None, follow: false, lines: None };
        let last = LogsArgs { follow: true, lines: Some(20), ..all.clone() };
        assert_eq!(
            words(&journalctl("warren@home.service", &all)),
            "journalctl --unit warren@home.service --output short-iso --no-hostname --lines all"
        );
        assert!(words(&journalctl("warren@home.service", &last)).ends_with("--lines 20 --follow"));
        assert_eq!(
            words(&tail(Path::new("/run/warren/home/log"), &all)),
            "tail --lines +1 -- /run/warren/home/log"
        );
        let followed = words(&tail(Path::new("/x"), &last));
        assert_eq!(followed, "tail --lines 20 --follow=name --retry --quiet -- /x");
    }

    #[test]
    fn only_usual_directories_have_a_unit() {
        let elsewhere = Directories::below(Path::new("/tmp/warren-test"));
        assert_eq!(unit_of(&elsewhere, "home"), None);
    }
}
