//! Tests the server with boringtun as the client.

use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use warren_session::PublicKey;
use warren_session::clients::{PresharedKey, WireGuardClient};

use super::*;

/// An IPv4 packet of 24 bytes.
const PACKET: [u8; 24] = [0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 66, 0, 2, 203, 0, 113, 2, 1, 2, 3, 4];
const HOME: &str = "192.0.2.2:1000";
const ROAMED: &str = "198.51.100.7:2000";

struct World {
    server: Server,
    now: Instant,
    exit_key: PublicKey,
}

struct Client {
    tunnel: Tunn,
    key: PublicKey,
}

impl World {
    fn new() -> Self {
        let (key, now) = (PrivateKey::new([7; 32]), Instant::now());
        Self { exit_key: key.public(), server: Server::new(key, now), now }
    }

    /// A client with a key pair of its own, not yet known to the server.
    fn client(&self, secret: u8, preshared: Option<[u8; 32]>) -> Client {
        let key = PrivateKey::new([secret; 32]);
        let exit = x25519::PublicKey::from(self.exit_key.0);
        Client { tunnel: Tunn::new(key.secret().clone(), exit, preshared, None, 5, None), key: key.public() }
    }

    fn enrolled(&mut self, secret: u8) -> Client {
        let client = self.client(secret, None);
        self.server.set_client(client.key, Some(WireGuardClient::default()));
        client
    }

    /// Gives the server a datagram. Returns its answer, the packet in the datagram, or the reason for refusing it.
    fn give(&mut self, from: &str, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut buffer = [0; 2_048];
        let path = path(from);
        match self.server.receive(self.now, path, datagram, &mut buffer) {
            Taken::Nothing | Taken::KeepAlive { .. } => Ok(Vec::new()),
            Taken::Answer(answer) => Ok(answer.to_vec()),
            Taken::Packet { length, .. } => Ok(buffer[..length].to_vec()),
            Taken::Refused(refusal) => Err(refusal),
        }
    }

    /// Makes the client's handshake, including its first data message.
    fn connect(&mut self, client: &mut Client, from: &str) {
        let answer = self.give(from, &client.begin()).unwrap();
        assert!(self.server.poll_event().is_none(), "nothing is proven yet");
        let keep_alive = client.take(&answer);
        assert_eq!(self.give(from, &keep_alive), Ok(Vec::new()));
    }

    fn came_up(&mut self) -> Option<usize> {
        match self.server.poll_event() {
            Some(Event::Up { peer, .. }) => Some(peer),
            Some(Event::Down { .. }) | None => None,
        }
    }
}

impl Client {
    fn begin(&mut self) -> Vec<u8> {
        sent(self.tunnel.format_handshake_initiation(&mut [0; 2_048], true))
    }

    /// Gives the client a datagram. Returns what the client sends, or the packet in the datagram.
    fn take(&mut self, datagram: &[u8]) -> Vec<u8> {
        sent(self.tunnel.decapsulate(None, datagram, &mut [0; 2_048]))
    }

    fn send(&mut self, packet: &[u8]) -> Vec<u8> {
        sent(self.tunnel.encapsulate(packet, &mut [0; 2_048]))
    }
}

fn path(remote: &str) -> Path {
    Path { socket: 0, remote: remote.parse().unwrap(), local: None }
}

fn sent(result: TunnResult<'_>) -> Vec<u8> {
    match result {
        TunnResult::WriteToNetwork(bytes)
        | TunnResult::WriteToTunnelV4(bytes, _)
        | TunnResult::WriteToTunnelV6(bytes, _) => bytes.to_vec(),
        TunnResult::Done => Vec::new(),
        TunnResult::Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_client_comes_up_with_its_first_message_and_packets_go_both_ways() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    world.connect(&mut client, HOME);
    let event = world.server.poll_event().unwrap();
    let Event::Up { peer, key, remote } = event else { panic!("{event:?}") };
    assert_eq!((key, remote), (client.key, HOME.parse().unwrap()));

    assert_eq!(world.give(HOME, &client.send(&PACKET)), Ok(PACKET.to_vec()));
    assert!(world.server.can_send(peer));
    let mut message = [0; 24 + OVERHEAD];
    assert_eq!(world.server.encrypt(peer, &PACKET, &mut message), Some(message.len()));
    assert_eq!(client.take(&message), PACKET);
}

#[test]
fn an_answer_goes_where_the_client_has_moved_and_not_where_somebody_repeats_it_from() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    let first = client.begin();
    let answer = world.give(HOME, &first).unwrap();
    let keep_alive = client.take(&answer);
    world.give(HOME, &keep_alive).unwrap();
    let peer = world.came_up().unwrap();
    let remote = |world: &World| world.server.path_of(peer).unwrap().remote.to_string();

    assert_eq!(world.give(ROAMED, &first), Err(Refusal::Repeated));
    assert_eq!(world.give(ROAMED, &keep_alive), Err(Refusal::Repeated));
    assert_eq!(remote(&world), HOME);
    // Somebody has seen a new handshake message and repeats it before the client's own arrives.
    world.give(ROAMED, &client.begin()).unwrap();
    assert_eq!(remote(&world), HOME);
    world.give(ROAMED, &client.send(&PACKET)).unwrap();
    assert_eq!(remote(&world), ROAMED);
}

