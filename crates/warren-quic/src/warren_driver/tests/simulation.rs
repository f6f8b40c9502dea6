//! Whole endpoints in virtual time. Clients and an exit each run a session's state machine on the driver's own connections
//! and noq-proto. The wire loses, repeats, delays and reorders datagrams, and has a queue that overflows. Meanwhile the
//! exit restarts, clients change their addresses, and a stranger looks for an exit. Everything follows from a seed.

mod client;
mod exit;
mod kept;
mod key_updates;
mod node;
mod speech;
mod trace;
mod wire;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Range,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use warren_simulation::{Outcome, Random, find_every_bug, seeds};

use self::{client::Client, exit::Exit, trace::Trace, wire::Wire};
use crate::{key::PrivateKey, planted::Bug, settings::TransportSettings};

/// Seeds to run. `WARREN_SIMULATION=FROM..TO` runs others, for example to repeat one that failed.
const SEEDS: Range<u64> = 0..40;

/// Most seeds that may pass before a planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 40;

const CLIENTS: usize = 2;

/// Connections of each client.
const CONNECTIONS: u32 = 2;

/// How long the trouble lasts, and the longest time afterwards until everything works again.
const TROUBLE: Duration = Duration::from_secs(45);
const RECOVERY: Duration = Duration::from_secs(90);

/// The silence at the end, in which everything is acknowledged or lost.
const QUIET: Duration = Duration::from_secs(10);

/// Time between two datagrams of a connection, each way.
const PACE: Duration = Duration::from_millis(100);

const EXIT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 443);
const STRANGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 66)), 6_666);

#[test]
fn endpoints_keep_their_promises_over_any_wire() {
    let outcomes = outcomes(seeds(SEEDS));
    for (seed, Outcome { is_kept, trace }) in &outcomes {
        println!("seed {seed}: {trace:016x}{}", if *is_kept { "" } else { " FAILED" });
    }
    let failed: Vec<u64> =
        outcomes.iter().filter(|(_, outcome)| !outcome.is_kept).map(|(seed, _)| *seed).collect();
    println!("measured: {} seeds, {} failed", outcomes.len(), failed.len());
    assert!(
        failed.is_empty(),
        "WARREN_SIMULATION={}..{} repeats the first of {failed:?}",
        failed[0],
        failed[0] + 1
    );
}

#[test]
fn a_seed_runs_the_same_again_here_and_in_another_process() {
    const SAME: Range<u64> = 0..4;
    let here: Vec<String> = SAME.map(|seed| format!("seed {seed}: {:016x}", outcome(seed).trace)).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "warren_driver::tests::simulation::endpoints_keep_their_promises_over_any_wire",
        ])
        .env("WARREN_SIMULATION", format!("{}..{}", SAME.start, SAME.end))
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let there: Vec<&str> =
        output.lines().filter_map(|line| line.find("seed ").map(|at| &line[at..])).collect();
    assert_eq!(here, there);
    let again: Vec<String> = SAME.map(|seed| format!("seed {seed}: {:016x}", outcome(seed).trace)).collect();
    assert_eq!(here, again);
    assert_ne!(outcome(0).trace, outcome(1).trace);
}

#[test]
fn every_planted_bug_is_found_and_found_again_by_its_seed() {
    find_every_bug::<Bug>(SEEDS_FOR_A_BUG, outcome);
}

#[test]
fn a_connection_outlives_all_challenges_of_its_new_address() {
    let mut world = World::new(1, &Trace::default());
    world.wire.is_kind();
    world.go_on(Duration::from_secs(5));
    let before = world.heard();
    assert!(world.is_well(&vec![0; before.len()]));
    world.clients[0].move_away();
    world.wire.swallows_answers = true;
    // Many times longer than the exit tries to validate an address.
    world.go_on(Duration::from_secs(2));
    world.wire.swallows_answers = false;
    world.go_on(Duration::from_secs(5));
    assert!(world.is_well(&before));
    let made: Vec<_> = world.clients.iter().map(Client::connections_made).collect();
    assert_eq!(made, [CONNECTIONS; CLIENTS].map(u64::from), "it took a new connection");
}

