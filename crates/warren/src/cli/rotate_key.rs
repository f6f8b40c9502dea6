//! `warren exit rotate-key`: gives the exit a new key. For a while clients may pin the old or the new one.

use std::io;

use anyhow::{anyhow, bail};
use warren_quic::key::PrivateKey;
use zeroize::Zeroizing;

use super::args::RotateKeyArgs;
use super::running_exit;
use warren_config::storage;
use warren_config::{ExitSettings, describe, load_exit};
use warren_control::{AskError, Request, SerializableKey, ask};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Puts a new key before the old one in the exit's key file, or removes the old one. A running exit takes the change
/// over at once.
///
/// # Errors
/// When there is already an old key, or none to retire. When the file cannot be written, or the running exit does not answer.
pub(crate) async fn run(directories: &Directories, arguments: &RotateKeyArgs) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    // Asked before anything is written: if another exit runs here than the one of this configuration, nothing must change.
    let runs = running_exit::is_running(directories, &config).await?;
    if arguments.retire {
        retire(directories, &config, runs, arguments.end_sessions).await
    } else {
        rotate(directories, &config, runs).await
    }
}

async fn rotate(directories: &Directories, config: &ExitSettings, runs: bool) -> anyhow::Result<()> {
    let retire = directories.command("exit rotate-key --retire");
    if config.keys.old.is_some() {
        bail!(
            "{} already holds an old key; once no client pins it, run: {retire}",
            config.keys.file.display()
        );
    }
    let new = PrivateKey::generate()?;
    let old = &config.keys.current;
    // The file is written first. If the running exit cannot be told, its restart takes the new key over.
    write(config, &[&new, old])?;
    let now = match tell(directories, vec![new.clone(), old.clone()], false, runs).await? {
        Told::NotRunning => "The exit is not running; it will serve both.",
        Told::TakenOver(_) => "The running exit serves both from now on.",
    };
    let (new, old) = (new.public(), old.public());
    output::print(&format!(
        "Wrote a new key before the old one in {}. {now}\nNew public key: {new}\nOld public key: {old}\n\
         Next: write both into each client's profile under [[exit]], and reload it:\n  \
         public_key = [\"{new}\", \"{old}\"]\n\
         If the old key was stolen, write only the new one: public_key = \"{new}\"\n\
         New profiles already have both, and new invitations have the new key. Once every client has the new key, run:\n  \
         {retire}\n",
        config.keys.file.display(),
    ))
}

async fn retire(
    directories: &Directories,
    config: &ExitSettings,
    runs: bool,
    end_sessions: bool,
) -> anyhow::Result<()> {
    let file = config.keys.file.display();
    let done = match &config.keys.old {
        Some(old) => {
            write(config, &[&config.keys.current])?;
            format!("Removed the old key {} from {file}.", old.public())
        }
        // Sessions that began with the old key may still be open.
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
        "{done} {now}\nClients that pin only the old key are refused from now on. Whoever has the old key can still pose as the \
         exit to clients that pin both. If it was stolen, write only the new key into each profile.\n",
    ))
}

/// How the running exit reacted.
enum Told {
    NotRunning,
    /// It has taken the keys over, and has ended this many sessions.
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
        // An exit of an older version answers without a number.
        Ok(ended) => match ended.as_u64() {
            Some(ended) => Ok(Told::TakenOver(ended)),
            None if end_sessions => {
                bail!("the running exit has the new key, but its version cannot end sessions; restart it")
            }
            None => Ok(Told::TakenOver(0)),
        },
        // It has ended meanwhile. When it starts again, it reads the changed file.
        Err(AskError::NotRunning) => Ok(Told::NotRunning),
        Err(error) => Err(anyhow!(
            "the file is changed, but the running exit did not take it over: {error}; restart it"
        )),
    }
}

fn write(config: &ExitSettings, keys: &[&PrivateKey]) -> anyhow::Result<()> {
    config.keys.file.parent().into_iter().for_each(storage::remove_abandoned);
    // Allocates the whole capacity at once: a string that grows leaves its old buffer behind, unwiped.
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
    use super::*;
    use crate::cli::args::ExitInitArgs;
    use crate::cli::exit_init;

    #[tokio::test]
    async fn new_key_stands_before_the_old_one_until_that_is_retired() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::below(directory.path());
        let endpoint = Some("192.0.2.1".parse().unwrap());
        exit_init::run(&directories, &ExitInitArgs { endpoint, ipv4: None, ipv6: None }).unwrap();
        let keys = || load_exit(&directories.config.join("exit.toml")).unwrap().public_keys();
        let rotate = async |retire| {
            run(&directories, &RotateKeyArgs { retire, end_sessions: false })
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
}
