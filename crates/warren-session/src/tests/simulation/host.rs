//! One client's host: its session, its connections, and the checks that each of its actions must pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use crate::client::{ClientAction, ClientConfig, ClientSession, ClientState, Stop};
use crate::roster::{FollowedFleet, SignedRoster};
use crate::{Goodbye, PublicKey, ROSTER, UPDATES};

use super::clients_model::{client_of, network_behind};
use super::exit_model::ExitModel;
use super::network::{Network, Packet, Wire};
use super::world::random;

/// The host whose version does not accept updates.
pub(super) const OLD_VERSION: usize = 3;

/// Number of connections that each host asks for.
pub(super) const CONNECTIONS: u32 = 3;

/// A host with one client process.
pub(super) struct Host {
    pub(super) number: usize,
    pub(super) key: PublicKey,
    pub(super) session: ClientSession,
    pub(super) wires: BTreeMap<u32, u64>,
    attached: BTreeSet<u32>,
    is_welcome: bool,
    pub(super) stopped: Option<Stop>,
    /// The number of the latest announcement of the session's exit that the host has received.
    pub(super) announced: u32,
    /// The fleet that the host follows.
    fleet: Option<FollowedFleet>,
}

impl Host {
    pub(super) fn new(number: usize, key: PublicKey, seed: u64, now: Instant) -> Self {
        let config = ClientConfig {
            connections: CONNECTIONS,
            name: format!("host-{number}"),
            prefixes: vec![network_behind(client_of(key))],
            features: if number == OLD_VERSION { 0 } else { UPDATES | ROSTER },
            ..ClientConfig::default()
        };
        let mut session = ClientSession::new(config, random(seed));
        session.start(now);
        Self {
            number,
            key,
            session,
            wires: BTreeMap::new(),
            attached: BTreeSet::new(),
            is_welcome: false,
            stopped: None,
            announced: 0,
            fleet: None,
        }
    }

    /// The serial of the newest roster that the host has. 0 if it has none.
    pub(super) fn serial(&self) -> u64 {
        self.fleet.as_ref().map_or(0, |fleet| fleet.roster().serial)
    }

    fn take_roster(&mut self, signed: &[u8]) {
        match &mut self.fleet {
            // A slow connection may bring an older roster.
            Some(fleet) => drop(fleet.take(signed)),
            None => self.fleet = Some(FollowedFleet::begin(SignedRoster::decode(signed).unwrap())),
        }
        let known = self.fleet.as_ref().map(|fleet| (fleet.roster().fleet.clone(), fleet.roster().serial));
        self.session.set_fleet(known, true);
    }

    /// Checks and carries out every pending action of the session.
    pub(super) fn act(&mut self, network: &mut Network, exit: &ExitModel) {
        let mut count = 0;
        while let Some(action) = self.session.poll_action() {
            count += 1;
            assert!(count <= 10 * CONNECTIONS + 10, "one event leads to few actions: {action:?}");
            assert_eq!(self.stopped, None, "nothing follows the end: {action:?}");
            self.carry_out(action, network, exit);
        }
        match self.session.state() {
            ClientState::Up { attached } => {
                assert_eq!(usize::try_from(*attached).unwrap(), self.attached.len())
            }
            ClientState::Stopped(stop) => assert_eq!(self.stopped.as_ref(), Some(stop)),
            ClientState::Idle | ClientState::Connecting | ClientState::Down { .. } => {
                assert!(self.attached.is_empty());
                assert!(self.session.timeout().is_some(), "a client that is not up has something to try");
            }
        }
    }

    fn carry_out(&mut self, action: ClientAction, network: &mut Network, exit: &ExitModel) {
        match action {
            ClientAction::Connect { index } => {
                assert!(
                    index < CONNECTIONS && !self.wires.contains_key(&index),
                    "an index with a connection"
                );
                self.wires.insert(index, network.dial(self.key, Some((self.number, index))));
            }
            ClientAction::Send { index, bytes } => {
                let wire = network.wire(self.wires[&index]);
                Wire::send(&mut wire.to_exit, &bytes);
            }
            ClientAction::Close { index, .. } => {
                assert!(!self.attached.contains(&index), "closed while attached");
                let wire = network.wire(self.wires.remove(&index).expect("closed once"));
                wire.owner = None;
                wire.to_client.clear();
                wire.to_exit.push_back(Packet::Closed(lost()));
            }
            ClientAction::Welcome(welcome) => {
                assert!((1..=CONNECTIONS).contains(&welcome.connections) && self.attached.is_empty());
                assert!(welcome.ipv4.is_some() && welcome.ipv6.is_some());
                self.announced = announcement(&welcome.dns);
                self.is_welcome = true;
            }
            ClientAction::Changed(grant) => {
                assert!(self.is_welcome, "changed before welcome");
                let announced = announcement(&grant.dns);
                assert!(announced > self.announced, "an older announcement replaces a newer one");
                self.announced = announced;
            }
            ClientAction::ExitKeys { index, keys } => {
                assert!(self.attached.contains(&index), "keys from a connection that carries nothing");
                assert_eq!(keys.len(), 1);
            }
            ClientAction::Roster { index, roster } => {
                assert!(self.attached.contains(&index), "a roster from a connection that carries nothing");
                self.take_roster(&roster.signed);
            }
            ClientAction::Attach { index } => {
                assert!(self.is_welcome, "attached before welcome");
                assert!(self.attached.insert(index), "attached twice");
                assert!(exit.ever_attached.contains(&self.wires[&index]), "data before the exit takes it");
            }
            ClientAction::Detach { index } => {
                assert!(self.attached.remove(&index), "detached what was not attached")
            }
            ClientAction::AskedToLeave => panic!("this client has nowhere to go"),
            ClientAction::Down { reason, goodbye } => {
                assert!(self.attached.is_empty() && !reason.is_empty());
                assert!(goodbye.is_none_or(|reason| !reason.is_final()), "tries again after a final reason");
            }
            ClientAction::Stopped { reason } => {
                assert!(self.attached.is_empty() && self.wires.is_empty());
                if let Stop::Goodbye(reason) = reason {
                    assert!(reason.is_final() && reason != Goodbye::Version(None));
                }
                self.stopped = Some(reason);
            }
        }
    }

    /// The connections that carry traffic, by index.
    pub(super) fn attached(&self) -> impl Iterator<Item = (u32, u64)> {
        self.attached.iter().map(|index| (*index, self.wires[index]))
    }
}

/// The number of an announcement, read from the address of the announced resolver. 0 before the first announcement.
pub(super) fn announcement(dns: &[IpAddr]) -> u32 {
    dns.iter()
        .map(|server| if let IpAddr::V4(server) = server { server.to_bits() & 0xff_ffff } else { 0 })
        .sum()
}

/// The end of a connection without a Goodbye.
pub(super) fn lost() -> crate::client::ConnectionEnd {
    crate::client::ConnectionEnd::Lost("the connection was cut".into())
}
