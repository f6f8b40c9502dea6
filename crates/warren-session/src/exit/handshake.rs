//! The exit's side of the handshake: handles a connection's first message.

use std::time::Instant;

use ipnet::IpNet;

use super::claims::Claim;
use super::session::{NONCE_LENGTH, Nonce, Process, Told};
use super::updates::takes;
use super::{EndReason, ExitAction, ExitSessions, Session, SessionId};
use crate::clients::{Client, MAX_NAME_LENGTH, RowId};
use crate::goodbye::{Goodbye, Versions, Violation};
use crate::message::{Attach, Attached, Hello, Message, Network, Welcome, ip_to_wire};
use crate::planted::{Bug, is_planted};
use crate::pool::{Lease, Leased};
use crate::{AttachToken, MAX_PREFIXES, PROTOCOL_VERSION, PublicKey, UPDATES};

/// A checked `Hello`.
pub(super) struct Wish {
    pub(super) nonce: Nonce,
    pub(super) host: String,
    pub(super) connections: u32,
    pub(super) features: u64,
    pub(super) prefixes: Vec<IpNet>,
    pub(super) has_other_exit: Option<bool>,
    pub(super) claim: u64,
}

impl ExitSessions {
    /// Answers the first message of a connection.
    pub(super) fn greet(&mut self, now: Instant, connection: u64, key: PublicKey, message: Message) {
        // A client with a new key has no session to attach to, so it begins with Hello.
        if matches!(message, Message::Hello(_))
            && self.registry.by_key(key).is_none()
            && let Err(reason) = self.take_next_key(now, key)
        {
            return self.refuse(now, connection, reason);
        }
        let answer = match (self.registry.by_key(key), message) {
            // An enrolled key may send Enrol as well, because the first answer may have been lost.
            (_, Message::Enrol(enrol)) => self.enrol(now, connection, key, &enrol),
            // The exit crashed before it stored the change of keys. The client opened its session with this next key, and the exit
            // no longer knows that session.
            (None, Message::Attach(_)) if self.is_client(key) => Err(Goodbye::UnknownSession),
            (None, _) => Err(Goodbye::NotEnrolled),
            // This client uses WireGuard. No Warren connection can prove its key.
            (Some(client), _) if client.wireguard.is_some() => Err(Goodbye::NotEnrolled),
            (Some(client), _) if client.disabled => Err(Goodbye::Disabled),
            (Some(_), Message::Hello(hello)) => self.hello(now, connection, key, hello),
            (Some(_), Message::Attach(attach)) => self.attach(now, connection, key, &attach),
            (Some(_), Message::Goodbye(_)) => Err(Goodbye::ClientStopped),
            (
                Some(_),
                Message::Welcome(_)
                | Message::Attached(_)
                | Message::Enrolled(_)
                | Message::Update(_)
                | Message::Roster(_)
                | Message::Stay(_),
            ) => Err(Goodbye::Protocol(Violation::OutOfOrder)),
        };
        if let Err(reason) = answer {
            self.refuse(now, connection, reason);
        }
    }

    fn hello(&mut self, now: Instant, connection: u64, key: PublicKey, hello: Hello) -> Result<(), Goodbye> {
        if let Some(planned) = self.first_lease(key)? {
            // The Hello is checked first, so that nothing is stored for a client that is refused anyway.
            Wish::parse(hello.clone())?;
            return self.lease_first(now, connection, (key, hello), &planned);
        }
        let fleet = hello.fleet.clone();
        let wish = Wish::parse(hello)?;
        let id = self.begin(now, key, wish)?;
        let welcome = self.sessions.get(&id).map(|session| self.welcome(session));
        // The exit attaches the connection before it sends Welcome, because the client may send packets as soon as it reads
        // Welcome.
        self.attach_connection(now, id, connection, 0);
        welcome.into_iter().for_each(|welcome| self.send(connection, &Message::Welcome(welcome)));
        self.offer_roster(id, connection, fleet.as_ref());
        Ok(())
    }

