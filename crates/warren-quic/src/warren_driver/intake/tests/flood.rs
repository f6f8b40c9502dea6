//! An exit that is behind. One client fills its packets with the smallest possible datagrams, and another does not. Many keys
//! are not enrolled.

use std::{
    future::poll_fn,
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use tokio::time::sleep;

use super::*;
use crate::{
    boundary::{ConnectionId, ConnectionStats, Event, Inbox},
    key::PrivateKey,
    settings::{Congestion, TransmitCaps, TransportSettings},
    socket::{SocketConfig, bind},
    warren_driver::{WarrenEndpoint, connection::WarrenConnection},
};

/// The longest time of a single wait.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum number of received datagrams that a connection holds until they are read (`MAX_WAITING` of noq-proto).
const MAX_WAITING: u64 = 8 * 1024;
/// Datagrams of one batch on the wire; each packet holds some hundreds.
const BURST: u32 = 10_000;
const TINY: &[u8] = &[0];
const LARGE: &[u8] = &[0; 1_000];
/// As large as `LARGE`, but from the watched client.
const OWN: &[u8] = &[7; 1_000];
/// The number of keys that send as much as they can.
const STRANGERS: usize = 100;

#[tokio::test]
async fn a_client_of_tiny_datagrams_makes_nobody_else_lose_any() {
    let mut world = World::new().await;
    let (mut brought, mut sent, mut deepest_debt) = (0, 0, 0);
    for step in 0..200 {
        if step % 5 == 0 {
            brought += world.loud.send(TINY, BURST);
        }
        sent += world.quiet.send(LARGE, 8);
        world.step().await;
        let line = world.exit.intake.lines.get(&world.loud.sender());
        deepest_debt = line.map_or(0, |line| line.credit).min(deepest_debt);
    }
    // The control: the loud client sent far more than was delivered, and was charged for the rest.
    assert!(brought > world.tiny * 3, "{} of {brought}", world.tiny);
    assert!(deepest_debt < -1_000, "{deepest_debt}");

    let start = Instant::now();
    while world.large < sent {
        assert!(start.elapsed() < LONGEST, "{} of {sent}, {:?}", world.large, world.exit.socket_stats());
        world.step().await;
    }
    assert_eq!(world.exit.socket_stats().dropped, 0, "the socket never ran over");
}

#[tokio::test]
async fn what_a_share_takes_is_timed_until_the_next_one_is_wanted() {
    let mut exit = exit(&PrivateKey::generate().unwrap());
    exit.intake.share = MOST / 2;
    let start = Instant::now();
    exit.catch_up(start, true);
    for milliseconds in 1..20 {
        exit.catch_up(start + Duration::from_millis(milliseconds), false);
    }
    exit.catch_up(start + AIM * 20, true);
    assert_eq!(exit.intake.share, MOST / 4);
}

/// Counts how often a task was woken.
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test]
async fn a_datagram_that_arrives_while_the_last_share_is_taken_wakes_the_exit() {
    let mut exit = exit(&PrivateKey::generate().unwrap());
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let poll = |exit: &mut WarrenEndpoint| {
        let polled = exit.poll(&mut Context::from_waker(&waker), &mut Inbox::new());
        assert!(polled.is_pending(), "nothing for the worker");
    };
    poll(&mut exit);
    sleep(Duration::from_millis(10)).await;
    poll(&mut exit);
    // The exit is behind, and its last sender's last batch waits. The batch contains nothing for the worker.
    exit.intake.push(LOUD, batch(0, 1));
    exit.intake.is_behind = true;
    let address = exit.ports[0].as_ref().unwrap().socket.local_addr().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before = woken.0.load(Relaxed);
    sender.send_to(&[0; 100], address).unwrap();
    let start = Instant::now();
    while woken.0.load(Relaxed) == before {
        assert!(start.elapsed() < LONGEST, "the datagram wakes the exit");
        sleep(Duration::from_millis(1)).await;
    }

    let before = woken.0.load(Relaxed);
    poll(&mut exit);
    assert!(exit.intake.is_empty() && !exit.intake.is_behind());
    assert!(woken.0.load(Relaxed) > before, "the datagram is still in the socket");
}

#[tokio::test]
async fn a_connection_holds_so_many_datagrams_however_small_and_what_it_drops_is_counted() {
    for (bursts, is_too_much) in [(3, true), (1, false)] {
        let mut world = World::new().await;
        let count = if is_too_much { BURST } else { 1_000 };
        let sent: u64 = (0..bursts).map(|_| world.loud.send(TINY, count)).sum();
        while world.loud_stats().datagrams_received < sent {
            world.step().await;
            let ConnectionStats { datagrams_received, datagrams_delivered, receive_drops, .. } =
                world.loud_stats();
            assert!(datagrams_received - datagrams_delivered - receive_drops <= MAX_WAITING);
        }
        while world.loud_stats().receive_drops + world.tiny < sent {
            world.step().await;
        }
        let dropped = world.loud_stats().receive_drops;
        assert_eq!((dropped > 0, dropped + world.tiny), (is_too_much, sent));
    }
}

