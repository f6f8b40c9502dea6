//! An exit of a fleet is lost for good, together with its link: both are killed while their host still answers "port
//! unreachable", or the whole host falls silent. Its clients come back at the other exits, and the store removes the records of
//! its sessions. Three real exits and a real etcd are on hosts of their own.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::faulty_fleet::{Faulty, Guest, Marks};
use crate::support::real_fleet::{NAMES, endpoint};
use crate::support::{Client, Net, Profile, eventually, seconds};

/// The exit that is lost.
const LOST: usize = 2;

/// How an exit is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// The exit is killed, and its host answers with "port unreachable".
    Killed,
    /// The host sends nothing any more, as after a power failure.
    Silent,
}

#[test]
fn clients_of_an_exit_that_is_killed_come_back_elsewhere_within_seconds() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(13);
    let Some(mut faulty) = Faulty::start(&net, &hosts) else { return };
    faulty.fleet.sign();
    lose_an_exit(&mut faulty, Loss::Killed);
}

#[test]
fn clients_of_an_exit_whose_host_falls_silent_come_back_elsewhere_within_seconds() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(14);
    let Some(mut faulty) = Faulty::start(&net, &hosts) else { return };
    faulty.fleet.sign();
    let (others, idle_host) = faulty.others.split_at(faulty.others.len() - 1);
    faulty.others = others;
    let idle = Client::on(&idle_host[0], &roamers_profile(&faulty, "idle", 0));
    idle.up();

    let lost = lose_an_exit(&mut faulty, Loss::Silent);

    // A client without traffic notices the loss at its next keep-alive.
    eventually(seconds(30).saturating_sub(lost.elapsed()), "the idle client is elsewhere", || {
        is_elsewhere(&idle)
    });
    println!(
        "measured: {:?}: a client without traffic is elsewhere after {:.1?}",
        Loss::Silent,
        lost.elapsed()
    );
}

/// Loses the third exit. Returns when it was lost.
fn lose_an_exit(faulty: &mut Faulty<'_>, loss: Loss) -> Instant {
    let roamers: Vec<Guest<'_>> = faulty
        .others
        .iter()
        .enumerate()
        .map(|(number, host)| {
            let name = format!("roamer-{number}");
            Guest::with(host, &name, roamers_profile(faulty, &name, number % LOST))
        })
        .collect();
    eventually(seconds(5), "all sessions are recorded", || records(faulty, LOST) > roamers.len());
    let marks = faulty.marks();
    let starts: Vec<usize> = roamers.iter().map(|guest| guest.steady.mark()).collect();

    let lost = Instant::now();
    take_away(faulty, loss);
    let back = eventually(seconds(30), "all clients are back elsewhere", || {
        let is_back = |guest: &Guest<'_>| {
            !guest.steady.is_silent_for(Duration::from_millis(200)) && is_elsewhere(&guest.client)
        };
        roamers.iter().all(is_back)
    });

    let mut gaps: Vec<Duration> =
        roamers.iter().zip(starts).map(|(guest, mark)| guest.steady.longest_gap_since(mark)).collect();
    gaps.sort_unstable();
    println!(
        "measured: {loss:?}: traffic back after {gaps:.2?}, all seen elsewhere {back:.1?} after the loss"
    );
    check_records(faulty, loss, lost);
    assert!(gaps.iter().all(|gap| *gap <= seconds(3)), "{gaps:?}");
    check_controls(faulty, loss, &marks);
    lost
}

/// A profile for a client of the exit that will be lost, which also knows another exit.
fn roamers_profile(faulty: &Faulty<'_>, name: &str, other: usize) -> Profile {
    let profile = faulty.exit(LOST).enrol(name);
    profile.clone().with_failover_to(&faulty.profile_at(&profile, LOST, other))
}

fn is_elsewhere(client: &Client<'_>) -> bool {
    let status = client.status();
    let exit = status.text("/exit/endpoint");
    !exit.is_empty() && exit != endpoint(LOST).to_string()
}

/// How many sessions the store has for an exit.
fn records(faulty: &Faulty<'_>, exit: usize) -> usize {
    let records = faulty.etcd.values("/warren/fleet/se/");
    records.iter().filter(|record| record.contains(&format!("\"{}\"", NAMES[exit]))).count()
}

fn take_away(faulty: &mut Faulty<'_>, loss: Loss) {
    if loss == Loss::Silent {
        // The router drops packets instead of refusing them, as it does for a host whose address it still knows.
        let device = format!("to-beside{LOST}");
        faulty
            .net
            .router
            .sh(&format!(
                "nft 'table inet silent {{ chain forward {{ type filter hook forward priority 0; \
                 iifname {device} drop; oifname {device} drop; }}; }}'"
            ))
            .ok();
    }
    // The link is killed first, so that it does not delete the records.
    faulty.fleet.links[LOST].signal(Signal::KILL);
    faulty.fleet.links[LOST].wait(seconds(2));
    faulty.fleet.kill(LOST);
}

/// Checks that the records of the lost exit's sessions stay until the exit's lease expires.
fn check_records(faulty: &Faulty<'_>, loss: Loss, lost: Instant) {
    // The control: the records are not deleted earlier.
    let (left, checked) = (records(faulty, LOST), lost.elapsed());
    assert!(left > 0, "records are gone {checked:.1?} after the exit was lost");
    eventually(seconds(12).saturating_sub(lost.elapsed()), "its sessions' records are gone", || {
        records(faulty, LOST) == 0
    });
    println!(
        "measured: {loss:?}: {left} records left after {checked:.1?}, none after {:.1?}",
        lost.elapsed()
    );
}

fn check_controls(faulty: &Faulty<'_>, loss: Loss, marks: &Marks) {
    // The other exits' records stay, and a client that knows no other exit is cut off.
    assert!(records(faulty, 0) > 0 && records(faulty, 1) > 0);
    eventually(seconds(5), "the exit is lost", || faulty.keepers[LOST].steady.is_silent_for(seconds(2)));
    // Only a host that still runs answers with "port unreachable".
    assert_eq!(refuses(faulty), loss == Loss::Killed);
    faulty.assert_kept(&format!("{loss:?}"), marks, &[0, 1]);
}

/// Whether a client's host gets an ICMP error because no program listens on the lost exit's port.
fn refuses(faulty: &Faulty<'_>) -> bool {
    let asking = faulty.net.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(endpoint(LOST)).unwrap();
        socket.set_read_timeout(Some(seconds(2))).unwrap();
        socket.send(b"anyone?").unwrap();
        socket.recv(&mut [0; 64]).unwrap_err().kind() == std::io::ErrorKind::ConnectionRefused
    });
    asking.join().unwrap()
}
