//! Connection attempts whose packets are properly encrypted but have hostile content, which reaches the exit's QUIC library.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use aws_lc_rs::hmac;
use warren_quic::key::PublicKey;

use super::attacker::{Attacker, Retry, odd_parameters, unknown_frames};
use super::{Namespace, Net};

/// The number of attempts, and their results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempts {
    pub made: u64,
    /// The exit sent a Retry, and the attempt then proved its address.
    pub retried: u64,
    /// The exit answered after its QUIC library had processed the packets.
    pub answered: u64,
}

/// The least number of attempts.
const LEAST: u64 = 300;
/// The pause between two attempts. It limits their number, because an exit keeps closed connections for some seconds, and each
/// proof for a long time.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for an answer of the exit.
const PATIENCE: Duration = Duration::from_millis(20);
/// CONNECTION_CLOSE without an error or a reason (RFC 9000 section 19.19).
const CLOSE: [u8; 4] = [0x1c, 0, 0, 0];

/// Makes attempts one after another from the host's own address until `over`. With `known`, each attempt proves that it
/// knows the exit's key, as a silent exit requires.
pub fn attempts(host: &Namespace, known: Option<PublicKey>, over: Arc<AtomicBool>) -> JoinHandle<Attempts> {
    host.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::EXIT_V4, 443)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hostile = Hostile { socket, frames: unknown_frames(), parameters: odd_parameters() };
        let mut attempts = Attempts::default();
        while attempts.made < LEAST || !over.load(SeqCst) {
            hostile.attempt(known, &mut attempts);
            std::thread::sleep(PAUSE);
        }
        attempts
    })
}

struct Hostile {
    socket: UdpSocket,
    frames: Vec<[Vec<u8>; 3]>,
    parameters: Vec<Vec<u8>>,
}

impl Hostile {
    fn attempt(&self, known: Option<PublicKey>, attempts: &mut Attempts) {
        let number = attempts.made;
        attempts.made += 1;
        let attacker = Attacker::new(number);
        let proof = known.map(|key| proof(key, &attacker.destination)).unwrap_or_default();
        let first = self.packets(&attacker, number, &proof);
        self.send(&first);
        let Some(answer) = self.answer(&attacker, true) else { return };
        let Some(retry) = Retry::read(&attacker, &answer) else {
            attempts.answered += 1;
            self.send(&[attacker.initial(9, &proof, &CLOSE)]);
            return;
        };
        attempts.retried += 1;
        let proven = attacker.after_retry(&retry);
        // The packet that was answered by the Retry is sent again before and after the other packets.
        self.send(&first[..1]);
        self.send(&self.packets(&proven, number, &retry.token));
        self.send(&first);
        attempts.answered += u64::from(self.answer(&attacker, false).is_some());
        self.send(&[proven.initial(9, &retry.token, &CLOSE)]);
    }

    /// Returns, in turn, a frame of an unknown type, invalid transport parameters, or a valid ClientHello whose packets are sent
    /// twice.
    fn packets(&self, attacker: &Attacker, number: u64, token: &[u8]) -> Vec<Vec<u8>> {
        let turn = usize::try_from(number / 3).unwrap();
        match number % 3 {
            0 => {
                let [short, long, cut] = &self.frames[turn % self.frames.len()];
                vec![match turn / self.frames.len() % 3 {
                    0 => attacker.initial(0, token, short),
                    1 => attacker.initial(0, token, long),
                    _ => attacker.full_initial(0, token, cut),
                }]
            }
            1 => {
                // All items of the list are used equally often, because 37 and the list's length have no common factor.
                let odd = &self.parameters[turn * 37 % self.parameters.len()];
                attacker.hello_with(&[&attacker.usual_parameters(), &odd[..]].concat(), token)
            }
            _ => {
                let hello = attacker.hello_with(&attacker.usual_parameters(), token);
                hello.into_iter().flat_map(|packet| [packet.clone(), packet]).collect()
            }
        }
    }

    fn send(&self, packets: &[Vec<u8>]) {
        // A full socket buffer loses packets, as a network would.
        packets.iter().for_each(|packet| drop(self.socket.send(packet)));
    }

    /// The next Initial of this attempt, or a Retry if `may_be_retry`.
    fn answer(&self, attacker: &Attacker, may_be_retry: bool) -> Option<Vec<u8>> {
        let mut buffer = [0; 2_048];
        loop {
            let length = self.socket.recv(&mut buffer).ok()?;
            let packet = &buffer[..length];
            let ours = packet.get(6..14).is_some_and(|destination| destination == attacker.source);
            let is_wanted = match packet[0] >> 4 {
                0xf => may_be_retry,
                kind => kind == 0xc,
            };
            if ours && is_wanted {
                return Some(packet.to_vec());
            }
        }
    }
}

/// The token that proves knowledge of the exit's key, as documented in `docs/silent-mode.md`.
pub fn proof(key: PublicKey, first_id: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key.0);
    let message = [b"warren/1 initial proof", first_id].concat();
    hmac::sign(&key, &message).as_ref()[..16].to_vec()
}
