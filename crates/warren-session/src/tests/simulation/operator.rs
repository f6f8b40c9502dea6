//! The operator's changes while the exit runs, the requests of machines besides sessions, and the wall clock.

use std::time::{Duration, UNIX_EPOCH};

use crate::clients::{Client, Invitation, RateLimit};
use crate::exit::ExitSessions;
use crate::message::{Attach, Enrol, Hello, Message, encode};
use crate::{Goodbye, PublicKey};

use super::clients_model::{CLIENTS, KEYS, key_of, name_of, network_behind};
use super::network::Wire;
use super::trouble::Which;
use super::world::World;

/// An operator's change of a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// The next key: one of its machine's keys, another client's key, or its current one, which cancels a rotation.
    NextKey(Which),
    /// The last byte of its static address, which may be the exit's own or another client's. 0 removes the static address.
    Ipv4(u8),
    /// The networks behind it, which may overlap another client's or the exit's own.
    Prefixes(Which),
    RateLimit(Which),
}

impl World {
    /// Changes a client if the change is valid. A change that cannot be saved must not be in force.
    pub(super) fn set_client(&mut self, number: usize, is_saved: bool, change: impl FnOnce(&mut Client)) {
        let Some(exit) = &mut self.exit else { return };
        let (now, name) = (self.now, name_of(number));
        let Some(before) = self.clients.by_name(&name) else {
            assert!(exit.set_client(now, &name, |_| {}).is_err(), "there is no {name}");
            return;
        };
        let mut after = before.clone();
        change(&mut after);
        let has_to_take = self.clients.takes(&after, exit);
        let chosen = after.clone();
        let set = |exit: &mut ExitSessions| {
            exit.set_client(now, &name, |client| {
                (client.next_public_key, client.ipv4) = (chosen.next_public_key, chosen.ipv4);
                (client.prefixes, client.rate_limit) = (chosen.prefixes, chosen.rate_limit);
            })
        };
        if is_saved {
            let outcome = exit.attempt(set);
            assert_eq!(outcome.is_ok(), has_to_take, "{after:?}: {outcome:?}");
            if has_to_take {
                self.clients.replace(after);
            }
            return;
        }
        let (registry, due) = (exit.registry().clone(), exit.timeout());
        let outcome: Result<(), bool> = exit.attempt(|exit| Err(set(exit).is_ok()));
        assert_eq!(outcome, Err(has_to_take), "{after:?}");
        assert_eq!((exit.registry(), exit.timeout()), (&registry, due), "what was not saved is undone");
        assert_eq!(exit.poll_action(), None, "nobody hears of what was not saved");
    }

    pub(super) fn change_client(&mut self, number: usize, change: Change, is_saved: bool) {
        let neighbour = (number + 1) % CLIENTS;
        let neighbours_key = self.clients.by_name(&name_of(neighbour)).map(|client| client.public_key);
        self.set_client(number, is_saved, |client| match change {
            Change::NextKey(which) => {
                let next = match which.index(KEYS + 2) {
                    own @ 0..KEYS => key_of(number, own),
                    KEYS => neighbours_key.unwrap_or(client.public_key),
                    _ => client.public_key,
                };
                client.next_public_key = Some(next).filter(|next| *next != client.public_key);
            }
            Change::Ipv4(last) => {
                client.ipv4 = Some(last % 8).filter(|last| *last != 0).map(|last| [10, 66, 0, last].into());
            }
            Change::Prefixes(which) => {
                client.prefixes = match which.index(6) {
                    0 => vec![],
                    1 | 2 => vec![network_behind(number)],
                    3 => vec![network_behind(neighbour)],
                    4 => vec!["192.168.0.0/16".parse().unwrap()],
                    _ => vec![network_behind(number), "10.66.0.0/30".parse().unwrap()],
                };
            }
            Change::RateLimit(which) => {
                client.rate_limit = RateLimit::new(64_000 * u64::try_from(which.index(3)).unwrap());
            }
        });
    }

    pub(super) fn set_disabled(&mut self, number: usize, disabled: bool) {
        let Some(exit) = &mut self.exit else { return };
        let is_set = exit.set_client_disabled(self.now, &name_of(number), disabled).is_ok();
        assert_eq!(is_set, self.clients.set_disabled(&name_of(number), disabled));
    }

    /// Enrols a client with its host's key, allowing the key again if it was removed before.
    pub(super) fn add_client(&mut self, number: usize) {
        let Some(exit) = &mut self.exit else { return };
        let client = Client::new(name_of(number), self.hosts[number].key, UNIX_EPOCH);
        let existed = self.clients.by_name(&client.name).is_some();
        if !existed && self.clients.is_removed(client.public_key) {
            assert!(exit.add_client(self.now, client.clone()).is_err(), "a removed key comes back by itself");
            exit.allow_key(client.public_key);
            self.clients.allow(client.public_key);
        }
        let added = exit.add_client(self.now, client.clone());
        assert_eq!(added.is_err(), existed, "{added:?}");
        if !existed {
            self.clients.add(client);
        }
    }