/// The datagrams of the one enrolled key arrive, no matter how many other keys send.
#[tokio::test]
async fn keys_that_are_not_enrolled_share_the_room_and_the_turns_of_one() {
    for (enrolled, loses) in [(1, false), (STRANGERS, true)] {
        let (mut crowd, mut sent, mut arrived) = (Crowd::new(STRANGERS), 0, 0);
        crowd.connect(enrolled).await;
        crowd.fill(1).await;
        for _ in 0..500 {
            sent += crowd.clients[0].send(OWN, 8);
            crowd.flood(1);
            arrived += crowd.step().await.own;
        }
        let start = Instant::now();
        while !crowd.exit.intake.is_empty() || start.elapsed() < Duration::from_millis(100) {
            assert!(start.elapsed() < LONGEST);
            arrived += crowd.step().await.own;
        }
        // The control: if all keys are enrolled, each gets as much as the watched one, which then loses datagrams.
        assert_eq!(arrived < sent / 2, loses, "{arrived} of {sent} with {enrolled} enrolled");
        let stats = crowd.exit.socket_stats();
        assert!(loses || arrived + stats.dropped >= sent, "{arrived} of {sent}, {stats:?}");
    }
}

/// The client's first message may arrive before its key is known.
#[tokio::test]
async fn a_client_that_connects_is_heard_while_keys_that_are_not_enrolled_fill_their_room() {
    let mut crowd = Crowd::new(STRANGERS);
    crowd.connect(0).await;
    crowd.fill(0).await;
    let late = client(&crowd.exit, &crowd.key);
    let key = late.key;
    crowd.clients.push(late);
    let (start, mut said) = (Instant::now(), false);
    loop {
        crowd.flood(0);
        let step = crowd.step().await;
        if !said && let [.., late] = &mut *crowd.clients {
            said = late.endpoint.send_control(late.connection, b"hello").is_ok();
        }
        for (connection, peer) in step.connected {
            assert_eq!(peer, key);
            crowd.exit.know_as_client(connection);
        }
        if step.heard {
            break;
        }
        assert!(start.elapsed() < LONGEST, "said {said}, {:?}", crowd.exit.socket_stats());
    }
    assert!(crowd.exit.intake.is_behind());
}

#[tokio::test]
async fn a_connection_has_its_client_s_room_from_when_it_is_known_until_its_end() {
    let mut world = World::new().await;
    let sender = |world: &World| {
        let found = world.exit.connections.slot_of(world.loud_at_exit);
        found.and_then(|slot| world.exit.connections.get(slot)).map(WarrenConnection::sender)
    };
    assert_eq!(sender(&world), Some(world.loud.sender()));
    world.exit.close(world.loud_at_exit, 0, "");
    let start = Instant::now();
    let mut inbox = Inbox::new();
    while !inbox.events.iter().any(|event| matches!(event, Event::Closed { .. })) {
        assert!(start.elapsed() < LONGEST);
        inbox.clear();
        poll_fn(|cx| world.exit.poll(cx, &mut inbox)).await;
    }
    assert_eq!(sender(&world), Some(Sender::Unenrolled));
}

/// A client with its connection.
struct Client {
    endpoint: WarrenEndpoint,
    connection: ConnectionId,
    key: PublicKey,
}

impl Client {
    /// Offers `count` datagrams. Returns how many the connection took.
    fn send(&mut self, datagram: &'static [u8], count: u32) -> u64 {
        let taken = (0..count)
            .filter(|_| self.endpoint.send_datagram(self.connection, Bytes::from_static(datagram)).is_ok());
        taken.count() as u64
    }

    fn sender(&self) -> Sender {
        Sender::Client(self.key)
    }
}

/// An exit and many clients.
struct Crowd {
    key: PrivateKey,
    exit: WarrenEndpoint,
    clients: Vec<Client>,
}

