//! An exit resets the connection IDs of ended connections. No listener ever resets the ID of a live connection.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    task::Poll,
    time::{Duration, Instant},
};

use common::{Drivers, PATIENCE, RESET_KEY, Side, loopback_socket};
use tokio::time::{interval, timeout};
use warren_quic::{
    driver::{ConnectionId, Endpoint},
    key::PrivateKey,
    settings::{Driver, TransportSettings, WorkerPlace},
    socket::{SocketConfig, bind},
    strangers::Strangers,
};

test_every_driver!(
    an_id_of_a_live_connection_is_reset_at_no_listener_of_any_worker,
    an_id_that_an_open_connection_has_retired_is_not_reset,
);

async fn an_id_of_a_live_connection_is_reset_at_no_listener_of_any_worker(drivers: Drivers) {
    let mut world = World::new(drivers);
    let (_, at_exit) = world.connect().await;
    let id = world.tap.id();

    assert_eq!(world.asked_everywhere(&id).await, []);

    // The control: after the connection has ended, the listener that issued the ID resets it, and no other listener does.
    world.workers[0].endpoint.close(at_exit, 0, "");
    world.until_reset(&id).await;
    // The exit answers the same ID at most once per second.
    world.run_for(Duration::from_millis(1_100)).await;
    assert_eq!(world.asked_everywhere(&id).await, [world.addresses[0][0]]);
}

async fn an_id_that_an_open_connection_has_retired_is_not_reset(drivers: Drivers) {
    let mut world = World::new(drivers);
    let (at_client, at_exit) = world.connect().await;
    let retired = world.tap.id();
    world.client.endpoint.rebind(at_client, loopback_socket()).unwrap();
    world.until("the client goes on with another ID", |world| world.tap.id() != retired).await;
    // The frame that retires the old ID is still in flight.
    world.run_for(Duration::from_millis(200)).await;

    assert_eq!(world.asked_everywhere(&retired).await, []);

    world.workers[0].endpoint.close(at_exit, 0, "");
    world.until_reset(&retired).await;
}

/// Only Warren's driver: dropping it is like a kill. noq's driver closes its connections when it is dropped.
#[tokio::test]
async fn ids_of_an_earlier_process_are_reset_at_every_listener_of_their_worker() {
    let mut world = World::new(Drivers { client: Driver::Warren, exit: Driver::Warren });
    world.connect().await;
    let id = world.tap.id();
    world.restart();
    assert_eq!(world.asked_everywhere(&id).await, world.addresses[0]);
}

#[tokio::test]
async fn who_repeats_an_id_leaves_resets_to_others() {
    const OTHERS: usize = 5;
    let mut world = World::new(Drivers { client: Driver::Warren, exit: Driver::Warren });
    let repeated = world.another_id().await;
    let mut others = Vec::new();
    while others.len() < OTHERS {
        others.push(world.another_id().await);
    }
    world.restart();
    let exit = world.addresses[0][0];
    let (repeater, asker) = (Asker::new(exit), Asker::new(exit));
    // The control: the repeater gets a reset.
    world.until("it is answered", |_| repeater.asks(&repeated, 20)).await;

    for id in others {
        let mut asked = 0;
        while !asker.is_answered() {
            assert!(asked < 10, "ten questions got no answer next to thousands from the repeater");
            asker.ask(&id);
            asked += 1;
            world.repeat(&repeater, &repeated, Duration::from_millis(100)).await;
        }
    }
}

/// A client, an exit of two workers that each listen on an IPv4 and an IPv6 address, and a tap in front of the first listener.
struct World {
    drivers: Drivers,
    identity: PrivateKey,
    client: Side,
    workers: Vec<Side>,
    addresses: Vec<Vec<SocketAddr>>,
    tap: Tap,
}

impl World {
    fn new(drivers: Drivers) -> Self {
        let settings = drivers.client(TransportSettings::default());
        let ips = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let mut world = Self {
            drivers,
            identity: PrivateKey::generate().unwrap(),
            client: Side::new(Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap()),
            workers: Vec::new(),
            addresses: vec![ips.map(|ip| SocketAddr::new(ip, 0)).to_vec(); 2],
            tap: Tap::new(),
        };
        world.restart();
        world.tap.exit = world.addresses[0][0];
        world
    }

    /// Drops all workers at once, and starts another process at the same addresses.
    fn restart(&mut self) {
        self.workers.clear();
        let strangers = Strangers::new(true);
        for (place, addresses) in WorkerPlace::all(2).zip(&mut self.addresses) {
            let mut sockets = Vec::new();
            for address in addresses {
                let socket = bind(SocketConfig::new(*address)).unwrap();
                *address = socket.local_addr().unwrap();
                sockets.push(socket);
            }
            let settings = TransportSettings {
                worker: place,
                strangers: strangers.clone(),
                ..TransportSettings::default()
            };
            let settings = self.drivers.exit(settings);
            let endpoint = Endpoint::exit(settings, vec![self.identity.clone()], sockets, RESET_KEY);
            self.workers.push(Side::new(endpoint.unwrap()));
        }
    }

