//! What can happen to the exit, the hosts, the network and the registry.

use std::time::{Duration, UNIX_EPOCH};

use crate::clients::Client;
use crate::message::{Attach, Hello, Message, encode};
use crate::{Goodbye, PeerKey};

use super::host::{Host, lost};
use super::network::{Packet, Wire};
use super::world::{KEYS, World};

/// One of whatever there is then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which(pub(super) u32);

impl Which {
    fn index(self, count: usize) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX) % count
    }
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Deliver(Which),
    DeliverMany(usize),
    CutBothSides(Which),
    CutClientSide(Which),
    CutExitSide(Which),
    Silence(Which),
    /// In milliseconds.
    Wait(u64),
    WaitForTimeout,
    CrashExit,
    ShutExitDown,
    StartExit,
    RestartClient(Which, bool),
    RemoveClient(Which),
    SetDisabled(Which, bool),
    AddClient(Which),
    SayToExit(Which, Vec<u8>),
    SayToClient(Which, Vec<u8>),
    /// Attach to an open session, or to one of this number, with its own key and a token that is wrong.
    ForgeAttach(u64, u32),
    /// Attach to a host's session with its token and another enrolled key.
    StealToken(Which, Which, u32),
    Stranger(bool),
}

impl World {
    pub(super) fn take(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Deliver(which) => self.deliver_any(*which),
            Step::DeliverMany(count) => (0..*count).for_each(|_| self.deliver_oldest()),
            Step::CutBothSides(which) => self.cut(*which, true, true),
            Step::CutClientSide(which) => self.cut(*which, true, false),
            Step::CutExitSide(which) => self.cut(*which, false, true),
            Step::Silence(which) => {
                if let Some(number) = self.any_wire(*which) {
                    self.network.wire(number).is_silent = true;
                }
            }
            Step::Wait(milliseconds) => self.wait_until(now + Duration::from_millis(*milliseconds)),
            Step::WaitForTimeout => self.wait_until(self.next_timeout().unwrap_or(now)),
            Step::CrashExit => self.lose_exit(),
            Step::ShutExitDown => self.shut_exit_down(),
            Step::StartExit => self.start_exit(),
            Step::RestartClient(which, politely) => {
                self.restart_client(which.index(self.hosts.len()), *politely)
            }
            Step::RemoveClient(which) => self.remove_client(which.index(4)),
            Step::SetDisabled(which, disabled) => {
                let name = format!("c{}", which.index(4) + 1);
                self.was_refused |= disabled;
                let _ = self.exit.as_mut().map(|exit| exit.set_client_disabled(now, &name, *disabled));
            }
            Step::AddClient(which) => self.add_client(which.index(4)),
            Step::SayToExit(which, bytes) => self.say_to_exit(*which, bytes),
            Step::SayToClient(which, bytes) => {
                if let Some(number) = self.any_wire(*which) {
                    self.network.wire(number).to_client.push_back(Packet::Bytes(bytes.clone()));
                }
            }
            Step::ForgeAttach(session, index) => {
                let open = self.exit.as_ref().and_then(|exit| exit.sessions().next());
                let (session, key) =
                    open.map_or((*session, PeerKey([1; 32])), |open| (open.id().0, open.key()));
                self.forge(key, Attach { session, attach_token: vec![0; 16], index: *index });
            }
            Step::StealToken(host, key, index) => {
                let host = &self.hosts[host.index(self.hosts.len())];
                let key = PeerKey([KEYS[key.index(KEYS.len())]; 32]);
                if let Some(welcome) = host.session.welcome().filter(|_| host.key != key) {
                    let attach_token = welcome.attach_token.as_bytes().to_vec();
                    self.forge(key, Attach { session: welcome.session, attach_token, index: *index });
                }
            }
            Step::Stranger(says_hello) => {
                let number = self.network.dial(PeerKey([99; 32]), None);
                let hello = Hello { version: 1, nonce: vec![1; 16], ..Default::default() };
                let bytes = if *says_hello { encode(&Message::Hello(hello)) } else { vec![0, 1] };
                Wire::send(&mut self.network.wire(number).to_exit, &bytes);
            }
        }
        self.act();
    }

    /// Asks on a connection of its own for what must not be granted.
    fn forge(&mut self, key: PeerKey, attach: Attach) {
        let number = self.network.dial(key, None);
        let wire = self.network.wire(number);
        wire.is_forger = true;
        Wire::send(&mut wire.to_exit, &encode(&Message::Attach(attach)));
    }

    fn deliver_any(&mut self, which: Which) {
        let pending = self.network.pending();
        if !pending.is_empty() {
            let (number, to_exit) = pending[which.index(pending.len())];
            self.deliver(number, to_exit);
        }
    }

    fn any_wire(&self, which: Which) -> Option<u64> {
        let numbers: Vec<_> = self.network.wires.keys().copied().collect();
        if numbers.is_empty() { None } else { Some(numbers[which.index(numbers.len())]) }
    }

    fn cut(&mut self, which: Which, client_side: bool, exit_side: bool) {
        if let Some(number) = self.any_wire(which) {
            self.cut_wire(number, client_side, exit_side);
        }
    }

    fn shut_exit_down(&mut self) {
        if let Some(exit) = &mut self.exit {
            exit.shutdown(self.now, Goodbye::Restarting);
            self.act();
            assert_eq!(self.exit.as_ref().map_or(0, |exit| exit.sessions().count()), 0);
        }
        self.lose_exit();
    }

    /// The exit is gone with all it knew; its kernel, later its successor, resets what comes.
    fn lose_exit(&mut self) {
        self.exit = None;
        for wire in self.network.wires.values_mut().filter(|wire| wire.exit_has_it) {
            (wire.exit_has_it, wire.exit_is_done) = (false, true);
            wire.to_exit.clear();
            if wire.owner.is_some() && !matches!(wire.to_client.back(), Some(Packet::Closed(_))) {
                wire.to_client.push_back(Packet::Closed(lost()));
            }
        }
    }

    /// A new process takes the place of a host's. What the old one had sent arrives before that or never: no network holds
    /// packets back for as long as a process takes to start.
    fn restart_client(&mut self, number: usize, politely: bool) {
        let dialled: Vec<_> =
            self.network.wires.iter().filter(|(_, wire)| wire.dialler == Some(number)).collect();
        let dialled: Vec<_> = dialled.into_iter().map(|(number, _)| *number).collect();
        if politely {
            self.hosts[number].session.stop(self.now);
            self.act();
        }
        for wire in dialled {
            while politely && self.network.pending().contains(&(wire, true)) {
                self.deliver(wire, true);
                self.act();
            }
            if let Some(wire) = self.network.wires.get_mut(&wire) {
                wire.owner = None;
                wire.to_client.clear();
                wire.to_exit.clear();
                wire.is_silent = true;
            }
        }
        let (key, seed) = (self.hosts[number].key, self.next_seed());
        self.hosts[number] = Host::new(number, key, seed, self.now);
    }

    fn remove_client(&mut self, number: usize) {
        self.was_refused = true;
        let Some(exit) = &mut self.exit else { return };
        if let Ok(Some(removed)) = exit.remove_client(self.now, &format!("c{}", number + 1)) {
            assert!(
                exit.sessions().all(|session| session.key() != removed.public_key),
                "a removed key has no session"
            );
            self.leases.remove(&removed.public_key);
        }
    }

    pub(super) fn add_client(&mut self, number: usize) {
        let Some(exit) = &mut self.exit else { return };
        let key = PeerKey([KEYS[number]; 32]);
        let existed = exit.registry().by_key(key).is_some();
        let added = exit.add_client(self.now, Client::new(format!("c{}", number + 1), key, UNIX_EPOCH));
        assert_eq!(added.is_err(), existed, "{added:?}");
    }

    fn say_to_exit(&mut self, which: Which, bytes: &[u8]) {
        if let Some(number) = self.any_wire(which) {
            self.network.wire(number).to_exit.push_back(Packet::Bytes(bytes.to_vec()));
        }
    }
}
