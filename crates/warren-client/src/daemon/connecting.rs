//! Connecting: a race between the ways to the exits for connection 0, its winner's way for the others, and what a
//! connection's end means for the session.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

use warren_quic::driver::{CloseReason, ConnectionId};
use warren_session::client::{ClientAction, ClientSession, ConnectionEnd, Race, Stop};
use warren_session::goodbye::Goodbye;

use super::ends::end_of;
use super::refusal::Unproven;
use super::{Daemon, LookupAnswer};
use crate::diagnose::has_route;
use crate::exits::{self, Way};
use crate::lookup::lookup;
use warren_config::RemoteExit;
use warren_control::status::State;
use warren_tunnel::Command;

/// What a race is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The session's connection 0, of which there is none.
    Attempt,
    /// Another way, while the session's connections are silent.
    Scout,
    /// News of an exit that stands before the one in use.
    Return,
}

/// A race under way.
pub(super) struct Racing {
    number: u64,
    pub(super) purpose: Purpose,
    race: Race<Way>,
    begun: Instant,
    /// The exits that take part, in order.
    places: Vec<usize>,
    /// Those whose names are being looked up.
    awaited: BTreeSet<usize>,
    /// The way that takes no part, because it is in use.
    but: Option<Way>,
    runners: HashMap<ConnectionId, Way>,
    /// Why the latest way failed.
    failure: Option<ConnectionEnd>,
}

/// A connection that was ordered and has no number yet.
pub(super) struct Opening {
    remote: SocketAddr,
    /// The race that it is for, if any.
    racer: Option<(u64, Way)>,
    cancelled: bool,
}

impl Daemon {
    pub(super) async fn connect(&mut self, index: u32) -> anyhow::Result<()> {
        match self.way {
            Some(way) if index != 0 => self.open(index, way.remote, None).await,
            _ => self.start_race(Purpose::Attempt).await,
        }
    }

    /// Starts a race in place of any other. Known addresses run at once, and names are looked up beside that.
    pub(super) async fn start_race(&mut self, purpose: Purpose) -> anyhow::Result<()> {
        self.abort_race().await;
        let now = Instant::now();
        let places = if purpose == Purpose::Return { self.exits.preferred() } else { self.exits.order(now) };
        let but = self.way.filter(|_| purpose == Purpose::Scout);
        let mut race = Race::new(true);
        for (rank, place) in places.iter().enumerate() {
            self.exits.enter(&mut race, *place, rank, now, but);
            self.look_up(*place);
        }
        self.races += 1;
        self.race = Some(Racing {
            number: self.races,
            purpose,
            race,
            begun: now,
            awaited: places.iter().copied().collect(),
            places,
            but,
            runners: HashMap::new(),
            failure: None,
        });
        self.run_race().await
    }

    fn look_up(&mut self, place: usize) {
        if !self.lookups_running.insert(place) {
            return;
        }
        let endpoint = self.exits.exit(place).endpoint.clone();
        let servers = self.servers.clone().asked_with(self.lockdown.query_mark());
        let answers = self.lookups.clone();
        let is_closed = self.lockdown.is_closed();
        tokio::spawn(async move {
            let mut answer = lookup(&endpoint, &servers).await;
            if let Err(sentence) = &mut answer
                && is_closed
                && servers.are_local().await
            {
                sentence.push_str(SHUT_IN);
            }
            // The daemon may have ended meanwhile.
            drop(answers.send(LookupAnswer { place, answer }).await);
        });
    }

    pub(super) async fn take_lookup(
        &mut self,
        LookupAnswer { place, answer }: LookupAnswer,
    ) -> anyhow::Result<()> {
        self.lookups_running.remove(&place);
        let learnt = self.exits.learn(place, answer);
        let Some(racing) = &mut self.race else { return Ok(()) };
        if let Some(rank) = racing.places.iter().position(|other| *other == place) {
            self.exits.enter(&mut racing.race, place, rank, racing.begun, racing.but);
        }
        if let Err(error) = learnt {
            racing.failure = Some(ConnectionEnd::Lost(error));
        }
        racing.awaited.remove(&place);
        if racing.awaited.is_empty() {
            racing.race.complete();
        }
        self.run_race().await?;
        // What was just learnt may be the address that the exit in use has leased.
        if let Err(error) = self.give_up_taken_lease().await {
            tracing::warn!("{error:#}");
        }
        Ok(())
    }

    /// When the race has something to begin.
    pub(super) fn race_due(&self) -> Option<Instant> {
        self.race.as_ref()?.race.due()
    }

