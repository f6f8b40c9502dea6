//! Two workers on each side. The workers share a port and a TUN device, and pass packets to the worker whose connection carries
//! the flow.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;

use rustix::process::Signal;

use crate::support::balance::{assert_balanced, assert_wire_only_loses, drained};
use crate::support::{Client, Exit, ExitOptions, Net, Profile, Status, eventually, flows, seconds};

#[test]
fn traffic_of_every_kind_passes_both_ways_and_every_packet_is_accounted_for() {
    const CONNECTIONS: u16 = 16;
    let Some(net) = Net::new() else { return };
    let exit = exit_with_workers(&net, 2);
    // A command to the exit reaches all of its workers, so each worker has the new key now.
    exit.warren.run("exit rotate-key").ok();
    let key = exit.status().text("/public_key").to_owned();
    let client = Client::with(&net, &profile(&exit, CONNECTIONS).with_exit("public_key", key));
    client.up();
    wait_until_attached(&client, CONNECTIONS);
    let _server = net.internet.iperf3(5201);

    client.sh("ping -4 -c 3 -i 0.2 -W 5 -s 4000 203.0.113.2");
    client.sh("ping -6 -c 3 -i 0.2 -W 5 -s 4000 2001:db8:3::2");
    for host in ["203.0.113.2", "2001:db8:3::2"] {
        client.iperf3(host, "-P 4 -n 10M");
        client.iperf3(host, "-P 4 -n 10M -R");
    }
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_128), 128);
    // Packets of a flow that begins at the exit may be read by either worker, not only by the one that owns the flow's
    // connection.
    send_from_exit(&net, &client, 64);

    let (inside, outside) = drained(&client, &exit);
    for (role, status) in [("client", &inside), ("exit", &outside)] {
        assert_balanced(role, status);
        assert_eq!(status.number("/totals/connections_ended"), 0, "{role}");
        let workers = status.list("/workers");
        assert_eq!(workers.len(), 2, "{role}");
        for worker in workers {
            for count in ["connections", "tun_reads", "tun_writes", "carrier_sent_packets"] {
                assert!(worker[count].as_u64() > Some(0), "{role} has a worker with no {count}: {workers:?}");
            }
        }
        let handed_over = status.number("/totals/handed_over");
        println!("{role}: {handed_over} of {} reads were handed over", status.number("/totals/tun_reads"));
        assert!(handed_over > 0, "{role}");
    }
    assert_eq!(inside.drop("carrier", "hand_over_full"), 0);
    assert_wire_only_loses(&inside, &outside);
    client.down();
}

#[test]
fn the_only_connection_carries_what_the_other_worker_reads_and_an_established_flow_stays_in_order() {
    const COUNT: u32 = 2_000;
    let Some(net) = Net::new() else { return };
    let exit = exit_with_workers(&net, 2);
    let client = Client::with(&net, &profile(&exit, 1));
    client.up();

    let returned = flows::echo_numbered(&net.client, COUNT);
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_128), 128);

    assert_eq!(returned, (0..COUNT).collect::<Vec<_>>(), "every datagram came back, in order");
    let (inside, outside) = drained(&client, &exit);
    assert_balanced("client", &inside);
    assert_balanced("exit", &outside);
    let count = |number: usize, name: &str| inside.list("/workers")[number][name].as_u64().unwrap();
    assert_eq!((count(0, "connections"), count(1, "connections")), (1, 0));
    assert!(count(1, "handed_over") > 0, "the kernel spreads new flows over the queues");
    assert_eq!((count(0, "handed_over"), count(1, "carrier_sent_packets")), (0, 0));
}

