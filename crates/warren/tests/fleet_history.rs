//! Everything that the clients and operators of three real exits do, while the store and the links have faults, is recorded and
//! checked. The clients enrol and connect by QUIC, and the internet records each of their packets that passes an exit.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use warren_control::{ClientView, Page, PageQuery, Request, ask_as};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::clients::RowChange;
use warren_session::invite::InviteToken;

use crate::support::etcd::Etcd;
use crate::support::faulty_fleet::{EXITS, MEMBERS, etcd};
use crate::support::library_client::runtime;
use crate::support::life::{Dice, World, live, name_of};
use crate::support::life_faults::{ALL, Faults};
use crate::support::real_clients::{Arrival, Outcome, Sink};
use crate::support::real_fleet::{RealFleet, endpoint};
use crate::support::seen_history::{Fault, History, Late, Operation, What, check};
use crate::support::{Net, Preload, asked, eventually, seconds};

/// The number of clients that live at the same time.
const LIVES: u64 = 45;

/// The pause before each fault.
const CALM: Duration = seconds(4);

/// `WARREN_HISTORY` is the number of operations.
#[test]
#[ignore = "takes some minutes; docs/fleet.md has its figures"]
fn a_long_history_of_real_exits_has_nothing_twice_loses_nothing_and_serves_no_removed_client() {
    let Some(net) = Net::new() else { return };
    let count = asked("WARREN_HISTORY").unwrap_or(100_000);
    let hosts = net.clients_beside(u8::try_from(EXITS + MEMBERS).unwrap());
    let Some(etcd) = etcd(&hosts) else { return };
    // There are few addresses, so that clients want the same ones.
    let mut fleet = RealFleet::at_with(&hosts[..EXITS], &etcd, "10.66.0.0/22", "client = []\n");
    let clock = fleet.exits[2].warren.config("clock");
    let preload = Preload::build("wall_clock");
    let stepped = [
        vec![preload.variable, format!("WALL_CLOCK={}", clock.display())],
        vec![format!("WARREN_FLEET_CLOCK={}", clock.display())],
    ];
    fleet.run(&|number| if number == 2 { stepped.clone() } else { Default::default() });
    let world = Arc::new(World::new(ways(&fleet), sockets(&fleet)));
    let sink = Sink::start(&net);
    let mut faults = Faults { net: &net, etcd, fleet, clock, happened: Vec::new() };

    let start = Instant::now();
    let of_thread = world.clone();
    let living = net.client.enter(move || live_all(&of_thread));
    let recorded = || world.operations.lock().unwrap().len();
    for (number, kind) in ALL.iter().cycle().enumerate() {
        if number >= ALL.len() && recorded() >= count {
            break;
        }
        std::thread::sleep(CALM);
        println!("{kind:?} after {:.0?} and {} operations", start.elapsed(), recorded());
        faults.make(*kind);
        assert!(!living.is_finished(), "the clients have ended: {:?}", living.join());
    }
    std::thread::sleep(CALM);
    world.is_over.store(true, SeqCst);
    living.join().unwrap();
    let of_thread = world.clone();
    net.client.enter(move || return_all(&of_thread)).join().unwrap();

    let history = History {
        operations: std::mem::take(&mut *world.operations.lock().unwrap()),
        arrivals: sink.arrivals(),
        faults: faults.happened.clone(),
        enrolled: everywhere(&faults, &world),
    };
    let figures = check(&history).unwrap_or_else(|found| panic!("{found}\n{}", history.about(&found)));
    println!("measured: {figures}; in {:.0?} with {} faults", start.elapsed(), faults.happened.len());
    figures.assert_something();
    assert!(figures.operations >= count);
    assert_planted_bugs_are_found(&history);
}

fn ways(fleet: &RealFleet<'_>) -> Vec<(std::net::SocketAddr, PublicKey)> {
    let key = |exit: usize| fleet.exits[exit].status().text("/public_key").parse().unwrap();
    (0..EXITS).map(|exit| (endpoint(exit), key(exit))).collect()
}

