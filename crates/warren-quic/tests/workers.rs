//! Workers share an exit's port. Each connection stays with its worker. To strangers, the workers look like one
//! exit.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::Poll,
    thread,
    time::Duration,
};

use common::{Drivers, PATIENCE, RESET_KEY, Side, loopback_socket, number, numbered};
use tokio::{
    sync::watch,
    time::{interval, timeout},
};
use warren_quic::{
    driver::{CloseReason, ConnectionId, Endpoint},
    key::{PrivateKey, PublicKey},
    settings::{Driver, TransportSettings, WorkerPlace},
    socket::{SocketConfig, bind, steer},
    strangers::{Strangers, Turned},
};

test_every_driver!(
    connections_stay_with_their_workers_when_the_client_moves,
    a_proof_that_one_worker_has_seen_is_worth_nothing_to_another,
    handshakes_that_are_done_leave_room_for_others,
    workers_in_threads_of_their_own_carry_everything_once,
);

async fn connections_stay_with_their_workers_when_the_client_moves(drivers: Drivers) {
    let mut group = Group::new(drivers, 3, &Strangers::default());
    group.connect_until_each_worker_has(2).await;
    let connections: Vec<ConnectionId> = group.client.connected.iter().map(|(id, _)| *id).collect();
    let taken: Vec<usize> = group.workers.iter().map(|worker| worker.connected.len()).collect();

    for round in 0..2 {
        for (connection, number) in connections.iter().zip(0..) {
            group.client.endpoint.send_datagram(*connection, numbered(number, 100)).unwrap();
        }
        let expected = (round + 1) * connections.len();
        group.until("all datagrams have arrived", |group| group.received().len() == expected).await;
        for connection in &connections {
            group.client.endpoint.rebind(*connection, loopback_socket()).unwrap();
        }
    }

    let mut carried: Vec<_> = group.received();
    carried.sort_unstable();
    for (number, pair) in carried.chunks(2).enumerate() {
        assert_eq!(pair[0], pair[1], "datagram {number} arrived on the same connection both times");
    }
    assert_eq!(group.workers.iter().map(|worker| worker.connected.len()).collect::<Vec<_>>(), taken);
    for (index, worker) in group.workers.iter().enumerate() {
        assert!(worker.closed.is_empty());
        assert!(worker.connected.iter().all(|(connection, _)| connection.worker() == index));
    }
}

async fn a_proof_that_one_worker_has_seen_is_worth_nothing_to_another(drivers: Drivers) {
    const SCANNERS: usize = 16;
    let strangers = Strangers::new(true);
    let mut group = Group::new(drivers, 3, &strangers);
    let initials = group.initials().await;

    // The hash of the source ports spreads the scanners over all workers.
    let scanners: Vec<UdpSocket> = (0..SCANNERS).map(|_| loopback_socket()).collect();
    for (scanner, initial) in
        scanners.iter().flat_map(|scanner| initials.iter().map(move |one| (scanner, one)))
    {
        scanner.send_to(initial, group.address).unwrap();
    }

    let repeated = ((SCANNERS - 1) * initials.len()) as u64;
    group
        .until("every repeated proof is turned away", |_| strangers.turned_away(Turned::Replayed) == repeated)
        .await;
    let answered = |scanner: &&UdpSocket| scanner.recv(&mut [0; 1_500]).is_ok();
    group.until("only the first sender is answered", |_| scanners.iter().filter(answered).count() == 1).await;
}

/// Only Warren's driver: dropping it is like a kill. noq's driver closes its connections when it is dropped.
#[tokio::test]
async fn another_number_of_workers_resets_every_connection_of_the_former() {
    let drivers = Drivers { client: Driver::Warren, exit: Driver::Warren };
    let mut group = Group::new(drivers, 3, &Strangers::default());
    group.connect_until_each_worker_has(1).await;
    let connections: Vec<ConnectionId> = group.client.connected.iter().map(|(id, _)| *id).collect();

    // A new process starts with a new `Strangers`.
    group.strangers = Strangers::default();
    group.restart_with(2);
    for connection in &connections {
        group.client.endpoint.send_datagram(*connection, numbered(0, 100)).unwrap();
    }

    group.until("all are closed", |group| group.client.closed.len() == connections.len()).await;
    for (_, reason) in &group.client.closed {
        assert_eq!(*reason, CloseReason::Reset);
    }
}