    /// The addresses that a client must get from the store before it can have a session, because other exits assign addresses of
    /// the same networks. `None` if the client has all of its addresses.
    pub(super) fn first_lease(&self, key: PublicKey) -> Result<Option<Leased>, Goodbye> {
        if !self.store.is_shared() || is_planted(Bug::LeasedWithoutStore) {
            return Ok(None);
        }
        let planned = self.pool.plan(key).map_err(|_| Goodbye::PoolEmpty)?;
        Ok(Some(planned).filter(|planned| planned.changed))
    }

    /// Opens a session for a client. The session replaces the client's earlier session, if any.
    pub(super) fn begin(&mut self, now: Instant, key: PublicKey, wish: Wish) -> Result<SessionId, Goodbye> {
        // This client connected before the exit began to leave.
        if let Some(reason) = self.leaving {
            return Err(reason);
        }
        // Without this refusal, two hosts with one key would take the session from each other forever.
        if self.predecessors.get(&key).is_some_and(|replaced| replaced.has_nonce(wish.nonce)) {
            return Err(Goodbye::Replaced);
        }
        // The lease is taken before the previous session ends, because a full pool must leave that session as it is.
        let leased = self.pool.lease(key).map_err(|_| Goodbye::PoolEmpty)?;
        self.end_previous(now, key, wish.nonce);
        // Ending the previous session marked the key as offline. Leasing again marks it as online.
        let lease = self.pool.lease(key).map_or(leased.lease, |leased| leased.lease);
        let others = self.sessions.values().map(|session| session.lease).next();
        let lease = others.filter(|_| is_planted(Bug::LeaseGivenTwice)).unwrap_or(lease);
        self.record_leases(now, key, &leased.taken_from);
        let session = self.open(now, key, lease, wish);
        let id = session.id;
        self.by_key.insert(key, id);
        self.sessions.insert(id, session);
        Ok(id)
    }

    fn attach(
        &mut self,
        now: Instant,
        connection: u64,
        key: PublicKey,
        attach: &Attach,
    ) -> Result<(), Goodbye> {
        let id = SessionId(attach.session);
        if self.predecessors.get(&key).is_some_and(|replaced| replaced.has_session(id)) {
            return Err(Goodbye::Replaced);
        }
        // A wrong token gets the same answer as an unknown session, so that guessing reveals nothing.
        let token = AttachToken::from_wire(&attach.attach_token);
        let session = self.sessions.get(&id).filter(|session| {
            (session.key == key || is_planted(Bug::AttachByAnotherKey))
                && (Some(session.token) == token || is_planted(Bug::StaleAttachToken))
        });
        let session = session.ok_or(Goodbye::UnknownSession)?;
        // Checked after the token, so that only the session's client learns how many connections there are.
        if attach.index >= session.connections() {
            return Err(Goodbye::Protocol(Violation::BadIndex));
        }
        let attached = Message::Attached(Attached { index: attach.index });
        if is_planted(Bug::AttachedTooEarly) {
            self.send(connection, &attached);
        }
        // The exit attaches the connection before it sends `Attached`, because the client may send packets as soon as it reads
        // `Attached`.
        self.attach_connection(now, id, connection, attach.index);
        self.send(connection, &attached);
        self.repeat_update(id, connection);
        self.repeat_roster(id, connection);
        Ok(())
    }

    /// Ends the key's current session, if any. If another host opens the new session, the earlier host is told that it was replaced
    /// for good. If the same client process opens the new session, its old connections are only superseded.
    fn end_previous(&mut self, now: Instant, key: PublicKey, nonce: Nonce) {
        let Some(previous) = self.by_key.get(&key).and_then(|id| self.sessions.get(id)) else { return };
        if is_planted(Bug::PreviousSessionKept) {
            return;
        }
        let (id, previous_nonce) = (previous.id, previous.process.nonce);
        if previous_nonce == nonce {
            return self.end(now, id, EndReason::Superseded);
        }
        self.predecessors.entry(key).or_default().add(id, previous_nonce);
        self.end(now, id, EndReason::Replaced);
    }

