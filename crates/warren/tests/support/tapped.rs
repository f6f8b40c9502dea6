//! A client's connection through a relay (the tap) that learns the exit's connection IDs and can corrupt the exit's answers.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use warren_quic::driver::{CloseReason, Endpoint, Event, Inbox};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::{Driver, TransportSettings};

use super::Net;
use super::library_client::runtime;

/// A connection ID of an exit.
pub type Id = [u8; 12];

const PATIENCE: Duration = Duration::from_secs(10);

/// A connection with a key that is not enrolled. It must be created and used on a thread of the client's host.
pub struct TappedClient {
    endpoint: Endpoint,
    tap: Arc<Tap>,
    /// This field is dropped last, because the other fields run in the runtime.
    runtime: Runtime,
}

#[derive(Debug, Default)]
struct Tap {
    /// The destination ID of the client's latest packet with a short header.
    id: Mutex<Option<Id>>,
    spoils: AtomicBool,
    spoilt: AtomicUsize,
}

impl TappedClient {
    /// Connects to the net's exit, and continues until the tap has learned an ID.
    pub fn connect(exit_key: PublicKey) -> Self {
        let (runtime, tap) = (runtime(), Arc::<Tap>::default());
        let endpoint = runtime.block_on(async {
            let passing = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let remote = passing.local_addr().unwrap();
            tokio::spawn(pass(passing, tap.clone()));
            let settings = TransportSettings { driver: Driver::Warren, ..TransportSettings::default() };
            let mut endpoint = Endpoint::client(settings, PrivateKey::generate().unwrap()).unwrap();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            endpoint.connect(socket, remote, &[exit_key]).unwrap();
            let connected = async {
                let mut inbox = Inbox::new();
                let mut is_connected = false;
                while !is_connected || tap.id.lock().unwrap().is_none() {
                    let polled = poll_fn(|context| endpoint.poll(context, &mut inbox));
                    drop(tokio::time::timeout(Duration::from_millis(10), polled).await);
                    is_connected |= inbox.events.iter().any(|event| matches!(event, Event::Connected { .. }));
                    inbox.clear();
                }
            };
            tokio::time::timeout(PATIENCE, connected).await.unwrap();
            endpoint
        });
        Self { endpoint, tap, runtime }
    }

    /// A connection ID that the exit has issued to this client.
    pub fn id(&self) -> Id {
        self.tap.id.lock().unwrap().unwrap()
    }

    /// Sets whether the tap flips a bit at the end of each datagram from the exit.
    pub fn spoil(&self, spoils: bool) {
        self.tap.spoils.store(spoils, SeqCst);
    }

    /// The number of datagrams changed so far.
    pub fn spoilt(&self) -> usize {
        self.tap.spoilt.load(SeqCst)
    }

    /// Makes the client probe the exit. Returns the reason if the connection ends within `within`.
    pub fn end(&mut self, within: Duration) -> Option<CloseReason> {
        let Self { runtime, endpoint, .. } = self;
        endpoint.rouse();
        let closed = async {
            let mut inbox = Inbox::new();
            loop {
                poll_fn(|context| endpoint.poll(context, &mut inbox)).await;
                for event in inbox.events.drain(..) {
                    if let Event::Closed { reason, .. } = event {
                        return reason;
                    }
                }
                inbox.clear();
            }
        };
        runtime.block_on(async { tokio::time::timeout(within, closed).await.ok() })
    }
}

/// Relays between a client and the exit.
async fn pass(client: UdpSocket, tap: Arc<Tap>) {
    let exit = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    exit.connect((Net::EXIT_V4, 443)).await.unwrap();
    let (mut said, mut answered) = ([0; 2_048], [0; 2_048]);
    let mut address: Option<SocketAddr> = None;
    loop {
        tokio::select! {
            received = client.recv_from(&mut said) => {
                let (length, from) = received.unwrap();
                address = Some(from);
                if said[0] & 0xc0 == 0x40 {
                    *tap.id.lock().unwrap() = said[1..13].try_into().ok();
                }
                drop(exit.send(&said[..length]).await);
            }
            received = exit.recv(&mut answered) => {
                // Receiving fails while no exit listens, because the host answers with ICMP errors.
                let (Ok(length), Some(address)) = (received, address) else { continue };
                if tap.spoils.load(SeqCst) {
                    answered[length - 1] ^= 1;
                    tap.spoilt.fetch_add(1, SeqCst);
                }
                drop(client.send_to(&answered[..length], address).await);
            }
        }
    }
}
