//! A second exit that serves clients already joins a fleet with `warren fleet join --bring-clients`. Nobody enrols again, and no
//! client has to be started again. Two real exits with other pools, their links, and a real etcd.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::etcd::Etcd;
use crate::support::real_fleet::{NAMES, endpoint, store_of};
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, seconds};

/// The pools of the fleet, and those of the second exit before it joins.
const POOLS: [[&str; 2]; 2] = [["10.66.0.0/16", "fd66:6666::/64"], ["10.77.0.0/16", "fd77:7777::/64"]];

#[test]
fn running_clients_of_a_second_exit_come_back_by_themselves_when_it_joins_a_fleet() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(3);
    let Some((store, exits)) = hosts.split_last() else { return };
    let address = endpoint(exits.len()).ip().to_string();
    let Some(etcd) = Etcd::start(std::slice::from_ref(store), vec![address]) else { return };
    let [mut first, mut second] = [0, 1].map(|number| exit_on(&exits[number], number));
    first.warren.run(&format!("fleet init --exit {} {}", NAMES[0], etcd.init_options())).ok();
    let _first_link = link(&mut first, 0);
    second.run();
    let client = Client::with(&net, &second.enrol("laptop"));
    client.up();
    let inner = || client.status().text("/session/ipv4").to_owned();
    assert!(inner().starts_with("10.77."), "{}", inner());
    let ticket =
        first.warren.run(&format!("fleet ticket {} {}", NAMES[1], etcd.ticket_options(NAMES[1]))).ok();
    let ticket = ticket.split_whitespace().last().unwrap();

    let said = second.warren.run(&format!("fleet join {ticket} --bring-clients")).ok();

    assert!(said.contains("The fleet has its 1 client"), "{said}");
    assert_eq!(client.status().text("/state"), "up", "joining alone changes nothing");
    second.stop(Signal::TERM);
    let _second_link = link(&mut second, 1);
    eventually(seconds(40), "the client is up again, with an address of the fleet", || {
        let status = client.warren.status().expect("the client still runs");
        status.text("/state") == "up" && status.text("/session/ipv4").starts_with("10.66.")
    });
    // Both exits know the client, so it is not enrolled by the second one alone.
    for exit in [&first, &second] {
        assert!(exit.warren.run("exit client list").ok().contains("laptop"));
    }
    client.down();
}

/// An exit that does not run yet.
fn exit_on(host: &Namespace, number: usize) -> Exit<'_> {
    let [ipv4, ipv6] = POOLS[number].map(str::to_owned);
    Exit::init_on(host, &ExitOptions { endpoint: endpoint(number).to_string(), ipv4, ipv6 })
}

/// Starts an exit as a member of the fleet, and its link.
fn link(exit: &mut Exit<'_>, number: usize) -> crate::support::Running {
    let [ipv4, ipv6] = POOLS[0];
    exit.configure(|config| {
        config.with("addresses", "ipv4", ipv4).with("addresses", "ipv6", ipv6).with(
            "fleet",
            "name",
            NAMES[number],
        )
    });
    exit.run();
    let link = exit.warren.start("fleet run");
    eventually(seconds(60), "the exit has the store's clients", || store_of(exit) == "reachable");
    link
}
