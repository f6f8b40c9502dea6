//! Many clients of a fleet on one thread. Each client follows the product's rules to choose its exit, to wait for a silent one,
//! and to race for another. The clients have real sessions over real sockets, but no TUN device.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::client::Race;
use warren_session::client::choice::{Candidate, Lot, order};
use warren_session::message::Roster as RosterMessage;
use warren_session::roster::{ExitState, FollowedFleet, Roster, RosterExit, SignedRoster};

use super::library_client::{LibraryClient, runtime, udp};
use super::{Namespace, Net};

/// The same value as `HEAD_START` in `warren-client/src/exits.rs`.
const HEAD_START: Duration = Duration::from_millis(1_500);

/// What clients know about their fleet: the roster from an exit, and the round-trip times to the exits.
#[derive(Clone, Debug)]
pub struct KnownFleet {
    roster: Roster,
    round_trips: Vec<Duration>,
}

impl KnownFleet {
    /// Learns the fleet from its first exit, and measures all of them.
    pub fn learn(host: &Namespace, key: PrivateKey, first: (SocketAddr, PublicKey)) -> Self {
        let learning = host.enter(move || runtime().block_on(learn(key, first)));
        learning.join().unwrap()
    }

    /// The exits in the order in which a client uses them, by their places in the roster.
    fn order(&self, loads: &BTreeMap<String, u32>, lot: Lot) -> Vec<usize> {
        let candidate = |(exit, round_trip): (&RosterExit, &Duration)| Candidate {
            round_trip: Some(*round_trip),
            load: loads.get(&exit.name).copied(),
            weight: exit.weight,
            is_draining: exit.state == ExitState::Draining,
        };
        let candidates: Vec<_> = self.roster.exits.iter().zip(&self.round_trips).map(candidate).collect();
        order(&candidates, lot)
    }

    fn way(&self, exit: usize) -> (SocketAddr, PublicKey) {
        let exit = &self.roster.exits[exit];
        let endpoint = &exit.endpoints[0];
        (SocketAddr::new(endpoint.address().unwrap(), endpoint.port()), exit.public_keys[0])
    }

    pub fn round_trips(&self) -> &[Duration] {
        &self.round_trips
    }
}

async fn learn(key: PrivateKey, first: (SocketAddr, PublicKey)) -> KnownFleet {
    let mut client = LibraryClient::start_in_fleet(first, key.clone(), 1);
    let mut told = None;
    client
        .until("the exit hands over its roster", |client| {
            told = client.take_roster().filter(|roster| !roster.signed.is_empty());
            told.is_some()
        })
        .await;
    client.leave().await;
    let signed = SignedRoster::decode(&told.unwrap().signed).unwrap();
    let roster = FollowedFleet::begin(signed).roster().clone();
    let mut fleet = KnownFleet { round_trips: vec![Duration::ZERO; roster.exits.len()], roster };
    for exit in 0..fleet.roster.exits.len() {
        let mut times = Vec::new();
        // Several measurements are made, because on a busy host one may be wrong by some milliseconds, and all clients share the
        // result.
        for _ in 0..5 {
            let mut client = LibraryClient::start_in_fleet(fleet.way(exit), key.clone(), 1);
            client.until("the exit answers", |client| client.attached() == 1).await;
            times.push(client.stats().rtt);
            client.leave().await;
        }
        fleet.round_trips[exit] = times.into_iter().min().unwrap();
    }
    fleet
}

/// Many clients on one thread of a host.
#[derive(Debug)]
pub struct FleetCrowd {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: AtomicU8,
    /// Clients that have all of their connections, by exit.
    at: [AtomicUsize; 3],
    sent: AtomicU64,
    answered: AtomicU64,
    moves: AtomicUsize,
}

const ENDING: u8 = 1;

impl FleetCrowd {
    /// Starts clients with these keys and inner addresses. Each sends a packet a second to the internet host's echo.
    pub fn start(
        host: &Namespace,
        clients: Vec<(PrivateKey, Ipv4Addr)>,
        connections: usize,
        fleet: KnownFleet,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = host.enter(move || {
            let tasks = tokio::task::LocalSet::new();
            let fleet = Arc::new(fleet);
            tasks.block_on(&runtime(), async {
                let start = |(key, address)| {
                    let lot = Lot::of(Some(address), None).unwrap();
                    let client = Client::start(key, connections, lot, fleet.clone());
                    tokio::task::spawn_local(client.live(of_thread.clone()))
                };
                let running: Vec<_> = clients.into_iter().map(start).collect();
                for client in running {
                    client.await.unwrap();
                }
            });
        });
        Self { shared, thread }
    }