    /// Begins what is due; draws the consequences if nobody is left to win.
    pub(super) async fn run_race(&mut self) -> anyhow::Result<()> {
        while let Some(racing) = &mut self.race
            && let Some(way) = racing.race.begin(Instant::now())
        {
            let racer = Some((racing.number, way));
            self.open(0, way.remote, racer).await?;
        }
        let Some(racing) = self.race.take_if(|racing| racing.race.is_lost()) else { return Ok(()) };
        match racing.purpose {
            Purpose::Attempt => {
                let nowhere = || {
                    ConnectionEnd::Lost(
                        "there is no address to connect to; check endpoint in [[exit]] of the profile"
                            .to_owned(),
                    )
                };
                self.session.closed(Instant::now(), 0, racing.failure.unwrap_or_else(nowhere));
            }
            Purpose::Scout => {}
            Purpose::Return => {
                self.homing.answered(false);
            }
        }
        Ok(())
    }

    /// Ends the race, if there is one, without a winner.
    pub(super) async fn abort_race(&mut self) {
        let Some(racing) = self.race.take() else { return };
        for connection in racing.runners.into_keys() {
            self.close_quietly(connection).await;
        }
    }

    /// Opens a connection to `remote` with an index of the session, or for a race.
    async fn open(
        &mut self,
        index: u32,
        remote: SocketAddr,
        racer: Option<(u64, Way)>,
    ) -> anyhow::Result<()> {
        // That there is no IPv6 here is not why an exit is silent that has IPv4 too.
        if self.tried.is_none() || has_route(remote) {
            self.tried = Some(remote);
        }
        if let Err(error) = self.lockdown.allow_exit(remote).await {
            self.open_failed(index, racer, ConnectionEnd::Lost(format!("{error:#}")));
            return Ok(());
        }
        let failure = match exits::bind(remote) {
            Ok(socket) => {
                let place = racer.map_or(self.exits.current(), |(_, way)| way.exit);
                let RemoteExit { public_keys: exit_keys, server_name, .. } = self.exits.exit(place).clone();
                let opening = Opening { remote, racer, cancelled: false };
                self.opening.entry(index).or_default().push_back(opening);
                self.worker.send(Command::Connect { index, socket, remote, exit_keys, server_name }).await;
                return Ok(());
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                anyhow::bail!(
                    "cannot mark the carrier's UDP socket: not permitted; run it as root or with CAP_NET_ADMIN"
                )
            }
            Err(error) => ConnectionEnd::Lost(format!(
                "cannot open a UDP socket: {error}; check the limit on descriptors"
            )),
        };
        self.open_failed(index, racer, failure);
        Ok(())
    }

    /// The worker has given a connection its number.
    pub(super) async fn opened(&mut self, index: u32, connection: ConnectionId) {
        let Some(opening) = self.opening.get_mut(&index).and_then(std::collections::VecDeque::pop_front)
        else {
            return;
        };
        match (opening.racer, &mut self.race) {
            (Some((number, way)), Some(racing)) if racing.number == number => {
                racing.runners.insert(connection, way);
            }
            (None, _) if !opening.cancelled => {
                self.remotes.insert(index, opening.remote);
                self.connections.insert(connection, index);
            }
            _ => self.close_quietly(connection).await,
        }
    }

    /// A connection could not even be begun.
    pub(super) async fn not_opened(&mut self, index: u32, error: String) -> anyhow::Result<()> {
        let opening = self.opening.get_mut(&index).and_then(std::collections::VecDeque::pop_front);
        if let Some(opening) = opening.filter(|opening| !opening.cancelled) {
            self.open_failed(index, opening.racer, ConnectionEnd::Lost(error));
        }
        self.run_race().await
    }

    fn open_failed(&mut self, index: u32, racer: Option<(u64, Way)>, failure: ConnectionEnd) {
        match (racer, &mut self.race) {
            (Some((number, way)), Some(racing)) if racing.number == number => {
                racing.race.failed(&way);
                racing.failure = Some(failure);
            }
            (Some(_), _) => {}
            (None, _) => self.session.closed(Instant::now(), index, failure),
        }
    }

    /// Gives up what was ordered for an index and has no number yet.
    pub(super) fn cancel_opening(&mut self, index: u32) {
        for opening in self.opening.entry(index).or_default() {
            opening.cancelled = true;
        }
    }

