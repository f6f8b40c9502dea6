//! Owns the session with the exit in use and, while the client moves, a second session. Each has its state machine, its
//! exit's grant, and the probe of its traffic.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use tokio::task::{JoinError, JoinHandle};
use warren_session::ROSTER;
use warren_session::client::{ClientConfig, ClientSession, ClientState, SessionGrant};
use warren_session::exit::SessionId;
use warren_session::roster::FleetName;

use super::connections::Which;
use super::task::finished;
use crate::probe::{EchoSockets, Identifier, Probe};
use warren_daemon::{entropy, notify};

/// A session with an exit, or the attempt to open one.
pub(super) struct Session {
    /// Decides what to send to the exit and when to try again.
    pub(super) machine: ClientSession,
    /// The exit's grant, until the session is given up or another Welcome replaces it.
    pub(super) welcome: Option<SessionGrant>,
    /// Runs from the first attached connection until the exit's inner address answers through the tunnel.
    probe: Option<JoinHandle<io::Result<()>>>,
}

/// The session with the exit in use, and a second session while the client moves.
pub(super) struct SessionPair {
    config: ClientConfig,
    pub(super) in_use: Session,
    /// The new session until it carries packets, and then the old one.
    pub(super) beside: Option<Session>,
}

impl SessionPair {
    pub(super) fn new(config: ClientConfig) -> anyhow::Result<Self> {
        let mut config = ClientConfig { nonce: Some(entropy::bytes()?), ..config };
        Ok(Self { in_use: Session::new(&mut config), config, beside: None })
    }

    /// Gives the next session a new nonce, as if another client process opened it, because an exit has replaced this client's
    /// session.
    pub(super) fn renew_nonce(&mut self) -> anyhow::Result<()> {
        self.config.nonce = Some(entropy::bytes()?);
        Ok(())
    }

    pub(super) fn of(&self, which: Which) -> Option<&Session> {
        match which {
            Which::InUse => Some(&self.in_use),
            Which::Beside => self.beside.as_ref(),
        }
    }

    pub(super) fn of_mut(&mut self, which: Which) -> Option<&mut Session> {
        match which {
            Which::InUse => Some(&mut self.in_use),
            Which::Beside => self.beside.as_mut(),
        }
    }

    /// Says whether this client can open a session at another exit beside the one in use.
    pub(super) fn set_moves_without_gap(&mut self, moves_without_gap: bool) {
        self.config.moves_without_gap = moves_without_gap;
        self.in_use.machine.set_moves_without_gap(moves_without_gap);
    }

    /// Begins a second session, whose connection 0 exists already.
    pub(super) fn begin_beside(&mut self, now: Instant) {
        let mut beside = Session::new(&mut self.config);
        beside.machine.start(now);
        // The state machine's first action is to ask for connection 0, which exists already, so its actions are dropped.
        while beside.machine.poll_action().is_some() {}
        beside.machine.connected(now, 0);
        self.beside = Some(beside);
    }

    /// Tells the exit in use that the client keeps its session there, although the client has opened another session at another
    /// exit.
    pub(super) fn stay(&mut self) {
        self.config.claim += 1;
        self.in_use.machine.stay(self.config.claim);
    }

    /// Swaps the two sessions: the second one is now in use, and the one that was in use is now the second.
    pub(super) fn swap(&mut self) {
        if let Some(beside) = &mut self.beside {
            std::mem::swap(&mut self.in_use, beside);
            // Ends the old session's probe, because its echo requests would now go through the session in use.
            beside.abort_probe();
        }
    }

    /// Makes the next Hello contain the fleet that the client follows, and whether the client knows another exit. `follows`:
    /// whether exits may send rosters.
    pub(super) fn follow_fleet(
        &mut self,
        follows: bool,
        fleet: Option<(FleetName, u64)>,
        has_other_exit: bool,
    ) {
        self.config.features =
            if follows { self.config.features | ROSTER } else { self.config.features & !ROSTER };
        self.config.fleet.clone_from(&fleet);
        self.config.has_other_exit = has_other_exit;
        self.in_use.machine.set_fleet(fleet, has_other_exit);
    }

