//! Follows what the exit's operator has changed during a session: resolvers and routes, and the exit's keys.

use std::time::Instant;

use warren_quic::key::PublicKey;
use warren_session::client::SessionGrant;

use super::Daemon;
use warren_config::RemoteExit;
use warren_control::status::State;
use warren_tunnel::Forwarding;

impl Daemon {
    /// Makes the host follow the exit's resolvers and routes. The session and its connections stay as they are. What the profile sets
    /// itself stays, too.
    pub(super) async fn changed(&mut self, welcome: SessionGrant) {
        let Some(before) = self.session.welcome() else { return };
        let servers: Vec<String> = welcome.dns.iter().map(ToString::to_string).collect();
        if before.dns != welcome.dns {
            let named = if servers.is_empty() { "none".to_owned() } else { servers.join(", ") };
            tracing::info!("the exit names other resolvers: {named}");
        }
        self.session.set_welcome(welcome.clone());
        self.follow_grant(&welcome).await;
    }

    /// Makes the host follow what the session in use grants.
    pub(super) async fn follow_grant(&mut self, welcome: &SessionGrant) {
        if !self.host.setup.stands() {
            return;
        }
        match self.host.setup.apply(welcome).await {
            Ok(queues) => {
                if self.host.applied().await {
                    self.note_host_trouble(None);
                }
                self.host.put_off_look();
                if let Some(queues) = queues {
                    self.worker.open_device(queues, &Forwarding::Client).await;
                }
            }
            Err(error) => self.goes_without(&error).await,
        }
    }

    /// Takes what the exit says about its keys on one of the session's connections.
    pub(super) async fn take_exit_keys(&mut self, index: u32, keys: &[PublicKey]) -> anyhow::Result<()> {
        let Some(by) = self.connections.proven_on(index) else { return Ok(()) };
        let now = Instant::now();
        let Some(exit) = self.pinned_exit().cloned() else { return Ok(()) };
        self.start.learnt_keys.told(now, &exit, keys, by);
        self.accept_learnt().await;
        self.check_next_key(now).await;
        Ok(())
    }

    /// The exit has opened a connection with a key.
    pub(super) async fn exit_showed(&mut self, key: PublicKey) {
        if let Some(exit) = self.pinned_exit().cloned() {
            self.start.learnt_keys.shown(&exit, key);
        }
        self.accept_learnt().await;
    }

    /// Checks whether the exit in use has the key that it has named.
    pub(super) async fn check_next_key(&mut self, now: Instant) {
        if self.health.state() != State::Up {
            return;
        }
        let Some(key) = self.pinned_exit().and_then(|exit| self.start.learnt_keys.unproven(exit)) else {
            return;
        };
        let checked = self.connections.check_key(&self.worker, &mut self.host.lockdown, now, key).await;
        if let Err(error) = checked {
            tracing::debug!("cannot check the exit's next key: {error:#}");
        }
    }

    /// The key that the exit in use has proven, or has to prove.
    pub(super) fn exit_key(&self) -> Option<PublicKey> {
        let accepted = &self.connections.exit().public_keys;
        // An earlier connection to another exit may have proven that exit's key.
        let proven = self.connections.proven_on(0).filter(|key| accepted.contains(key));
        proven.or(accepted.first().copied())
    }

    /// The newer key of the exit in use, by which it is accepted as well.
    pub(super) fn next_exit_key(&self) -> Option<PublicKey> {
        let pinned = self.pinned_exit()?;
        let accepted = self.start.learnt_keys.accepted(pinned).first().copied();
        accepted.filter(|key| Some(*key) != self.exit_key() && !pinned.public_keys.contains(key))
    }

    /// The exit in use as the profile has it.
    pub(super) fn pinned_exit(&self) -> Option<&RemoteExit> {
        self.start.profile.exits().nth(self.connections.exits.current())
    }

    /// Uses what was learnt, and keeps it.
    async fn accept_learnt(&mut self) {
        self.follow_exits();
        let Some(exits) = self.start.learnt_keys.unsaved() else { return };
        // In memory it counts even if it cannot be kept: the session has vouched for it.
        if let Err(error) = self.start.helper.keep_exit_keys(exits).await {
            tracing::warn!(
                "a new key of an exit could not be kept beyond a restart: {error:#}; check the state directory and its disk, or write the \
                 key into the profile"
            );
        }
    }
}
