//! An exit with two clients, driven by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::*;
use crate::clients::ClientChange;
use crate::message::encode;

pub(super) const ALICE: PublicKey = PublicKey([1; 32]);
pub(super) const BOB: PublicKey = PublicKey([2; 32]);
pub(super) const STRANGER: PublicKey = PublicKey([99; 32]);
/// The outer network of alice, bob and the stranger.
pub(super) const NETWORK: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));
pub(super) const NONCE_A: u8 = 0xaa;
pub(super) const NONCE_B: u8 = 0xbb;

/// An exit with the clients alice and bob, and the results of its last actions.
pub(super) struct Exit {
    pub(super) sessions: ExitSessions,
    pub(super) now: Instant,
    pub(super) welcome: Option<Welcome>,
    pub(super) last_closes: Vec<(u64, Goodbye)>,
    /// The connections that [`Self::change`] closed, with the reasons.
    changed_closes: Vec<(u64, Goodbye)>,
    /// How the store answers each request. `None` if it does not answer.
    pub(super) answer: Option<Result<(), StoreRefusal>>,
    /// Requests that the store has not answered.
    pub(super) unanswered: Vec<StoreRequest>,
    /// Every row that the store has.
    pub(super) disk: ClientRegistry,
}

impl Exit {
    pub(super) fn new() -> Self {
        Self::with(network())
    }

    pub(super) fn with(config: SessionConfig) -> Self {
        let mut registry = ClientRegistry::new();
        registry.add(Client::new("alice", ALICE, UNIX_EPOCH)).unwrap();
        registry.add(Client::new("bob", BOB, UNIX_EPOCH)).unwrap();
        Self::start(config, registry)
    }

    pub(super) fn from_file(file: &str) -> Self {
        Self::start(network(), toml::from_str(file).unwrap())
    }

    pub(super) fn start(config: SessionConfig, registry: ClientRegistry) -> Self {
        let (now, mut counter) = (Instant::now(), 0u8);
        let entropy = Box::new(move |bytes: &mut [u8]| {
            counter = counter.wrapping_add(1);
            bytes.fill(counter);
        });
        let config = SessionConfig { max_connections: 4, ..config };
        let disk = registry.clone();
        let sessions = ExitSessions::new(config, registry, now, SystemTime::now(), entropy).unwrap();
        Self {
            sessions,
            now,
            welcome: None,
            last_closes: Vec::new(),
            changed_closes: Vec::new(),
            answer: Some(Ok(())),
            unanswered: Vec::new(),
            disk,
        }
    }

    /// Connects with a key and sends one message.
    pub(super) fn say(&mut self, connection: u64, key: PublicKey, message: &Message) -> Vec<Action> {
        self.sessions.connected(self.now, connection, key, NETWORK);
        self.sessions.received(self.now, connection, &encode(message));
        self.actions()
    }

    /// Invites a machine under a name. The invitation is valid for the time given.
    pub(super) fn invite(&mut self, name: &str, token: &InviteToken, valid: Duration) {
        let expires = self.sessions.clock.at(self.now) + valid;
        let (name, token_sha256) = (name.to_owned(), token.digest());
        let invitation = Invitation { name, token_sha256, expires, used_by: None, upgrades: None };
        self.change(|sessions, now| sessions.invite(now, invitation)).unwrap();
    }

    /// Makes a change, and lets the store answer.
    pub(super) fn change<T, E>(
        &mut self,
        change: impl FnOnce(&mut ExitSessions, Instant) -> Result<T, E>,
    ) -> Result<T, E> {
        let changed = change(&mut self.sessions, self.now);
        self.actions();
        self.changed_closes.clone_from(&self.last_closes);
        changed
    }

    pub(super) fn set(&mut self, name: &str, change: impl FnOnce(&mut Client)) -> Result<(), AdminError> {
        self.change(|sessions, _| sessions.set_client(name, change)).map(drop)
    }

    pub(super) fn add(&mut self, client: Client) -> Result<(), AdminError> {
        self.change(|sessions, _| sessions.add_client(client, None)).map(drop)
    }

    pub(super) fn adopt(&mut self, edited: ClientRegistry) -> Result<(), AdminError> {
        self.change(|sessions, now| sessions.adopt(now, edited)).map(drop)
    }

    pub(super) fn disable(&mut self, name: &str) {
        self.change(|sessions, now| sessions.change_client(now, name, &ClientChange::Disable)).unwrap();
    }

    /// Lets the store answer its oldest unanswered request.
    pub(super) fn answer(&mut self, outcome: Result<(), StoreRefusal>) -> Vec<Action> {
        let request = self.unanswered.remove(0);
        if outcome.is_ok() {
            self.write(&request);
        }
        self.sessions.stored(self.now, request.id, outcome);
        self.actions()
    }

    fn write(&mut self, request: &StoreRequest) {
        let rows: Vec<_> = self.disk.rows().chain(request.changes.iter().cloned()).collect();
        self.disk = ClientRegistry::from_rows(rows).expect("rows that do not contradict each other");
    }

    pub(super) fn attach(&self, index: u32) -> Message {
        let welcome = self.welcome.as_ref().unwrap();
        Message::Attach(Attach {
            session: welcome.session,
            attach_token: welcome.attach_token.clone(),
            index,
        })
    }

    pub(super) fn advance(&mut self, seconds: u64) -> Vec<Action> {
        self.now += Duration::from_secs(seconds);
        self.sessions.handle_timeout(self.now);
        self.actions()
    }

    pub(super) fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(action) = self.sessions.poll_action() {
            if let Action::Store(request) = &action {
                match self.answer {
                    Some(outcome) => {
                        outcome.iter().for_each(|()| self.write(request));
                        self.sessions.stored(self.now, request.id, outcome);
                    }
                    None => self.unanswered.push(request.clone()),
                }
            }
            actions.push(action);
        }
        self.last_closes.clear();
        self.changed_closes.clear();
        for action in &actions {
            if let Action::Close { connection, reason } = action {
                self.last_closes.push((*connection, *reason));
            }
            if let Action::Send { bytes, .. } = action {
                let mut decoder = MessageDecoder::new();
                decoder.push(bytes);
                if let Ok(Some(Message::Welcome(welcome))) = decoder.next() {
                    self.welcome = Some(welcome);
                }
            }
        }
        actions
    }

    pub(super) fn closes(&mut self) -> Vec<(u64, Goodbye)> {
        let mut closes = std::mem::take(&mut self.changed_closes);
        self.actions();
        closes.extend(&self.last_closes);
        closes
    }

    pub(super) fn lease_of(&self, key: PublicKey) -> crate::pool::Lease {
        self.sessions.registry().by_key(key).unwrap().lease()
    }
}

pub(super) fn network() -> SessionConfig {
    SessionConfig {
        ipv4: Some("10.66.0.0/24".parse().unwrap()),
        ipv6: Some("fd66::/64".parse().unwrap()),
        ..SessionConfig::default()
    }
}

pub(super) fn hello(nonce: u8) -> Message {
    Message::Hello(Hello {
        version: PROTOCOL_VERSION,
        connections_wanted: 4,
        name: "host".into(),
        nonce: vec![nonce; 16],
        ..Hello::default()
    })
}