/// What the exit received in a step.
#[derive(Default)]
struct Step {
    connected: Vec<(ConnectionId, PublicKey)>,
    /// Datagrams of the first client.
    own: u64,
    /// Whether there were control bytes.
    heard: bool,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let key = PrivateKey::generate().unwrap();
        let exit = exit(&key);
        let clients = (0..count).map(|_| client(&exit, &key)).collect();
        Self { key, exit, clients }
    }

    /// Waits until all clients are connected, the first `enrolled` of them as enrolled clients.
    async fn connect(&mut self, enrolled: usize) {
        let known: Vec<PublicKey> = self.clients.iter().take(enrolled).map(|client| client.key).collect();
        let (start, mut connected) = (Instant::now(), 0);
        while connected < self.clients.len() {
            assert!(start.elapsed() < LONGEST);
            for (connection, peer) in self.step().await.connected {
                connected += 1;
                if known.contains(&peer) {
                    self.exit.know_as_client(connection);
                }
            }
        }
    }

    /// All keys but the first `spared` send.
    fn flood(&mut self, spared: usize) {
        for client in self.clients.iter_mut().take(STRANGERS).skip(spared) {
            client.send(LARGE, 4);
        }
    }

    /// Floods until the queue space is full.
    async fn fill(&mut self, spared: usize) {
        let start = Instant::now();
        while self.exit.socket_stats().intake_drops == 0 {
            assert!(start.elapsed() < LONGEST);
            self.flood(spared);
            self.step().await;
        }
        assert!(self.exit.intake.is_behind());
    }

    async fn step(&mut self) -> Step {
        let inbox = turn(&mut self.clients.iter_mut().collect::<Vec<_>>(), &mut self.exit).await;
        let own = inbox.datagrams.iter().filter(|(_, datagram)| datagram == OWN).count();
        let mut step = Step { own: own as u64, ..Step::default() };
        for event in &inbox.events {
            match event {
                Event::Connected { connection, peer, .. } => step.connected.push((*connection, *peer)),
                Event::Control { data, .. } => step.heard |= data == "hello".as_bytes(),
                Event::Writable { .. } | Event::Answers { .. } | Event::Closed { .. } => {}
            }
        }
        step
    }
}

/// Lets the clients send everything that they hold, then polls the exit once and returns the results.
async fn turn(clients: &mut [&mut Client], exit: &mut WarrenEndpoint) -> Inbox {
    let mut inbox = Inbox::new();
    poll_fn(|cx| {
        for client in clients.iter_mut() {
            while client.endpoint.poll(cx, &mut inbox).is_ready() {
                inbox.clear();
            }
            client.endpoint.flush(cx);
        }
        Poll::Ready(())
    })
    .await;
    // The runtime must see the datagrams first.
    sleep(Duration::from_millis(1)).await;
    poll_fn(|cx| {
        let _is_idle = exit.poll(cx, &mut inbox);
        exit.flush(cx);
        Poll::Ready(())
    })
    .await;
    inbox
}

struct World {
    exit: WarrenEndpoint,
    loud: Client,
    quiet: Client,
    /// The loud client's connection.
    loud_at_exit: ConnectionId,
    /// Datagrams that were delivered from the loud client (`tiny`) and from the quiet client (`large`).
    tiny: u64,
    large: u64,
}

impl World {
    async fn new() -> Self {
        let exit_key = PrivateKey::generate().unwrap();
        let exit = exit(&exit_key);
        let (loud, quiet) = (client(&exit, &exit_key), client(&exit, &exit_key));
        let loud_at_exit = ConnectionId(0);
        let mut world = Self { exit, loud, quiet, loud_at_exit, tiny: 0, large: 0 };
        let start = Instant::now();
        while world.exit.connections.iter().filter(|connection| connection.peer.is_some()).count() < 2
            || world.quiet.endpoint.max_datagram_size(world.quiet.connection).is_none()
        {
            assert!(start.elapsed() < LONGEST);
            world.step().await;
        }
        let all: Vec<_> =
            world.exit.connections.iter().map(|connection| (connection.place.id, connection.peer)).collect();
        all.iter().for_each(|(id, _)| world.exit.know_as_client(*id));
        world.loud_at_exit = all.iter().find(|(_, peer)| *peer == Some(world.loud.key)).unwrap().0;
        world
    }

    async fn step(&mut self) {
        let inbox = turn(&mut [&mut self.loud, &mut self.quiet], &mut self.exit).await;
        assert!(inbox.events.iter().all(|event| !matches!(event, Event::Closed { .. })));
        let tiny = inbox.datagrams.iter().filter(|(_, datagram)| datagram == TINY).count();
        self.tiny += tiny as u64;
        self.large += (inbox.datagrams.len() - tiny) as u64;
    }

    fn loud_stats(&self) -> ConnectionStats {
        self.exit.stats(self.loud_at_exit).unwrap()
    }
}

fn settings() -> TransportSettings {
    TransportSettings {
        congestion: Congestion::Off.into(),
        caps: TransmitCaps::new(64, 128),
        datagram_send_buffer: Some(4 * 1024 * 1024),
        ..TransportSettings::default()
    }
}

fn exit(key: &PrivateKey) -> WarrenEndpoint {
    // The socket has room for the datagrams that arrive before the exit can know that it is behind.
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = bind(SocketConfig { buffer_bytes: 256 * 1024, ..SocketConfig::new(address) }).unwrap();
    WarrenEndpoint::exit(settings(), std::slice::from_ref(key), vec![socket], &[7; 32]).unwrap()
}

fn client(exit: &WarrenEndpoint, exit_key: &PrivateKey) -> Client {
    let key = PrivateKey::generate().unwrap();
    let public = key.public();
    let mut endpoint = WarrenEndpoint::client(settings(), key).unwrap();
    let socket = bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
    let address = exit.ports[0].as_ref().unwrap().socket.local_addr().unwrap();
    let connection = endpoint.connect(socket, address, &[exit_key.public()], None).unwrap();
    Client { endpoint, connection, key: public }
}
