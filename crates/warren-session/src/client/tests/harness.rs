//! A client session, driven by hand.

use std::time::{Duration, Instant};

use super::*;

/// A client session and its time.
pub(super) struct Client {
    pub(super) session: ClientSession,
    pub(super) now: Instant,
}

impl Client {
    pub(super) fn new(connections: u32) -> Self {
        let mut counter = 0u8;
        let entropy = Box::new(move |bytes: &mut [u8]| {
            counter = counter.wrapping_add(37);
            bytes.fill(counter);
        });
        Self::start(ClientConfig { connections, name: "my host".into(), ..ClientConfig::default() }, entropy)
    }

    fn start(config: ClientConfig, entropy: Entropy) -> Self {
        let mut client = Self { session: ClientSession::new(config, entropy), now: Instant::now() };
        client.session.start(client.now);
        client
    }

    /// A client whose connections are all attached.
    pub(super) fn up(connections: u32) -> Self {
        Self::with_features(connections, 0)
    }

    /// As [`Self::up`], with features that both sides have.
    pub(super) fn with_features(connections: u32, features: u64) -> Self {
        let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
        let config = ClientConfig { connections, features, ..ClientConfig::default() };
        let mut client = match features {
            0 => Self::new(connections),
            _ => Self::start(config, entropy),
        };
        client.session.connected(client.now, 0);
        client.receive(0, &Message::Welcome(message::Welcome { features, ..welcome(connections) }));
        for index in 1..connections {
            client.session.connected(client.now, index);
            client.receive(index, &Message::Attached(Attached { index }));
        }
        client.actions();
        assert_eq!(*client.session.state(), ClientState::Up { attached: connections });
        client
    }

    pub(super) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.session.poll_action()).collect()
    }

    /// The one message sent on a connection.
    pub(super) fn said(&mut self, wanted: u32) -> Message {
        let mut decoder = MessageDecoder::new();
        for action in self.actions() {
            if let Action::Send { index, bytes } = action {
                assert_eq!(index, wanted);
                decoder.push(&bytes);
            }
        }
        decoder.next().unwrap().unwrap()
    }

    pub(super) fn receive(&mut self, index: u32, message: &Message) {
        self.session.received(self.now, index, &encode(message));
    }

    pub(super) fn lose(&mut self, index: u32) {
        self.session.closed(self.now, index, ConnectionEnd::Lost("gone".into()));
        self.session.handle_timeout(self.now);
    }

    pub(super) fn advance(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.session.handle_timeout(self.now);
    }

    /// Waits until the client connects, and lets it.
    pub(super) fn reach(&mut self, index: u32) {
        while !self.actions().contains(&Action::Connect { index }) {
            self.now = self.session.timeout().unwrap();
            self.session.handle_timeout(self.now);
        }
        self.session.connected(self.now, index);
    }

    pub(super) fn stopped_with(&mut self, stop: &Stop) {
        let actions = self.actions();
        assert_eq!(actions.last(), Some(&Action::Stopped { reason: stop.clone() }));
        let detached = actions.iter().filter(|action| matches!(action, Action::Detach { .. })).count();
        assert_eq!((detached, self.session.timeout()), (2, None), "{actions:?}");
        assert_eq!(*self.session.state(), ClientState::Stopped(stop.clone()));
    }
}

pub(super) fn welcome(connections: u32) -> message::Welcome {
    message::Welcome {
        session: 77,
        attach_token: vec![5; 16],
        ipv4: Some(Network { address: vec![10, 66, 0, 2], prefix_length: 24 }),
        gateway_ipv4: vec![10, 66, 0, 1],
        mtu: 1_380,
        connections,
        keep_alive_milliseconds: 15_000,
        ..message::Welcome::default()
    }
}
