//! Both ends of a path, run by one task. Received events and datagrams are kept, and tests wait until a condition holds.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod relay;

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{interval, timeout};
use warren_quic::{
    driver::{
        CloseReason, ConnectionId, ConnectionStats, Endpoint, Event, Inbox, LostDatagram,
        MAX_DATAGRAMS_PER_POLL, MAX_EVENTS_PER_POLL, MAX_LOST_PER_POLL, SendError,
    },
    key::{PrivateKey, PublicKey},
    settings::{Driver, TransportSettings},
    socket::{SocketConfig, bind},
};

/// The longest time that a single wait may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The reset key of every exit here, so that a restarted exit has the same one.
pub const RESET_KEY: [u8; 32] = [7; 32];

pub fn loopback_socket() -> UdpSocket {
    bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap()
}

/// Which driver each side runs.
#[derive(Copy, Clone, Debug)]
pub struct Drivers {
    pub client: Driver,
    pub exit: Driver,
}

impl Drivers {
    pub fn client(self, settings: TransportSettings) -> TransportSettings {
        TransportSettings { driver: self.client, ..settings }
    }

    pub fn exit(self, settings: TransportSettings) -> TransportSettings {
        TransportSettings { driver: self.exit, ..settings }
    }
}

/// Generates tests from functions that take [`Drivers`]: both drivers, each against itself and against the other.
#[macro_export]
macro_rules! test_every_driver {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            use warren_quic::settings::Driver::{Noq, Warren};

            use super::common::Drivers;

            #[tokio::test]
            async fn noq() {
                super::$test(Drivers { client: Noq, exit: Noq }).await;
            }

            #[tokio::test]
            async fn warren() {
                super::$test(Drivers { client: Warren, exit: Warren }).await;
            }

            #[tokio::test]
            async fn noq_client_with_warren_exit() {
                super::$test(Drivers { client: Noq, exit: Warren }).await;
            }

            #[tokio::test]
            async fn warren_client_with_noq_exit() {
                super::$test(Drivers { client: Warren, exit: Noq }).await;
            }
        }
    )*};
}

/// An endpoint and everything that it has reported so far.
pub struct Side {
    pub endpoint: Endpoint,
    pub connected: Vec<(ConnectionId, PublicKey)>,
    pub control: BTreeMap<ConnectionId, Vec<u8>>,
    pub datagrams: Vec<(ConnectionId, Bytes)>,
    /// Kept datagrams that came back.
    pub lost: Vec<(ConnectionId, LostDatagram)>,
    pub writable: Vec<ConnectionId>,
    /// Each report that the peer has stopped answering (false) or answers again (true).
    pub answers: Vec<(ConnectionId, bool)>,
    pub closed: Vec<(ConnectionId, CloseReason)>,
    /// Final counters of closed connections.
    pub last: BTreeMap<ConnectionId, ConnectionStats>,
    inbox: Inbox,
}

impl Side {
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connected: Vec::new(),
            control: BTreeMap::new(),
            datagrams: Vec::new(),
            lost: Vec::new(),
            writable: Vec::new(),
            answers: Vec::new(),
            closed: Vec::new(),
            last: BTreeMap::new(),
            inbox: Inbox::new(),
        }
    }

    /// Polls until nothing is pending.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        while self.poll_once(cx) {}
    }

    /// Polls once. Returns whether the poll brought anything.
    pub fn poll_once(&mut self, cx: &mut Context<'_>) -> bool {
        if self.endpoint.poll(cx, &mut self.inbox).is_pending() {
            return false;
        }
        assert!(!self.inbox.is_empty(), "a ready poll brings something");
        assert!(self.inbox.datagrams.len() <= MAX_DATAGRAMS_PER_POLL);
        assert!(self.inbox.lost.len() <= MAX_LOST_PER_POLL);
        assert!(self.inbox.events.len() <= MAX_EVENTS_PER_POLL);
        self.datagrams.append(&mut self.inbox.datagrams);
        self.lost.append(&mut self.inbox.lost);
        for event in self.inbox.events.drain(..) {
            match event {
                Event::Connected { connection, peer, .. } => self.connected.push((connection, peer)),
                Event::Control { connection, data } => {
                    self.control.entry(connection).or_default().extend(data)
                }
                Event::Writable { connection } => self.writable.push(connection),
                Event::Answers { connection, answers } => self.answers.push((connection, answers)),
                Event::Closed { connection, reason } => {
                    if let Some(stats) = self.endpoint.stats(connection) {
                        self.last.insert(connection, stats);
                    }
                    self.closed.push((connection, reason));
                }
            }
        }
        true
    }

    pub fn control_of(&self, connection: ConnectionId) -> &[u8] {
        self.control.get(&connection).map_or(&[], Vec::as_slice)
    }

    /// The reason of the only close so far.
    pub fn close_reason(&self) -> &CloseReason {
        assert_eq!(self.closed.len(), 1, "{:?}", self.closed);
        &self.closed[0].1
    }

    pub fn stats(&self, connection: ConnectionId) -> ConnectionStats {
        self.endpoint.stats(connection).unwrap()
    }
}

