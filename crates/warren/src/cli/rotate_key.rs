//! `warren exit rotate-key`: another key for the exit, with a time in which clients may pin either.

use std::io;

use anyhow::{anyhow, bail};
use warren_quic::key::PrivateKey;
use zeroize::Zeroizing;

use super::args::{GlobalArgs, RotateKeyArgs};
use super::{output, own_exit};
use crate::config::{ExitConfig, describe, load_exit};
use crate::control::{AskError, Request, Secret, ask};
use crate::daemon_dir::{DaemonDir, EXIT};
use crate::storage;

/// Puts a new key before the old one in the exit's key file, or takes the old one out; an exit that runs follows at once.
///
/// # Errors
/// When there is a key to retire already, or none, the file cannot be written, or the exit that runs does not answer.
pub(crate) async fn run(global: &GlobalArgs, arguments: &RotateKeyArgs) -> anyhow::Result<()> {
    let config = load_exit(&global.config_dir.join("exit.toml"))?;
    let runs = own_exit::runs(global, &config).await?;
    if arguments.retire {
        retire(global, &config, runs, arguments.end_sessions).await
    } else {
        rotate(global, &config, runs).await
    }
}

async fn rotate(global: &GlobalArgs, config: &ExitConfig, runs: bool) -> anyhow::Result<()> {
    let retire = global.command("exit rotate-key --retire");
    if config.old_private_key.is_some() {
        bail!(
            "{} holds an old key already; once no client pins it, run: {retire}",
            config.key_file.display()
        );
    }
    let new = PrivateKey::generate()?;
    let old = &config.private_key;
    write(config, &[&new, old])?;
    let (new, now) = (new.public(), tell(global, vec![new.clone(), old.clone()], false, runs).await?);
    let old = old.public();
    let now = now.unwrap_or("The exit does not run; it will serve both.");
    output::print(&format!(
        "Wrote a new key before the old one in {}. {now}\nNew public key: {new}\nOld public key: {old}\n\
         Next: in each client's profile write both under [[exit]], and reload it:\n  \
         public_key = [\"{new}\", \"{old}\"]\n\
         New profiles have both already, and invitations the new one. Once every client has the new one, run:\n  \
         {retire}\n",
        config.key_file.display(),
    ))
}

async fn retire(
    global: &GlobalArgs,
    config: &ExitConfig,
    runs: bool,
    end_sessions: bool,
) -> anyhow::Result<()> {
    let Some(old) = &config.old_private_key else {
        bail!(
            "{} holds no old key; make a new one with: {}",
            config.key_file.display(),
            global.command("exit rotate-key")
        );
    };
    write(config, &[&config.private_key])?;
    let now = tell(global, vec![config.private_key.clone()], end_sessions, runs).await?;
    let connected = if end_sessions { "every session was ended" } else { "who is connected stays so" };
    output::print(&format!(
        "Took the old key {} out of {}. {}\nClients that pin the old key alone are refused from now on; {connected}.\n",
        old.public(),
        config.key_file.display(),
        now.unwrap_or("The exit does not run.")
    ))
}

/// Gives the keys to the exit that runs, if one does, and says so.
async fn tell(
    global: &GlobalArgs,
    keys: Vec<PrivateKey>,
    end_sessions: bool,
    runs: bool,
) -> anyhow::Result<Option<&'static str>> {
    if !runs {
        return Ok(None);
    }
    let request = Request::SetKeys { keys: keys.into_iter().map(Secret).collect(), end_sessions };
    match ask(&DaemonDir::new(&global.runtime_dir, EXIT).socket(), &request).await {
        Ok(_) => Ok(Some("The exit that runs has taken this over.")),
        Err(AskError::NotRunning) => Ok(None),
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
        let global = GlobalArgs::below(directory.path());
        let endpoint = Some("192.0.2.1".parse().unwrap());
        exit_init::run(&global, &ExitInitArgs { endpoint, ipv4: None, ipv6: None }).unwrap();
        let keys = || load_exit(&global.config_dir.join("exit.toml")).unwrap().public_keys();
        let rotate = async |retire| {
            run(&global, &RotateKeyArgs { retire, end_sessions: false })
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