fn sockets(fleet: &RealFleet<'_>) -> Vec<PathBuf> {
    fleet.exits.iter().map(|exit| exit.warren.config("../runtime/exit/control.sock")).collect()
}

fn live_all(world: &Arc<World>) {
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime(), async {
        let life = |seed: u64| {
            let world = world.clone();
            tokio::task::spawn_local(async move { live(&world, Dice(seed)).await })
        };
        let lives: Vec<_> = (1..=LIVES).map(life).collect();
        for life in lives {
            life.await.unwrap();
        }
    });
}

/// Each client that has stayed enrolled asks each exit for a session. The checker fails if an exit refuses it.
fn return_all(world: &World) {
    let stayed = std::mem::take(&mut *world.stayed.lock().unwrap());
    assert!(!stayed.is_empty(), "nobody has stayed");
    runtime().block_on(async {
        for (number, key) in &stayed {
            for exit in 0..EXITS {
                if let Some((session, _)) = world.connect(exit, (*number, key)).await {
                    session.leave().await;
                }
            }
        }
    });
}

/// Waits until all exits and the store have the same clients. Returns these by their numbers, the store's last.
fn everywhere(faults: &Faults<'_>, world: &World) -> Vec<BTreeSet<usize>> {
    let keys = world.keys.lock().unwrap();
    let numbers: BTreeMap<PublicKey, usize> = keys.iter().copied().zip(0..).collect();
    let number = |(_, key): (&String, &PublicKey)| numbers[key];
    let mut all = Vec::new();
    let start = Instant::now();
    while start.elapsed() < seconds(30) {
        let lists = world.sockets.iter().map(|socket| listed(socket)).chain([stored(&faults.etcd)]);
        all = lists.map(|list| list.iter().map(number).collect::<BTreeSet<_>>()).collect();
        if all.iter().all(|list| *list == all[0]) {
            break;
        }
        std::thread::sleep(seconds(1));
    }
    all
}

/// All clients of an exit: their names and keys.
fn listed(socket: &Path) -> BTreeMap<String, PublicKey> {
    let (mut clients, mut page) = (BTreeMap::new(), PageQuery::default());
    loop {
        let request = Request::ClientList { page: page.clone() };
        let found: Page<ClientView> = runtime().block_on(ask_as(socket, &request)).unwrap();
        clients.extend(found.rows.into_iter().map(|client| (client.name, client.public_key)));
        page.after = found.next;
        if page.after.is_none() {
            return clients;
        }
    }
}

/// All clients of the store: their names and keys.
fn stored(etcd: &Etcd<'_>) -> BTreeMap<String, PublicKey> {
    let rows = etcd.values("/warren/fleet/cl/");
    let clients = rows.iter().filter_map(|row| match serde_json::from_str(row).unwrap() {
        RowChange::Client { key, client } => Some((client?.name, key)),
        RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
    });
    clients.collect()
}