    /// Connects to the first listener of the first worker, and waits until the tap has learned an ID.
    async fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        let key = self.identity.public();
        let at_client = self.client.endpoint.connect(loopback_socket(), self.tap.address(), &[key]).unwrap();
        self.until("both sides are connected", |world| {
            !world.client.connected.is_empty()
                && !world.workers[0].connected.is_empty()
                && world.tap.id.is_some()
        })
        .await;
        (at_client, self.workers[0].connected[0].0)
    }

    /// The ID of another connection, which runs through a tap of its own.
    async fn another_id(&mut self) -> Vec<u8> {
        self.tap = Tap { exit: self.tap.exit, ..Tap::new() };
        self.connect().await;
        self.tap.id()
    }

    /// Makes the repeater ask with an ID for a while, several thousand times a second.
    async fn repeat(&mut self, repeater: &Asker, id: &[u8], time: Duration) {
        let start = Instant::now();
        self.until("the time is over", |_| {
            repeater.asks(id, 20);
            start.elapsed() > time
        })
        .await;
    }

    /// Sends a packet with this ID to every listener. Returns the listeners that answered, once all have processed it.
    async fn asked_everywhere(&mut self, id: &[u8]) -> Vec<SocketAddr> {
        let received = |world: &Self| -> u64 {
            world.workers.iter().map(|worker| worker.endpoint.socket_stats().datagrams_received).sum()
        };
        let before = received(self);
        let askers: Vec<Asker> = self.addresses.concat().into_iter().map(Asker::new).collect();
        askers.iter().for_each(|asker| asker.ask(id));
        self.until("every listener has received it", |world| received(world) >= before + askers.len() as u64)
            .await;
        // Other packets count as well, so this leaves time for the answers.
        self.run_for(Duration::from_millis(50)).await;
        askers.iter().filter(|asker| asker.is_answered()).map(|asker| asker.exit).collect()
    }

    /// Asks the listener that issued the ID until it answers.
    async fn until_reset(&mut self, id: &[u8]) {
        let asker = Asker::new(self.addresses[0][0]);
        self.until("its listener sends a reset", |_| {
            asker.ask(id);
            asker.is_answered()
        })
        .await;
    }

    async fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let mut tick = interval(Duration::from_millis(2));
        let waiting = poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {}
            self.tap.pass();
            self.client.poll(cx);
            self.workers.iter_mut().for_each(|worker| worker.poll(cx));
            let holds = holds(self);
            self.client.endpoint.flush(cx);
            self.workers.iter_mut().for_each(|worker| worker.endpoint.flush(cx));
            if holds { Poll::Ready(()) } else { Poll::Pending }
        });
        if timeout(PATIENCE, waiting).await.is_err() {
            panic!("timed out waiting until {what}");
        }
    }

    async fn run_for(&mut self, time: Duration) {
        let _elapsed = timeout(time, self.until("the time is over", |_| false)).await;
    }
}

/// Relays packets between a client and an exit, and reads the destination IDs of the client's packets.
struct Tap {
    front: UdpSocket,
    back: UdpSocket,
    client: Option<SocketAddr>,
    exit: SocketAddr,
    id: Option<Vec<u8>>,
}

impl Tap {
    /// Bytes of an exit's connection ID.
    const ID: usize = 12;

    fn new() -> Self {
        let (front, back) = (loopback_socket(), loopback_socket());
        Self { exit: front.local_addr().unwrap(), front, back, client: None, id: None }
    }

    fn address(&self) -> SocketAddr {
        self.front.local_addr().unwrap()
    }

    /// The destination ID of the client's latest packet with a short header.
    fn id(&self) -> Vec<u8> {
        self.id.clone().unwrap()
    }

    fn pass(&mut self) {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = self.front.recv_from(&mut buffer) {
            self.client = Some(from);
            if buffer[0] & 0xc0 == 0x40 {
                self.id = Some(buffer[1..=Self::ID].to_vec());
            }
            drop(self.back.send_to(&buffer[..length], self.exit));
        }
        while let Ok(length) = self.back.recv(&mut buffer) {
            drop(self.front.send_to(&buffer[..length], self.client.unwrap()));
        }
    }
}

/// An observer who has seen a connection ID and sends it to a listener.
struct Asker {
    socket: UdpSocket,
    exit: SocketAddr,
}

impl Asker {
    fn new(exit: SocketAddr) -> Self {
        let any = SocketAddr::new(if exit.is_ipv6() { [0; 16].into() } else { [0; 4].into() }, 0);
        let socket = bind(SocketConfig::new(any)).unwrap();
        socket.connect(exit).unwrap();
        Self { socket, exit }
    }

    /// Sends a packet that looks like the connection's, but is not encrypted with the connection's keys.
    fn ask(&self, id: &[u8]) {
        let packet = [&[0x40][..], id, &[0x5a; 300]].concat();
        self.socket.send(&packet).unwrap();
    }

    /// Asks `times` times. Returns whether an answer came.
    fn asks(&self, id: &[u8], times: usize) -> bool {
        (0..times).for_each(|_| self.ask(id));
        self.is_answered()
    }

    fn is_answered(&self) -> bool {
        self.socket.recv(&mut [0; 2_048]).is_ok()
    }
}
