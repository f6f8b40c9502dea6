//! Finds the daemon for a command: the named one, or the only one that runs. Explains why no daemon answers.

use std::os::unix::net::UnixStream;
use std::path::Path;

use warren_host::kill_switch::{Standing, look};

use crate::lost_kill_switch;
use warren_config::ProfileName;
use warren_control::status::Status;
use warren_control::{AskError, Request, ask, ask_status, ask_text};
use warren_daemon::daemon_directory::{self, DaemonDirectory, refuse_unknown};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};

/// Sends a request to the named daemon, or the only one that runs. Returns its name and its answer.
///
/// # Errors
/// [`ExitCode::NotRunning`] when none runs, or the daemon's refusal.
pub(crate) async fn ask_one(
    directories: &Directories,
    name: Option<&str>,
    request: &Request,
) -> anyhow::Result<(String, serde_json::Value)> {
    answer_of(directories, name, async |socket| ask(socket, request).await).await
}

/// The status of the named daemon, or of the only one that runs.
///
/// # Errors
/// As [`ask_one`].
pub(crate) async fn status_of(directories: &Directories, name: Option<&str>) -> anyhow::Result<Status> {
    answer_of(directories, name, async |socket| ask_status(socket).await).await.map(|(_, status)| status)
}

/// Like [`status_of`], but returns the JSON text that the daemon wrote.
///
/// # Errors
/// As [`ask_one`].
pub(crate) async fn status_text_of(directories: &Directories, name: Option<&str>) -> anyhow::Result<String> {
    let text = async |socket: &Path| ask_text(socket, &Request::Status).await;
    answer_of(directories, name, text).await.map(|(_, text)| text)
}

