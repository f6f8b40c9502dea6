//! Owns the connections to the exits: the race for an address that answers, the connections that are being opened, and those of
//! the session.
//!
//! Connections of the session and of a race are opened in the same way. [`Connections::open`] orders a connection from the
//! worker, and the worker gives it an identifier. Then its handshake succeeds, or the connection is closed. The methods return
//! the events of which the session must be told.

mod beside;
mod close_reasons;
mod key_check;
mod lookups;
mod measure;
mod measuring;
mod of_session;
mod ordered;
mod proven_keys;
mod race;
mod running_race;
mod silence;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use warren_quic::driver::{CloseReason, ConnectionId};
use warren_session::client::{ConnectionEnd, Homing, Vigil};
use warren_session::goodbye::Goodbye;

use self::close_reasons::end_of;
pub(super) use self::lookups::{LookupAnswer, Lookups};
use self::measuring::Measuring;
use self::of_session::SessionConnections;
pub(super) use self::of_session::Which;
pub(super) use self::ordered::Ordered;
use self::ordered::OrderedConnections;
use self::proven_keys::ProvenKeys;
pub(super) use self::running_race::Purpose;
use self::running_race::RunningRace;
use crate::diagnose::has_route;
use crate::exits::{self, Exits, Way};
use crate::kill_switch::Lockdown;
use warren_config::{Endpoint, RemoteExit};
use warren_tunnel::{ConnectionCommand, SharedCommand, WorkerHandle};

/// Every connection to an exit, and the state that decides where the next connection goes.
pub(super) struct Connections {
    pub(super) exits: Exits,
    pub(super) lookups: Lookups,
    race: Option<RunningRace>,
    /// Number of races so far.
    races: u64,
    ordered: OrderedConnections,
    /// Number of sessions so far.
    sessions: u64,
    /// The connections of the session in use.
    own: SessionConnections,
    /// The connections of the other session while the client moves.
    beside: Option<SessionConnections>,
    /// Decides when to return to an exit that comes earlier in the profile.
    failback: Homing,
    last_tried: Option<SocketAddr>,
    /// The list positions of an exit that is much nearer than the one in use, one for each of its endpoints.
    nearer: Vec<usize>,
    measuring: Measuring,
    /// The check of the exit's next key.
    keys: ProvenKeys,
}

/// The end of one of a session's connections, or the failure to open it. The session must be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) which: Which,
    pub(super) index: u32,
    pub(super) end: ConnectionEnd,
}

/// The role of a connection that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// The connection was one of the session's connections.
    OfSession(Ended),
    /// The connection took part in the race. `unproven` describes a definite answer that may be forged, because its sender has
    /// not proven the exit's key.
    OfRace { unproven: Option<String> },
    /// No part of the client needs the connection any more.
    Forgotten,
}

/// What a race's winner means for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Winner {
    /// The winner becomes connection 0, for which the session is waiting.
    Awaited,
    /// The winner reaches the exit in use at another address. Every connection moves to that address.
    OtherWay,
    /// The winner leads to another exit, where a new session begins.
    OtherExit,
    /// An earlier exit has answered, but not often enough yet to go back to it.
    TooEarly,
}

impl Connections {
    pub(super) fn new(exits: Exits, lookups: Lookups) -> Self {
        Self {
            exits,
            lookups,
            race: None,
            races: 0,
            ordered: OrderedConnections::default(),
            sessions: 0,
            own: SessionConnections::default(),
            beside: None,
            failback: Homing::new(),
            last_tried: None,
            nearer: Vec::new(),
            measuring: Measuring::default(),
            keys: ProvenKeys::default(),
        }
    }

    /// The exit in use.
    pub(super) fn exit(&self) -> &RemoteExit {
        self.exits.exit(self.exits.current())
    }

