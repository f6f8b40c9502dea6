//! The client's side of a session, without I/O: events and time go in, [`ClientAction`]s come out.
//!
//! Connection 0 opens the session with `Hello`. The others join it with `Attach`, and so does a connection that replaces a lost
//! one. When all connections are lost, only connection 0 reconnects. It tries `Attach` first, and `Hello` once the exit no longer
//! knows the session.
//!
//! The caller names connections by their index. After [`ClientAction::Close`], the caller must not report further events of the
//! closed connection, because its index may already belong to a new connection.

mod action;
mod address_owner;
mod attempts;
mod backoff;
pub mod choice;
mod config;
mod exit_keys;
mod handshake;
mod homing;
mod kept_fleet;
mod link;
mod moves;
mod race;
mod taken;
#[cfg(test)]
mod tests;
mod vigil;
mod welcome;

use std::collections::VecDeque;
use std::time::Instant;

use ipnet::IpNet;

pub use self::action::{ClientAction, ClientState, ConnectionEnd, Stop};
pub use self::address_owner::AddressOwner;
pub use self::config::ClientConfig;
pub use self::exit_keys::{ExitKeys, KeyNews};
pub use self::homing::Homing;
pub use self::kept_fleet::KeptFleet;
pub use self::moves::{Moves, Step, Switched, Watched, Which};
pub use self::race::{Race, STAGGER};
pub use self::taken::TakenAddresses;
pub use self::vigil::{Vigil, VigilAction};
pub use self::welcome::{SessionGrant, WelcomeError};

use self::link::{Link, Phase};
use crate::clients::MAX_NAME_LENGTH;
use crate::goodbye::{Goodbye, Violation};
use crate::message;
use crate::planted::{Bug, is_planted};
use crate::planted_moves;
use crate::roster::FleetName;
use crate::{Entropy, HANDSHAKE_TIMEOUT, MAX_CONNECTIONS, MAX_PREFIXES};

/// The session of one client with one exit.
///
/// ```
/// use std::time::Instant;
/// use warren_session::client::{ClientAction, ClientConfig, ClientSession};
///
/// let config = ClientConfig { connections: 2, name: "laptop".to_owned(), ..ClientConfig::default() };
/// // A client takes its random bytes from the kernel. Here they are all 7.
/// let mut session = ClientSession::new(config, Box::new(|bytes| bytes.fill(7)));
/// let now = Instant::now();
/// session.start(now);
/// assert_eq!(session.poll_action(), Some(ClientAction::Connect { index: 0 }));
///
/// // The caller has connected, so the session asks the exit for addresses.
/// session.connected(now, 0);
/// assert!(matches!(session.poll_action(), Some(ClientAction::Send { index: 0, .. })));
/// ```
pub struct ClientSession {
    config: ClientConfig,
    entropy: Entropy,
    nonce: [u8; 16],
    state: ClientState,
    session: Option<Established>,
    links: Vec<Link>,
    actions: VecDeque<ClientAction>,
    taken: TakenAddresses,
    /// Whether every connection must tell the exit that the client keeps this session. See [`Self::stay`].
    stays: bool,
}

/// A session that the exit has granted.
#[derive(Debug)]
struct Established {
    welcome: SessionGrant,
    since: Instant,
    /// The number of the latest `Update`; 0 before the first.
    updates: u64,
}

impl ClientSession {
    /// Makes a session that does nothing until [`Self::start`]. `entropy` provides the jitter of retries, and a nonce if the
    /// configuration has none.
    pub fn new(config: ClientConfig, mut entropy: Entropy) -> Self {
        let mut config = config;
        config.connections = config.connections.clamp(1, MAX_CONNECTIONS);
        // An exit refuses a Hello whose name, prefixes or number of prefixes the protocol does not allow.
        config.name = host_name(&config.name);
        config.prefixes = config.prefixes.iter().map(IpNet::trunc).take(MAX_PREFIXES).collect();
        let nonce = config.nonce.unwrap_or_else(|| {
            let mut drawn = [0; 16];
            entropy(&mut drawn);
            drawn
        });
        let links = (0..config.connections).map(|_| Link::default()).collect();
        Self {
            config,
            entropy,
            nonce,
            state: ClientState::Idle,
            session: None,
            links,
            actions: VecDeque::new(),
            taken: TakenAddresses::default(),
            stays: false,
        }
    }

    /// Whether a connection has sent `Hello` and waits for `Welcome`. If so, call [`Self::set_taken`] before
    /// [`Self::received`].
    pub fn awaits_welcome(&self, index: u32) -> bool {
        self.link(index).is_some_and(|link| matches!(link.phase, Phase::Hello { .. }))
    }

    /// Sets the addresses that this client refuses to be given.
    pub fn set_taken(&mut self, taken: TakenAddresses) {
        self.taken = taken;
    }

