//! `warren exit rotate-key`: gives the exit a new key. During the rotation, clients may pin the old or the new key.

mod waiting;

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use warren_quic::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use self::waiting::Waiting;
use super::args::RotateKeyArgs;
use super::running_exit;
use warren_config::storage::{self, LockFile};
use warren_config::{ExitSettings, describe, load_exit, lock_beside};
use warren_control::{AskError, Request, SerializableKey, ask};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Puts a new key before the old one in the exit's key file, or removes the old one. A running exit applies the change at once.
///
/// # Errors
/// When there is already an old key, or no old key to retire. When clients do not have the new key yet, and `--force` is not
/// given. When the file cannot be written, or the running exit does not answer.
pub(crate) async fn run(directories: &Directories, arguments: &RotateKeyArgs) -> anyhow::Result<()> {
    let file = directories.config.join("exit.toml");
    // Two commands at once could write different keys, and leave the running exit with other keys than the file.
    let _lock = match arguments.list {
        true => None,
        false => Some(lock(&load_exit(&file)?).await?),
    };
    // The command that held the lock until now may have changed the keys.
    let config = load_exit(&file)?;
    // This is checked before anything is written, because nothing may be changed if an exit with another configuration runs.
    let runs = running_exit::is_running(directories, &config).await?;
    if arguments.list {
        list(directories, &config, arguments.json).await
    } else if arguments.retire {
        retire(directories, &config, runs, arguments).await
    } else {
        rotate(directories, &config, runs).await
    }
}

/// Takes the lock for changing the exit's keys.
async fn lock(config: &ExitSettings) -> anyhow::Result<LockFile> {
    let file = config.keys.file.clone();
    let acquired = tokio::task::spawn_blocking(move || lock_beside(&file, TIME_FOR_OTHER_COMMAND)).await?;
    acquired?.context(
        "another `warren exit rotate-key` is still running; nothing was changed; try again once it has ended",
    )
}

async fn rotate(directories: &Directories, config: &ExitSettings, runs: bool) -> anyhow::Result<()> {
    let retire = directories.command("exit rotate-key --retire");
    if config.keys.old.is_some() {
        let waiting = Waiting::look(directories, config, config.keys.current.public()).await?;
        output::note(waiting.text().trim_end());
        bail!(
            "nothing was changed: {} already holds a new key and an old one; retire the old one first: {retire}",
            config.keys.file.display()
        );
    }
    let new = PrivateKey::generate()?;
    let old = &config.keys.current;
    // The file is written first. If the running exit cannot be asked to load the keys, it does so when it restarts.
    write(config, &[&new, old])?;
    let now = match tell(directories, vec![new.clone(), old.clone()], false, runs).await? {
        Told::NotRunning => "The exit is not running; it will serve both.",
        Told::TakenOver(_) => "The running exit serves both from now on.",
    };
    let (new, old) = (new.public(), old.public());
    output::print(&format!(
        "Wrote a new key before the old one in {}. {now}\nNew public key: {new}\nOld public key: {old}\n\
         Clients learn the new key in their sessions and use it by themselves. A client of an older version needs both in its profile:\n  \
         public_key = [\"{new}\", \"{old}\"]\n\
         If the old key was stolen, write only the new one into every profile: public_key = \"{new}\"\n\
         New profiles already have both, and new invitations have the new key.\n",
        config.keys.file.display(),
    ))?;
    // The clients are listed last. The new key is in use by now, and must be shown even if the clients cannot be listed.
    let waiting = settled(directories, config, new, runs).await?;
    let list = directories.command("exit rotate-key --list");
    output::print(&format!(
        "{}To see who is left, and then to retire the old key, run:\n  {list}\n  {retire}\n",
        waiting.text(),
    ))
}

