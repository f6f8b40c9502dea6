//! Tells the clients of open sessions what the exit's operator has changed: resolvers, routes, and the exit's keys.

use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use super::{ExitSessions, Session, SessionConfig, SessionConfigError, SessionId};
use crate::clients::{Client, RowId};
use crate::message::{Message, Network, Update, ip_to_wire};
use crate::planted::{Bug, is_planted};
use crate::{PublicKey, UPDATES};

/// The part of the configuration that is announced to clients and may change while they are connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// DNS servers for clients.
    pub dns: Vec<IpAddr>,
    /// Networks that the exit carries traffic to.
    pub routes: Vec<IpNet>,
    /// The exit's public keys, the newest first.
    pub exit_keys: Vec<PublicKey>,
}

impl ExitSessions {
    /// Returns the values that are announced to clients now.
    pub fn announced(&self) -> Announced {
        let SessionConfig { dns, routes, exit_keys, .. } = self.config.clone();
        Announced { dns, routes, exit_keys }
    }

    /// Checks that clients could use these announcements.
    ///
    /// # Errors
    ///
    /// If clients could not use one of the values.
    pub fn check_announced(&self, announced: &Announced) -> Result<(), SessionConfigError> {
        self.config_with(announced.clone()).check()
    }

    /// Announces new values to clients from now on. Open sessions continue, and their clients are told at once if they accept
    /// updates. Returns how many sessions are told, and how many are not. Sessions of WireGuard clients are not counted.
    ///
    /// # Errors
    ///
    /// As [`Self::check_announced`]. In that case nothing changes.
    pub fn announce(&mut self, announced: Announced) -> Result<(usize, usize), SessionConfigError> {
        let config = self.config_with(announced);
        config.check()?;
        // Without a difference no update is sent, so an operator can reload the configuration as often as needed.
        if config == self.config {
            return Ok((0, 0));
        }
        self.config = config;
        let told = self.sessions.values().filter(|session| !self.is_wireguard(session));
        let (hearing, deaf): (Vec<_>, Vec<_>) =
            told.map(|session| (session.id, takes(session, UPDATES))).partition(|(_, takes)| *takes);
        for (id, _) in &hearing {
            self.tell(*id);
        }
        Ok((hearing.len(), deaf.len()))
    }

    /// Records that the exit has proven one of its keys to a client, who has proven its own key. While the exit also has an older
    /// key, the registry thus shows which clients no longer need the older one. In a fleet, the registry also shows at which exit a
    /// client was last, so that no other exit waits for that client.
    ///
    /// Returns whether the client now has the exit's new key.
    pub fn proved(&mut self, now: Instant, client: PublicKey, exit_key: PublicKey) -> bool {
        let newest = self.config.exit_keys.first();
        let is_newest = newest == Some(&exit_key);
        let is_rotating = is_newest && self.config.exit_keys.len() > 1;
        // A client that has the new key may still have a connection that proved the old one.
        let has_newest =
            self.registry.by_key(client).is_some_and(|client| client.exit_key.as_ref() == newest);
        let is_recorded = is_rotating || (self.store.is_shared() && !has_newest);
        if !is_recorded || !self.registry.record_exit_key(client, exit_key) {
            return false;
        }
        self.store.changed(RowId::Client(client));
        self.save_soon(now);
        is_rotating
    }

    fn config_with(&self, announced: Announced) -> SessionConfig {
        let Announced { dns, routes, exit_keys } = announced;
        SessionConfig { dns, routes, exit_keys, ..self.config.clone() }
    }

    /// Sends the update to a session's client on every connection, because one of them may be about to break.
    fn tell(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.told.updates += 1;
        let (number, connections) =
            (session.told.updates, session.attached().map(|(_, connection)| connection).collect::<Vec<_>>());
        if is_planted(Bug::UpdateNotSent) {
            return;
        }
        let update = Message::Update(self.update(number));
        connections.into_iter().for_each(|connection| self.send(connection, &update));
    }

    /// Sends everything that has changed since the session's `Welcome` on a connection that has just joined the session. Every
    /// connection on which a change was sent before may have broken.
    pub(super) fn repeat_update(&mut self, id: SessionId, connection: u64) {
        let Some(number) = self.sessions.get(&id).map(|session| session.told.updates) else { return };
        if number > 0 && !is_planted(Bug::UpdateNotRepeated) {
            self.send(connection, &Message::Update(self.update(number)));
        }
    }

    fn update(&self, number: u64) -> Update {
        Update {
            number,
            dns: self.config.dns.iter().copied().map(ip_to_wire).collect(),
            routes: self.config.routes.iter().copied().map(Network::from).collect(),
            exit_keys: self.exit_keys(),
        }
    }

    pub(super) fn exit_keys(&self) -> Vec<Vec<u8>> {
        self.config.exit_keys.iter().map(|key| key.0.to_vec()).collect()
    }

    /// Whether a session belongs to a WireGuard client. Such a client cannot be sent any message.
    pub(super) fn is_wireguard(&self, session: &Session) -> bool {
        self.registry.by_key(session.key).and_then(Client::by_wireguard).is_some()
    }
}

/// Whether a session's client has the feature with this bit.
pub(super) fn takes(session: &Session, feature: u64) -> bool {
    session.features & feature != 0
}