    /// Sets what the next `Hello` says: the fleet, the serial of the newest roster that the client has, and whether the client can
    /// move to another exit.
    pub fn set_fleet(&mut self, fleet: Option<(FleetName, u64)>, has_other_exit: bool) {
        self.config.fleet = fleet;
        self.config.has_other_exit = has_other_exit;
    }

    /// Sets whether the client can open a session at another exit while this session continues.
    pub fn set_moves_without_gap(&mut self, moves_without_gap: bool) {
        self.config.moves_without_gap = moves_without_gap;
    }

    /// Tells the exit that the client keeps this session, although the client has opened another session at another exit of the
    /// fleet. Without this message, this exit could learn of the other session from the store, and end its own session. `claim`
    /// must be higher than the claim of every earlier session.
    pub fn stay(&mut self, claim: u64) {
        self.config.claim = claim;
        if planted_moves::is_planted(planted_moves::Bug::StayUnsaid) {
            return;
        }
        // A connection may break before the exit reads the message. So every connection sends the message, including those that
        // attach later.
        self.stays = true;
        for index in 0..self.config.connections {
            if self.link(index).is_some_and(|link| link.attached_since().is_some()) {
                self.say_stay(index);
            }
        }
    }

    /// Starts to connect.
    pub fn start(&mut self, now: Instant) {
        if self.state == ClientState::Idle {
            self.state = ClientState::Connecting;
            self.attempt(now, 0);
        }
    }

    /// Says goodbye to the exit and stops for good.
    pub fn stop(&mut self, _now: Instant) {
        self.stop_with(Stop::Requested);
    }

    /// Returns the next action to carry out, in order. `None` if there is none.
    pub fn poll_action(&mut self) -> Option<ClientAction> {
        self.actions.pop_front()
    }

    /// The session's state.
    pub fn state(&self) -> &ClientState {
        &self.state
    }

    /// Returns the exit's grant. `None` before the grant, and once the session is known to be over.
    pub fn welcome(&self) -> Option<&SessionGrant> {
        self.session.as_ref().map(|session| &session.welcome)
    }

    /// When [`Self::handle_timeout`] must be called next, unless another event happens first.
    pub fn timeout(&self) -> Option<Instant> {
        self.links.iter().filter_map(Link::due).min()
    }

