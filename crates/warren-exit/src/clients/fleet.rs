//! The clients of an exit that belongs to a fleet: handles messages from the link, and tells operators the outcome of their
//! changes.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warren_fleet_link::{ExitId, ExitMessage, LINK_VERSION, Load, Outcome, Pools};
use warren_session::clients::{Client, RegistryError};
use warren_session::exit::{AdminError, SessionId};

use super::{Clients, Proposed};
use crate::fleet::{Fleet, LinkEvent, StoreAddresses, Verdict};
use crate::roster;
use warren_config::ExitSettings;
use warren_control::status::FleetStatus;
use warren_control::{CutOff, RequestRefused};
use warren_session::PublicKey;

/// How long an operator waits for the store.
// This time is longer than the three seconds after which the exit itself gives a request up (`PATIENCE` in `fleet/requests.rs`).
const STORE_PATIENCE: Duration = Duration::from_millis(3_200);

/// How long a command waits for the other exits to apply a change that is in the store.
const EXITS_PATIENCE: Duration = Duration::from_secs(2);

/// The longest that an operator waits in all. The command gives up after 5 s.
const PATIENCE: Duration = Duration::from_millis(4_500);

/// A change that an operator waits for.
#[derive(Debug)]
pub(crate) struct Awaited {
    proposed: Proposed,
    begun: Instant,
    /// When the store had the change, and the revision of the store that contains it.
    stored: Option<(Instant, i64)>,
}

impl Clients {
    /// Makes the exit a member of a fleet.
    pub(crate) fn join(&mut self, fleet: Fleet) {
        self.fleet = Some(Box::new(fleet));
        let on_host = self.registry().iter().filter(|client| is_on_host(client));
        self.on_host = on_host.map(|client| client.public_key).collect();
    }

    /// Handles an event of the link.
    pub(crate) fn take_link_event(&mut self, (number, event): (u64, LinkEvent), config: &ExitSettings) {
        let Self { sessions, fleet, .. } = self;
        let Some(fleet) = fleet else { return };
        let now = Instant::now();
        let followed = match event {
            LinkEvent::Connected(link) => {
                let Some(hello) = hello(config) else { return };
                return fleet.connected(number, link, (hello, config.keys.current.public()), sessions);
            }
            _ if !fleet.is_current(number) => return,
            LinkEvent::Lost(why) => return fleet.lose(&why, sessions),
            LinkEvent::Message(message) => fleet.take(now, *message, sessions),
        };
        match followed {
            Ok(followed) => {
                followed.unfit.iter().for_each(log_unfit);
                let mut clients = followed.clients;
                if followed.is_whole {
                    clients.extend(self.on_host.iter().copied());
                }
                self.follow_others(&clients);
                if let Some(signed) = followed.roster {
                    self.take_roster(&signed);
                }
            }
            Err(why) => fleet.lose(&format!("warren-fleet sent an invalid message: {why}"), sessions),
        }
    }

    /// Sends the fleet's roster to clients. A roster from the store is checked like any other.
    fn take_roster(&mut self, signed: &[u8]) {
        let Some(directory) = self.path.parent().map(Path::to_owned) else { return };
        if let Err(why) = roster::take(self, &directory, signed) {
            tracing::error!("the roster in the fleet's store is not accepted: {why:#}");
        }
    }

    /// Updates limits, names and forwards of clients that were changed at other exits.
    fn follow_others(&mut self, keys: &[PublicKey]) {
        for key in keys {
            self.follow(*key);
            let is = self.registry().by_key(*key).is_some_and(is_on_host);
            // The host may still have the forwards and prefixes of a client that is gone.
            let was = self.on_host.contains(key);
            self.has_moved |= is || was;
            if is {
                self.on_host.insert(*key);
            } else {
                self.on_host.remove(key);
            }
        }
    }

    /// Tells the fleet the exit's newest key.
    pub(crate) fn introduce(&mut self, key: PublicKey) {
        if let Some(fleet) = &mut self.fleet {
            fleet.introduce(key, &mut self.sessions);
        }
    }