    /// Records the pool's leases in the registry.
    fn record_leases(&mut self, now: Instant, key: PublicKey, taken_from: &[PublicKey]) {
        let mut news = false;
        for &changed in taken_from.iter().chain([&key]) {
            if self.registry.record_lease(changed, self.pool.lease_of(changed)) {
                self.store.owe(RowId::Client(changed));
                news = true;
            }
        }
        self.record_seen(key, self.clock.at(now));
        // The request is sent before Welcome, unless an earlier batch has no answer yet.
        if news && !is_planted(Bug::LeaseNotPersisted) {
            self.save();
        }
    }

    fn open(&mut self, now: Instant, key: PublicKey, lease: Lease, wish: Wish) -> Session {
        let id = SessionId(self.next_session);
        self.next_session = self.next_session.wrapping_add(u64::from(!is_planted(Bug::NumberUsedTwice)));
        let mut token = [0; AttachToken::LENGTH];
        (self.entropy)(&mut token);
        let client = self.registry.by_key(key);
        let connections = wish.connections.clamp(1, self.config.max_connections);
        let session = Session {
            id,
            key,
            name: client.map(|client| client.name.clone()).unwrap_or_default(),
            host: wish.host,
            lease,
            prefixes: client.map(|client| granted(&wish.prefixes, client)).unwrap_or_default(),
            features: wish.features & self.config.features,
            has_other_exit: wish.has_other_exit,
            opened: now,
            heard: now,
            token: AttachToken::new(token),
            process: Process { nonce: wish.nonce, claim: wish.claim },
            connections: vec![None; usize::try_from(connections).expect("at most MAX_CONNECTIONS")],
            offline_deadline: None,
            told: Told::default(),
        };
        let (name, prefixes) = (session.name.clone(), session.prefixes.clone());
        let features = session.features;
        let open = ExitAction::Open { session: id, key, name, lease, prefixes, connections, features };
        self.actions.push_back(open);
        session
    }

