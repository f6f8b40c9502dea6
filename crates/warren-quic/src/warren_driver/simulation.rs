//! Whole endpoints in virtual time: clients and an exit, each a session's state machine on the driver's own connections and
//! noq-proto, over a wire that loses, repeats, delays and reorders, while the exit restarts, clients change their address
//! and a stranger looks for an exit. Everything follows from a seed.

mod client;
mod exit;
mod speech;
mod wire;

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    ops::Range,
    panic::catch_unwind,
    time::{Duration, Instant},
};

use self::{client::Client, exit::Exit, wire::Wire};
use super::connection::Connection;
use crate::{key::PrivateKey, settings::TransportSettings, strangers::Strangers};

/// How many seeds are run; `WARREN_SIMULATION=FROM..TO` runs others, and so repeats one that failed.
const SEEDS: Range<u64> = 0..8;

const CLIENTS: usize = 2;

/// Connections of each client.
const CONNECTIONS: u32 = 2;

/// How long there is trouble, and how long after it everything must be well at the latest.
const TROUBLE: Duration = Duration::from_secs(60);
const RECOVERY: Duration = Duration::from_secs(90);

/// Between two datagrams of a connection, each way.
const PACE: Duration = Duration::from_millis(50);

const EXIT: &str = "198.51.100.1:443";
const STRANGER: &str = "192.0.2.66:6666";

/// What a run is to show.
#[derive(Copy, Clone, Debug, Default)]
struct Rules {
    /// The exit answers everybody.
    answers_strangers: bool,
    /// Restarts lose the reset key.
    forgets_reset_key: bool,
}

