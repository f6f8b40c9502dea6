//! The client. It owns sessions, and carries out the sessions' actions and the steps of its moves. The client's daemon does the
//! same with real connections, in `warren-client/src/daemon/sessions/moving.rs`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use warren_simulation::Random;

use super::world::{Packet, World};
use crate::client::{
    ClientAction, ClientConfig, ClientSession, ClientState, Moves, SessionGrant, Step, Watched, Which,
};
use crate::{Entropy, Goodbye, ROSTER};

const CONNECTIONS: u32 = 2;
/// The exit in use may be silent for this long before the client looks for another exit. The daemon is faster.
const SCOUT_AFTER: Duration = Duration::from_secs(3);

/// One session.
pub(super) struct Side {
    pub(super) number: u64,
    pub(super) exit: usize,
    pub(super) machine: ClientSession,
    pub(super) welcome: Option<SessionGrant>,
    /// Whether an echo through the session was answered since the session last had no connection.
    pub(super) has_carried: bool,
}

pub(super) struct Client {
    pub(super) in_use: Side,
    pub(super) beside: Option<Side>,
    pub(super) moves: Moves,
    /// Whether the status says that the tunnel is up.
    pub(super) is_shown_up: bool,
    /// How often the tunnel was lost.
    pub(super) downs: u32,
    /// The sessions through which an echo is under way.
    pub(super) probing: BTreeSet<u64>,
    /// Whether there is a device to send an echo through.
    pub(super) has_device: bool,
    /// Number of flows at the old exit.
    pub(super) flows: usize,
    pub(super) nonce: [u8; 16],
    /// The exit that has just refused the client.
    avoided: Option<usize>,
    /// Whether the exit in use is silent.
    is_silent: bool,
    claim: u64,
    numbers: u64,
    seed: u64,
}

impl Side {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.machine.state(), ClientState::Up { .. })
    }
}

impl Client {
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        let nonce = [7; 16];
        let mut machine = machine(nonce, 1, seed);
        machine.start(now);
        let in_use = Side { number: 1, exit: 0, machine, welcome: None, has_carried: false };
        Self {
            in_use,
            beside: None,
            moves: Moves::default(),
            is_shown_up: false,
            downs: 0,
            probing: BTreeSet::new(),
            has_device: true,
            flows: 0,
            nonce,
            avoided: None,
            is_silent: false,
            claim: 1,
            numbers: 1,
            seed,
        }
    }

    pub(super) fn with_number(&mut self, number: u64) -> Option<&mut Side> {
        [Some(&mut self.in_use), self.beside.as_mut()]
            .into_iter()
            .flatten()
            .find(|side| side.number == number)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.in_use.machine.handle_timeout(now);
        if let Some(beside) = &mut self.beside {
            beside.machine.handle_timeout(now);
        }
    }

    /// Handles the answer to an echo.
    pub(super) fn answered(&mut self, now: Instant, which: Which) {
        let Some(number) = self.side(which).map(|side| side.number) else { return };
        self.probing.remove(&number);
        self.with_number(number).into_iter().for_each(|side| side.has_carried = true);
        self.moves.answered(now, which);
        if self.moves.is_proven(Which::InUse) && which == Which::InUse {
            self.is_shown_up = true;
        }
    }

    fn side(&self, which: Which) -> Option<&Side> {
        match which {
            Which::InUse => Some(&self.in_use),
            Which::Beside => self.beside.as_ref(),
        }
    }

    /// A session whose connection 0 exists already.
    fn begin(&mut self, now: Instant, exit: usize) -> Side {
        self.numbers += 1;
        self.claim += 1;
        let mut machine = machine(self.nonce, self.claim, self.seed + self.numbers);
        machine.start(now);
        while machine.poll_action().is_some() {}
        machine.connected(now, 0);
        Side { number: self.numbers, exit, machine, welcome: None, has_carried: false }
    }

    fn probe(&mut self, now: Instant, which: Which) -> bool {
        let number = self.side(which).map(|side| side.number);
        let Some(number) = number.filter(|_| self.has_device) else {
            self.moves.unanswered(now, which);
            return false;
        };
        self.probing.insert(number);
        self.moves.asks(which);
        true
    }

    fn ask_for_echo(&mut self, now: Instant) {
        if !self.is_shown_up && !self.moves.is_asking(Which::InUse) && !self.probe(now, Which::InUse) {
            self.is_shown_up = true;
        }
    }

    fn loses_tunnel(&mut self) {
        self.downs += u32::from(std::mem::take(&mut self.is_shown_up));
    }

    fn forget_proof(&mut self) {
        self.probing.remove(&self.in_use.number);
        self.in_use.has_carried = false;
        self.moves.lost(Which::InUse);
    }
}

