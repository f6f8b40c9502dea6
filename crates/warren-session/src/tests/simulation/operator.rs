//! The operator's changes while the exit runs, the requests that machines make outside of sessions, and the wall clock.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, UNIX_EPOCH};

use crate::clients::{Client, ClientChange, ClientRegistry, Invitation, RateLimit, RegistryError};
use crate::exit::{AdminError, Announced};
use crate::invite::InviteToken;
use crate::message::{Attach, Enrol, Hello, Message, encode};
use crate::pool::Lease;
use crate::{Goodbye, PublicKey};

use super::clients_model::{CLIENTS, ClientsModel, GUESTS, KEYS, client_of, key_of, name_of, network_behind};
use super::host::announcement;
use super::network::Wire;
use super::rosters::{ROSTERS, roster};
use super::store::Mood;
use super::trouble::Which;
use super::world::{SHARED, World};

/// An operator's change of a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Sets the next key: a key of the client's machine, another client's key, or the client's current key, which cancels a
    /// rotation.
    NextKey(Which),
    /// Sets the last byte of the static address, which may be the exit's own or another client's. 0 removes the static address.
    Ipv4(u8),
    /// Sets the networks behind the client, which may overlap another client's or the exit's own.
    Prefixes(Which),
    RateLimit(Which),
}

/// A change by another exit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Elsewhere {
    Add,
    Remove,
    Disable,
    Enable,
    /// Enrols a client with a token that was issued.
    Enrol,
    /// Gives a client a static address that is another client's sticky address.
    TakeAddress,
    /// Gives a client addresses from the other exit's pool, because the client connects there.
    Lease,
}

impl World {
    /// Changes a client if the change is valid. A change that cannot be saved must not be in force.
    pub(super) fn set_client(&mut self, number: usize, is_saved: bool, change: impl FnOnce(&mut Client)) {
        let Some(exit) = &mut self.exit else { return };
        let name = name_of(number);
        let Some(before) = self.clients.by_name(&name) else {
            assert!(exit.set_client(&name, |_| {}).is_err(), "there is no {name}");
            return;
        };
        let mut after = before.clone();
        change(&mut after);
        let has_to_take = self.clients.takes(&after, exit);
        let chosen = after.clone();
        let outcome = exit.set_client(&name, |client| {
            (client.next_public_key, client.ipv4) = (chosen.next_public_key, chosen.ipv4);
            (client.prefixes, client.rate_limit) = (chosen.prefixes, chosen.rate_limit);
        });
        if outcome == Err(AdminError::Busy) {
            assert!(!self.store.is_idle(), "busy with nothing");
            return;
        }
        assert_eq!(outcome.is_ok(), has_to_take, "{after:?}: {outcome:?}");
        let Ok(Some(id)) = outcome else { return };
        let registry = exit.registry().clone();
        self.intended.insert(id, Box::new(|clients| clients.replace(after)));
        self.store.refuses_next = !is_saved && self.store.mood == Mood::Prompt;
        let is_refused = self.store.refuses_next;
        self.act();
        if let Some(exit) = self.exit.as_ref().filter(|_| is_refused) {
            assert_eq!(exit.registry(), &registry, "what was not stored is not in force");
        }
    }

    /// Announces another resolver, whose address contains the announcement's number, and sends the next roster to clients.
    pub(super) fn announce(&mut self) {
        let Some(exit) = &mut self.exit else { return };
        let before = exit.announced();
        let number = announcement(&before.dns) + 1;
        let server = Ipv4Addr::from_bits(0x0900_0000 | number);
        exit.announce(Announced { dns: vec![server.into()], ..before }).unwrap();
        if self.roster < ROSTERS {
            self.roster += 1;
            exit.set_roster(roster(self.roster).as_bytes()).unwrap();
        }
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
        let name = name_of(number);
        let change = if disabled { ClientChange::Disable } else { ClientChange::Enable };
        let outcome = exit.change_client(self.now, &name, &change);
        if outcome == Err(AdminError::Busy) {
            return assert!(!self.store.is_idle(), "busy with nothing");
        }
        assert_eq!(outcome.is_ok(), self.clients.by_name(&name).is_some());
        if disabled && outcome.is_ok() {
            self.clients.set_disabled(&name, true);
            self.shut.insert(name);
        } else if let Ok(Some(id)) = outcome {
            self.shut.remove(&name);
            self.intended.insert(id, Box::new(move |clients| _ = clients.set_disabled(&name, false)));
        }
        self.act();
    }