async fn handshakes_that_are_done_leave_room_for_others(drivers: Drivers) {
    // More handshakes than one network may have in progress before it must prove its addresses.
    const HANDSHAKES: usize = 70;
    let strangers = Strangers::default();
    let mut group = Group::new(drivers, 2, &strangers);
    for _ in 0..HANDSHAKES {
        group.connect().await;
    }
    assert_eq!(strangers.turned_away(Turned::AddressUnproven), 0);
}

async fn workers_in_threads_of_their_own_carry_everything_once(drivers: Drivers) {
    const CONNECTIONS: usize = 12;
    const DATAGRAMS: u64 = 20;
    let strangers = Strangers::new(true);
    let mut group = Group::without_workers(drivers, &strangers);
    let threads = Threads::start(&mut group, 3);

    let (address, key) = (group.address, group.key());
    let connections: Vec<ConnectionId> = (0..CONNECTIONS)
        .map(|_| group.client.endpoint.connect(loopback_socket(), address, &[key]).unwrap())
        .collect();
    group
        .until("both sides are connected", |group| {
            assert_eq!(group.client.closed, []);
            group.client.connected.len() == CONNECTIONS && threads.connected.load(Relaxed) == CONNECTIONS
        })
        .await;
    for round in 0..DATAGRAMS {
        for (connection, number) in connections.iter().zip(0..) {
            let datagram = numbered(round * CONNECTIONS as u64 + number, 100);
            group.client.endpoint.send_datagram(*connection, datagram).unwrap();
        }
    }

    let expected = CONNECTIONS as u64 * DATAGRAMS;
    let mut carried = Vec::new();
    group
        .until("all datagrams have arrived", |_| {
            carried.extend(threads.carried.try_iter());
            carried.len() as u64 == expected
        })
        .await;
    threads.stop();
    carried.sort_unstable();
    assert!(carried.into_iter().eq(0..expected));
    assert_eq!(strangers.turned_away(Turned::Replayed), 0);
}

struct Group {
    drivers: Drivers,
    strangers: Strangers,
    identity: PrivateKey,
    client: Side,
    workers: Vec<Side>,
    address: SocketAddr,
}

impl Group {
    fn new(drivers: Drivers, count: u8, strangers: &Strangers) -> Self {
        let mut group = Self::without_workers(drivers, strangers);
        group.restart_with(count);
        group
    }

    fn without_workers(drivers: Drivers, strangers: &Strangers) -> Self {
        let settings = drivers.client(TransportSettings::default());
        Self {
            drivers,
            strangers: strangers.clone(),
            identity: PrivateKey::generate().unwrap(),
            client: Side::new(Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap()),
            workers: Vec::new(),
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        }
    }

    /// Drops all workers at once, and starts `count` workers at the same address.
    fn restart_with(&mut self, count: u8) {
        self.workers.clear();
        let identities = vec![self.identity.clone()];
        for (settings, socket) in self.places(count) {
            let endpoint = Endpoint::exit(settings, identities.clone(), vec![socket], RESET_KEY);
            self.workers.push(Side::new(endpoint.unwrap()));
        }
    }

    /// The settings and the socket of each of `count` workers at the address.
    fn places(&mut self, count: u8) -> Vec<(TransportSettings, UdpSocket)> {
        let shared = |address| SocketConfig { reuse_port: true, ..SocketConfig::new(address) };
        let mut places = Vec::new();
        for place in WorkerPlace::all(count) {
            let socket = bind(shared(self.address)).unwrap();
            if place.index() == 0 {
                steer(&socket, count).unwrap();
                self.address = socket.local_addr().unwrap();
            }
            let settings = TransportSettings {
                worker: place,
                strangers: self.strangers.clone(),
                ..TransportSettings::default()
            };
            places.push((self.drivers.exit(settings), socket));
        }
        places
    }