/// `WARREN_TOKENS` is the number of tokens.
#[test]
#[ignore = "takes some minutes; docs/fleet.md has its figures"]
fn ten_thousand_tokens_raced_at_three_real_exits_have_one_key_each() {
    /// How many tokens are raced at the same time. An exit has at most 128 strangers of one network at a time.
    const AT_ONCE: usize = 32;
    let Some(net) = Net::new() else { return };
    let count = asked("WARREN_TOKENS").unwrap_or(10_000);
    let hosts = net.clients_beside(u8::try_from(EXITS + MEMBERS).unwrap());
    let Some(etcd) = etcd(&hosts) else { return };
    let mut fleet = RealFleet::at(&hosts[..EXITS], &etcd);
    fleet.run(&|_| Default::default());
    let world = Arc::new(World::new(ways(&fleet), sockets(&fleet)));

    let start = Instant::now();
    let of_thread = world.clone();
    let racing = net.client.enter(move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime(), async {
            let racer = |number: usize| {
                let (world, tokens) = (of_thread.clone(), (count + number) / AT_ONCE);
                tokio::task::spawn_local(race_all(world, tokens))
            };
            let racers: Vec<_> = (0..AT_ONCE).map(racer).collect();
            let mut won = Vec::new();
            for racer in racers {
                won.extend(racer.await.unwrap());
            }
            won
        })
    });
    let won = racing.join().unwrap();
    let took = start.elapsed();

    assert_eq!(won.len(), count);
    let mut by_exit = [0; EXITS];
    won.iter().for_each(|won| by_exit[won.exit] += 1);
    assert!(by_exit.iter().all(|count| *count > 0), "{by_exit:?}");
    let addresses: BTreeSet<Ipv4Addr> = won.iter().map(|won| won.address).collect();
    assert_eq!(addresses.len(), count, "each client has its own address");
    let winners: BTreeMap<String, PublicKey> = won.into_iter().map(|won| (won.name, won.key)).collect();
    eventually(seconds(30), "each exit has the keys that have won", || {
        world.sockets.iter().all(|socket| listed(socket) == winners)
    });
    assert!(stored(&etcd) == winners, "the store has the keys that have won");
    let conflicts =
        |exit: usize| fleet.exits[exit].status().0["fleet"]["requests"]["conflict"].as_f64().unwrap();
    let conflicts: f64 = (0..EXITS).map(conflicts).sum();
    println!(
        "measured: {count} tokens raced by three keys at three exits in {took:.0?}, won by the exits {by_exit:?}; the store has refused \
         {conflicts} requests"
    );
    assert!(conflicts > 0.0, "the exits have asked the store at the same time");
}

/// The key that has won a token.
struct Won {
    name: String,
    key: PublicKey,
    exit: usize,
    address: Ipv4Addr,
}

async fn race_all(world: Arc<World>, tokens: usize) -> Vec<Won> {
    let mut won = Vec::new();
    for number in 0..tokens {
        let token = world.invite(number % EXITS).await.expect("an invitation");
        // Usually, all exits know of the invitation after this time.
        tokio::time::sleep(Duration::from_millis(20)).await;
        won.push(race(&world, token).await);
    }
    won
}

/// Three keys redeem a token, one at each exit, and all of them try to open a session.
async fn race(world: &World, token: (usize, InviteToken)) -> Won {
    let keys: [PrivateKey; EXITS] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let enrol = |exit: usize| world.enrol(token, exit, (exit, &keys[exit]));
    let (one, two, three) = tokio::join!(enrol(0), enrol(1), enrol(2));
    let outcomes = [one, two, three];
    let connect = |exit: usize| world.connect(exit, (exit, &keys[exit]));
    let (one, two, three) = tokio::join!(connect(0), connect(1), connect(2));
    let sessions = [one, two, three];
    let count = |outcome: Outcome| outcomes.iter().filter(|found| **found == outcome).count();
    assert_eq!((count(Outcome::Done), count(Outcome::Refused)), (1, EXITS - 1), "{token:?}: {outcomes:?}");
    let mut won = None;
    for (exit, (outcome, session)) in outcomes.into_iter().zip(sessions).enumerate() {
        assert_eq!(session.is_some(), outcome == Outcome::Done, "only the key that has won is welcomed");
        if let Some((session, address)) = session {
            session.leave().await;
            won = Some(Won { name: name_of(token.0), key: keys[exit].public(), exit, address });
        }
    }
    won.unwrap()
}

#[test]
fn the_checker_finds_bugs_in_altered_histories() {
    let history = small_history();
    let figures = check(&history).unwrap();
    println!("{figures}");
    figures.assert_something();
    assert_planted_bugs_are_found(&history);
}

