//! `warren exit rotate-key`: another key for the exit, with a time in which clients may pin either.

use std::io;

use anyhow::{anyhow, bail};
use warren_quic::key::PrivateKey;
use zeroize::Zeroizing;

use super::args::RotateKeyArgs;
use super::own_exit;
use warren_config::storage;
use warren_config::{ExitConfig, describe, load_exit};
use warren_control::{AskError, Request, Secret, ask};
use warren_daemon::daemon_dir::{DaemonDir, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Puts a new key before the old one in the exit's key file, or takes the old one out; an exit that runs follows at once.
///
/// # Errors
/// When there is a key to retire already, or none, the file cannot be written, or the exit that runs does not answer.
pub(crate) async fn run(directories: &Directories, arguments: &RotateKeyArgs) -> anyhow::Result<()> {
    let config = load_exit(&directories.config.join("exit.toml"))?;
    let runs = own_exit::runs(directories, &config).await?;
    if arguments.retire {
        retire(directories, &config, runs, arguments.end_sessions).await
    } else {
        rotate(directories, &config, runs).await
    }
}

async fn rotate(directories: &Directories, config: &ExitConfig, runs: bool) -> anyhow::Result<()> {
    let retire = directories.command("exit rotate-key --retire");
    if config.old_private_key.is_some() {
        bail!(
            "{} holds an old key already; once no client pins it, run: {retire}",
            config.key_file.display()
        );
    }
    let new = PrivateKey::generate()?;
    let old = &config.private_key;
    write(config, &[&new, old])?;
    let now = match tell(directories, vec![new.clone(), old.clone()], false, runs).await? {
        Told::NotRunning => "The exit does not run; it will serve both.",
        Told::TakenOver(_) => "The exit that runs has taken this over.",
    };
    let (new, old) = (new.public(), old.public());
    output::print(&format!(
        "Wrote a new key before the old one in {}. {now}\nNew public key: {new}\nOld public key: {old}\n\
         Next: in each client's profile write both under [[exit]], and reload it:\n  \
         public_key = [\"{new}\", \"{old}\"]\n\
         If the old one was stolen, write the new one alone: public_key = \"{new}\"\n\
         New profiles have both already, and invitations the new one. Once every client has the new one, run:\n  \
         {retire}\n",
        config.key_file.display(),
    ))
}

async fn retire(
    directories: &Directories,
    config: &ExitConfig,
    runs: bool,
    end_sessions: bool,
) -> anyhow::Result<()> {
    let file = config.key_file.display();
    let done = match &config.old_private_key {
        Some(old) => {
            write(config, &[&config.private_key])?;
            format!("Took the old key {} out of {file}.", old.public())
        }
        // Its sessions may still be those of before.
        None if end_sessions && runs => format!("{file} holds no old key any more."),
        None => {
            bail!("{file} holds no old key; make a new one with: {}", directories.command("exit rotate-key"))
        }
    };
    let told = tell(directories, vec![config.private_key.clone()], end_sessions, runs).await?;
    let now = match told {
        Told::NotRunning => "The exit does not run.".to_owned(),
        Told::TakenOver(ended) if end_sessions => {
            let sessions = if ended == 1 { "session" } else { "sessions" };
            format!("The exit that runs has taken this over, and ended {ended} {sessions}.")
        }
        Told::TakenOver(_) => "The exit that runs has taken this over; who is connected stays so.".to_owned(),
    };
    output::print(&format!(
        "{done} {now}\nClients that pin the old key alone are refused from now on. Whoever has the old key can still pose as the \
         exit to clients that pin both: where it was stolen, write the new one alone into each profile.\n",
    ))
}

/// What became of the exit that runs.
enum Told {
    NotRunning,
    /// With the number of sessions that it ended.
    TakenOver(u64),
}

/// Gives the keys to the exit that runs, if one does.
async fn tell(
    directories: &Directories,
    keys: Vec<PrivateKey>,
    end_sessions: bool,
    runs: bool,
) -> anyhow::Result<Told> {
    if !runs {
        return Ok(Told::NotRunning);
    }
    let request = Request::SetKeys { keys: keys.into_iter().map(Secret).collect(), end_sessions };
    match ask(&DaemonDir::new(&directories.runtime, EXIT).socket(), &request).await {
        Ok(ended) => match ended.as_u64() {
            Some(ended) => Ok(Told::TakenOver(ended)),
            None if end_sessions => {
                bail!("the exit that runs has the key, but is of a version that ends no session; restart it")
            }
            None => Ok(Told::TakenOver(0)),
        },
        Err(AskError::NotRunning) => Ok(Told::NotRunning),
        Err(error) => Err(anyhow!("the file is changed, but the exit that runs is not: {error}; restart it")),
    }
}

fn write(config: &ExitConfig, keys: &[&PrivateKey]) -> anyhow::Result<()> {
    config.key_file.parent().into_iter().for_each(storage::remove_abandoned);
    // With room for all of it, as what a string leaves when it grows is not wiped.
    let mut text = Zeroizing::new(String::with_capacity(64 * keys.len()));
    for key in keys {
        text.push_str(&key.to_base64());
        text.push('\n');
    }
    storage::write_atomic(&config.key_file, text.as_bytes(), 0o600).map_err(|error| {
        let is_forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        let advice = if is_forbidden { "run as root" } else { "check its directory and that disk" };
        anyhow!("{} cannot be written: {}; {advice}", config.key_file.display(), describe(&error))
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