    /// Enrols a client with its host's key, allowing the key again if it was removed before.
    pub(super) fn add_client(&mut self, number: usize) {
        let Some(exit) = &mut self.exit else { return };
        let client = Client::new(name_of(number), self.hosts[number].key, UNIX_EPOCH);
        let key = client.public_key;
        let existed = self.clients.by_name(&client.name).is_some();
        let is_removed = !existed && self.clients.is_removed(key);
        if is_removed {
            assert!(exit.add_client(client.clone(), None).is_err(), "a removed key comes back by itself");
        }
        let outcome = exit.add_client(client.clone(), is_removed.then_some(key));
        if outcome == Err(AdminError::Busy) {
            return assert!(!self.store.is_idle(), "busy with nothing");
        }
        assert_eq!(outcome.is_err(), existed, "{outcome:?}");
        let Ok(Some(id)) = outcome else { return };
        self.shut.remove(&client.name);
        self.gone.remove(&key);
        let intent = move |clients: &mut ClientsModel| {
            clients.allow(key);
            clients.add(client);
        };
        self.intended.insert(id, Box::new(intent));
        self.act();
    }

    pub(super) fn remove_client(&mut self, number: usize) {
        let Some(exit) = &mut self.exit else { return };
        self.shut.remove(&name_of(number));
        let key = exit.registry().by_name(&name_of(number)).map(|client| client.public_key);
        let removed = exit.remove_client(self.now, &name_of(number));
        if removed.is_ok() {
            self.gone.extend(key);
        }
        if removed == Err(AdminError::Busy) {
            return assert!(!self.store.is_idle(), "busy with nothing");
        }
        if !self.store.is_idle() {
            // An enrolment that is not stored yet may have been withdrawn, which the model does not know.
            self.resync();
            return;
        }
        let removed = removed.ok().map(|(client, _)| client);
        let expected = self.clients.remove(&name_of(number));
        let key =
            |removed: Option<Option<Client>>| removed.map(|client| client.map(|client| client.public_key));
        let (removed, expected) = (key(removed), key(expected));
        assert_eq!(removed, expected);
        if let Some(Some(key)) = removed {
            assert!(exit.sessions().all(|session| session.key() != key), "a removed key has no session");
        }
    }

    /// Invites a client's machine for some seconds. In most cases, the client is not enrolled.
    pub(super) fn invite(&mut self, which: Which, seconds: u64) {
        let absent = self.clients.absent();
        let number = absent.get(which.index(absent.len() + 1)).copied().unwrap_or(0);
        let wall = self.wall();
        let Some(exit) = &mut self.exit else { return };
        // The file stores times in whole seconds.
        let since_epoch = Duration::from_secs(wall.duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds);
        let expires = UNIX_EPOCH + since_epoch;
        let token_sha256 = self.clients.next_token().digest();
        let invitation =
            Invitation { name: name_of(number), token_sha256, expires, used_by: None, upgrades: None };
        let invited = exit.invite(self.now, invitation);
        if invited == Err(AdminError::Busy) {
            return assert!(!self.store.is_idle(), "busy with nothing");
        }
        self.clients.give_token(number);
        assert_eq!(invited.is_ok(), self.clients.by_name(&name_of(number)).is_none(), "{invited:?}");
        if let Ok(Some(id)) = invited {
            self.intended.insert(id, Box::new(move |clients| _ = clients.invite(number, expires, wall)));
        }
        self.act();
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
        let is_calm = self.store.is_idle() && self.store.mood == Mood::Prompt;
        let is_admitted = self.clients.admits_token(token, key, self.wall());
        let Some(number) = self.ask(key, &message, Some(token)) else { return };
        self.act();
        let (name, refusal) = (self.model.enrolled.get(&number), self.model.closed_with(number));
        if is_calm && is_admitted {
            let own = self.clients.by_key(key).map(|client| &client.name);
            assert!(name.is_some() && name == own, "by {token:?}: {refusal:?}");
        }
        match refusal {
            None => assert!(is_admitted || !is_calm, "a void token is refused"),
            Some(Goodbye::InvitationVoid) => assert!(!is_admitted, "a token is refused"),
            Some(refusal) => assert!(refusal == Goodbye::NotStored && !is_calm, "{refusal:?}"),
        }
    }

    /// A connection proves a key that is not admitted and is refused at once: an old key, a next key that the operator has not
    /// set, or a disabled client's key.
    pub(super) fn knock(&mut self, key: PublicKey, says_hello: bool) {
        let Some(refusal) = self.clients.refusal(key, says_hello) else { return };
        let hello = Hello { version: crate::PROTOCOL_VERSION, nonce: vec![2; 16], ..Default::default() };
        let attach = Attach { session: 0, attach_token: vec![0; 16], index: 0 };
        let message = if says_hello { Message::Hello(hello) } else { Message::Attach(attach) };
        let Some(number) = self.ask(key, &message, None) else { return };
        self.act();
        assert_eq!(self.model.closed_with(number), Some(refusal), "{key} is refused");
    }