impl World {
    /// Carries out the actions of the client's sessions and the steps of its move. Returns whether there were any.
    pub(super) fn follow_client(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(action) = self.client.in_use.machine.poll_action() {
            is_busy = true;
            self.carry_out(action);
        }
        while let Some(action) = self.client.beside.as_mut().and_then(|beside| beside.machine.poll_action()) {
            is_busy = true;
            self.carry_out_beside(action);
        }
        while let Some(step) = self.next_step() {
            is_busy = true;
            self.take_step(step);
        }
        is_busy
    }

    fn carry_out(&mut self, action: ClientAction) {
        let now = self.now;
        match action {
            ClientAction::Connect { index: 0 } => self.attempt(),
            ClientAction::Connect { index } => {
                self.dial(self.client.in_use.exit, (self.client.in_use.number, index), false);
            }
            ClientAction::Welcome(welcome) => {
                self.end_move();
                self.client.moves.stay();
                self.client.in_use.welcome = Some(*welcome);
            }
            ClientAction::Attach { .. } => {
                let client = &mut self.client;
                client.avoided = None;
                client.ask_for_echo(now);
            }
            ClientAction::AskedToLeave => {
                self.client.moves.asked_to_leave(now, Duration::from_millis(300));
            }
            ClientAction::Down { goodbye, .. } if !self.takes_over() => {
                let client = &mut self.client;
                if matches!(goodbye, Some(Goodbye::Restarting | Goodbye::Draining | Goodbye::Full)) {
                    client.avoided = Some(client.in_use.exit);
                }
                client.forget_proof();
                client.loses_tunnel();
            }
            ClientAction::Stopped { reason } => panic!("the client has stopped: {reason}"),
            other => self.carry_out_last(Which::InUse, other),
        }
    }

    fn carry_out_beside(&mut self, action: ClientAction) {
        let is_building = self.client.moves.is_building();
        match action {
            ClientAction::Connect { index } => {
                let Some(beside) = &self.client.beside else { return };
                self.dial(beside.exit, (beside.number, index), false);
            }
            ClientAction::Welcome(welcome) => {
                let Some(own) = &self.client.in_use.welcome else { return self.end_move() };
                if !is_building {
                    return self.end_move();
                }
                self.client.moves.granted(own.ipv4 == welcome.ipv4);
                self.client.beside.iter_mut().for_each(|beside| beside.welcome = Some((*welcome).clone()));
            }
            ClientAction::AskedToLeave if is_building => self.give_up(),
            ClientAction::Down { .. } | ClientAction::Stopped { .. } => match is_building {
                true => self.give_up(),
                false => self.end_old(),
            },
            other => self.carry_out_last(Which::Beside, other),
        }
    }

    fn carry_out_last(&mut self, which: Which, action: ClientAction) {
        let Some(number) = self.client.side(which).map(|side| side.number) else { return };
        match action {
            ClientAction::Send { index, bytes } => {
                if let Some(wire) = self.wire_of((number, index)) {
                    wire.to_exit.push_back(Packet::Bytes(bytes));
                }
            }
            ClientAction::Close { index, reason } => {
                if let Some(wire) = self.wire_of((number, index)) {
                    wire.owner = None;
                    wire.to_exit.push_back(Packet::Closed(crate::client::ConnectionEnd::Goodbye(reason)));
                }
            }
            _ => {}
        }
    }

    /// Looks for an exit for connection 0 of the session in use.
    fn attempt(&mut self) {
        let (exit, number) = (self.client.in_use.exit, self.client.in_use.number);
        let is_better = |exit: usize| self.is_reachable(exit) && self.client.avoided != Some(exit);
        if is_better(exit) || !self.is_reachable(1 - exit) {
            self.dial(exit, (number, 0), false);
        } else {
            self.change_exit(1 - exit);
        }
    }

    /// Leaves the exit in use for another. The old session ends, and a new one begins.
    fn change_exit(&mut self, exit: usize) {
        self.end_move();
        self.stop(Which::InUse);
        self.client.forget_proof();
        self.client.loses_tunnel();
        let welcome = self.client.in_use.welcome.take();
        self.client.in_use = Side { welcome, ..self.client.begin(self.now, exit) };
        self.dial(exit, (self.client.in_use.number, 0), true);
    }

    /// Looks for another exit if the exit in use has been silent for a while, and records that it is silent.
    pub(super) fn scout(&mut self) {
        let (exit, is_up) = (self.client.in_use.exit, self.client.in_use.is_up());
        match self.silent_since(exit).filter(|_| is_up) {
            Some(since) => {
                self.client.loses_tunnel();
                self.client.is_silent = true;
                if self.now >= since + SCOUT_AFTER && self.is_reachable(1 - exit) {
                    self.change_exit(1 - exit);
                }
            }
            None => {
                let is_back = std::mem::take(&mut self.client.is_silent) && is_up;
                self.client.is_shown_up |= is_back && !self.client.moves.is_asking(Which::InUse);
            }
        }
    }