/// A right history of five clients. The third exit is cut off for a while.
fn small_history() -> History {
    use Outcome::{Done, Refused};
    let start = Instant::now();
    let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
    let step = |what, client, exit, begun, outcome| {
        let (begun, ended) = (at(begun), at(begun + 10));
        Operation { what, client, exit, begun, ended, outcome, is_alone: false }
    };
    let welcome = |number: u8| What::Connect(Some([10, 66, 0, number].into()));
    let operations = vec![
        step(What::Invite, 0, 2, 0, Done),
        step(What::Enrol(0), 0, 0, 20, Done),
        step(What::Enrol(0), 1, 1, 20, Refused),
        step(What::Connect(None), 1, 1, 50, Refused),
        step(welcome(2), 0, 1, 100, Done),
        step(What::Probe, 0, 1, 150, Done),
        step(What::Enrol(1), 2, 1, 200, Done),
        step(welcome(3), 2, 0, 300, Done),
        step(What::Disable, 2, 2, 400, Done),
        step(What::Connect(None), 2, 0, 2_600, Refused),
        step(What::Enable, 2, 0, 3_000, Done),
        step(welcome(3), 2, 0, 3_100, Done),
        step(What::Remove, 2, 1, 4_000, Done),
        step(What::Connect(None), 2, 2, 6_500, Refused),
        // The address of the removed client has a new holder.
        step(What::Enrol(2), 3, 1, 4_100, Done),
        step(welcome(3), 3, 0, 4_200, Done),
        step(What::Enrol(3), 4, 0, 10_000, Done),
        step(welcome(4), 4, 2, 10_100, Done),
        step(What::Remove, 4, 0, 15_000, Done),
        step(welcome(2), 0, 2, 22_000, Done),
    ];
    let late = Late::AfterFault(seconds(2));
    let fault = Fault { exit: Some(2), from: at(14_000), until: at(18_000), late };
    let arrivals = [(2, 0, 350), (2, 0, 3_500), (2, 0, 4_005), (3, 0, 9_000), (4, 2, 17_000), (4, 2, 19_900)];
    let arrivals =
        arrivals.map(|(client, exit, milliseconds)| Arrival { client, exit, at: at(milliseconds) });
    let enrolled = vec![BTreeSet::from([0, 3]); EXITS + 1];
    History { operations, arrivals: arrivals.to_vec(), faults: vec![fault], enrolled }
}

/// Alters a history.
type Plant = fn(&mut History);

/// Plants a bug of each kind in a history without a bug. The checker must find each of them.
#[track_caller]
fn assert_planted_bugs_are_found(history: &History) {
    let plants: [(Plant, &str); 8] = [
        (plant_second_key, "has enrolled two keys"),
        (plant_lost_enrolment, "is lost in the end"),
        (plant_disagreement, "do not agree"),
        (plant_refusal, "is lost: exit"),
        (plant_address, "has two keys at a time"),
        (plant_admission, "has admitted"),
        (plant_packet, "2.5s after the acknowledgement"),
        (plant_packet_after_fault, "after the acknowledgement"),
    ];
    for (plant, sign) in plants {
        let mut altered = history.clone();
        plant(&mut altered);
        let found = check(&altered).expect_err(sign);
        println!("planted: {found}");
        assert!(found.contains(sign), "{sign:?} is planted, and this is found: {found}");
    }
}

impl History {
    fn find(&mut self, is: impl Fn(&Operation) -> bool) -> &mut Operation {
        self.operations.iter_mut().find(|operation| is(operation)).expect("an operation to alter")
    }

    /// Everything that has happened to the clients that a violation names, and the faults.
    fn about(&self, found: &str) -> String {
        let is_digit = |letter: char| letter.is_ascii_digit();
        let named: Vec<usize> =
            found.split(|letter| !is_digit(letter)).filter_map(|number| number.parse().ok()).collect();
        let first = self.operations.iter().map(|operation| operation.begun).min().unwrap();
        let at = |at: Instant| at.saturating_duration_since(first);
        let of = |found: &&Operation| named.contains(&found.client) && found.what != What::Invite;
        let operation = |found: &Operation| {
            let Operation { what, client, exit, begun, ended, outcome, is_alone } = *found;
            let alone = if is_alone { ", alone" } else { "" };
            format!("{:.3?} to {:.3?}: {client} {what:?} at {exit}: {outcome:?}{alone}", at(begun), at(ended))
        };
        let faults = self
            .faults
            .iter()
            .map(|fault| format!("{fault:?}: {:.3?} to {:.3?}", at(fault.from), at(fault.until)));
        self.operations.iter().filter(of).map(operation).chain(faults).collect::<Vec<_>>().join("\n")
    }