    async fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let mut tick = interval(Duration::from_millis(2));
        let waiting = poll_fn(|cx| {
            while tick.poll_tick(cx).is_ready() {}
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

    fn key(&self) -> PublicKey {
        self.identity.public()
    }

    async fn connect(&mut self) {
        let (address, key) = (self.address, self.key());
        let before = self.connected_at_workers();
        let id = self.client.endpoint.connect(loopback_socket(), address, &[key]).unwrap();
        self.until("both sides are connected", |group| {
            assert_eq!(group.client.closed, []);
            let known = group.client.connected.iter().any(|(connected, _)| *connected == id);
            known && group.connected_at_workers() > before
        })
        .await;
    }

    fn connected_at_workers(&self) -> usize {
        self.workers.iter().map(|worker| worker.connected.len()).sum()
    }

    async fn connect_until_each_worker_has(&mut self, connections: usize) {
        // The kernel's hash chooses the worker. The hash is very unlikely to skip one worker this often.
        for _ in 0..200 {
            if self.workers.iter().all(|worker| worker.connected.len() >= connections) {
                return;
            }
            self.connect().await;
        }
        panic!("a worker got no connection");
    }

    /// The number of each received datagram, and the connection that carried it.
    fn received(&self) -> Vec<(u64, ConnectionId)> {
        let datagrams = self.workers.iter().flat_map(|worker| &worker.datagrams);
        datagrams.map(|(connection, datagram)| (number(datagram), *connection)).collect()
    }

    /// The Initials of a client that knows the exit's key, collected by a socket that never answers.
    async fn initials(&mut self) -> Vec<Vec<u8>> {
        let listener = loopback_socket();
        let (address, key) = (listener.local_addr().unwrap(), self.key());
        let id = self.client.endpoint.connect(loopback_socket(), address, &[key]).unwrap();
        let mut initials = Vec::new();
        self.until("both datagrams of a hello have arrived", |_| {
            let mut buffer = [0; 1_500];
            while let Ok(length) = listener.recv(&mut buffer) {
                initials.push(buffer[..length].to_vec());
            }
            initials.len() >= 2
        })
        .await;
        self.client.endpoint.close(id, 0, "");
        initials
    }
}

/// Workers as in the daemon: each in a thread with its own runtime.
struct Threads {
    threads: Vec<thread::JoinHandle<()>>,
    stop: watch::Sender<()>,
    connected: Arc<AtomicUsize>,
    /// The number of each received datagram.
    carried: mpsc::Receiver<u64>,
}

impl Threads {
    fn start(group: &mut Group, count: u8) -> Self {
        let (tell, carried) = mpsc::channel();
        let (stop, stopped) = watch::channel(());
        let connected: Arc<AtomicUsize> = Arc::default();
        let places = group.places(count).into_iter();
        let threads = places
            .map(|(settings, socket)| {
                let (identity, tell) = (group.identity.clone(), tell.clone());
                let (connected, mut stopped) = (connected.clone(), stopped.clone());
                let run = async move {
                    let endpoint = Endpoint::exit(settings, vec![identity], vec![socket], RESET_KEY);
                    let mut worker = Side::new(endpoint.unwrap());
                    let driving = poll_fn(|cx| {
                        worker.poll(cx);
                        connected.fetch_add(worker.connected.drain(..).len(), Relaxed);
                        for (_, datagram) in worker.datagrams.drain(..) {
                            tell.send(number(&datagram)).unwrap();
                        }
                        worker.endpoint.flush(cx);
                        Poll::<()>::Pending
                    });
                    tokio::select! { () = driving => {}, _ = stopped.changed() => {} }
                };
                thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.unwrap().block_on(run);
                })
            })
            .collect();
        Self { threads, stop, connected, carried }
    }

    fn stop(self) {
        drop(self.stop);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