    /// Asks the exit in use for a new session. The grant of an earlier session stays in force on the host until a new session is
    /// granted.
    pub(super) fn begin(&mut self, now: Instant) {
        self.in_use.machine = new_machine(&mut self.config);
        self.in_use.machine.start(now);
    }

    /// Stops the session in use for good. The daemon's loop ends once the state machine reports the stop.
    pub(super) fn stop_for_good(&mut self, now: Instant) {
        if self.is_over() {
            // A state machine that has already stopped reports nothing more, so the loop would wait for ever. A new state
            // machine reports the stop.
            self.in_use.machine = new_machine(&mut self.config);
        }
        self.in_use.machine.stop(now);
    }

    /// Whether the state machine of the session in use has stopped, for example after a final refusal.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.in_use.machine.state(), ClientState::Stopped(_))
    }

    /// When a state machine has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let beside = self.beside.as_ref().and_then(|beside| beside.machine.timeout());
        self.in_use.machine.timeout().into_iter().chain(beside).min()
    }

    /// Waits for the end of a session's probe. Without a probe, waits for ever. Cancelling the wait loses nothing.
    pub(super) async fn probed(&mut self) -> (Which, Result<io::Result<()>, JoinError>) {
        let mut none = None;
        let other = self.beside.as_mut().map_or(&mut none, |beside| &mut beside.probe);
        tokio::select! {
            outcome = finished(&mut self.in_use.probe) => {
                self.in_use.probe = None;
                (Which::InUse, outcome)
            }
            outcome = finished(other) => {
                *other = None;
                (Which::Beside, outcome)
            }
        }
    }
}

impl Session {
    fn new(config: &mut ClientConfig) -> Self {
        Self { machine: new_machine(config), welcome: None, probe: None }
    }

    /// The session's identifier, if the exit has granted one.
    pub(super) fn id(&self) -> Option<SessionId> {
        self.welcome.as_ref().map(|welcome| SessionId(welcome.session))
    }

    /// How many connections are attached. `None` if none is.
    pub(super) fn attached(&self) -> Option<u32> {
        let ClientState::Up { attached } = self.machine.state() else { return None };
        Some(*attached)
    }

    /// The inner addresses of this client.
    pub(super) fn leased(&self) -> Vec<IpAddr> {
        self.welcome.as_ref().map(leased).unwrap_or_default()
    }

    /// Starts to send echo requests through the device, with a socket that was opened before the sandbox. Returns false when the
    /// exit has no inner address to ask.
    pub(super) fn start_probe(&mut self, device: Option<String>, sockets: &EchoSockets) -> bool {
        let probe = self.welcome.as_ref().and_then(Probe::of);
        let (Some(probe), Some(device), Ok(identifier)) = (probe, device, Probe::identifier()) else {
            return false;
        };
        // Users see this while they wait.
        notify::status(&format!("{} does not answer through the tunnel; see the exit's log", probe.gateway));
        self.start_probe_as(sockets, device, (probe, identifier));
        true
    }

    /// Starts to send echo requests with an identifier. During a move, the workers recognise these requests by their identifier
    /// and send them on this session.
    pub(super) fn start_probe_as(
        &mut self,
        sockets: &EchoSockets,
        device: String,
        (probe, identifier): (Probe, Identifier),
    ) {
        self.probe = Some(tokio::spawn(probe.answered_as(sockets.clone(), device, identifier)));
    }

    /// Ends this session's probe.
    pub(super) fn abort_probe(&mut self) {
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abort_probe();
    }
}

/// The inner addresses that a Welcome gives this client.
pub(super) fn leased(welcome: &SessionGrant) -> Vec<IpAddr> {
    let ipv4 = welcome.ipv4.map(|(address, _)| IpAddr::V4(address));
    let ipv6 = welcome.ipv6.map(|(address, _)| IpAddr::V6(address));
    ipv4.into_iter().chain(ipv6).collect()
}

fn new_machine(config: &mut ClientConfig) -> ClientSession {
    // By this number, the exits of a fleet can tell which of a client's sessions is the newest.
    config.claim += 1;
    ClientSession::new(config.clone(), entropy::source())
}