    /// A connection's handshake is done.
    pub(super) async fn connected(&mut self, connection: ConnectionId) -> anyhow::Result<()> {
        let now = Instant::now();
        let Some(way) = self.race.as_mut().and_then(|racing| racing.runners.remove(&connection)) else {
            if let Some(index) = self.connections.get(&connection) {
                self.session.connected(now, *index);
            }
            return Ok(());
        };
        let purpose = self.race.as_ref().map(|racing| racing.purpose);
        self.unproven = Unproven::default();
        self.abort_race().await;
        self.exits.works(way);
        if purpose == Some(Purpose::Return) && !self.homing.answered(true) {
            self.close_quietly(connection).await;
            return Ok(());
        }
        if way.exit != self.exits.current() {
            self.change_exit(now, way.exit).await?;
        } else if purpose != Some(Purpose::Attempt) {
            self.session.change_ways(now);
            self.carry_out_all_but_connects().await?;
        }
        self.way = Some(way);
        self.remotes.insert(0, way.remote);
        self.connections.insert(connection, 0);
        self.homing.uses(now, way.exit);
        self.session.connected(now, 0);
        Ok(())
    }

    /// Leaves the exit in use for another: its session ends, and one begins whose connection 0 is there already.
    async fn change_exit(&mut self, now: Instant, place: usize) -> anyhow::Result<()> {
        let from = self.exits.exit(self.exits.current()).endpoint.to_string();
        self.session.stop(now);
        self.carry_out_all_but_connects().await?;
        self.exits.use_exit(place);
        let to = &self.exits.exit(place).endpoint;
        tracing::info!("moving from {from} to {to}");
        if self.state == State::Up {
            self.reconnects += 1;
            self.set_state(State::Reconnecting);
        }
        self.begin_session(now);
        self.carry_out_all_but_connects().await
    }

    /// The exit in use will not have this client; goes on with another, if there is one that might. A newer session of
    /// the same key is final at every exit, else two hosts with one key would fight.
    pub(super) fn goes_on_elsewhere(&mut self, stop: &Stop) -> bool {
        let for_good = matches!(stop, Stop::Requested | Stop::Goodbye(Goodbye::Replaced));
        if for_good || self.state == State::Stopping || !self.exits.refused(stop.clone()) {
            return false;
        }
        tracing::warn!("{stop}; trying {}", self.exits.exit(self.exits.current()).endpoint);
        self.begin_session(Instant::now());
        true
    }

    pub(super) fn begin_session(&mut self, now: Instant) {
        self.way = None;
        self.vigil = warren_session::client::Vigil::default();
        self.session = self.new_session();
        self.session.start(now);
    }

    pub(super) fn new_session(&self) -> ClientSession {
        ClientSession::new(self.session_config.clone(), warren_daemon::entropy::source())
    }

    /// Carries out what the session wants, but for new connections: one is there already, or none is wanted any more.
    pub(super) async fn carry_out_all_but_connects(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.session.poll_action() {
            match action {
                ClientAction::Send { index, bytes } => self.send(index, bytes).await,
                ClientAction::Close { index, reason } => self.close(index, reason).await,
                ClientAction::Detach { index } => self.detach(index).await,
                ClientAction::Connect { .. }
                | ClientAction::Welcome(_)
                | ClientAction::Attach { .. }
                | ClientAction::Down { .. }
                | ClientAction::Stopped { .. } => {}
            }
        }
        Ok(())
    }

    /// A connection is gone.
    pub(super) async fn closed(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
    ) -> anyhow::Result<()> {
        if let Some(index) = self.connections.remove(&connection) {
            tracing::debug!(index, "connection closed: {reason}");
            let end = self.end_of(self.exits.current(), reason);
            self.session.closed(Instant::now(), index, end);
            return Ok(());
        }
        let way = self.race.as_mut().and_then(|racing| racing.runners.remove(&connection));
        let Some(way) = way else { return Ok(()) };
        tracing::debug!("{} does not answer: {reason}", way.remote);
        let is_answer = matches!(reason, CloseReason::WrongPeerKey { .. } | CloseReason::NoCommonProtocol);
        let end = self.end_of(way.exit, reason);
        if let ConnectionEnd::Lost(sentence) = &end
            && is_answer
        {
            self.take_unproven(sentence.clone());
        }
        if let Some(racing) = &mut self.race {
            racing.race.failed(&way);
            racing.failure = Some(end);
        }
        self.run_race().await
    }

    async fn close_quietly(&self, connection: ConnectionId) {
        let reason = Goodbye::Superseded;
        self.worker
            .send(Command::Close { connection, code: reason.code(), reason: reason.to_string() })
            .await;
    }

    fn end_of(&self, place: usize, reason: CloseReason) -> ConnectionEnd {
        end_of(&self.exits.exit(place).endpoint, reason, self.welcome.is_some())
    }
}

/// What a look-up that failed is told with while the kill switch is closed.
const SHUT_IN: &str = ", whose resolver runs on this host itself and is shut in by the closed kill switch: set the exit's address as \
                       endpoint in the profile, or name the network's own resolver in /etc/resolv.conf";
