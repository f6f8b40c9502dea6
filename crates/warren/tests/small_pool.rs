//! An exit with very few inner addresses. When no address is free, clients are refused at once, and no two clients ever have the
//! same address at the same time.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::collections::{HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::IDLE_TIMEOUT;
use warren_session::client::ClientState;

use crate::support::library_client::{LibraryClient, runtime};
use crate::support::{Exit, ExitOptions, Net, asked, seconds};

/// A /29 without the network address, the exit's address and the broadcast address.
const ADDRESSES: usize = 5;
/// How many clients connect. For row A7 of the scorecard (docs/torture.md), set `WARREN_CHURN=1000`.
const CYCLES: usize = 60;

#[test]
fn clients_that_come_and_go_never_share_an_address_and_one_too_many_is_told_at_once() {
    let Some(net) = Net::new() else { return };
    let cycles = asked("WARREN_CHURN").unwrap_or(CYCLES);
    let (exit, keys) = exit_with_few_addresses(&net);
    let exit_key = exit.status().text("/public_key").parse().unwrap();

    let churn = net.client.enter(move || runtime().block_on(churn(&keys, exit_key, cycles)));
    let Churn { refused, slowest_refusal, used } = churn.join().unwrap();

    println!(
        "measured: {cycles} clients one after the other, no two with the same one of the {used} addresses; {refused} clients \
         found no address left and were told within {slowest_refusal:.0?}"
    );
    assert_eq!(used, ADDRESSES);
    assert!(
        refused > 0 && slowest_refusal <= seconds(2),
        "{refused} refused, the slowest after {slowest_refusal:?}"
    );
}

/// This test takes as long as the exit waits for a silent client.
#[test]
#[ignore = "takes a minute; `scripts/torture pool` runs it"]
fn the_address_of_a_client_that_crashed_is_another_s_once_its_time_is_up() {
    let Some(net) = Net::new() else { return };
    let (exit, keys) = exit_with_few_addresses(&net);
    let exit_key = exit.status().text("/public_key").parse().unwrap();

    let clients = net.client.enter(move || {
        runtime().block_on(async move {
            let mut live = Vec::new();
            for key in &keys[..ADDRESSES] {
                live.push(client_with_address(key, exit_key).await.0);
            }
            let gone = live.remove(0);
            let address = gone.welcome().unwrap().ipv4.unwrap().0;
            drop(gone);
            let crashed = Instant::now();
            let mut refusals = 0;
            // Each second, a new client asks, because a single waiting client would ask less and less often.
            loop {
                let mut late = LibraryClient::start(keys[ADDRESSES].clone(), exit_key, 1);
                let asked = Instant::now();
                while !is_refused(&late) && late.welcome().is_none() {
                    late.run(Duration::from_millis(10)).await;
                }
                if let Some(welcome) = late.welcome() {
                    return (welcome.ipv4.unwrap().0 == address, crashed.elapsed(), refusals);
                }
                refusals += 1;
                late.leave().await;
                assert!(crashed.elapsed() < IDLE_TIMEOUT + seconds(15), "the address was not freed in time");
                while asked.elapsed() < seconds(1) {
                    for client in &mut live {
                        client.run(Duration::from_millis(10)).await;
                    }
                }
            }
        })
    });
    let (same, after, refusals) = clients.join().unwrap();

    println!("measured: another client got the address of a crashed client {after:.1?} later");
    assert!(same && refusals > 0, "the late client did not get the crashed client's address");
    assert!(after <= IDLE_TIMEOUT + seconds(5), "{after:?}");
}

/// An exit with [`ADDRESSES`] addresses and twice as many enrolled clients.
fn exit_with_few_addresses(net: &Net) -> (Exit<'_>, Vec<PrivateKey>) {
    let exit = Exit::start_with(net, &ExitOptions { ipv4: "10.66.0.0/29".into(), ..ExitOptions::default() });
    let keys: Vec<PrivateKey> = (0..2 * ADDRESSES).map(|_| PrivateKey::generate().unwrap()).collect();
    for (number, key) in keys.iter().enumerate() {
        exit.enrol_key(&format!("client-{number}"), &key.public().to_string());
    }
    (exit, keys)
}

struct Churn {
    refused: u32,
    slowest_refusal: Duration,
    /// The number of addresses that were in use at some time.
    used: usize,
}

/// Connects clients one after another, each with an unused key. When the pool is full, another client leaves first.
async fn churn(keys: &[PrivateKey], exit_key: PublicKey, cycles: usize) -> Churn {
    let mut churn = Churn { refused: 0, slowest_refusal: Duration::ZERO, used: 0 };
    let mut live: Vec<(&PrivateKey, LibraryClient, Ipv4Addr)> = Vec::new();
    // The keys of absent clients. The one that has been away longest comes first.
    let mut away: VecDeque<&PrivateKey> = keys.iter().collect();
    let mut used = HashSet::new();
    for cycle in 0..cycles {
        let key = away.pop_front().unwrap();
        if live.len() == ADDRESSES {
            if cycle % 10 == 0 {
                let start = Instant::now();
                let mut late = LibraryClient::start(key.clone(), exit_key, 1);
                late.until("one client too many is refused", |client| is_refused(client)).await;
                churn.refused += 1;
                churn.slowest_refusal = churn.slowest_refusal.max(start.elapsed());
                late.leave().await;
            }
            // The client that leaves is at a varying index.
            let (key, client, _) = live.remove(cycle * 7 % ADDRESSES);
            client.leave().await;
            away.push_back(key);
        }
        let (client, address) = client_with_address(key, exit_key).await;
        assert!(
            live.iter().all(|(.., other)| *other != address),
            "cycle {cycle}: another client has {address}"
        );
        used.insert(address);
        live.push((key, client, address));
        for (_, client, _) in &mut live {
            client.run(Duration::from_millis(1)).await;
        }
    }
    churn.used = used.len();
    churn
}

async fn client_with_address(key: &PrivateKey, exit_key: PublicKey) -> (LibraryClient, Ipv4Addr) {
    let mut client = LibraryClient::start(key.clone(), exit_key, 1);
    client.until("the client has an address", |client| client.attached() == 1).await;
    let address = client.welcome().unwrap().ipv4.unwrap().0;
    (client, address)
}

fn is_refused(client: &LibraryClient) -> bool {
    let state = client.state();
    matches!(state, ClientState::Down { reason, .. } if reason.contains("no inner address left"))
}