    /// A client that is enrolled in the end, with its first address.
    fn stayed(&self) -> Operation {
        let stayed = self.enrolled[0].clone();
        let is_welcome = |what: What| matches!(what, What::Connect(Some(_)));
        let mut all = self.operations.iter();
        *all.find(|found| stayed.contains(&found.client) && is_welcome(found.what))
            .expect("a client that stays")
    }

    /// The removal of a client while there is no fault.
    fn calm_removal(&self) -> Operation {
        let is_calm = |found: &&Operation| {
            self.faults.iter().all(|fault| fault.until < found.begun || found.ended + seconds(3) < fault.from)
        };
        let mut all = self.operations.iter().filter(is_calm);
        *all.find(|found| found.what == What::Remove && found.outcome == Outcome::Done)
            .expect("a calm removal")
    }
}

/// A key that was refused has the token as well.
fn plant_second_key(history: &mut History) {
    let tokens = history.operations.iter().filter(|found| found.outcome == Outcome::Done);
    let used: BTreeSet<usize> = tokens.filter_map(|found| token_of(found.what)).collect();
    let is_used = |what: What| token_of(what).is_some_and(|token| used.contains(&token));
    history.find(|found| found.outcome == Outcome::Refused && is_used(found.what)).outcome = Outcome::Done;
}

fn token_of(what: What) -> Option<usize> {
    if let What::Enrol(token) = what { Some(token) } else { None }
}

fn plant_lost_enrolment(history: &mut History) {
    let stayed = history.stayed().client;
    history.enrolled.iter_mut().for_each(|enrolled| _ = enrolled.remove(&stayed));
}

fn plant_disagreement(history: &mut History) {
    let stayed = history.stayed().client;
    history.enrolled[1].remove(&stayed);
}

/// An exit refuses a client that was enrolled long before.
fn plant_refusal(history: &mut History) {
    let stayed = history.stayed();
    let last = history.operations.iter().rposition(|found| found.client == stayed.client).unwrap();
    let altered = &mut history.operations[last];
    (altered.what, altered.outcome) = (What::Connect(None), Outcome::Refused);
}

/// Another client has the address of a client that stays.
fn plant_address(history: &mut History) {
    let stayed = history.stayed();
    let is_welcome = |what: What| matches!(what, What::Connect(Some(_)));
    let later = |found: &Operation| found.ended > stayed.ended && found.client != stayed.client;
    history.find(|found| later(found) && is_welcome(found.what)).what = stayed.what;
}

/// A removed client is admitted, which asks long after its removal.
fn plant_admission(history: &mut History) {
    let removal = history.calm_removal();
    let from = removal.ended + seconds(2);
    let is_late = |found: &Operation| found.client == removal.client && found.begun > from;
    let altered = history.find(|found| is_late(found) && found.what == What::Connect(None));
    (altered.what, altered.outcome) = (What::Connect(Some(Ipv4Addr::LOCALHOST)), Outcome::Done);
}

fn plant_packet(history: &mut History) {
    let removal = history.calm_removal();
    let at = removal.ended + Duration::from_millis(2_500);
    history.arrivals.push(Arrival { client: removal.client, exit: (removal.exit + 1) % EXITS, at });
}

/// A packet passes an exit that was cut off, just later than it may. A bit earlier, it is allowed.
fn plant_packet_after_fault(history: &mut History) {
    let is_cut = |fault: &&Fault| fault.exit.is_some();
    let (removal, cut) = history
        .faults
        .iter()
        .filter(is_cut)
        .find_map(|cut| {
            let is_meanwhile = |found: &&Operation| found.begun > cut.from && found.ended < cut.until;
            let mut removals = history.operations.iter().filter(|found| found.what == What::Remove);
            let removal = removals.find(|found| {
                is_meanwhile(found) && found.outcome == Outcome::Done && Some(found.exit) != cut.exit
            });
            Some((*removal?, *cut))
        })
        .expect("a removal during a cut");
    let packet = |at| Arrival { client: removal.client, exit: cut.exit.unwrap(), at };
    history.arrivals.push(packet(cut.until + Duration::from_millis(1_950)));
    check(history).unwrap();
    history.arrivals.push(packet(cut.until + Duration::from_millis(2_050)));
}
