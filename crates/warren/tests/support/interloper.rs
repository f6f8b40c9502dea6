//! An attacker on the path who sees a client's first packets and answers them in place of the exit, without having the exit's
//! key. The packets are encrypted with keys that anybody can derive from the client's first connection ID (RFC 9001 section 5.2).

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;
use socket2::{Domain, Protocol, Socket, Type};

use super::Net;
use super::forged::Forger;

/// The forged answer.
#[derive(Clone, Debug)]
pub enum Forgery {
    /// An Initial from the exit with these frames.
    Frames(Vec<u8>),
    /// A packet by which the exit claims to support only other versions of QUIC.
    VersionNegotiation,
    /// A Retry, by which the exit requires address validation.
    Retry,
    /// A stateless reset, by which the exit claims to have forgotten the connection.
    StatelessReset,
}

/// CONNECTION_CLOSE with the TLS alert no_application_protocol (RFC 9000 section 19.19, RFC 9001 section 4.8).
pub fn close_for_want_of_a_protocol() -> Vec<u8> {
    vec![0x1c, 0x41, 0x78, 0x00, 0x00]
}

/// An interloper that answers until it is ended.
#[derive(Debug)]
pub struct Interloper {
    over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Interloper {
    /// Answers the clients of the net's exit, on the router between them.
    pub fn start(net: &Net, forgery: Forgery) -> Self {
        Self::at(net, Net::EXIT_V4, forgery)
    }

    /// Answers the clients of an exit at another address.
    pub fn at(net: &Net, address: &str, forgery: Forgery) -> Self {
        let exit = SocketAddrV4::new(address.parse().unwrap(), 443);
        let ears = || {
            let protocol = i32::from(IPV4.to_be());
            Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(protocol))).unwrap()
        };
        let ears = net.router.enter(ears).join().unwrap();
        ears.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mouth = Forger::on(&net.router);
        let (over, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (until, count) = (over.clone(), answers.clone());
        let thread = std::thread::spawn(move || {
            let mut last = Vec::new();
            while !until.load(SeqCst) {
                let mut buffer = [0; 2_048];
                let Ok(length) = std::io::Read::read(&mut &ears, &mut buffer) else { continue };
                let Some(seen) = Seen::read(&buffer[..length], exit) else { continue };
                mouth.send_to(exit, seen.client, &seen.answer(&forgery));
                // Each attempt is counted only once, although a packet is seen on arrival and on departure, and a ClientHello
                // takes several packets.
                count.fetch_add(u64::from(seen.destination != last), SeqCst);
                last = seen.destination;
            }
        });
        Self { over, answers, thread }
    }

    /// How many connection attempts were answered.
    pub fn answers(&self) -> u64 {
        self.answers.load(SeqCst)
    }

    pub fn end(self) -> u64 {
        self.over.store(true, SeqCst);
        self.thread.join().unwrap();
        self.answers.load(SeqCst)
    }
}

/// The parts of a client's Initial that an answer needs.
struct Seen {
    client: SocketAddrV4,
    destination: Vec<u8>,
    source: Vec<u8>,
}

impl Seen {
    /// Parses an IPv4 packet. Returns `None` unless it is an Initial to the exit.
    fn read(packet: &[u8], exit: SocketAddrV4) -> Option<Self> {
        let ip = packet.get(..20)?;
        let udp = packet.get(20..28)?;
        let address = |bytes: &[u8]| std::net::Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap());
        let port = |bytes: &[u8]| u16::from_be_bytes(bytes.try_into().unwrap());
        let is_to_exit = ip[0] == 0x45
            && ip[9] == 17
            && address(&ip[16..20]) == *exit.ip()
            && port(&udp[2..4]) == exit.port();
        let payload = packet.get(28..)?;
        if !is_to_exit || payload.first()? & 0xf0 != 0xc0 || payload.get(1..5)? != [0, 0, 0, 1] {
            return None;
        }
        let (length, rest) = payload.get(5..)?.split_first()?;
        let (destination, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first()?;
        let source = rest.get(..usize::from(*length))?;
        let client = SocketAddrV4::new(address(&ip[12..16]), port(&udp[..2]));
        Some(Self { client, destination: destination.to_vec(), source: source.to_vec() })
    }

    fn answer(&self, forgery: &Forgery) -> Vec<u8> {
        match forgery {
            Forgery::Frames(frames) => self.initial(frames),
            Forgery::VersionNegotiation => {
                [&self.header(0xc0, 0, &self.destination)[..], &[0x1a, 0x2a, 0x3a, 0x4a]].concat()
            }
            Forgery::Retry => self.retry(),
            Forgery::StatelessReset => [&[0x41][..], &self.source, &[0x5a; 40]].concat(),
        }
    }

    /// A long header to the client, with a source connection ID of the exit.
    fn header(&self, first: u8, version: u32, from: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        let version = version.to_be_bytes();
        let ids = [&[length(&self.source)], &self.source[..], &[length(from)], from].concat();
        [&[first], &version[..], &ids].concat()
    }

    fn initial(&self, frames: &[u8]) -> Vec<u8> {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
        let keys =
            suite.quic_suite().unwrap().keys(&self.destination, rustls::Side::Server, Version::V1).local;
        let mut payload = frames.to_vec();
        payload.resize(frames.len().max(1_100), 0);
        let mut packet = self.header(0xc0 | 3, 1, &EXIT_ID);
        packet.push(0);
        packet.extend((u16::try_from(4 + payload.len() + 16).unwrap() | 0x4000).to_be_bytes());
        let number_at = packet.len();
        packet.extend(0_u32.to_be_bytes());
        let tag = keys.packet.encrypt_in_place(0, &packet, &mut payload).unwrap();
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let (head, rest) = packet.split_at_mut(number_at);
        let (number, sealed) = rest.split_at_mut(4);
        keys.header.encrypt_in_place(&sealed[..keys.header.sample_len()], &mut head[0], number).unwrap();
        packet
    }

    /// A Retry with an integrity tag, which anybody can compute (RFC 9001 section 5.8).
    fn retry(&self) -> Vec<u8> {
        let mut packet = self.header(0xf0, 1, &EXIT_ID);
        packet.extend(b"a token that no exit gave");
        let length = u8::try_from(self.destination.len()).unwrap();
        let pseudo = [&[length], &self.destination[..], &packet].concat();
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &RETRY_KEY).unwrap());
        let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(pseudo), &mut []).unwrap();
        packet.extend(tag.as_ref());
        packet
    }
}

/// ETH_P_IP of `linux/if_ether.h`.
const IPV4: u16 = 0x0800;
/// The source connection ID of forged packets.
const EXIT_ID: [u8; 8] = [0x66; 8];
const RETRY_KEY: [u8; 16] =
    [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];
const RETRY_NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
