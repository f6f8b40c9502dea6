//! Single steps of real clients without a TUN device: enrolling by QUIC, connecting, sending a packet. A host on the internet
//! records each packet that has passed an exit.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warren_client::{EnrolError, Enrolment};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::client::{ClientState, Stop};
use warren_session::goodbye::Goodbye;
use warren_session::invite::InviteToken;

use super::Net;
use super::library_client::{LibraryClient, udp};
use super::real_fleet::{NAMES, endpoint};

/// Where the sink listens.
const PORT: u16 = 9_000;

/// How long a client waits for a definite answer.
const PATIENCE: Duration = Duration::from_secs(6);

/// The address and the key of an exit.
pub type Way = (SocketAddr, PublicKey);

/// A packet that the sink has received.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The number that the client writes into its packets.
    pub client: usize,
    /// The exit that has translated the packet's source address.
    pub exit: usize,
    pub at: Instant,
}

/// Records and returns the packets of all clients. Dropping it ends it.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<(AtomicBool, Mutex<Vec<Arrival>>)>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts the sink on the internet host. Only exits reach it with the source address of an exit.
    pub fn start(net: &Net) -> Self {
        let shared: Arc<(AtomicBool, Mutex<Vec<Arrival>>)> = Arc::default();
        let of_thread = shared.clone();
        let thread = net.internet.host.enter(move || {
            let socket = UdpSocket::bind((Net::INTERNET_V4, PORT)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut packet = [0; 64];
            while !of_thread.0.load(SeqCst) {
                let Ok((length, source)) = socket.recv_from(&mut packet) else { continue };
                let at = Instant::now();
                let client = u64::from_be_bytes(packet[..8].try_into().unwrap());
                let exit = (0..NAMES.len()).find(|exit| endpoint(*exit).ip() == source.ip());
                let exit = exit.expect("a packet that has passed an exit");
                of_thread.1.lock().unwrap().push(Arrival {
                    client: usize::try_from(client).unwrap(),
                    exit,
                    at,
                });
                socket.send_to(&packet[..length], source).unwrap();
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Returns all packets up to now.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.1.lock().unwrap().clone()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.0.store(true, SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The end of an attempt that may change something at the exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The exit has refused for good.
    Refused,
    /// The exit has not answered, or asked to try again.
    Unknown,
}

/// Redeems a token at an exit.
pub async fn enrol((address, exit_key): Way, identity: &PrivateKey, token: &InviteToken) -> Outcome {
    let endpoint = address.to_string().parse().unwrap();
    let token = token.to_wire();
    let enrolment = Enrolment { endpoint: &endpoint, exit_key, identity, token, name: "guest" };
    match enrolment.run(PATIENCE).await {
        Ok(_) => Outcome::Done,
        Err(EnrolError::Refused(_)) => Outcome::Refused,
        Err(EnrolError::NotReached(_) | EnrolError::NotAnswered(_)) => Outcome::Unknown,
    }
}

/// The end of an attempt to open a session.
pub enum Greeting {
    /// The session, and the client's inner address.
    Welcome(Box<LibraryClient>, Ipv4Addr),
    Refused(Goodbye),
    /// There was no final answer in time.
    Unknown,
}

/// Opens a session at an exit.
pub async fn connect(way: Way, key: &PrivateKey) -> Greeting {
    let begun = Instant::now();
    let mut client = LibraryClient::start_in_fleet(way, key.clone(), 1);
    while begun.elapsed() < PATIENCE {
        client.run(Duration::from_millis(50)).await;
        if let ClientState::Stopped(Stop::Goodbye(why)) = client.state() {
            return Greeting::Refused(*why);
        }
        if client.attached() == 1 {
            let (address, _) = client.welcome().and_then(|grant| grant.ipv4).unwrap();
            return Greeting::Welcome(Box::new(client), address);
        }
    }
    Greeting::Unknown
}

/// Sends a packet of the client with this number to the sink. Returns whether it comes back within this time.
pub async fn probe(
    client: &mut LibraryClient,
    source: Ipv4Addr,
    (number, sequence): (usize, u64),
    within: Duration,
) -> bool {
    let sink: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
    let content = [u64::try_from(number).unwrap().to_be_bytes(), sequence.to_be_bytes()].concat();
    let begun = Instant::now();
    let is_sent = client.send(&udp(source, (sink, PORT), 30_000, &content));
    while begun.elapsed() < within {
        client.run(within.saturating_sub(begun.elapsed())).await;
        while let Some(packet) = client.received() {
            if packet.get(28..) == Some(&content) {
                return is_sent;
            }
        }
    }
    false
}
