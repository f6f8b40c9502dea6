//! Clients that ignore the exit's messages. When the exit sends a Goodbye, they keep sending, and then connect again and again.
//!
//! They have neither a TUN device nor the session's state machine, which stops at a Goodbye.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use warren_packet::datagram::{Flags, write_packet};
use warren_quic::driver::{ConnectionId, Endpoint, Event, Inbox};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::{Congestion, Driver, TransportSettings};
use warren_session::message::{Attach, Hello, Message, MessageDecoder, Welcome, encode};

use super::library_client::{runtime, udp};
use super::{Namespace, Net};

/// How many times each client connects again.
pub const TRIES: u64 = 20;
/// The first client's destination port on the internet host. Each further client uses the next port.
pub const FIRST_PORT: u16 = 5_400;

/// The pause between two packets. This makes a hundred packets a second.
const INTERVAL: Duration = Duration::from_millis(10);
/// The number of packets that are sent before an answer, and again after it.
const BLIND: usize = 5;
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients on one thread of a host, which send from the start.
#[derive(Debug)]
pub struct StubbornClients {
    /// One account for each client, in the order of the keys.
    pub accounts: Vec<Arc<Account>>,
    orders: Arc<AtomicU8>,
    thread: std::thread::JoinHandle<()>,
}

/// The results of one client.
#[derive(Debug, Default)]
pub struct Account {
    inner: OnceLock<Ipv4Addr>,
    /// Packets that its QUIC library has accepted for sending.
    pub sent: AtomicU64,
    /// How often it connected again, and how often the exit let it in.
    pub tries: AtomicU64,
    pub let_in: AtomicU64,
}

impl Account {
    /// Its inner address, once it has one.
    pub fn inner(&self) -> Option<Ipv4Addr> {
        self.inner.get().copied()
    }
}

const SENDING: u8 = 0;
const MOVED: u8 = 1;
const COMING_AGAIN: u8 = 2;
const LEAVING: u8 = 3;

impl StubbornClients {
    pub fn start(host: &Namespace, keys: Vec<PrivateKey>, exit_key: PublicKey) -> Self {
        let accounts: Vec<Arc<Account>> = keys.iter().map(|_| Arc::default()).collect();
        let orders = Arc::new(AtomicU8::new(SENDING));
        let (of_thread, obeyed) = (accounts.clone(), orders.clone());
        let thread = host.enter(move || {
            let clients = tokio::task::LocalSet::new();
            clients.block_on(&runtime(), async {
                let mut running = Vec::new();
                for ((key, account), port) in keys.into_iter().zip(of_thread).zip(FIRST_PORT..) {
                    let client = StubbornClient::new(key, exit_key, port, account);
                    running.push(tokio::task::spawn_local(client.live(obeyed.clone())));
                }
                for client in running {
                    client.await.unwrap();
                }
            });
        });
        Self { accounts, orders, thread }
    }

    /// Makes each client continue from another port of its host.
    pub fn have_moved(&self) {
        self.orders.store(MOVED, SeqCst);
    }

    /// Makes each client connect again [`TRIES`] times, and waits until they have done so.
    pub fn come_again(self) -> Vec<Arc<Account>> {
        self.end(COMING_AGAIN)
    }

    /// Ends all clients.
    pub fn leave(self) -> Vec<Arc<Account>> {
        self.end(LEAVING)
    }

    fn end(self, order: u8) -> Vec<Arc<Account>> {
        self.orders.store(order, SeqCst);
        self.thread.join().unwrap();
        self.accounts
    }
}

struct StubbornClient {
    endpoint: Endpoint,
    exit_key: PublicKey,
    port: u16,
    account: Arc<Account>,
    nonce: Vec<u8>,
    welcome: Welcome,
    packet: Bytes,
}

impl StubbornClient {
    fn new(key: PrivateKey, exit_key: PublicKey, port: u16, account: Arc<Account>) -> Self {
        // Congestion control is off, so that the client keeps sending although it receives nothing.
        let settings = TransportSettings {
            driver: Driver::Warren,
            congestion: Congestion::Off.into(),
            ..TransportSettings::default()
        };
        Self {
            endpoint: Endpoint::client(settings, key).unwrap(),
            exit_key,
            port,
            account,
            nonce: port.to_be_bytes().repeat(8),
            welcome: Welcome::default(),
            packet: Bytes::new(),
        }
    }