#[test]
fn nobody_without_an_enrolled_key_and_its_preshared_key_gets_state_or_an_answer_that_serves() {
    let mut world = World::new();
    let mut stranger = world.client(9, None);
    assert_eq!(world.give(HOME, &stranger.begin()), Err(Refusal::NotAuthentic));
    let mut wrong_exit = World { exit_key: PublicKey([9; 32]), ..World::new() }.client(1, None);
    assert_eq!(world.give(HOME, &wrong_exit.begin()), Err(Refusal::NotAuthentic), "a wrong mac1");
    assert_eq!(world.give(HOME, b"hello"), Err(Refusal::Malformed));
    assert!(!world.server.has_peers());

    let right = PresharedKey::new([3; 32]);
    let client = world.client(1, None);
    world.server.set_client(client.key, Some(WireGuardClient { preshared_key: Some(right) }));
    let mut without = world.client(1, None);
    let answer = world.give(HOME, &without.begin()).unwrap();
    assert!(matches!(without.tunnel.decapsulate(None, &answer, &mut [0; 2_048]), TunnResult::Err(_)));
    let mut with = world.client(1, Some([3; 32]));
    world.now += Duration::from_secs(1);
    world.connect(&mut with, HOME);
    assert!(world.came_up().is_some());
}

#[test]
fn a_client_that_is_refused_is_gone_at_once_and_a_key_of_small_order_never_comes_in() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    world.connect(&mut client, HOME);
    let peer = world.came_up().unwrap();
    world.server.set_client(client.key, None);
    assert_eq!(world.server.poll_event(), Some(Event::Down { peer }));
    assert!(!world.server.can_send(peer));
    assert_eq!(world.give(HOME, &client.send(&PACKET)), Err(Refusal::NotAuthentic));
    assert_eq!(world.give(HOME, &client.begin()), Err(Refusal::NotAuthentic));

    let key = PublicKey([0; 32]);
    assert_eq!(parse_public_key(&key.to_string()), Err(KeyError::SmallOrder));
    world.server.set_client(key, Some(WireGuardClient::default()));
    assert!(world.server.known_keys().all(|known| known != key));
}

#[test]
fn a_peer_whose_session_ended_asks_for_another_with_its_next_packet() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    world.connect(&mut client, HOME);
    let peer = world.came_up();
    world.server.end_session(peer.unwrap());
    world.give(HOME, &client.send(&PACKET)).unwrap();
    assert_eq!(world.came_up(), None, "not at once: it may be refused again");
    world.now += Duration::from_secs(2);
    world.give(HOME, &client.send(&PACKET)).unwrap();
    assert_eq!(world.came_up(), peer);
}

#[test]
fn a_peer_with_a_session_asks_for_no_other_even_if_its_last_one_ended_late() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    world.connect(&mut client, HOME);
    let peer = world.came_up().unwrap();
    world.server.end_session(peer);
    world.server.attached(peer);
    world.now += Duration::from_secs(2);
    world.give(HOME, &client.send(&PACKET)).unwrap();
    assert_eq!(world.came_up(), None);
    // Once that session ends too, the next packet asks for another.
    world.server.end_session(peer);
    world.give(HOME, &client.send(&PACKET)).unwrap();
    assert_eq!(world.came_up(), Some(peer));
}

#[test]
fn a_counter_beyond_the_last_that_may_be_used_is_refused_before_the_library_sees_it() {
    let mut world = World::new();
    let mut client = world.enrolled(1);
    world.connect(&mut client, HOME);
    let mut message = client.send(&PACKET);
    message[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(world.give(HOME, &message), Err(Refusal::Malformed));
}

#[test]
fn many_handshakes_are_asked_for_a_cookie_and_then_for_patience() {
    let mut world = World::new();
    let mut stranger = world.client(9, None);
    let (mut refused, mut cookies, mut others) = (0, 0, 0);
    for _ in 0..1_000 {
        match world.give(HOME, &stranger.begin()) {
            Err(Refusal::NotAuthentic) => refused += 1,
            Ok(answer) if answer.len() == 64 => cookies += 1,
            _ => others += 1,
        }
    }
    // The library counts by the second, and a new second may begin during the test.
    assert!(refused <= 300 && cookies >= 700 && others <= 300, "{refused} {cookies} {others}");
    assert!(!world.server.has_peers());

    // With the cookie, the stranger's address counts as one network, and that network has used up its share.
    let cookie = loop {
        match world.give(HOME, &stranger.begin()) {
            Ok(cookie) if cookie.len() == 64 => break cookie,
            _ => {}
        }
    };
    stranger.take(&cookie);
    let answers: Vec<_> = (0..200).map(|_| world.give(HOME, &stranger.begin())).collect();
    assert!(answers.contains(&Err(Refusal::TooMany)), "{answers:?}");
}
