//! Datagrams to the exit's port with any source address, as a sender of forged packets sends them.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::counters::packets_and_bytes_of_one;
use super::library_client::udp;
use super::{Namespace, Net};

/// A host that sends packets with forged source addresses.
#[derive(Debug)]
pub struct Forger(Socket);

/// Networks without hosts. The router drops and counts packets to them.
const FORGED: &str = "198.18.0.0/15";

impl Forger {
    pub fn on(host: &Namespace) -> Self {
        // A raw socket with IPPROTO_RAW sends packets with their own IP header (raw(7)).
        let socket =
            || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).unwrap();
        Self(host.enter(socket).join().unwrap())
    }

    /// Sends a datagram to the exit. The datagram is lost if the socket's buffer is full.
    pub fn send(&self, from: SocketAddrV4, payload: &[u8]) {
        self.send_to(from, SocketAddrV4::new(Net::EXIT_V4.parse().unwrap(), 443), payload);
    }

    /// Sends a datagram to any address.
    pub fn send_to(&self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        let packet = udp(*from.ip(), (*to.ip(), to.port()), from.port(), payload);
        drop(self.0.send_to(&packet, &to.into()));
    }
}

/// The address and port of the `number`th stranger, one of 131,072.
pub fn stranger(number: u32) -> SocketAddrV4 {
    let place = number.wrapping_mul(0x9e37_79b1) >> 15;
    SocketAddrV4::new((0xc612_0000 + place).into(), 1_024 + (number % 60_000) as u16)
}

/// Makes the router drop and count the exit's packets to strangers.
pub fn swallow_answers(net: &Net) {
    let count = format!("ip daddr {FORGED} counter drop;");
    net.router
        .sh(&format!(
            "nft 'table ip strangers {{ chain c {{ type filter hook forward priority 0; {count} }}; }}'; \
             ip route add {FORGED} dev lo"
        ))
        .ok();
}

/// The datagrams and bytes that the exit has sent to strangers.
pub fn answered(net: &Net) -> (u64, u64) {
    let listed = net.router.sh("nft list table ip strangers").ok();
    packets_and_bytes_of_one(&listed)
}

/// Sends datagrams at a fixed rate until it is ended.
#[derive(Debug)]
pub struct Flood {
    over: Arc<AtomicBool>,
    started: Instant,
    thread: JoinHandle<u64>,
}

impl Flood {
    /// Sends `payloads` in turn, each from another stranger. With `train` above 1, that many consecutive payloads share a stranger.
    pub fn start(host: &Namespace, payloads: Arc<Vec<Vec<u8>>>, train: u32, per_second: u64) -> Self {
        let forger = Forger::on(host);
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let thread = std::thread::spawn(move || {
            let (start, mut sent) = (Instant::now(), 0_u64);
            for (number, payload) in (0_u32..).zip(payloads.iter().cycle()) {
                while sent >= due(start, per_second) {
                    if until.load(SeqCst) {
                        return sent;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                forger.send(stranger(number / train), payload);
                sent += 1;
                if sent.is_multiple_of(1_000) && until.load(SeqCst) {
                    break;
                }
            }
            sent
        });
        Self { over, started: Instant::now(), thread }
    }

    /// Ends the flood. Returns how many datagrams it sent, in total and per second.
    pub fn end(self) -> (u64, u64) {
        self.over.store(true, SeqCst);
        let sent = self.thread.join().unwrap();
        (sent, sent / self.started.elapsed().as_secs().max(1))
    }
}

fn due(start: Instant, per_second: u64) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap() * per_second / 1_000_000
}
