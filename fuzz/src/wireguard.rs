//! Datagrams to an exit's WireGuard port, from strangers and from a client that may send anything.
//!
//! The client's messages depend on the clock and on random keys, so the same input does not always run the same code.

use std::time::Instant;

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use warren_session::clients::WireGuardClient;
use warren_wireguard::{Event, Path, PrivateKey, Server, Taken};

use crate::input::Input;

/// The longest datagram that a socket can return.
const LONGEST: usize = 65_535;

/// The input is a sequence of steps, each of two bytes and a byte string. A step sends one datagram to the exit: the byte string
/// itself, a handshake initiation of the client, or a data message of the client with the byte string as its packet. One bit of
/// the datagram may be flipped.
pub fn run(data: &[u8]) {
    let now = Instant::now();
    let (exit, key) = (PrivateKey::new([7; 32]), PrivateKey::new([1; 32]));
    let exit_key = x25519::PublicKey::from(exit.public().0);
    let mut server = Server::new(exit, now);
    server.set_client(key.public(), Some(WireGuardClient::default()));
    let mut client = Tunn::new(x25519::StaticSecret::from([1; 32]), exit_key, None, None, 5, None);
    let mut input = Input(data);
    let mut buffer = vec![0; LONGEST + 148];
    let mut up = Vec::new();
    while !input.is_empty() {
        let (what, place) = (input.byte(), input.byte());
        let piece = input.piece();
        let mut message = match what % 4 {
            0 => piece.to_vec(),
            1 => sent(client.format_handshake_initiation(&mut [0; 2_048], true)),
            _ => {
                // The client sends a handshake initiation if it has no session, so the buffer has space for one.
                let mut room = vec![0; piece.len() + 148];
                sent(client.encapsulate(piece, &mut room))
            }
        };
        let at = usize::from(place) % message.len().max(1);
        if what >= 0x80
            && let Some(byte) = message.get_mut(at)
        {
            *byte ^= 1 << (what % 8);
        }
        let remote = ([192, 0, 2, what % 2], 1_000).into();
        let path = Path { socket: 0, remote, local: None };
        match server.receive(now, path, &message, &mut buffer) {
            Taken::Nothing | Taken::KeepAlive { .. } | Taken::Refused(_) => {}
            Taken::Packet { peer, length } => {
                assert!(server.path_of(peer).is_some(), "a packet has a peer");
                assert!(length + 32 <= message.len(), "a packet is shorter than its message");
            }
            Taken::Answer(answer) => {
                assert!(answer.len() <= message.len().max(148), "an answer is no longer than a handshake");
                let answer = answer.to_vec();
                drop(sent(client.decapsulate(None, &answer, &mut [0; 2_048])));
            }
        }
        while let Some(event) = server.poll_event() {
            match event {
                Event::Up { peer, key: of, .. } => {
                    assert_eq!(of, key.public(), "only the client is enrolled");
                    up.push(peer);
                }
                Event::Down { peer } => up.retain(|other| *other != peer),
            }
        }
        if let Some(peer) = up.last().copied().filter(|peer| server.can_send(*peer)) {
            let mut room = vec![0; piece.len() + 148];
            assert!(server.encrypt(peer, piece, &mut room).is_some());
        }
    }
    server.set_client(key.public(), None);
    assert!(!server.has_peers(), "a client that is refused leaves nothing behind");
}

fn sent(result: TunnResult<'_>) -> Vec<u8> {
    match result {
        TunnResult::WriteToNetwork(bytes) => bytes.to_vec(),
        TunnResult::Done
        | TunnResult::Err(_)
        | TunnResult::WriteToTunnelV4(..)
        | TunnResult::WriteToTunnelV6(..) => Vec::new(),
    }
}