    /// Tells the fleet how busy the exit is. `load` contains everything but the number of sessions.
    pub(crate) fn say_load(&mut self, load: Load) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let load = Load { sessions: count(self.live.len()), ..load };
        if let Some(fleet) = &mut self.fleet {
            fleet.say_load(load, &mut self.sessions);
        }
    }

    /// Tells the fleet that a client has opened or kept a session here.
    pub(super) fn say_opened(&mut self, session: SessionId, key: PublicKey) {
        let Some(fleet) = &mut self.fleet else { return };
        // If the session is over by now, the fleet does not need the message.
        let Some(opened) = self.sessions.session(session) else { return };
        let (nonce, claim) = (opened.nonce().to_vec(), opened.claim());
        if let Some(live) = self.live.get_mut(&session) {
            live.nonce.clone_from(&nonce);
        }
        fleet.say(ExitMessage::Opened { key, nonce, claim }, &mut self.sessions);
    }

    /// Tells the fleet that a session is over.
    pub(super) fn say_closed(&mut self, key: PublicKey, nonce: Vec<u8>) {
        if let Some(fleet) = self.fleet.as_mut().filter(|_| !nonce.is_empty()) {
            fleet.say(ExitMessage::Closed { key, nonce }, &mut self.sessions);
        }
    }

    /// Makes the exit serve clients, or send them to other exits. Returns whether that has changed. If so, the caller must tell
    /// the fleet at once.
    pub(crate) fn serve_as_fleet(&mut self) -> bool {
        let Self { sessions, fleet, .. } = self;
        fleet.as_mut().is_some_and(|fleet| fleet.serve(Instant::now(), sessions))
    }

    /// The addresses of the fleet's store. `None` for an exit without a fleet.
    pub(crate) fn store_addresses(&self) -> Option<&StoreAddresses> {
        self.fleet.as_ref().map(|fleet| fleet.store_addresses())
    }

    /// The fleet's status.
    pub(crate) fn fleet_status(&self) -> Option<FleetStatus> {
        self.fleet.as_ref().map(|fleet| fleet.status(self.sessions.stays_refused()))
    }

    /// Refuses a change that an exit of a fleet cannot make alone.
    pub(crate) fn refuse_in_fleet(&self, what: &str) -> anyhow::Result<()> {
        if self.fleet.is_some() {
            anyhow::bail!(
                "{what} is for an exit without a fleet; add and change clients with `warren exit client`, which applies to all exits of the fleet"
            );
        }
        Ok(())
    }

    /// Begins to wait for a change.
    pub(crate) fn await_store(&mut self, proposed: Proposed) -> Awaited {
        if let (Some(id), Some(fleet)) = (proposed.id, &mut self.fleet) {
            fleet.watch(id);
            if proposed.in_force.is_some() {
                // The rows are saved first, because their request may have to wait for another request, and the rows must not be
                // lost in that time.
                fleet.copy(&mut self.store, &mut self.sessions);
            }
        }
        Awaited { proposed, begun: Instant::now(), stored: None }
    }

    /// The answer to an operator who waits for a change. `None` while it has no outcome.
    pub(crate) fn outcome(&mut self, awaited: &mut Awaited) -> Option<Result<Value, RequestRefused>> {
        let outcome = self.outcome_of(awaited)?;
        if let (Some(id), Some(fleet)) = (awaited.proposed.id, &mut self.fleet) {
            fleet.forget(id);
        }
        if let Some(key) = awaited.proposed.key {
            self.follow(key);
            self.follow_others(&[key]);
        }
        Some(outcome)
    }

    fn outcome_of(&self, awaited: &mut Awaited) -> Option<Result<Value, RequestRefused>> {
        let (Some(id), Some(fleet)) = (awaited.proposed.id, &self.fleet) else {
            return Some(Ok(Value::Null));
        };
        let waited = awaited.begun.elapsed();
        if awaited.proposed.in_force.is_some() {
            return self.cut_off(awaited, fleet, waited).map(|cut_off| Ok(json!({ "cut_off": cut_off })));
        }
        match fleet.verdict(id) {
            Verdict::Given(Outcome::Stored { .. }) => Some(Ok(Value::Null)),
            Verdict::Given(Outcome::Conflict) => Some(Err(RequestRefused::new(
                "another exit has just given that name, key or address to another client, or changed the same client; nothing was changed; look with `warren exit client list`, and try again",
            ))),
            Verdict::NotAsked => Some(Err(RequestRefused::new(fleet.refusal()))),
            Verdict::Given(Outcome::Unavailable) => Some(Err(RequestRefused::new(UNKNOWN))),
            Verdict::Open if waited >= STORE_PATIENCE => Some(Err(RequestRefused::new(UNKNOWN))),
            Verdict::Open => None,
        }
    }

    /// Returns the number of exits that have cut a client off. `None` while waiting may add more of them.
    fn cut_off(&self, awaited: &mut Awaited, fleet: &Fleet, waited: Duration) -> Option<CutOff> {
        // After a conflict, the rows are sent again in another request. So this code checks that the store lacks no row.
        if awaited.stored.is_none() && !self.sessions.owes() {
            awaited.stored = Some((Instant::now(), fleet.revision()));
        }
        let is_unsaved = fleet.is_disk_failing();
        let Some((at, revision)) = awaited.stored else {
            let id = awaited.proposed.id;
            let is_refused = id.is_some_and(|id| {
                matches!(fleet.verdict(id), Verdict::NotAsked | Verdict::Given(Outcome::Unavailable))
            });
            if !is_refused && waited < STORE_PATIENCE {
                return None;
            }
            let exits = fleet.heard(i64::MAX);
            let waiting = [exits.waiting, exits.dead].concat();
            let (away, is_out) = (Some(fleet.why_away()), fleet.is_removed());
            return Some(CutOff { heard: 1, exits: 1 + waiting.len(), waiting, away, is_out, is_unsaved });
        };
        let heard = fleet.heard(revision);
        let is_late = at.elapsed() >= EXITS_PATIENCE || waited >= PATIENCE;
        if !heard.waiting.is_empty() && !is_late {
            return None;
        }
        let waiting = [heard.waiting, heard.dead].concat();
        let exits = heard.heard + waiting.len();
        Some(CutOff { heard: heard.heard, exits, waiting, is_unsaved, ..CutOff::default() })
    }
}