    async fn live(mut self, orders: Arc<AtomicU8>) {
        let (connection, answer) = self.ask(&self.hello()).await;
        let Some(Message::Welcome(welcome)) = answer else { panic!("the client is not let in: {answer:?}") };
        self.know(welcome);
        let (mut next, mut has_moved) = (Instant::now(), false);
        loop {
            match orders.load(SeqCst) {
                COMING_AGAIN => break,
                LEAVING => return,
                MOVED if !has_moved => {
                    self.endpoint.rebind(connection, socket()).unwrap();
                    has_moved = true;
                }
                _ => {}
            }
            self.send(connection, 1);
            next += INTERVAL;
            self.run_until(next).await;
        }
        for number in 0..TRIES {
            let first = if number % 2 == 0 { self.attach() } else { self.hello() };
            let (connection, answer) = self.ask(&first).await;
            self.account.tries.fetch_add(1, SeqCst);
            let is_let_in = matches!(answer, Some(Message::Welcome(_) | Message::Attached(_)));
            self.account.let_in.fetch_add(u64::from(is_let_in), SeqCst);
            if let Some(Message::Welcome(welcome)) = answer {
                self.know(welcome);
            }
            self.send(connection, BLIND);
            self.run_until(Instant::now() + INTERVAL).await;
        }
    }

    fn know(&mut self, welcome: Welcome) {
        let granted = welcome.ipv4.clone().unwrap().address;
        let inner: Ipv4Addr = <[u8; 4]>::try_from(granted).unwrap().into();
        let internet = Net::INTERNET_V4.parse().unwrap();
        let mut framed = BytesMut::new();
        write_packet(Flags::default(), &[&udp(inner, (internet, self.port), 30_000, b"hello")], &mut framed);
        (self.packet, self.welcome) = (framed.freeze(), welcome);
        self.account.inner.get_or_init(|| inner);
    }

    fn hello(&self) -> Message {
        let nonce = self.nonce.clone();
        Message::Hello(Hello { version: 1, connections_wanted: 1, nonce, ..Hello::default() })
    }

    fn attach(&self) -> Message {
        let Welcome { session, attach_token, .. } = self.welcome.clone();
        Message::Attach(Attach { session, attach_token, index: 0 })
    }

    /// Connects, and sends `first` with packets right after it. Returns the exit's answer, if any.
    async fn ask(&mut self, first: &Message) -> (ConnectionId, Option<Message>) {
        let remote = SocketAddr::new(Net::EXIT_V4.parse().unwrap(), 443);
        let connection = self.endpoint.connect(socket(), remote, &[self.exit_key]).unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.talk(connection, first)).await;
        (connection, answer.ok().flatten())
    }

    async fn talk(&mut self, with: ConnectionId, first: &Message) -> Option<Message> {
        let (mut inbox, mut decoder) = (Inbox::new(), MessageDecoder::new());
        loop {
            poll_fn(|context| self.endpoint.poll(context, &mut inbox)).await;
            for event in inbox.events.drain(..) {
                match event {
                    Event::Connected { connection, .. } if connection == with => {
                        self.endpoint.send_control(connection, &encode(first)).unwrap();
                        self.send(connection, BLIND);
                    }
                    Event::Control { connection, data } if connection == with => {
                        decoder.push(&data);
                        if let Some(message) = decoder.next().unwrap() {
                            return Some(message);
                        }
                    }
                    Event::Closed { connection, .. } if connection == with => return None,
                    Event::Connected { .. }
                    | Event::Control { .. }
                    | Event::Closed { .. }
                    | Event::Writable { .. }
                    | Event::Answers { .. } => {}
                }
            }
            inbox.clear();
        }
    }

    fn send(&mut self, connection: ConnectionId, count: usize) {
        if self.packet.is_empty() {
            return;
        }
        for _ in 0..count {
            let is_taken = self.endpoint.send_datagram(connection, self.packet.clone()).is_ok();
            self.account.sent.fetch_add(u64::from(is_taken), SeqCst);
        }
    }

    /// Keeps its connections running, and discards all data that they receive.
    async fn run_until(&mut self, until: Instant) {
        let mut inbox = Inbox::new();
        loop {
            tokio::select! {
                () = poll_fn(|context| self.endpoint.poll(context, &mut inbox)) => inbox.clear(),
                () = tokio::time::sleep_until(until.into()) => return,
            }
        }
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}
