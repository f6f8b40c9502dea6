//! Connection attempts by an attacker who knows the exit's key, has addresses in many networks, and finishes no handshake.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warren_quic::key::PublicKey;

use super::attacker::{Attacker, Retry};
use super::hostile::proof;
use super::{Namespace, Net};

/// The source connection ID of every attempt. It is fixed, because the ClientHello contains it and can then be fixed too.
const SOURCE: [u8; 8] = [0x5c; 8];

/// Starts handshakes until it is ended.
#[derive(Debug)]
pub struct HalfOpen {
    over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    started: Instant,
    thread: JoinHandle<()>,
}

/// The attacker's counters.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    proven: AtomicU64,
}

impl HalfOpen {
    /// Starts `per_second` handshakes a second from addresses in `networks` networks, including the host's own network. Each
    /// attempt proves that it knows the exit's key, and follows a Retry.
    pub fn start(net: &Net, host: &Namespace, networks: u8, exit_key: PublicKey, per_second: u64) -> Self {
        net.router.sh("ip route add 100.64.0.0/16 via 192.0.3.2").ok();
        let add = format!("for n in $(seq 1 {networks}); do ip addr add 100.64.$n.2/32 dev lo; done");
        host.sh(&add).ok();
        let (over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let (until, counted) = (over.clone(), counts.clone());
        let thread = host.enter(move || {
            let mut sockets = vec![socket("0.0.0.0".to_owned())];
            sockets.extend((1..networks).map(|network| socket(format!("100.64.{network}.2"))));
            let begin = Begin { sockets, frames: hello(), exit_key, counts: &counted };
            begin.run(per_second, &until);
        });
        Self { over, counts, started: Instant::now(), thread }
    }

    /// The handshakes started so far, and the addresses proven.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.begun.load(SeqCst), self.counts.proven.load(SeqCst))
    }

    /// Ends the attack. Returns how many handshakes it started per second.
    pub fn end(self) -> u64 {
        self.over.store(true, SeqCst);
        let took = self.started.elapsed();
        self.thread.join().unwrap();
        self.counts.begun.load(SeqCst) * 1_000 / u64::try_from(took.as_millis()).unwrap().max(1)
    }
}

struct Begin<'a> {
    sockets: Vec<UdpSocket>,
    frames: Vec<Vec<u8>>,
    exit_key: PublicKey,
    counts: &'a Counts,
}

impl Begin<'_> {
    fn run(&self, per_second: u64, over: &AtomicBool) {
        let start = Instant::now();
        let due = || u64::try_from(start.elapsed().as_micros()).unwrap() * per_second / 1_000_000;
        while !over.load(SeqCst) {
            let begun = self.counts.begun.load(SeqCst);
            // The number is limited, so that a pause of the machine does not lead to a large burst.
            for number in begun..due().min(begun + 20) {
                self.begin(number);
            }
            self.sockets.iter().for_each(|socket| self.answer(socket));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn begin(&self, number: u64) {
        let attempt = attacker([&[0xd1; 12][..], &number.to_be_bytes()].concat());
        let token = proof(self.exit_key, &attempt.destination);
        let socket = &self.sockets[usize::try_from(number).unwrap() % self.sockets.len()];
        send(socket, &attempt.initials(&token, &self.frames));
        self.counts.begun.fetch_add(1, SeqCst);
    }

    /// Follows each Retry, and ignores all other packets.
    fn answer(&self, socket: &UdpSocket) {
        let (mut buffer, any) = ([0; 2_048], attacker(Vec::new()));
        while let Ok(length) = socket.recv(&mut buffer) {
            if let Some(retry) = Retry::read(&any, &buffer[..length]) {
                let proven = any.after_retry(&retry);
                send(socket, &proven.initials(&retry.token, &self.frames));
                self.counts.proven.fetch_add(1, SeqCst);
            }
        }
    }
}

fn attacker(destination: Vec<u8>) -> Attacker {
    Attacker { destination, source: SOURCE }
}

fn hello() -> Vec<Vec<u8>> {
    Attacker::hello_frames(&attacker(Vec::new()).usual_parameters())
}

fn socket(address: String) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.connect((Net::EXIT_V4, 443)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn send(socket: &UdpSocket, packets: &[Vec<u8>]) {
    // A full socket buffer loses packets, as a network would.
    packets.iter().for_each(|packet| drop(socket.send(packet)));
}