/// Returns the clients without the new key. Gives connected clients a moment to use it first.
async fn settled(
    directories: &Directories,
    config: &ExitSettings,
    new: PublicKey,
    runs: bool,
) -> anyhow::Result<Waiting> {
    let deadline = Instant::now() + SETTLING;
    loop {
        let waiting = Waiting::look(directories, config, new).await?;
        if !runs || !waiting.is_under_way() || Instant::now() >= deadline {
            return Ok(waiting);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How long to wait until another command has changed the keys. It may wait for the running exit.
const TIME_FOR_OTHER_COMMAND: Duration = Duration::from_secs(10);
/// How long connected clients may take to use the new key.
const SETTLING: Duration = Duration::from_secs(3);
/// How often to check whether clients have connected with the new key.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

async fn list(directories: &Directories, config: &ExitSettings, json: bool) -> anyhow::Result<()> {
    if config.keys.old.is_none() {
        bail!(
            "{} holds one key, so none is being rotated; make a new one with: {}",
            config.keys.file.display(),
            directories.command("exit rotate-key")
        );
    }
    let waiting = Waiting::look(directories, config, config.keys.current.public()).await?;
    if json { output::print_json(&waiting) } else { output::print(&waiting.text()) }
}

/// Refuses to retire the old key while clients depend on it.
fn refuse_while_clients_wait(directories: &Directories, waiting: &Waiting) -> anyhow::Result<()> {
    if waiting.is_over() {
        return Ok(());
    }
    output::note(waiting.text().trim_end());
    bail!(
        "the old key stays, because {}; wait for them, or cut off those that know only the old key: {}",
        waiting.count(),
        directories.command("exit rotate-key --retire --force")
    )
}

async fn retire(
    directories: &Directories,
    config: &ExitSettings,
    runs: bool,
    arguments: &RotateKeyArgs,
) -> anyhow::Result<()> {
    let end_sessions = arguments.end_sessions;
    let is_forced = arguments.force || end_sessions;
    let waiting = match &config.keys.old {
        Some(_) => match Waiting::look(directories, config, config.keys.current.public()).await {
            Err(error) if !is_forced => return Err(error),
            // With `--force`, the key is retired even if the clients cannot be listed.
            looked => looked.ok(),
        },
        None => None,
    };
    if let Some(waiting) = waiting.as_ref().filter(|_| !is_forced) {
        refuse_while_clients_wait(directories, waiting)?;
    }
    let others = waiting.map(|waiting| waiting.others()).unwrap_or_default();
    let file = config.keys.file.display();
    let done = match &config.keys.old {
        Some(old) => {
            write(config, &[&config.keys.current])?;
            format!("Removed the old key {} from {file}.", old.public())
        }
        // The file has no old key any more, but sessions that began with it may still be open.
        None if end_sessions && runs => format!("{file} no longer holds an old key."),
        None => {
            bail!("{file} holds no old key; make a new one with: {}", directories.command("exit rotate-key"))
        }
    };
    let told = tell(directories, vec![config.keys.current.clone()], end_sessions, runs).await?;
    let now = match told {
        Told::NotRunning => "The exit is not running.".to_owned(),
        Told::TakenOver(ended) if end_sessions => {
            let sessions = if ended == 1 { "session" } else { "sessions" };
            format!("The running exit now serves the new key alone, and has ended {ended} {sessions}.")
        }
        Told::TakenOver(_) => {
            "The running exit now serves the new key alone. Connected clients stay connected.".to_owned()
        }
    };
    output::print(&format!(
        "{done} {now}\nClients that know only the old key are refused from now on. Anyone with the old key can still pose as the \
         exit to clients whose profiles pin it. If it was stolen, write only the new key into each profile.\n{others}",
    ))
}

/// How the running exit reacted.
enum Told {
    NotRunning,
    /// The exit has loaded the keys, and has ended this many sessions.
    TakenOver(u64),
}

/// Sends the keys to the running exit, if one runs.
async fn tell(
    directories: &Directories,
    keys: Vec<PrivateKey>,
    end_sessions: bool,
    runs: bool,
) -> anyhow::Result<Told> {
    if !runs {
        return Ok(Told::NotRunning);
    }
    let request = Request::SetKeys { keys: keys.into_iter().map(SerializableKey).collect(), end_sessions };
    match ask(&DaemonDirectory::new(&directories.runtime, EXIT).socket(), &request).await {
        // An exit of an older version answers without the number of ended sessions.
        Ok(ended) => match ended.as_u64() {
            Some(ended) => Ok(Told::TakenOver(ended)),
            None if end_sessions => {
                bail!("the running exit has the new key, but its version cannot end sessions; restart it")
            }
            None => Ok(Told::TakenOver(0)),
        },
        // The exit has ended meanwhile. It reads the changed file when it starts again.
        Err(AskError::NotRunning) => Ok(Told::NotRunning),
        Err(error) => Err(anyhow!(
            "the file was changed, but the running exit could not load it: {error}; restart the exit"
        )),
    }
}

fn write(config: &ExitSettings, keys: &[&PrivateKey]) -> anyhow::Result<()> {
    config.keys.file.parent().into_iter().for_each(storage::remove_abandoned);
    // The string is allocated with its full capacity, because a string that grows frees its old buffer without erasing it.
    let mut text = Zeroizing::new(String::with_capacity(64 * keys.len()));
    keys.iter().for_each(|key| text.push_str(&key.to_line()));
    storage::write_atomic(&config.keys.file, text.as_bytes(), 0o600).map_err(|error| {
        let is_forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        let advice = if is_forbidden { "run as root" } else { "check its directory and disk" };
        anyhow!("{} cannot be written: {}; {advice}", config.keys.file.display(), describe(&error))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::args::ExitInitArgs;
    use crate::cli::exit_init;

    /// The directories of a new exit.
    fn initialized(directory: &Path) -> Directories {
        let directories = Directories::below(directory);
        let endpoint = Some("192.0.2.1".parse().unwrap());
        exit_init::run(&directories, &ExitInitArgs { endpoint, ipv4: None, ipv6: None, fleet: None })
            .unwrap();
        directories
    }

    #[tokio::test]
    async fn new_key_stands_before_the_old_one_until_that_is_retired() {
        let directory = tempfile::tempdir().unwrap();
        let directories = initialized(directory.path());
        let keys = || load_exit(&directories.config.join("exit.toml")).unwrap().public_keys();
        let rotate = async |retire| {
            run(&directories, &RotateKeyArgs { retire, ..RotateKeyArgs::default() })
                .await
                .map_err(|error| error.to_string())
        };

        let first = keys();
        assert!(rotate(true).await.unwrap_err().contains("exit.key holds no old key"));
        rotate(false).await.unwrap();
        let both = keys();
        assert_eq!((both.len(), both.get(1)), (2, first.first()));
        assert!(rotate(false).await.unwrap_err().contains("rotate-key --retire"));
        rotate(true).await.unwrap();
        assert_eq!(keys(), both[..1]);
    }

    #[tokio::test]
    async fn two_commands_at_once_do_not_both_write_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let directories = initialized(directory.path());
        let config = || load_exit(&directories.config.join("exit.toml")).unwrap();
        let first = lock(&config()).await.unwrap();
        let arguments = RotateKeyArgs::default();
        let mut second = std::pin::pin!(run(&directories, &arguments));
        let waited = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
        assert!(waited.is_err(), "the second command waits for the first");

        let new = PrivateKey::generate().unwrap();
        write(&config(), &[&new, &config().keys.current]).unwrap();
        let keys = config().public_keys();
        drop(first);

        let refused = second.await.unwrap_err().to_string();
        assert!(refused.contains("already holds a new key and an old one"), "{refused}");
        assert_eq!(config().public_keys(), keys);
    }
}
