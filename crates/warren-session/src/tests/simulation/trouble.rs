//! The events that can happen to the exit, the hosts, the network and the registry.

use std::time::Duration;

use crate::message::{Attach, Hello, Message, encode};
use crate::{Goodbye, PublicKey};

use super::clients_model::{CLIENTS, GUESTS, KEYS, client_of, key_of, name_of};
use super::host::{Host, lost};
use super::network::{Packet, Wire};
use super::operator::{Change, Elsewhere};
use super::store::Mood;
use super::world::World;

/// A random choice among the items that exist when the step runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which(pub(super) u32);

impl Which {
    pub(super) fn index(self, count: usize) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX) % count
    }
}

/// One event.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Deliver(Which),
    DeliverMany(usize),
    CutBothSides(Which),
    CutClientSide(Which),
    CutExitSide(Which),
    Silence(Which),
    /// A pause in milliseconds.
    Wait(u64),
    WaitForTimeout,
    CrashExit,
    ShutExitDown,
    StartExit,
    RestartClient(Which, bool),
    /// A host's process ends, with or without a Goodbye. The next process uses another key of its machine, mostly the key that
    /// the operator set.
    ChangeKey(Which, Which, bool),
    RemoveClient(Which),
    SetDisabled(Which, bool),
    AddClient(Which),
    /// A change of a client, and whether saving it succeeds.
    SetClient(Which, Change, bool),
    /// An invitation that is valid for this many seconds.
    Invite(Which, u64),
    /// Uses a token that was issued, with a key of the machine that has the token.
    Enrol(Which, Which),
    /// A step of the wall clock in seconds.
    SetClock(i64),
    SayToExit(Which, Vec<u8>),
    SayToClient(Which, Vec<u8>),
    /// Attach to an open session, or to a session of this number, with the right key and a wrong token.
    ForgeAttach(u64, u32),
    /// Attach to a host's session with its token and another host's key.
    StealToken(Which, Which, u32),
    Stranger(bool),
    /// A connection with a key that is not admitted sends Hello or Attach.
    Knock(Which, bool),
    StoreMood(Mood),
    /// The store does some of its work.
    StoreWorks(usize),
    Elsewhere(Which, Elsewhere),
    /// The exit loses its link to the store and gets another one.
    Relink,
    /// A client gets a newer session at another exit, opened by the same process or by a process on another host.
    MovedAway(Which, bool),
    /// The operator changes the resolvers.
    Announce,
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
                let number = which.index(self.hosts.len());
                self.restart_client(number, self.hosts[number].key, *politely)
            }
            Step::ChangeKey(which, key, politely) => {
                let number = which.index(self.hosts.len());
                self.restart_client(number, self.another_key(number, *key), *politely)
            }
            Step::RemoveClient(which) => self.remove_client(which.index(CLIENTS + GUESTS)),
            Step::SetDisabled(which, disabled) => self.set_disabled(which.index(CLIENTS), *disabled),
            Step::AddClient(which) => self.add_client(which.index(CLIENTS)),
            Step::SetClient(which, change, is_saved) => {
                self.change_client(which.index(CLIENTS), *change, *is_saved)
            }
            Step::Invite(which, seconds) => self.invite(*which, *seconds),
            Step::Enrol(token, key) => {
                self.enrol(*token, *key);
                if self.store.mood != Mood::Prompt {
                    // The machine uses another of its keys, while the store has not answered for the first one.
                    self.enrol(*token, Which(key.0.wrapping_add(1)));
                }
            }
            Step::SetClock(seconds) => self.step_clock(*seconds),
            Step::SayToExit(which, bytes) => self.say_to_exit(*which, bytes),
            Step::SayToClient(which, bytes) => {
                if let Some(number) = self.any_wire(*which) {
                    self.network.wire(number).to_client.push_back(Packet::Bytes(bytes.clone()));
                }
            }
            Step::ForgeAttach(session, index) => {
                let open = self.exit.as_ref().and_then(|exit| exit.sessions().next());
                let (session, key) = open.map_or((*session, key_of(0, 0)), |open| (open.id().0, open.key()));
                self.forge(key, Attach { session, attach_token: vec![0; 16], index: *index });
            }
            Step::StealToken(host, key, index) => {
                let host = &self.hosts[host.index(self.hosts.len())];
                let key = self.hosts[key.index(self.hosts.len())].key;
                if let Some(welcome) = host.session.welcome().filter(|_| host.key != key) {
                    let attach_token = welcome.attach_token.as_bytes().to_vec();
                    self.forge(key, Attach { session: welcome.session, attach_token, index: *index });
                }
            }
            Step::Stranger(says_hello) => {
                let number = self.network.dial(PublicKey([99; 32]), None);
                let hello = Hello { version: 1, nonce: vec![1; 16], ..Default::default() };
                let bytes = if *says_hello { encode(&Message::Hello(hello)) } else { vec![0, 1] };
                Wire::send(&mut self.network.wire(number).to_exit, &bytes);
            }
            Step::StoreMood(mood) => self.set_mood(*mood),
            Step::Announce => self.announce(),
            Step::StoreWorks(count) => {
                for _ in 0..*count {
                    self.store_works();
                    self.act();
                }
            }
            Step::Elsewhere(which, change) => self.change_elsewhere(*which, *change),
            Step::Relink => self.relink(),
            Step::MovedAway(which, is_same) => self.move_away(*which, *is_same),
            Step::Knock(which, says_hello) => {
                let which = which.index(CLIENTS * KEYS);
                self.knock(key_of(which % CLIENTS, which / CLIENTS), *says_hello);
            }
        }
        self.act();
        self.check_invitations();
    }

    /// One of the keys of a host's machine, mostly the one that the operator set.
    fn another_key(&self, host: usize, which: Which) -> PublicKey {
        let key = self.hosts[host].key;
        let client = client_of(key);
        match which.index(2 * KEYS) {
            own @ 0..KEYS => key_of(client, own),
            _ => {
                let known = self.clients.by_name(&name_of(client));
                known.and_then(|client| client.next_public_key).unwrap_or(key)
            }
        }
    }

    /// Sends a request that must be refused, on a connection of its own.
    fn forge(&mut self, key: PublicKey, attach: Attach) {
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

    /// The exit crashes and loses its state. The host's kernel, and later the restarted exit, reset every connection.
    fn lose_exit(&mut self) {
        if self.exit.take().is_some() {
            let loses = self.next_seed().is_multiple_of(2);
            self.store.lose_exit(loses);
            self.intended.clear();
            let is_torn = self.next_seed().is_multiple_of(4);
            if self.store.is_shared && is_torn {
                // The exit has written which rows the store may lack, but not the rows themselves.
                self.copy.rows = self.copy.before.clone();
            }
            if !self.store.is_shared || is_torn {
                self.shut.clear();
                self.gone.clear();
            }
        }
        for wire in self.network.wires.values_mut().filter(|wire| wire.exit_has_it) {
            (wire.exit_has_it, wire.exit_is_done) = (false, true);
            wire.to_exit.clear();
            if wire.owner.is_some() && !matches!(wire.to_client.back(), Some(Packet::Closed(_))) {
                wire.to_client.push_back(Packet::Closed(lost()));
            }
        }
    }

    /// Restarts a host's process. Packets of the old process arrive before the restart or never, because no network delays packets
    /// for as long as a process takes to start.
    fn restart_client(&mut self, number: usize, key: PublicKey, politely: bool) {
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
        let seed = self.next_seed();
        self.hosts[number] = Host::new(number, key, seed, self.now);
    }

    fn say_to_exit(&mut self, which: Which, bytes: &[u8]) {
        if let Some(number) = self.any_wire(which) {
            self.network.wire(number).to_exit.push_back(Packet::Bytes(bytes.to_vec()));
        }
    }
}