    /// Attaches a waiting connection to a session, replacing the connection that has the index.
    pub(super) fn attach_connection(&mut self, now: Instant, id: SessionId, connection: u64, index: u32) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.heard = now;
        if let Some(deadline) = session.offline_deadline.take() {
            self.deadlines.remove(deadline, super::Deadline::Session(id));
        }
        let before = session.attach(connection, index).flatten();
        if let Some(before) = before
            && !is_planted(Bug::ReplacedNotDetached)
        {
            self.actions.push_back(ExitAction::Detach { session: id, connection: before, index });
        }
        if let Some(deadline) = self.connections.attach(connection, id, index) {
            self.deadlines.remove(deadline, super::Deadline::Handshake(connection));
        }
        self.actions.push_back(ExitAction::Attach { session: id, connection, index });
        if let Some(before) = before {
            // The new connection already has this index, so the old connection is not detached a second time.
            self.refuse(now, before, Goodbye::Superseded);
        }
    }

    fn welcome(&self, session: &Session) -> Welcome {
        let (gateway_ipv4, gateway_ipv6) = (self.pool.gateway_ipv4(), self.pool.gateway_ipv6());
        let own = |address: Option<std::net::IpAddr>, prefix_length: Option<u8>| {
            Some(Network { address: ip_to_wire(address?), prefix_length: prefix_length?.into() })
        };
        let networks = |networks: &[IpNet]| networks.iter().copied().map(Network::from).collect();
        Welcome {
            session: session.id.0,
            attach_token: session.token.as_bytes().to_vec(),
            ipv4: own(session.lease.ipv4.map(Into::into), gateway_ipv4.map(|network| network.prefix_len())),
            ipv6: own(session.lease.ipv6.map(Into::into), gateway_ipv6.map(|network| network.prefix_len())),
            mtu: self.config.mtu.into(),
            dns: self.config.dns.iter().copied().map(ip_to_wire).collect(),
            routes: networks(&self.config.routes),
            connections: session.connections(),
            keep_alive_milliseconds: u32::try_from(self.config.keep_alive.as_millis())
                .expect("at most ten minutes"),
            features: session.features,
            gateway_ipv4: gateway_ipv4.map(|gateway| ip_to_wire(gateway.addr().into())).unwrap_or_default(),
            gateway_ipv6: gateway_ipv6.map(|gateway| ip_to_wire(gateway.addr().into())).unwrap_or_default(),
            prefixes: networks(&session.prefixes),
            exit_keys: match takes(session, UPDATES) {
                true => self.exit_keys(),
                false => Vec::new(),
            },
        }
    }

    /// Completes a key rotation, because a connection proved a client's next key. The client keeps its addresses. The old key is
    /// refused from now on.
    ///
    /// # Errors
    ///
    /// If a change of the client is being stored.
    fn take_next_key(&mut self, now: Instant, next: PublicKey) -> Result<(), Goodbye> {
        if is_planted(Bug::UnsetKeyTaken) {
            self.set_first_next_key(next);
        }
        let client = self.registry.by_next_key(next);
        // A disabled client is shut out under its next key too.
        let client = client.filter(|client| !client.disabled || is_planted(Bug::DisabledTakesNextKey));
        let Some(old) = client.map(|client| client.public_key) else { return Ok(()) };
        if self.store.claimed(&Claim::Key(old)).is_some() || self.store.is_stuck() {
            return Err(Goodbye::NotStored);
        }
        let wall = self.clock.at(now);
        let Ok(((), before)) = self.registry.transact(|registry| {
            registry.take_next_key(old, wall);
            Ok::<_, std::convert::Infallible>(())
        });
        self.follow(now, &before, EndReason::Replaced);
        self.record(&self.registry.rows_changed_since(&before));
        Ok(())
    }

    /// A planted bug: gives the first client a next key that nobody set.
    fn set_first_next_key(&mut self, next: PublicKey) {
        let first = self.registry.iter().next().cloned();
        let _ = first.map(|first| self.registry.replace(Client { next_public_key: Some(next), ..first }));
    }
}

impl Wish {
    /// Parses a `Hello`. Checks the version first, because the other fields may mean something else in other versions.
    fn parse(hello: Hello) -> Result<Self, Goodbye> {
        if hello.version != PROTOCOL_VERSION {
            return Err(Goodbye::Version(Some(Versions { exit: PROTOCOL_VERSION, client: hello.version })));
        }
        if !is_host_name(&hello.name) {
            return Err(Goodbye::Protocol(Violation::BadName));
        }
        let nonce = <[u8; NONCE_LENGTH]>::try_from(hello.nonce.as_slice());
        let nonce = nonce.map_err(|_| Goodbye::Protocol(Violation::BadNonce))?;
        if hello.prefixes.len() > MAX_PREFIXES {
            return Err(Goodbye::Protocol(Violation::BadPrefix));
        }
        let prefixes: Option<Vec<_>> = hello.prefixes.iter().map(Network::network).collect();
        Ok(Self {
            nonce,
            host: hello.name,
            connections: hello.connections_wanted,
            features: hello.features,
            prefixes: prefixes.ok_or(Goodbye::Protocol(Violation::BadPrefix))?,
            has_other_exit: hello.has_other_exit,
            claim: hello.claim,
        })
    }
}

/// Whether a text is a valid host name: empty, or up to 63 letters, digits, dots, dashes and underscores.
fn is_host_name(name: &str) -> bool {
    name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The wanted prefixes that lie within the networks that the operator has set for the client, without duplicates.
fn granted(wanted: &[IpNet], client: &Client) -> Vec<IpNet> {
    let mut granted: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|wanted| {
            client.prefixes.iter().any(|own| own.contains(wanted)) || is_planted(Bug::UnsetPrefixGranted)
        })
        .collect();
    granted.sort_unstable();
    granted.dedup();
    granted
}
