//! Owns the news that exits send about themselves and each other: their keys, and the roster of their fleet. The client believes
//! only exits that have proven a key that the profile pins. `exit_news/fleet.rs` handles the roster.

mod fleet;

use std::time::Instant;

use warren_quic::key::PublicKey;

use super::sessions::Sessions;
use crate::exits::Exits;
use crate::fleet::Fleet;
use crate::kill_switch::Lockdown;
use crate::learnt_keys::LearntKeys;
use warren_config::{ClientProfile, RemoteExit};
use warren_daemon::helper::Helper;

/// The keys and rosters that the client has learnt from exits. The helper stores them for the next daemon.
pub(super) struct ExitNews {
    learnt_keys: LearntKeys,
    pub(super) fleet: Fleet,
    helper: Helper,
}

impl ExitNews {
    pub(super) fn new(learnt_keys: LearntKeys, fleet: Fleet, helper: Helper) -> Self {
        Self { learnt_keys, fleet, helper }
    }

    /// The exits at the start. The exit in use is the one that the user has asked for, or else the chosen one, or else the
    /// profile's first.
    pub(super) fn first_exits(&self, profile: &ClientProfile, first_exit: Option<&String>) -> Exits {
        let mut exits = Exits::of(profile);
        let is_listed = |name: &String| profile.exits().any(|exit| exit.is_called(name));
        let asked_for = first_exit.filter(|name| !is_listed(name));
        if first_exit.is_some() {
            let member = asked_for.and_then(|name| self.fleet.find(name));
            exits.ask_for(member.map(|member| member.name.clone()));
        }
        exits.follow(profile, &self.learnt_keys, &self.fleet);
        // Before the first measurement, the profile's own exit is the one that is most certain to answer.
        if asked_for.is_some() || (exits.chooses() && self.fleet.is_measured()) {
            exits.use_first(Instant::now());
        }
        exits
    }

    /// Makes the sessions use the exits that the profile and the roster list.
    pub(super) fn follow(&self, profile: &ClientProfile, sessions: &mut Sessions) {
        sessions.connections.exits.follow(profile, &self.learnt_keys, &self.fleet);
        self.name_fleet(sessions);
    }

    /// Puts the fleet's name into the next Hello, and whether the client knows another exit.
    pub(super) fn name_fleet(&self, sessions: &mut Sessions) {
        let Sessions { connections, pair, .. } = sessions;
        pair.follow_fleet(self.fleet.is_wanted(), self.fleet.hello(), connections.exits.count() > 1);
        pair.set_moves_without_gap(connections.exits.has_sibling(Instant::now()));
    }

    /// Handles the keys that the exit in use announces on one of the session's connections.
    pub(super) async fn take_keys(
        &mut self,
        profile: &ClientProfile,
        sessions: &mut Sessions,
        index: u32,
        keys: &[PublicKey],
    ) {
        let (Some(by), Some(exit)) = (sessions.connections.proven_on(index), pinned(profile, sessions))
        else {
            return;
        };
        self.learnt_keys.told(Instant::now(), exit, keys, by);
        self.accept_learnt(profile, sessions).await;
    }

    /// Records that the exit in use has proven a key on a new connection.
    pub(super) async fn shown(&mut self, profile: &ClientProfile, sessions: &mut Sessions, key: PublicKey) {
        if let Some(exit) = pinned(profile, sessions) {
            self.learnt_keys.shown(exit, key);
        }
        self.accept_learnt(profile, sessions).await;
    }

    /// Opens a connection that checks whether the exit in use has the next key that it has announced.
    pub(super) async fn check_next_key(
        &self,
        profile: &ClientProfile,
        sessions: &mut Sessions,
        lockdown: &mut Lockdown,
    ) {
        let Some(key) = pinned(profile, sessions).and_then(|exit| self.learnt_keys.unproven(exit)) else {
            return;
        };
        let Sessions { connections, worker, .. } = sessions;
        if let Err(error) = connections.check_key(worker, lockdown, Instant::now(), key).await {
            tracing::debug!("cannot check the exit's next key: {error:#}");
        }
    }

    /// Returns the next key of the exit in use, which the client also accepts. `key` is the key that the exit has proven, or must
    /// prove.
    pub(super) fn next_key(
        &self,
        profile: &ClientProfile,
        sessions: &Sessions,
        key: Option<PublicKey>,
    ) -> Option<PublicKey> {
        let pinned = pinned(profile, sessions)?;
        let accepted = self.learnt_keys.accepted(pinned).first().copied();
        accepted.filter(|next| Some(*next) != key && !pinned.public_keys.contains(next))
    }

    /// Returns the profile's entry for the exit in use, if the profile pins this exit and the connection has proven an accepted
    /// key: a key of the profile, or one for which a key of the profile has vouched.
    fn voucher<'a>(
        &self,
        profile: &'a ClientProfile,
        sessions: &Sessions,
        index: u32,
    ) -> Option<&'a RemoteExit> {
        let exit = pinned(profile, sessions)?;
        let key = sessions.connections.proven_on(index)?;
        self.learnt_keys.accepted(exit).contains(&key).then_some(exit)
    }

    /// Uses the learnt keys, and stores them.
    async fn accept_learnt(&mut self, profile: &ClientProfile, sessions: &mut Sessions) {
        self.follow(profile, sessions);
        let Some(exits) = self.learnt_keys.unsaved() else { return };
        // A learnt key is used even if it cannot be stored, because the exit has announced it in an authenticated session.
        if let Err(error) = self.helper.keep_exit_keys(exits).await {
            tracing::warn!(
                "a new key of an exit could not be saved, and will be lost at a restart: {error:#}; check the state directory and its disk, \
                 or write the key into the profile"
            );
        }
    }
}

/// The profile's entry for the exit in use.
fn pinned<'a>(profile: &'a ClientProfile, sessions: &Sessions) -> Option<&'a RemoteExit> {
    profile.exits().nth(sessions.connections.exits.current())
}