    /// Another exit or its operator changes a client in the store.
    pub(super) fn change_elsewhere(&mut self, which: Which, change: Elsewhere) {
        if !self.store.is_shared {
            return;
        }
        let is_about_addresses = matches!(change, Elsewhere::TakeAddress | Elsewhere::Lease);
        let number = which.index(if is_about_addresses { CLIENTS } else { CLIENTS + GUESTS });
        let (name, wall, neighbour) = (name_of(number), self.wall(), name_of((number + 1) % CLIENTS));
        let key = if number < CLIENTS { self.hosts[number].key } else { key_of(number, 0) };
        if !is_about_addresses {
            self.gone.remove(&key);
            self.shut.remove(&name);
        }
        let mut tokens = self.clients.tokens().iter().rev();
        let token = tokens.find(|(_, client)| *client == number).map(|(token, _)| *token);
        self.store.change_elsewhere(|registry| match change {
            Elsewhere::Add => registry.add(Client::new(name, key, UNIX_EPOCH)),
            Elsewhere::Remove => registry.remove(&name, wall).map(drop),
            Elsewhere::Disable => registry.change(&name, &ClientChange::Disable),
            Elsewhere::Enable => registry.change(&name, &ClientChange::Enable),
            Elsewhere::Enrol => {
                token.map(|token| registry.redeem(&token, key, wall));
                Ok(())
            }
            Elsewhere::TakeAddress => {
                let taken = registry.by_name(&neighbour).and_then(|client| client.leased_ipv4);
                let client = registry.by_name(&name).cloned();
                let client = client.ok_or(RegistryError::NoSuchClient { name })?;
                registry.replace(Client { ipv4: taken.or(client.ipv4), ..client })
            }
            Elsewhere::Lease => lease(registry, name),
        });
        if self.store.mood == Mood::Prompt {
            while self.store_works() {}
        }
        self.act();
    }

    /// Gives a client that has a session here another session at another exit. The other session belongs to the same process, or
    /// to another host with the client's key.
    pub(super) fn move_away(&mut self, which: Which, is_same: bool) {
        let Some(exit) = self.exit.as_mut().filter(|_| self.store.is_shared) else { return };
        let sessions: Vec<_> = exit.sessions().map(|session| (session.id(), session.key())).collect();
        let sessions: Vec<_> =
            sessions.into_iter().filter(|(_, key)| is_same || client_of(*key) == SHARED).collect();
        let Some(&(session, key)) = sessions.get(which.index(sessions.len().max(1))) else { return };
        let nonce = exit.session(session).unwrap().nonce().to_vec();
        if is_same {
            exit.elsewhere(self.now, key, &nonce, u64::MAX);
            self.leaving.entry(session).or_insert(self.now + Duration::from_secs(30));
            assert!(exit.session(session).is_some(), "packets on their way are served");
        } else {
            self.was_taken_elsewhere = true;
            exit.elsewhere(self.now, key, &[0xee; 16], 0);
            assert!(exit.session(session).is_none(), "two hosts with one key");
        }
        self.act();
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

    /// Checks that the open invitations are those that were issued, regardless of clock steps.
    pub(super) fn check_invitations(&self) {
        let Some(exit) = self.exit.as_ref().filter(|_| self.store.is_idle()) else { return };
        let open = exit.registry().open_invitations(self.wall());
        let names: Vec<_> = open.into_iter().map(|invitation| invitation.name.as_str()).collect();
        assert_eq!(names, self.clients.open_invitations(self.wall()));
    }

    /// Sends one message on a connection of its own, which is established at once. `None` if the exit is down or refuses the
    /// connection.
    fn ask(&mut self, key: PublicKey, message: &Message, token: Option<InviteToken>) -> Option<u64> {
        self.exit.as_ref()?;
        let number = self.network.dial(key, None);
        self.presented.extend(token.map(|token| (number, token)));
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

/// Gives a client the first free addresses, as the pool of another exit does.
fn lease(registry: &mut ClientRegistry, name: String) -> Result<(), RegistryError> {
    let client = registry.by_name(&name).filter(|client| !client.disabled).cloned();
    let client = client.ok_or(RegistryError::NoSuchClient { name })?;
    let is_free = |address: &IpAddr| registry.iter().all(|client| !client.lease().contains(*address));
    let ipv4 = (2..=6).map(|last| Ipv4Addr::new(10, 66, 0, last)).find(|ipv4| is_free(&(*ipv4).into()));
    let ipv6 = (2..=9)
        .map(|last| Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, last))
        .find(|ipv6| is_free(&(*ipv6).into()));
    let Lease { ipv4: had_ipv4, ipv6: had_ipv6 } = client.lease();
    registry.record_lease(client.public_key, Lease { ipv4: had_ipv4.or(ipv4), ipv6: had_ipv6.or(ipv6) });
    Ok(())
}