/// A client and an exit.
pub struct Pair {
    pub client: Side,
    pub exit: Side,
    pub exit_address: SocketAddr,
    pub exit_key: PublicKey,
    pub client_key: PublicKey,
}

impl Pair {
    pub fn new(drivers: Drivers, settings: &TransportSettings) -> Self {
        let (client, exit) = (drivers.client(settings.clone()), drivers.exit(settings.clone()));
        Self::with(client, exit, loopback_socket())
    }

    pub fn with(client: TransportSettings, exit: TransportSettings, listen: UdpSocket) -> Self {
        let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let exit_address = listen.local_addr().unwrap();
        Self {
            exit_address,
            exit_key: exit_key.public(),
            client_key: client_key.public(),
            client: Side::new(Endpoint::client(client, client_key).unwrap()),
            exit: Side::new(Endpoint::exit(exit, vec![exit_key], vec![listen], RESET_KEY).unwrap()),
        }
    }

    /// Waits until `holds`. Polls both sides on each wake-up and on a timer, because some changes (such as counters) cause no
    /// wake-up.
    pub async fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let mut tick = interval(Duration::from_millis(2));
        let waiting = poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {}
            self.client.poll(cx);
            self.exit.poll(cx);
            let holds = holds(self);
            self.client.endpoint.flush(cx);
            self.exit.endpoint.flush(cx);
            if holds { Poll::Ready(()) } else { Poll::Pending }
        });
        if timeout(PATIENCE, waiting).await.is_err() {
            panic!("timed out waiting until {what}");
        }
    }

    /// Lets both sides run for a while.
    pub async fn run_for(&mut self, time: Duration) {
        let _elapsed = timeout(time, self.until("the time is over", |_| false)).await;
    }

    /// Connects straight to the exit. Returns the connection's ID on both sides.
    pub async fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        self.connect_to(self.exit_address).await
    }

    pub async fn connect_to(&mut self, address: SocketAddr) -> (ConnectionId, ConnectionId) {
        let local = SocketAddr::new(if address.is_ipv6() { [0; 16].into() } else { [0; 4].into() }, 0);
        let socket = bind(SocketConfig::new(local)).unwrap();
        let at_client = self.client.endpoint.connect(socket, address, &[self.exit_key]).unwrap();
        let before = self.exit.connected.len();
        self.until("both sides are connected", |pair| {
            assert_eq!(pair.client.closed, [], "the client's connection was closed");
            pair.exit.connected.len() > before && pair.client.connected.iter().any(|(id, _)| *id == at_client)
        })
        .await;
        (at_client, self.exit.connected[before].0)
    }
}

/// The direction of datagrams.
#[derive(Copy, Clone, Debug)]
pub enum Way {
    Up,
    Down,
}

impl Pair {
    pub fn sender(&mut self, way: Way) -> &mut Side {
        match way {
            Way::Up => &mut self.client,
            Way::Down => &mut self.exit,
        }
    }

    pub fn receiver(&mut self, way: Way) -> &mut Side {
        match way {
            Way::Up => &mut self.exit,
            Way::Down => &mut self.client,
        }
    }

    /// Sends numbered datagrams of `sizes`, and waits whenever the connection is blocked. Returns how often it was blocked.
    pub async fn send_all(
        &mut self,
        way: Way,
        from: ConnectionId,
        sizes: impl Iterator<Item = usize>,
    ) -> usize {
        let mut blocked = 0;
        let mut pending = None;
        let mut datagrams = sizes.zip(0_u64..).map(|(size, number)| numbered(number, size));
        self.until("all datagrams are taken", |pair| {
            let side = pair.sender(way);
            while let Some(datagram) = pending.take().or_else(|| datagrams.next()) {
                match side.endpoint.send_datagram(from, datagram) {
                    Ok(()) => {}
                    Err(SendError::Blocked(datagram)) => {
                        blocked += 1;
                        pending = Some(datagram);
                        return false;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            true
        })
        .await;
        blocked
    }
}

/// A datagram that starts with its number.
pub fn numbered(number: u64, size: usize) -> Bytes {
    let mut datagram = vec![0xa5; size.max(8)];
    datagram[..8].copy_from_slice(&number.to_be_bytes());
    datagram.into()
}

pub fn number(datagram: &[u8]) -> u64 {
    u64::from_be_bytes(datagram[..8].try_into().unwrap())
}
