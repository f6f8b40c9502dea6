//! Gives a running exit new keys.

use anyhow::bail;
use warren_session::Goodbye;
use warren_session::exit::EndReason;

use super::Daemon;
use crate::session_settings::announced;
use warren_config::ExitSettings;
use warren_control::SerializableKey;
use warren_tunnel::SharedCommand;

impl Daemon<'_> {
    /// Serves these keys, the newest first, from the next handshake on. With `end_sessions`, closes every connection, including
    /// half-open ones. Without `end_sessions`, leaves connections alone. Returns how many sessions ended.
    ///
    /// # Errors
    /// If there is no key, or more than two.
    pub(super) async fn set_keys(
        &mut self,
        keys: Vec<SerializableKey>,
        end_sessions: bool,
    ) -> anyhow::Result<usize> {
        let mut keys = keys.into_iter().map(|SerializableKey(key)| key);
        let (Some(current), old, None) = (keys.next(), keys.next(), keys.next()) else {
            bail!("an exit has one key, or two while it is being rotated");
        };
        self.config.keys.current = current;
        self.config.keys.old = old;
        // The workers get the new keys first. So a client that reconnects because its session ended sees only the new keys.
        self.send_keys(end_sessions.then(|| EndReason::KeyRetired.goodbye())).await;
        let ended = if end_sessions { self.clients.retire_key() } else { 0 };
        self.clients.announce(announced(&self.config))?;
        Ok(ended)
    }

    /// Loads the keys that the key file contains now. A service manager copies the file once, at the start, so its copy can be out
    /// of date. If the copy is unchanged, the exit keeps the keys that it has received since the start.
    pub(super) async fn adopt_keys(&mut self, read: &mut ExitSettings) {
        let keys = read.public_keys();
        if read.keys.is_copy && keys == self.keys_read {
            read.keys.current = self.config.keys.current.clone();
            read.keys.old = self.config.keys.old.clone();
            return;
        }
        self.keys_read = keys;
        self.config.keys.current = read.keys.current.clone();
        self.config.keys.old = read.keys.old.clone();
        self.send_keys(None).await;
    }

    async fn send_keys(&mut self, close_others: Option<Goodbye>) {
        let identities = self.config.private_keys();
        let public: Vec<String> = identities.iter().map(|key| key.public().to_string()).collect();
        tracing::info!("the exit's public keys are {}", public.join(" and "));
        self.worker.send_all(SharedCommand::SetIdentities { identities, close_others }).await;
        self.clients.introduce(self.config.keys.current.public());
    }
}