    pub(super) fn remove_client(&mut self, number: usize) {
        let Some(exit) = &mut self.exit else { return };
        let removed = exit.remove_client(self.now, &name_of(number)).ok();
        let expected = self.clients.remove(&name_of(number));
        let key =
            |removed: Option<Option<Client>>| removed.map(|client| client.map(|client| client.public_key));
        let (removed, expected) = (key(removed), key(expected));
        assert_eq!(removed, expected);
        if let Some(Some(key)) = removed {
            assert!(exit.sessions().all(|session| session.key() != key), "a removed key has no session");
        }
    }

    /// Invites a client's machine for some seconds. The client is mostly not enrolled.
    pub(super) fn invite(&mut self, which: Which, seconds: u64) {
        let absent = self.clients.absent();
        let number = absent.get(which.index(absent.len() + 1)).copied().unwrap_or(0);
        let wall = self.wall();
        let Some(exit) = &mut self.exit else { return };
        // The file has whole seconds.
        let since_epoch = Duration::from_secs(wall.duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds);
        let expires = UNIX_EPOCH + since_epoch;
        let token_sha256 = self.clients.next_token().digest();
        let invitation = Invitation { name: name_of(number), token_sha256, expires, used_by: None };
        let invited = exit.invite(self.now, invitation);
        assert_eq!(invited.is_ok(), self.clients.invite(number, expires, wall), "{invited:?}");
    }

    /// A machine presents a token that it was given at some time, with one of its keys.
    pub(super) fn enrol(&mut self, which: Which, key: Which) {
        let tokens = self.clients.tokens();
        if tokens.is_empty() {
            return;
        }
        let (token, client) = tokens[which.index(tokens.len())];
        let key = match key.index(2 * KEYS) {
            own @ 0..KEYS => key_of(client, own),
            _ if client < CLIENTS => self.hosts[client].key,
            _ => key_of(client, 0),
        };
        let message = Message::Enrol(Enrol { token: token.to_wire(), name: String::new() });
        let Some(number) = self.ask(key, &message) else { return };
        let name = self.clients.redeem(token, key, self.wall());
        self.act();
        assert_eq!(self.model.enrolled.get(&number), name.as_ref(), "by {token:?}");
        let refusal = self.model.closed_with(number);
        assert_eq!(refusal, name.is_none().then_some(Goodbye::InvitationVoid));
    }

    /// A connection proves a key that is not admitted and is refused at once: an old key, a next key that the operator has not
    /// set, or a disabled client's key.
    pub(super) fn knock(&mut self, key: PublicKey, says_hello: bool) {
        let Some(refusal) = self.clients.refusal(key, says_hello) else { return };
        let hello = Hello { version: crate::PROTOCOL_VERSION, nonce: vec![2; 16], ..Default::default() };
        let attach = Attach { session: 0, attach_token: vec![0; 16], index: 0 };
        let message = if says_hello { Message::Hello(hello) } else { Message::Attach(attach) };
        let Some(number) = self.ask(key, &message) else { return };
        self.act();
        assert_eq!(self.model.closed_with(number), Some(refusal), "{key} is refused");
    }

    /// Steps the wall clock, which must not affect the exit's sessions.
    pub(super) fn step_clock(&mut self, seconds: i64) {
        self.set_clock(seconds);
        let wall = self.wall();
        let Some(exit) = &mut self.exit else { return };
        let due = exit.timeout();
        exit.set_wall_clock(self.now, wall);
        assert_eq!(exit.poll_action(), None, "a step of the clock ends nothing");
        assert_eq!(exit.timeout(), due, "a step of the clock moves no deadline");
    }

    /// Checks that the open invitations are those that were given out, regardless of clock steps.
    pub(super) fn check_invitations(&self) {
        let Some(exit) = &self.exit else { return };
        let open = exit.registry().open_invitations(self.wall());
        let names: Vec<_> = open.into_iter().map(|invitation| invitation.name.as_str()).collect();
        assert_eq!(names, self.clients.open_invitations(self.wall()));
    }

    /// Sends one message on a connection of its own, which is established at once. `None` if the exit is down or refuses the
    /// connection.
    fn ask(&mut self, key: PublicKey, message: &Message) -> Option<u64> {
        self.exit.as_ref()?;
        let number = self.network.dial(key, None);
        let wire = self.network.wire(number);
        wire.is_forger = true;
        Wire::send(&mut wire.to_exit, &encode(message));
        self.deliver(number, true);
        self.act();
        if self.model.closed_with(number).is_some() {
            return None;
        }
        while !self.network.wire(number).to_exit.is_empty() {
            self.deliver(number, true);
        }
        Some(number)
    }
}