#[test]
fn endpoints_keep_their_promises_over_any_wire() {
    let seeds = std::env::var("WARREN_SIMULATION").map_or(SEEDS, |range| {
        let (from, to) = range.split_once("..").expect("WARREN_SIMULATION is FROM..TO");
        from.parse().unwrap()..to.parse().unwrap()
    });
    for seed in seeds {
        let outcome = catch_unwind(|| World::new(seed, Rules::default()).run());
        assert!(outcome.is_ok(), "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

#[test]
fn a_stranger_is_heard_by_an_exit_that_is_not_silent() {
    let rules = Rules { answers_strangers: true, ..Rules::default() };
    assert!(catch_unwind(|| World::new(1, rules).run()).is_err());
}

#[test]
fn an_exit_that_loses_its_reset_key_keeps_its_clients_waiting() {
    let rules = Rules { forgets_reset_key: true, ..Rules::default() };
    assert!(catch_unwind(|| World::new(1, rules).run()).is_err());
}

#[test]
fn a_connection_outlives_all_challenges_of_its_new_address() {
    let mut world = World::new(1, Rules::default());
    world.wire.is_kind();
    world.go_on(Duration::from_secs(5));
    let before = world.heard();
    assert!(world.is_well(&vec![0; before.len()]));
    world.clients[0].move_away();
    world.wire.swallows_answers = true;
    // Many times as long as the exit tries to validate an address.
    world.go_on(Duration::from_secs(2));
    world.wire.swallows_answers = false;
    world.go_on(Duration::from_secs(5));
    assert!(world.is_well(&before));
    let made: Vec<_> = world.clients.iter().map(Client::connections_made).collect();
    assert_eq!(made, [CONNECTIONS; CLIENTS].map(u64::from), "it took a new connection");
}

struct World {
    now: Instant,
    end_of_trouble: Instant,
    random: Random,
    wire: Wire,
    exit: Exit,
    clients: Vec<Client>,
    next_speech: Instant,
    /// When the exit restarts, when a client moves, and when the stranger tries.
    next_restart: Instant,
    next_move: Instant,
    next_probe: Instant,
    rules: Rules,
}

impl World {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let now = Instant::now();
        let settings = TransportSettings::default();
        let exit_key = PrivateKey::generate().unwrap();
        let keys: Vec<PrivateKey> = (0..CLIENTS).map(|_| PrivateKey::generate().unwrap()).collect();
        let strangers = Strangers::new(!rules.answers_strangers);
        let exit = Exit::new(now, &settings, &exit_key, &keys, strangers);
        let clients = keys
            .iter()
            .enumerate()
            .map(|(number, key)| Client::new(number, now, &settings, key, exit_key.public(), random.next()))
            .collect();
        let soon = |random: &mut Random| now + Duration::from_millis(random.below(30_000));
        Self {
            now,
            end_of_trouble: now + TROUBLE,
            wire: Wire::new(&mut random),
            exit,
            clients,
            next_speech: now,
            next_restart: soon(&mut random),
            next_move: soon(&mut random),
            next_probe: now,
            random,
            rules,
        }
    }

    fn run(mut self) {
        while self.now < self.end_of_trouble {
            self.make_trouble();
            self.step();
        }
        self.wire.is_kind();
        let before = self.heard();
        let patience = self.now + RECOVERY;
        while self.now < patience && !self.is_well(&before) {
            self.step();
        }
        let states: Vec<_> = self.clients.iter().map(Client::state).collect();
        assert!(
            self.is_well(&before),
            "not within {RECOVERY:?}: {states:?}, {} sessions",
            self.exit.sessions()
        );
    }

    /// Lets time pass without trouble.
    fn go_on(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// What was heard on every connection of every client.
    fn heard(&self) -> Vec<u64> {
        self.clients.iter().flat_map(Client::heard).collect()
    }

    /// Whether every connection of every client carries datagrams both ways again.
    fn is_well(&self, before: &[u64]) -> bool {
        self.heard().iter().zip(before).all(|(now, before)| now > before)
            && self.clients.iter().all(Client::is_up)
            && self.exit.sessions() == CLIENTS
    }

    fn make_trouble(&mut self) {
        let (now, random) = (self.now, &mut self.random);
        let later = |random: &mut Random, most| now + Duration::from_millis(random.below(most) + 1);
        if now >= self.next_restart {
            self.exit.restart(now, self.rules.forgets_reset_key);
            self.wire.forget_initials();
            // Longer than it takes clients to come back, so that it is seen whether they did.
            let quiet = Duration::from_secs(20);
            self.next_restart = later(random, 30_000) + quiet;
        }
        if now >= self.next_move && !self.rules.forgets_reset_key {
            let which = usize::try_from(random.below(CLIENTS as u64)).unwrap();
            self.clients[which].move_away();
            self.next_move = later(random, 30_000);
        }
        if now >= self.next_probe {
            for probe in self.wire.probes(random) {
                self.exit.receive(now, stranger(), probe, &mut self.wire);
            }
            self.next_probe = later(random, 3_000);
        }
    }

    /// Delivers what is due, lets everybody act, and goes to the next moment at which something happens.
    fn step(&mut self) {
        let now = self.now;
        while let Some(arrived) = self.wire.arrived(now) {
            if arrived.to == exit_address() {
                self.exit.receive(now, arrived.from, arrived.bytes, &mut self.wire);
            } else if let Some(client) = self.clients.iter_mut().find(|client| client.has(arrived.to)) {
                client.receive(now, arrived.to, arrived.bytes);
            }
        }
        let speaks = now >= self.next_speech;
        if speaks {
            self.next_speech = now + PACE;
        }
        self.exit.act(now, &mut self.wire);
        for client in &mut self.clients {
            client.act(now, speaks, &mut self.wire);
        }
        assert!(!self.wire.was_sent_to(stranger()), "a stranger got an answer");
        let timers = self.clients.iter().filter_map(Client::timeout).chain(self.exit.timeout());
        let next = timers.chain(self.wire.next()).chain([self.next_speech]).min().unwrap();
        self.now = next.max(now + Duration::from_micros(10));
    }
}

/// Sends all that a connection has to send now.
fn transmit(now: Instant, from: SocketAddr, connection: &mut Connection, wire: &mut Wire) {
    let mut buffer = Vec::new();
    while let Some(transmit) = connection.quic().poll_transmit(now, NonZeroUsize::MIN, &mut buffer) {
        wire.send(now, from, transmit.destination, &buffer[..transmit.size]);
        buffer.clear();
    }
}

fn exit_address() -> SocketAddr {
    EXIT.parse().unwrap()
}

fn stranger() -> SocketAddr {
    STRANGER.parse().unwrap()
}

/// Numbers that a seed repeats (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound.max(1)
    }
}