/// Runs seeds, as many at once as there are processors.
fn outcomes(seeds: Range<u64>) -> BTreeMap<u64, Outcome> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut done = BTreeMap::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return done;
            }
            done.insert(seed, outcome(seed));
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// How a seed's run ended, with the hash of everything that happened in it.
fn outcome(seed: u64) -> Outcome {
    let trace = Trace::default();
    let outcome = warren_simulation::outcome(|| World::new(seed, &trace).run());
    Outcome { trace: trace.hash(), ..outcome }
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
}

impl World {
    fn new(seed: u64, trace: &Trace) -> Self {
        let mut random = Random::new(seed);
        let now = Instant::now();
        let settings = TransportSettings::default();
        let mut key = || PrivateKey::from_base64(&STANDARD.encode(random.bytes())).unwrap();
        let exit_key = key();
        let keys: Vec<PrivateKey> = (0..CLIENTS).map(|_| key()).collect();
        let exit = Exit::new(now, &settings, &exit_key, &keys, random.draw());
        let clients = keys
            .iter()
            .enumerate()
            .map(|(number, key)| Client::new(number, now, &settings, key, exit_key.public(), random.draw()))
            .collect();
        let soon = |random: &mut Random| now + Duration::from_millis(random.below(30_000));
        Self {
            now,
            end_of_trouble: now + TROUBLE,
            wire: Wire::new(&mut random, now, trace.clone()),
            exit,
            clients,
            next_speech: now,
            next_restart: soon(&mut random),
            next_move: soon(&mut random),
            next_probe: now,
            random,
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
            "not within {RECOVERY:?}: {states:?}, {} sessions, {} connections",
            self.exit.sessions(),
            self.exit.connections()
        );
        self.settle();
    }

    /// Waits until everything under way has arrived or is lost, and checks what became of the kept datagrams.
    fn settle(&mut self) {
        self.next_speech = self.now + 2 * QUIET;
        self.go_on(QUIET);
        for client in &self.clients {
            client.settle(|speech| self.exit.has_heard(speech));
        }
        self.exit.settle(|speech| self.clients[speech.client].has_heard(speech));
    }

    /// Lets time pass without trouble.
    fn go_on(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// The number of answers on each connection of each client.
    fn heard(&self) -> Vec<u64> {
        self.clients.iter().flat_map(Client::heard).collect()
    }

    /// Whether every connection of every client carries datagrams both ways again.
    fn is_well(&self, before: &[u64]) -> bool {
        self.heard().iter().zip(before).all(|(now, before)| now > before)
            && self.clients.iter().all(Client::is_up)
            && self.exit.sessions() == CLIENTS
            && self.exit.connections() == CLIENTS * CONNECTIONS as usize
    }

    fn make_trouble(&mut self) {
        let (now, random) = (self.now, &mut self.random);
        let later = |random: &mut Random, most| now + Duration::from_millis(random.below(most) + 1);
        if now >= self.next_restart {
            self.exit.restart(now);
            self.wire.forget_initials();
            // Longer than clients need to come back, so that the run shows whether they did.
            let quiet = Duration::from_secs(20);
            self.next_restart = later(random, 30_000) + quiet;
        }
        if now >= self.next_move {
            let which = usize::try_from(random.below(CLIENTS as u64)).unwrap();
            self.clients[which].move_away();
            self.next_move = later(random, 30_000);
        }
        if now >= self.next_probe {
            for probe in self.wire.probes(random) {
                self.exit.receive(now, STRANGER, probe, &mut self.wire);
            }
            self.next_probe = later(random, 3_000);
        }
    }

    /// Delivers what is due, lets everybody act, and goes to the next moment at which something happens.
    fn step(&mut self) {
        let now = self.now;
        while let Some(arrived) = self.wire.arrived(now) {
            if arrived.to == EXIT {
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
        assert!(!self.wire.answered_stranger(), "a stranger got an answer");
        let timers =
            self.clients.iter().filter_map(|client| client.timeout(now)).chain(self.exit.timeout(now));
        let next = timers.chain(self.wire.next()).chain([self.next_speech]).min().unwrap();
        self.now = next.max(now + Duration::from_micros(10));
    }
}