async fn answer_of<T>(
    directories: &Directories,
    name: Option<&str>,
    asking: impl AsyncFnOnce(&Path) -> Result<T, AskError>,
) -> anyhow::Result<(String, T)> {
    let name = match name {
        Some(name) => {
            refuse_invalid_name(name)?;
            name.to_owned()
        }
        None => only_running(directories).await?,
    };
    let directory = DaemonDirectory::new(&directories.runtime, &name);
    match asking(&directory.socket()).await {
        Ok(answer) => Ok((name, answer)),
        Err(AskError::NotRunning) => {
            refuse_unknown(directories, &directory, &name)?;
            // A daemon that is starting or ending holds its lock but has no socket.
            if directory.has_lock_file() && directory.lock_after_kill().await?.is_none() {
                let sentence =
                    format!("{name} is starting or stopping and does not answer yet; ask again in a moment");
                return Err(Failure::new(ExitCode::NotRunning, sentence).into());
            }
            Err(not_running(directories, &directory, &name).await.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses a name that no daemon can have, such as a path.
pub(super) fn refuse_invalid_name(name: &str) -> anyhow::Result<()> {
    match name.parse::<ProfileName>() {
        Err(reason) if name != daemon_directory::EXIT => {
            let sentence = format!("{name:?} cannot be a profile's name: it {reason}");
            Err(Failure::new(ExitCode::Usage, sentence).into())
        }
        _ => Ok(()),
    }
}

/// The name of the only daemon that runs.
pub(super) async fn only_running(directories: &Directories) -> anyhow::Result<String> {
    let all = daemon_directory::all(&directories.runtime)?;
    let mut running = Vec::new();
    for (name, directory) in &all {
        // A member of the group warren may open the socket, but not the lock.
        let is_running = match rustix::process::geteuid().is_root() {
            true => directory.is_running()?,
            false => {
                directory.is_running().unwrap_or_else(|_| UnixStream::connect(directory.socket()).is_ok())
            }
        };
        if is_running {
            running.push(name.clone());
        }
    }
    match running.as_slice() {
        [name] => Ok(name.clone()),
        [] => match all.iter().find(|(_, directory)| directory.has_remains()).or_else(|| ended_last(&all)) {
            Some((name, directory)) => Err(not_running(directories, directory, name).await.into()),
            None => {
                let (up, run) = (directories.command("up"), directories.command("exit run"));
                let sentence = format!(
                    "neither a client nor an exit is running; `{up}` connects, `{run}` serves clients"
                );
                Err(Failure::new(ExitCode::NotRunning, sentence).into())
            }
        },
        several => {
            let sentence = format!("{} are running; name one", several.join(", "));
            Err(Failure::new(ExitCode::Usage, sentence).into())
        }
    }
}

/// Returns the daemon that ended last among those whose log contains a reason. If no log contains a reason, returns any daemon.
fn ended_last(all: &[(String, DaemonDirectory)]) -> Option<&(String, DaemonDirectory)> {
    let end = |directory: &DaemonDirectory| {
        directory.path().metadata().and_then(|metadata| metadata.modified()).ok()
    };
    let with_words = all.iter().filter(|(_, directory)| directory.last_error().is_some());
    with_words.max_by_key(|(_, directory)| end(directory)).or(all.first())
}

/// Why a daemon does not run, as far as is known.
pub(super) async fn not_running(
    directories: &Directories,
    directory: &DaemonDirectory,
    name: &str,
) -> Failure {
    let command = |words: &str| directories.command(words);
    let sentence = if let Some(sentence) = kill_switch(directories, directory, name).await {
        sentence
    } else if directory.was_killed() {
        format!("{name} was killed and left changes on this host; undo them with `{}`", command("cleanup"))
    } else if let Some(last_error) = directory.last_error() {
        format!("{name} is not running; it ended with: {last_error}")
    } else if name == daemon_directory::EXIT {
        format!("{name} is not running; `{}` starts it", command("exit run"))
    } else {
        format!("{name} is not running; `{}` connects", command(&format!("up {name}")))
    };
    Failure::new(ExitCode::NotRunning, sentence)
}

/// Describes the state of a kill switch that was closed, according to the kernel. `None` if it is open.
async fn kill_switch(directories: &Directories, directory: &DaemonDirectory, name: &str) -> Option<String> {
    if name == daemon_directory::EXIT {
        return None;
    }
    let ended = directory.last_error().map(|words| format!(" (it ended with: {words})")).unwrap_or_default();
    let command = |word: &str| directories.command(&format!("{word} {name}"));
    let ways = format!("`{}` connects, `{}` opens it", command("up"), command("down"));
    let standing = match look(directory.kill_switch(), name).await {
        Ok(Standing::Open) => return None,
        Ok(Standing::Closed) => format!(" and its kill switch is closed; {ways}"),
        Ok(lost @ (Standing::Gone | Standing::Changed)) => {
            let described = lost_kill_switch::describe(lost, name);
            format!(", and {described}; `{}` closes it again, {ways} for good", command("client close"))
        }
        Err(error) => {
            format!(" and it is unknown whether its kill switch is still closed: {error}; {ways}")
        }
    };
    Some(format!("{name} is not running{ended}{standing}"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn what_cannot_be_a_name_is_not_looked_for() {
        for name in ["../../etc", "a/b", "", ".."] {
            let refused = refuse_invalid_name(name).unwrap_err().to_string();
            assert!(refused.contains("cannot be a profile's name"), "{refused}");
        }
        refuse_invalid_name("exit").unwrap();
        refuse_invalid_name("home").unwrap();
    }

    #[tokio::test]
    async fn reason_that_is_told_is_the_latest() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::below(directory.path());
        for (name, age, log) in [("a", 50, "warren: old\n"), ("b", 20, "warren: new\n"), ("c", 0, "")] {
            let daemon = DaemonDirectory::new(&directories.runtime, name);
            daemon.create().unwrap();
            std::fs::write(daemon.path().join("lock"), "").unwrap();
            std::fs::write(daemon.log(), log).unwrap();
            let ended = SystemTime::now() - Duration::from_secs(age);
            std::fs::File::open(daemon.path()).unwrap().set_modified(ended).unwrap();
        }
        let told = only_running(&directories).await.unwrap_err().to_string();
        assert_eq!(told, "b is not running; it ended with: new");
    }
}