    /// Clients that have all of their connections, by exit in the roster.
    pub fn shares(&self) -> [usize; 3] {
        [0, 1, 2].map(|exit: usize| self.shared.at[exit].load(SeqCst))
    }

    /// How many packets were sent, and how many were answered.
    pub fn packets(&self) -> (u64, u64) {
        (self.shared.sent.load(SeqCst), self.shared.answered.load(SeqCst))
    }

    /// How often a client went to another exit.
    pub fn moves(&self) -> usize {
        self.shared.moves.load(SeqCst)
    }

    pub fn end(self) {
        self.shared.phase.store(ENDING, SeqCst);
        self.thread.join().unwrap();
    }
}

/// A client, and the exit where it is.
struct Client {
    key: PrivateKey,
    connections: usize,
    lot: Lot,
    fleet: Arc<KnownFleet>,
    /// The exits' loads, as its exit last reported them.
    loads: BTreeMap<String, u32>,
    session: LibraryClient,
    at: usize,
}

impl Client {
    fn start(key: PrivateKey, connections: usize, lot: Lot, fleet: Arc<KnownFleet>) -> Self {
        let loads = BTreeMap::new();
        let at = fleet.order(&loads, lot)[0];
        let session = open(&fleet, at, &key, connections);
        Self { key, connections, lot, fleet, loads, session, at }
    }

    async fn live(mut self, shared: Arc<Shared>) {
        let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
        let (mut counted, mut next): (Option<usize>, _) = (None, Instant::now());
        while shared.phase.load(SeqCst) != ENDING {
            self.session.run(Duration::from_millis(50)).await;
            if let Some(RosterMessage { loads, .. }) = self.session.take_roster() {
                self.loads = loads.into_iter().map(|load| (load.exit, load.permille)).collect();
            }
            while self.session.received().is_some() {
                shared.answered.fetch_add(1, SeqCst);
            }
            let source = self.session.welcome().and_then(|welcome| welcome.ipv4);
            if let Some((source, _)) = source
                && next <= Instant::now()
            {
                next = Instant::now() + Duration::from_secs(1);
                let packet = udp(source, (internet, 7), 30_000, b"hello");
                shared.sent.fetch_add(u64::from(self.session.send(&packet)), SeqCst);
            }
            if self.session.looks_for_another() && self.look_for_another().await {
                shared.moves.fetch_add(1, SeqCst);
            }
            let is_up = self.session.attached() == self.connections && !self.session.is_silent();
            let now = is_up.then_some(self.at);
            if now != counted {
                if let Some(exit) = now {
                    shared.at[exit].fetch_add(1, SeqCst);
                }
                if let Some(exit) = std::mem::replace(&mut counted, now) {
                    shared.at[exit].fetch_sub(1, SeqCst);
                }
            }
        }
    }

    /// Races for another exit while the silent one may still answer. Returns whether this client has moved to another exit.
    async fn look_for_another(&mut self) -> bool {
        let begun = Instant::now();
        let order = self.fleet.order(&self.loads, self.lot);
        let mut race = Race::new(false);
        // The exit in use has rank 0 and does not take part in the race, so the ranks of the others begin at 1.
        for (rank, exit) in (1..).zip(order.into_iter().filter(|exit| *exit != self.at)) {
            race.add(begun + HEAD_START * rank, exit);
        }
        let mut runners: Vec<(usize, LibraryClient)> = Vec::new();
        let mut winner = None;
        while winner.is_none() && self.session.is_silent() && begun.elapsed() < Duration::from_secs(60) {
            while let Some(exit) = race.begin(Instant::now()) {
                runners.push((exit, open(&self.fleet, exit, &self.key, self.connections)));
            }
            self.session.run(Duration::from_millis(5)).await;
            for (place, (_, runner)) in runners.iter_mut().enumerate() {
                runner.run(Duration::from_millis(20)).await;
                winner = winner.or((runner.attached() > 0).then_some(place));
            }
        }
        if let Some(place) = winner {
            (self.at, self.session) = runners.swap_remove(place);
        }
        for (_, loser) in runners {
            loser.leave().await;
        }
        winner.is_some()
    }
}

fn open(fleet: &KnownFleet, exit: usize, key: &PrivateKey, connections: usize) -> LibraryClient {
    LibraryClient::start_in_fleet(fleet.way(exit), key.clone(), u32::try_from(connections).unwrap())
}
