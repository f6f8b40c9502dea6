//! Checks whether the running exit is the one whose `exit.toml` a command has read.

use anyhow::bail;
use warren_quic::key::PublicKey;

use warren_config::ExitSettings;
use warren_control::{AskError, Request, ask};
use warren_daemon::daemon_directory::{DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;

/// Whether this configuration's exit runs.
///
/// # Errors
/// When an exit with other keys answers. The command must not change that exit.
pub(crate) async fn is_running(directories: &Directories, config: &ExitSettings) -> anyhow::Result<bool> {
    let socket = DaemonDirectory::new(&directories.runtime, EXIT).socket();
    let served: Vec<PublicKey> = match ask(&socket, &Request::PublicKeys).await {
        Ok(keys) => serde_json::from_value(keys)?,
        Err(AskError::NotRunning) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // One common key is enough, because during a rotation the file or the exit may have an additional key.
    if served.iter().any(|key| config.public_keys().contains(key)) {
        return Ok(true);
    }
    bail!(
        "the exit that runs in {} has another key than {}: name the --runtime-dir and --config-dir of the same exit. \
         If its key file was changed, run `{}` first",
        directories.runtime.display(),
        config.path.display(),
        directories.command("reload exit")
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use warren_quic::key::PrivateKey;

    use super::*;
    use crate::cli::args::{ExitInitArgs, RotateKeyArgs};
    use crate::cli::{exit_init, rotate_key};
    use warren_config::load_exit;
    use warren_control::{Answer, ControlSocket};
    use warren_daemon::output;

    fn initialized(directory: &Path) -> (Directories, ExitSettings) {
        let directories = Directories::below(directory);
        let endpoint = Some("192.0.2.1".parse().unwrap());
        exit_init::run(&directories, &ExitInitArgs { endpoint, ipv4: None, ipv6: None, fleet: None })
            .unwrap();
        let config = load_exit(&directories.config.join("exit.toml")).unwrap();
        (directories, config)
    }

    /// Runs `asking` while answering requests as an exit with these keys would.
    async fn beside<T>(
        directories: &Directories,
        keys: Vec<PublicKey>,
        asking: impl Future<Output = T>,
    ) -> T {
        let directory = DaemonDirectory::new(&directories.runtime, EXIT);
        directory.create().unwrap();
        let mut socket = ControlSocket::bind(&directory.socket()).unwrap();
        let answering = async {
            loop {
                let asked = socket.next().await.unwrap();
                assert!(matches!(asked.request, Request::PublicKeys), "{:?}", asked.request);
                asked.answer.send(Answer::of(&keys)).unwrap();
            }
        };
        tokio::select! {
            answer = asking => answer,
            () = answering => unreachable!("it answers for ever"),
        }
    }

    #[tokio::test]
    async fn exit_is_known_by_either_of_its_keys() {
        let directory = tempfile::tempdir().unwrap();
        let (directories, config) = initialized(directory.path());
        let (own, other) = (config.keys.current.public(), PrivateKey::generate().unwrap().public());

        assert!(!is_running(&directories, &config).await.unwrap());
        assert!(beside(&directories, vec![own], is_running(&directories, &config)).await.unwrap());
        assert!(beside(&directories, vec![other, own], is_running(&directories, &config)).await.unwrap());
        let refused = beside(&directories, vec![other], is_running(&directories, &config))
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains("has another key than") && refused.contains("reload exit"), "{refused}");
    }

    #[tokio::test]
    async fn keys_of_one_exit_are_never_given_to_another() {
        let directory = tempfile::tempdir().unwrap();
        let (directories, config) = initialized(directory.path());
        let before = std::fs::read(&config.keys.file).unwrap();
        let others = vec![PrivateKey::generate().unwrap().public()];

        let arguments = RotateKeyArgs::default();
        let rotation = rotate_key::run(&directories, &arguments);
        let refused = output::sentence(&beside(&directories, others, rotation).await.unwrap_err());

        assert!(refused.contains("has another key than"), "{refused}");
        assert_eq!(std::fs::read(&config.keys.file).unwrap(), before);
    }
}