#[test]
fn a_client_that_changes_its_address_stays_with_its_workers() {
    const CONNECTIONS: u16 = 16;
    let Some(net) = Net::new() else { return };
    let exit = exit_with_workers(&net, 2);
    let client = Client::with(&net, &profile(&exit, CONNECTIONS));
    client.up();
    wait_until_attached(&client, CONNECTIONS);
    let before = ids(&exit.status());

    net.client.sh("ip addr del 192.0.2.2/24 dev eth0; ip addr add 192.0.2.77/24 dev eth0").ok();
    net.client.sh("ip route replace default via 192.0.2.1 dev eth0").ok();

    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_064), 64);
    eventually(seconds(20), "the exit knows the new address of every connection", || {
        let status = exit.status();
        let remotes = status.list("/connections").iter().map(|one| one["remote"].as_str().unwrap());
        remotes.filter(|remote| remote.starts_with("192.0.2.77:")).count() == usize::from(CONNECTIONS)
    });
    assert_eq!(ids(&exit.status()), before, "the connections are unchanged, each on its worker");
    assert_eq!(client.status().number("/totals/connections_ended"), 0);
}

#[test]
fn an_exit_that_comes_back_with_another_number_of_workers_has_every_connection_again() {
    const CONNECTIONS: u16 = 8;
    let Some(net) = Net::new() else { return };
    let mut exit = exit_with_workers(&net, 3);
    let client = Client::with(&net, &profile(&exit, CONNECTIONS));
    client.up();
    wait_until_attached(&client, CONNECTIONS);

    exit.stop(Signal::KILL);
    exit.configure(|exit| exit.with("transport", "workers", 2));
    exit.run();

    // Without a reset, the client would notice only after the idle timeout of 50 s.
    eventually(seconds(20), "every connection is a new one", || {
        flows::unanswered(&net.client, 20_000..20_064);
        let status = client.status();
        status.number("/totals/connections_ended") >= u64::from(CONNECTIONS)
            && ids(&exit.status()).len() == usize::from(CONNECTIONS)
    });
    wait_until_attached(&client, CONNECTIONS);
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_064), 64);
}

fn exit_with_workers(net: &Net, workers: i64) -> Exit<'_> {
    let mut exit = Exit::init(net, &ExitOptions::default());
    exit.configure(|exit| exit.with("transport", "workers", workers));
    exit.run();
    exit
}

fn profile(exit: &Exit<'_>, connections: u16) -> Profile {
    let profile = exit.enrol("laptop").with("transport", "workers", 2).with("transport", "pin", true);
    let profile = profile.with("transport", "connections", i64::from(connections));
    // The port is allowed, because the exit's host sends datagrams to the client, as a visitor would.
    profile.with("forwards", "allow", vec!["udp/5302"])
}

fn wait_until_attached(client: &Client<'_>, connections: u16) {
    eventually(seconds(20), "every connection is attached", || {
        let status = client.status();
        let attached = status.list("/connections").iter().filter(|one| one["index"].is_u64()).count();
        attached == usize::from(connections)
    });
}

/// Sends one datagram on each of `count` flows from the exit's host, and waits until the last one has arrived.
fn send_from_exit(net: &Net, client: &Client<'_>, count: u16) {
    const PORT: u16 = 5_302;
    let address = client.status().text("/session/ipv4").split_once('/').unwrap().0.to_owned();
    let receiver = net.client.enter(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap()).join().unwrap();
    receiver.set_read_timeout(Some(seconds(10))).unwrap();
    let sending = net.exit.enter(move || {
        for _ in 0..count {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"hello", (address.as_str(), PORT)).unwrap();
        }
    });
    sending.join().unwrap();
    for received in 0..count {
        assert!(receiver.recv(&mut [0; 16]).is_ok(), "{received} of {count} datagrams arrived");
    }
}

/// The numbers of the connections and of their workers.
fn ids(status: &Status) -> Vec<(u64, u64)> {
    let number = |connection: &serde_json::Value, name: &str| connection[name].as_u64().unwrap();
    let mut ids: Vec<_> =
        status.list("/connections").iter().map(|one| (number(one, "id"), number(one, "worker"))).collect();
    ids.sort_unstable();
    ids
}