    /// Begins a move, because a better exit was found.
    pub(super) fn improve(&mut self) {
        let exit = 1 - self.client.in_use.exit;
        let moves = &self.client.moves;
        if self.client.is_shown_up && moves.may_improve(self.now) && moves.may_go(self.now, false, exit) {
            self.begin_move(exit);
        }
        self.act();
    }

    fn begin_move(&mut self, exit: usize) {
        let is_ready = self.client.is_shown_up && self.client.in_use.welcome.is_some();
        if !is_ready || self.client.moves.is_building() || !self.is_reachable(exit) {
            return;
        }
        self.end_move();
        let beside = self.client.begin(self.now, exit);
        self.dial(exit, (beside.number, 0), true);
        self.client.beside = Some(beside);
        self.client.moves.begin(self.now, exit);
    }

    pub(super) fn watched(&self, which: Which) -> Watched {
        let Some(side) = self.client.side(which) else { return Watched::default() };
        let ClientState::Up { attached } = side.machine.state() else { return Watched::default() };
        let granted = side.welcome.as_ref().map_or(0, |welcome| welcome.connections);
        Watched { is_up: true, has_all: *attached >= granted, silent_since: self.silent_since(side.exit) }
    }

    fn next_step(&mut self) -> Option<Step> {
        let (in_use, beside) = (self.watched(Which::InUse), self.watched(Which::Beside));
        let flows = self.client.flows;
        self.client.moves.next(self.now, in_use, beside, || flows)
    }

    fn takes_over(&mut self) -> bool {
        let takes_over = self.client.moves.is_building() && self.next_step() == Some(Step::Switch);
        if takes_over {
            self.switch();
        }
        takes_over
    }

    fn take_step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Race if self.client.is_shown_up => self.begin_move(1 - self.client.in_use.exit),
            Step::Race => {}
            Step::Probe(which) => {
                self.client.probe(now, which);
            }
            Step::Switch => self.switch(),
            Step::SwitchBack(_) => {
                self.client.moves.switched_back(now);
                self.change_places();
                self.give_up();
                self.client.is_shown_up = true;
            }
            Step::GiveUp(_) => self.give_up(),
            Step::End(why) => {
                self.check_left(why);
                self.end_old();
            }
        }
    }

    /// Ends the old session. The one in use may have been on trial until now.
    fn end_old(&mut self) {
        self.end_move();
        if self.client.in_use.is_up() {
            self.client.ask_for_echo(self.now);
        }
    }

    fn switch(&mut self) {
        self.check_switch();
        self.client.moves.switched(self.now);
        self.change_places();
        let client = &mut self.client;
        if client.moves.is_proven(Which::InUse) {
            client.is_shown_up = true;
            return;
        }
        client.loses_tunnel();
        if !client.moves.is_trying() {
            client.ask_for_echo(self.now);
        }
    }

    fn change_places(&mut self) {
        let client = &mut self.client;
        let Some(beside) = &mut client.beside else { return };
        std::mem::swap(&mut client.in_use, beside);
        client.probing.remove(&beside.number);
        client.moves.lost(Which::Beside);
    }

    fn give_up(&mut self) {
        self.client.moves.give_up(self.now);
        self.end_move();
    }

    fn end_move(&mut self) {
        if !self.client.moves.is_under_way() {
            return;
        }
        if self.client.moves.end() {
            self.client.claim += 1;
            let claim = self.client.claim;
            self.client.in_use.machine.stay(claim);
        }
        self.stop(Which::Beside);
        if let Some(beside) = self.client.beside.take() {
            self.client.probing.remove(&beside.number);
        }
    }

    /// Ends a session, and closes its connections.
    fn stop(&mut self, which: Which) {
        let now = self.now;
        let side = match which {
            Which::InUse => Some(&mut self.client.in_use),
            Which::Beside => self.client.beside.as_mut(),
        };
        let Some(side) = side else { return };
        side.machine.stop(now);
        let last: Vec<_> = std::iter::from_fn(|| side.machine.poll_action()).collect();
        last.into_iter().for_each(|action| self.carry_out_last(which, action));
    }
}

fn machine(nonce: [u8; 16], claim: u64, seed: u64) -> ClientSession {
    let config = ClientConfig {
        connections: CONNECTIONS,
        features: ROSTER,
        has_other_exit: true,
        nonce: Some(nonce),
        claim,
        moves_without_gap: true,
        ..ClientConfig::default()
    };
    ClientSession::new(config, random(seed))
}

/// A source of random bytes that are the same for each run of a seed.
pub(super) fn random(seed: u64) -> Entropy {
    let mut random = Random::new(seed);
    Box::new(move |bytes| random.fill(bytes))
}
