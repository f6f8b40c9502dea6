//! A wire with a rate, a queue, a delay and random loss each way. It is a relay on the router, whose address clients use as the
//! exit's address.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Net, flows, seconds};

/// The properties of each direction.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub megabits: u64,
    /// The delay of one direction.
    pub delay: Duration,
    /// The longest wait in the queue. A datagram that would wait longer is dropped.
    pub queue: Duration,
    pub loss_per_mille: u64,
}

/// A running relay.
#[derive(Debug)]
pub struct SlowWire {
    is_over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl SlowWire {
    /// The exit's address as a client has to use it.
    pub const ENDPOINT: &str = "192.0.2.1:443";

    pub fn start(net: &Net, wire: Wire) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let (ready, is_ready) = channel();
        let listening = net.router.enter(move || {
            let here = Arc::new(bound(Self::ENDPOINT));
            ready.send(()).unwrap();
            relay(&here, wire, &over);
        });
        is_ready.recv_timeout(seconds(10)).unwrap();
        Self { is_over, listening: Some(listening) }
    }
}

impl Drop for SlowWire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(listening) = self.listening.take() {
            listening.join().unwrap();
        }
    }
}

/// A datagram that is on its way.
struct Moving {
    due: Instant,
    bytes: Vec<u8>,
    through: Arc<UdpSocket>,
    to: SocketAddr,
}

/// One direction.
struct Way {
    wire: Wire,
    /// First, the time at which the line will have sent every waiting datagram. Second, the state of the random number generator.
    line: Mutex<(Instant, u64)>,
    moving: Sender<Moving>,
}

impl Way {
    fn new(wire: Wire, seed: u64) -> Arc<Self> {
        let (moving, arriving) = channel();
        std::thread::spawn(move || deliver(&arriving));
        Arc::new(Self { wire, line: Mutex::new((Instant::now(), seed)), moving })
    }

    fn take(&self, bytes: &[u8], through: &Arc<UdpSocket>, to: SocketAddr) {
        let now = Instant::now();
        let mut line = self.line.lock().unwrap();
        let (free, random) = &mut *line;
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let start = (*free).max(now);
        if *random % 1_000 < self.wire.loss_per_mille || start - now > self.wire.queue {
            return;
        }
        // The rate includes the headers of IPv4 and UDP, 28 bytes.
        let bits = 8 * (bytes.len() as u64 + 28);
        *free = start + Duration::from_nanos(bits * 1_000 / self.wire.megabits);
        let due = *free + self.wire.delay;
        // The datagram is queued while the lock is held, so that datagrams stay in order.
        self.moving.send(Moving { due, bytes: bytes.to_vec(), through: through.clone(), to }).ok();
    }
}

fn deliver(arriving: &Receiver<Moving>) {
    for Moving { due, bytes, through, to } in arriving {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        through.send_to(&bytes, to).ok();
    }
}

/// Carries datagrams between clients and the exit. Each client has a socket of its own towards the exit.
fn relay(here: &Arc<UdpSocket>, wire: Wire, over: &Arc<AtomicBool>) {
    let exit: SocketAddr = format!("{}:443", Net::EXIT_V4).parse().unwrap();
    let (to_exit, to_client) = (Way::new(wire, 0x9e37_79b9_7f4a_7c15), Way::new(wire, 0x2545_f491_4f6c_dd1d));
    let mut there: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answering = Vec::new();
    let mut buffer = [0; 2048];
    while !over.load(Ordering::Relaxed) {
        let Ok((read, client)) = here.recv_from(&mut buffer) else { continue };
        let socket = there.entry(client).or_insert_with(|| {
            let socket = Arc::new(bound("198.51.100.1:0"));
            let (from_exit, here, way, over) =
                (socket.clone(), here.clone(), to_client.clone(), over.clone());
            answering.push(std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                while !over.load(Ordering::Relaxed) {
                    if let Ok(read) = from_exit.recv(&mut buffer) {
                        way.take(&buffer[..read], &here, client);
                    }
                }
            }));
            socket
        });
        to_exit.take(&buffer[..read], socket, exit);
    }
    answering.into_iter().for_each(|thread| thread.join().unwrap());
}

fn bound(address: &str) -> UdpSocket {
    let socket = flows::bound(address);
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket
}