    /// The endpoint of the exit in use.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.exit().endpoint
    }

    /// The message about a refusal by the exit in use.
    pub(super) fn refusal_of(&self, reason: Goodbye) -> String {
        format!("the exit {} refused: {reason}", self.endpoint())
    }

    /// The exit and address that the session's connections use.
    pub(super) fn way(&self) -> Option<Way> {
        self.own.way
    }

    /// The address that was tried last.
    pub(super) fn last_tried(&self) -> Option<SocketAddr> {
        self.last_tried
    }

    /// The exits' addresses that the connections of all sessions use.
    pub(super) fn remotes(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let sessions = std::iter::once(&self.own).chain(&self.beside);
        sessions.flat_map(|session| session.remotes.values()).map(|remote| remote.ip())
    }

    /// Whether there has been exactly one race so far.
    pub(super) fn has_raced_once(&self) -> bool {
        self.races == 1
    }

    /// Forgets the way of the session's connections, because another session begins.
    pub(super) fn forget_way(&mut self) {
        self.own.way = None;
        self.forget_silence();
    }

    /// Stops watching whether the exit answers on the session's connections.
    pub(super) fn forget_silence(&mut self) {
        self.own.silence = Vigil::default();
    }

    /// Sends bytes on the control stream of one of a session's connections.
    pub(super) async fn send(&self, worker: &WorkerHandle, which: Which, index: u32, bytes: Vec<u8>) {
        if let Some(connection) = self.connection_of(which, index) {
            worker.send(ConnectionCommand::SendControl { connection, data: bytes }).await;
        }
    }

    /// Starts to watch whether the exit answers on one of a session's connections.
    pub(super) fn attached(&mut self, which: Which, index: u32) {
        if let Some(session) = self.of_mut(which) {
            session.silence.attached(index);
        }
    }

    /// Stops traffic on one of a session's connections.
    pub(super) async fn detach(&mut self, worker: &WorkerHandle, which: Which, index: u32) {
        if let Some(session) = self.of_mut(which) {
            session.silence.detached(Instant::now(), index);
        }
        if let Some(connection) = self.connection_of(which, index) {
            // Every worker may use the session's connections, so each has to stop using this one.
            worker.send_all(SharedCommand::Detach { connection }).await;
        }
    }

    /// Orders a connection for the session, or for a race. If a connection of the session could not be opened, returns this failure
    /// as the end of the connection.
    ///
    /// # Errors
    /// When this process may not mark its sockets, so that no connection can ever be opened.
    pub(super) async fn open(
        &mut self,
        worker: &WorkerHandle,
        lockdown: &mut Lockdown,
        index: u32,
        ordered: Ordered,
    ) -> anyhow::Result<Option<Ended>> {
        let remote = ordered.remote;
        // The diagnosis probes the address that was tried last. Probing an address without a route, such as an IPv6 address on a
        // host without IPv6, would tell nothing about the exit.
        if ordered.measured.is_none() && (self.last_tried.is_none() || has_route(remote)) {
            self.last_tried = Some(remote);
        }
        // A closed kill switch would drop the first packet.
        let is_used = |exit: SocketAddr| self.remotes().any(|address| address == exit.ip());
        if let Err(error) = lockdown.allow_exit(remote, is_used).await {
            return Ok(self.open_failed(index, ordered, ConnectionEnd::Lost(format!("{error:#}"))));
        }
        let socket = match exits::bind(remote) {
            Ok(socket) => socket,
            // SO_MARK needs a capability (socket(7)), which this process will not get later.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                anyhow::bail!(
                    "cannot mark the carrier's UDP socket: not permitted; run it as root or with CAP_NET_ADMIN"
                )
            }
            Err(error) => {
                // The next attempt may succeed, because descriptors may be free again by then.
                let why = format!("cannot open a UDP socket: {error}; check the limit on descriptors");
                return Ok(self.open_failed(index, ordered, ConnectionEnd::Lost(why)));
            }
        };
        // A race also tries exits that are not in use, which have keys of their own.
        let way = ordered.racer.map(|racer| racer.way).or(ordered.measured);
        let of_session = || self.with_number(ordered.session).filter(|which| *which == Which::Beside);
        let way = way.or_else(|| self.way_of(of_session()?));
        let place = way.map_or(self.exits.current(), |way| way.exit);
        let RemoteExit { public_keys, server_name, .. } = self.exits.exit(place).clone();
        // A connection that checks a key accepts only this key, because a handshake with another key would not prove it.
        let exit_keys = ordered.check.map_or(public_keys, |key| vec![key]);
        self.ordered.push(index, ordered);
        worker.send(ConnectionCommand::Connect { index, socket, remote, exit_keys, server_name }).await;
        Ok(None)
    }

    /// The worker has given an ordered connection its identifier.
    pub(super) async fn opened(&mut self, worker: &WorkerHandle, index: u32, connection: ConnectionId) {
        let Some(ordered) = self.ordered.pop(index) else { return };
        let which = self.with_number(ordered.session).filter(|_| !ordered.is_cancelled);
        if let Some(session) = which.and_then(|which| self.of_mut(which)) {
            session.remotes.insert(index, ordered.remote);
            session.indices.insert(connection, index);
            return;
        }
        match (ordered.racer, &mut self.race) {
            (Some(racer), Some(race)) if race.number == racer.race => {
                race.runners.insert(connection, racer.way);
            }
            (None, _) if ordered.check.is_some() => self.keys.opened(connection),
            (None, _) if ordered.measured.is_some() => {
                self.measuring.running.extend(ordered.measured.map(|way| (connection, way)));
            }
            // The connection's race is over, or the session no longer wants it.
            _ => close_quietly(worker, connection).await,
        }
    }

    /// The worker could not open an ordered connection.
    pub(super) fn not_opened(&mut self, index: u32, error: String) -> Option<Ended> {
        let ordered = self.ordered.pop(index).filter(|ordered| !ordered.is_cancelled)?;
        self.open_failed(index, ordered, ConnectionEnd::Lost(error))
    }

    fn open_failed(&mut self, index: u32, ordered: Ordered, end: ConnectionEnd) -> Option<Ended> {
        if ordered.check.is_some() || ordered.measured.is_some() {
            return None;
        }
        let Some(racer) = ordered.racer else {
            return self.with_number(ordered.session).map(|which| Ended { which, index, end });
        };
        if let Some(race) = self.race.as_mut().filter(|race| race.number == racer.race) {
            race.failed(&racer.way, end);
        }
        None
    }

    /// Makes a race's winner connection 0 of the session. The other connections will use the winner's way.
    pub(super) fn take_winner(&mut self, now: Instant, connection: ConnectionId, way: Way) {
        self.own.way = Some(way);
        self.own.remotes.insert(0, way.remote);
        self.own.indices.insert(connection, 0);
        self.exits.use_exit(way.exit);
        self.failback.uses(now, usize::from(!self.exits.is_home(way.exit)));
    }

    /// Removes a connection that has ended.
    pub(super) fn closed(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
        had_session: bool,
    ) -> Closed {
        self.measuring.running.remove(&connection);
        for which in [Which::InUse, Which::Beside] {
            let Some(session) = self.of_mut(which) else { continue };
            let (index, place) = (session.indices.remove(&connection), session.way.map(|way| way.exit));
            let Some(index) = index else { continue };
            tracing::debug!(index, ?which, "connection closed: {reason}");
            let place = place.filter(|_| which == Which::Beside).unwrap_or(self.exits.current());
            let end = end_of(&self.exits.exit(place).endpoint, reason, had_session);
            return Closed::OfSession(Ended { which, index, end });
        }
        let Some(race) = &mut self.race else { return Closed::Forgotten };
        let Some(way) = race.runners.remove(&connection) else { return Closed::Forgotten };
        tracing::debug!("{} does not answer: {reason}", way.remote);
        // These two reasons are definite answers. But anybody on the path can forge them, because the exit has not proven
        // its key.
        let is_answer = matches!(reason, CloseReason::WrongPeerKey { .. } | CloseReason::NoCommonProtocol);
        let end = end_of(&self.exits.exit(way.exit).endpoint, reason, had_session);
        let unproven = match &end {
            ConnectionEnd::Lost(sentence) if is_answer => Some(sentence.clone()),
            ConnectionEnd::Lost(_) | ConnectionEnd::Goodbye(_) => None,
        };
        race.failed(&way, end);
        Closed::OfRace { unproven }
    }

    /// When to ask whether an exit that comes earlier in the profile is back.
    pub(super) fn failback_due(&self) -> Option<Instant> {
        // There is only one race at a time, so the exits are not asked until the current race is over.
        self.failback.timeout().filter(|_| self.race.is_none())
    }

    /// Records the places of exits that are much nearer than the one in use.
    pub(super) fn set_nearer(&mut self, places: Vec<usize>) {
        self.nearer = places;
    }

    /// Whether another exit was much nearer in the latest measurement.
    pub(super) fn has_nearer(&self) -> bool {
        !self.nearer.is_empty()
    }

    /// Whether a race is under way.
    pub(super) fn is_racing(&self) -> bool {
        self.race.is_some()
    }

    /// Records that the earlier exits are being asked now.
    pub(super) fn asks_for_failback(&mut self, now: Instant) {
        self.failback.asking(now);
    }
}

/// Closes a connection that no session uses.
pub(super) async fn close_quietly(worker: &WorkerHandle, connection: ConnectionId) {
    let reason = Goodbye::Superseded;
    worker
        .send(ConnectionCommand::Close { connection, code: reason.code(), reason: reason.to_string() })
        .await;
}