/// Whether rules or routes of the host depend on a client.
fn is_on_host(client: &Client) -> bool {
    !client.forwards.is_empty() || !client.prefixes.is_empty()
}

/// When to call [`Clients::outcome`] again even if no event arrives.
pub(crate) fn look_again_at(awaited: &Awaited) -> Instant {
    match awaited.stored {
        Some((at, _)) => (at + EXITS_PATIENCE).min(awaited.begun + PATIENCE),
        None => awaited.begun + STORE_PATIENCE,
    }
}

/// The message for an operator when the store did not answer a change in time.
const UNKNOWN: &str = "the fleet's store did not answer in time, but may still make the change; look with `warren exit client list` before you try again";

fn log_unfit(error: &AdminError) {
    match error {
        // The client was removed here, and the store does not know that yet.
        AdminError::Registry(RegistryError::KeyRemoved { .. }) => tracing::debug!("{error}"),
        AdminError::Registry(_) | AdminError::Config(_) | AdminError::Busy => {
            tracing::error!("a client of the fleet cannot connect to this exit: {error}");
        }
    }
}

/// Returns the exit's Hello to `warren-fleet`. `None` if the exit has no valid name, which its configuration does not allow.
fn hello(config: &ExitSettings) -> Option<ExitMessage> {
    let fleet = config.fleet.as_ref()?;
    Some(ExitMessage::Hello {
        version: LINK_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        exit: ExitId::try_from(fleet.name.clone()).ok()?,
        key: config.keys.current.public(),
        endpoints: config.endpoint.iter().map(ToString::to_string).collect(),
        pools: Pools { ipv4: config.ipv4, ipv6: config.ipv6 },
        max_staleness: fleet.max_staleness.map(|time| time.as_secs()),
    })
}
