//! Other keys for a running exit.

use std::time::Instant;

use anyhow::bail;
use warren_session::Goodbye;
use warren_session::exit::EndReason;

use crate::daemon::Daemon;
use warren_config::ExitConfig;
use warren_control::Secret;
use warren_tunnel::Command;

impl Daemon {
    /// Has these keys, the newest first, from the next handshake on. Connections that stand are left alone, or all end, also those
    /// that are not open yet. Returns how many sessions ended.
    ///
    /// # Errors
    /// If there are none or too many.
    pub(crate) async fn set_keys(&mut self, keys: Vec<Secret>, end_sessions: bool) -> anyhow::Result<usize> {
        let mut keys = keys.into_iter().map(|Secret(key)| key);
        let (Some(current), old, None) = (keys.next(), keys.next(), keys.next()) else {
            bail!("an exit has one key, or two while it is being rotated");
        };
        self.config.private_key = current;
        self.config.old_private_key = old;
        if !end_sessions {
            self.tell_keys(None).await;
            return Ok(0);
        }
        // Before they are dismissed: what comes again meets the new keys alone.
        self.tell_keys(Some(EndReason::KeyRetired.goodbye())).await;
        let ended = self.sessions.sessions().count();
        self.sessions.retire_key(Instant::now());
        Ok(ended)
    }

    /// Takes over what the key file holds by now. A copy that a service manager handed over when the exit started, and that
    /// never changes, says nothing about the keys that the exit was given since.
    pub(crate) async fn take_keys_of(&mut self, read: &mut ExitConfig) {
        let keys = read.public_keys();
        if read.keys_are_a_copy && keys == self.keys_read {
            read.private_key = self.config.private_key.clone();
            read.old_private_key = self.config.old_private_key.clone();
            return;
        }
        self.keys_read = keys;
        self.config.private_key = read.private_key.clone();
        self.config.old_private_key = read.old_private_key.clone();
        self.tell_keys(None).await;
    }

    async fn tell_keys(&self, close_others: Option<Goodbye>) {
        let identities = self.config.private_keys();
        let public: Vec<String> = identities.iter().map(|key| key.public().to_string()).collect();
        tracing::info!("the exit's public keys are {}", public.join(" and "));
        self.worker.send(Command::SetIdentities { identities, close_others }).await;
    }
}