    /// Handles every timer that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.config.connections {
            let Some(link) = self.link(index).filter(|link| link.due().is_some_and(|due| due <= now)) else {
                continue;
            };
            if matches!(link.phase, Phase::Waiting { .. }) {
                self.attempt(now, index);
                continue;
            }
            let why =
                "the exit did not answer: check its address and public_key, and that UDP packets reach it and come back"
                    .to_owned();
            self.lost(now, index, Loss::broken(why).closing(Goodbye::TimedOut));
        }
    }

    /// Retries at once instead of waiting for the back-off. Call it when this host's network changes or the host wakes from
    /// sleep.
    pub fn hurry(&mut self, now: Instant) {
        self.cut_waits_short(now);
    }

    /// Gives up every connection of the session, because the caller is connecting over a better path. The caller reports the
    /// connection over the new path with [`Self::connected`] and index 0. The session itself continues.
    pub fn change_ways(&mut self, now: Instant) {
        if matches!(self.state, ClientState::Idle | ClientState::Stopped(_)) {
            return;
        }
        for index in 0..self.config.connections {
            if self.link(index).is_some_and(Link::is_connection) {
                self.drop_link(index, Some(Goodbye::Superseded));
            }
            self.park(index);
        }
        if let Some(first) = self.link_mut(0) {
            first.phase = Phase::Connecting { deadline: now + HANDSHAKE_TIMEOUT };
            first.attempted(now);
        }
    }

    /// Reports that a connection ended, other than by [`ClientAction::Close`].
    pub fn closed(&mut self, now: Instant, index: u32, why: ConnectionEnd) {
        if !self.link(index).is_some_and(Link::is_connection) {
            return;
        }
        match why {
            ConnectionEnd::Goodbye(reason) if self.link(index).is_some_and(Link::is_open) => {
                self.farewell(now, index, reason, None);
            }
            // The handshake is not complete, so anybody on the path could have sent this close code, and the code must not end
            // the session.
            ConnectionEnd::Goodbye(reason) => self.lost(now, index, Loss::broken(reason.to_string())),
            ConnectionEnd::Lost(why) => self.lost(now, index, Loss::broken(why)),
        }
    }

    /// Handles the exit's reason for ending a connection. `closing` is the code for closing the connection, or `None` if it is
    /// closed already.
    fn farewell(&mut self, now: Instant, index: u32, reason: Goodbye, closing: Option<Goodbye>) {
        let restarted = matches!(reason, Goodbye::UnknownSession | Goodbye::Restarting | Goodbye::Draining);
        if reason.is_final() && !is_planted(Bug::FinalGoodbyeIgnored) {
            self.drop_link(index, closing);
            self.stop_with(Stop::Goodbye(reason));
        } else if restarted && self.session.is_some() && !is_planted(Bug::ForgottenSessionKept) {
            self.begin_anew(now, index, Loss { closing, ..Loss::said(reason) });
        } else {
            self.lost(now, index, Loss { closing, ..Loss::said(reason) });
        }
    }

    /// Handles a failed connection or attempt: reports that traffic has stopped, if it has, and plans the next attempt.
    fn lost(&mut self, now: Instant, index: u32, loss: Loss) {
        let was_up = self.up_count() > 0;
        let was_stable = self.drop_link(index, loss.closing).is_some_and(|since| link::is_stable(since, now));
        let any_up = self.up_count() > 0;
        if was_up && any_up {
            self.state = ClientState::Up { attached: self.up_count() };
        }
        self.plan(now, index, was_stable, &loss);
        if any_up {
            return;
        }
        // Connection 0 must report each failure, because no other connection retries while nothing carries traffic.
        if was_up || index == 0 {
            self.say_down(now, &loss);
        }
        if index != 0 {
            // Only connection 0 reconnects. The others follow once it is up.
            self.park(index);
            self.wake_first(now, was_stable);
        }
    }

    /// Drops the whole session, which the exit has forgotten, and begins again with `Hello`.
    fn begin_anew(&mut self, now: Instant, index: u32, loss: Loss) {
        let was_up = self.up_count() > 0;
        let was_stable = self.session.take().is_some_and(|session| link::is_stable(session.since, now));
        self.drop_link(index, loss.closing);
        // Without a new outage, two restarts that are a day apart would count as an outage of one day, and the client would wait
        // half a minute.
        if was_stable {
            self.begin_outage(now);
        }
        for other in 0..self.config.connections {
            if self.link(other).is_some_and(Link::is_connection) {
                self.drop_link(other, Some(Goodbye::Superseded));
            }
            self.park(other);
        }
        if was_up {
            self.say_down(now, &loss);
        }
        // An exit that answers UnknownSession has restarted already and is ready. An exit that is still restarting, or draining, is
        // not ready, so the client pauses first.
        let at_once = was_stable && loss.goodbye == Some(Goodbye::UnknownSession);
        if at_once { self.attempt(now, 0) } else { self.plan(now, 0, false, &loss) }
    }

    fn say_down(&mut self, now: Instant, loss: &Loss) {
        let since = match self.state {
            // The outage began with the loss, not with the latest attempt that failed.
            ClientState::Down { since, .. } => since,
            ClientState::Idle
            | ClientState::Connecting
            | ClientState::Up { .. }
            | ClientState::Stopped(_) => now,
        };
        self.state = ClientState::Down { since, reason: loss.why.clone() };
        // The driver searches for another path only if the exit did not answer. An answer that this side refused counts as an
        // answer too.
        let goodbye = loss.goodbye.or(loss.closing.filter(|_| loss.answered));
        self.actions.push_back(ClientAction::Down { reason: loss.why.clone(), goodbye });
    }

    fn stop_with(&mut self, stop: Stop) {
        if matches!(self.state, ClientState::Stopped(_)) {
            return;
        }
        for index in 0..self.config.connections {
            let Some(link) = self.link(index).filter(|link| link.is_connection()) else { continue };
            if link.is_open() {
                let bytes = message::encode(&Goodbye::ClientStopped.to_message());
                self.actions.push_back(ClientAction::Send { index, bytes });
            }
            self.drop_link(index, Some(Goodbye::ClientStopped));
        }
        self.links.iter_mut().for_each(|link| link.phase = Phase::Parked);
        self.session = None;
        self.state = ClientState::Stopped(stop.clone());
        self.actions.push_back(ClientAction::Stopped { reason: stop });
    }
}

/// Why a connection or an attempt failed.
#[derive(Debug)]
struct Loss {
    why: String,
    /// The exit's reason, if it gave one.
    goodbye: Option<Goodbye>,
    /// The code to close the connection with, if it is still open.
    closing: Option<Goodbye>,
    /// Whether the exit answered. If so, retrying at once would not help.
    answered: bool,
}

impl Loss {
    fn broken(why: String) -> Self {
        Self { why, goodbye: None, closing: None, answered: false }
    }

    /// A loss because the exit broke the protocol.
    fn violation(violation: Violation, why: String) -> Self {
        Self { why, goodbye: None, closing: Some(Goodbye::Protocol(violation)), answered: true }
    }

    fn said(reason: Goodbye) -> Self {
        Self { why: reason.to_string(), goodbye: Some(reason), closing: None, answered: true }
    }

    fn closing(self, reason: Goodbye) -> Self {
        Self { closing: Some(reason), ..self }
    }
}

impl std::fmt::Debug for ClientSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSession")
            .field("state", &self.state)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// Turns a host's name into one that the protocol allows.
fn host_name(name: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    name.chars()
        .take(MAX_NAME_LENGTH)
        .map(|character| if allowed(character) { character } else { '-' })
        .collect()
}
