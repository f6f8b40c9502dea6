//! Sessions and their inner addresses: which client has which address, and which source addresses it may use.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::counters::packets_counted;
use crate::support::{Client, Exit, Net, eventually, seconds};

#[test]
fn inner_addresses_stick_to_the_key_across_reconnects_and_restarts() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("other"));
    client.up();
    other.up();
    let addresses = client.inner_addresses();
    assert!(addresses.0.is_string() && addresses.1.is_string(), "{addresses:?}");
    assert_ne!(addresses, other.inner_addresses());

    client.down();
    other.down();
    exit.stop(Signal::TERM);
    exit.run();
    // The clients start in the reverse order, so if addresses were assigned anew, they would be swapped.
    other.up();
    client.up();

    assert_eq!(client.inner_addresses(), addresses);
}

#[test]
fn the_newest_session_of_a_key_wins_and_the_older_asks_no_more() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let older = Client::with(&net, &profile);
    let host = net.second_client();
    let newer = Client::on(&host, &profile);
    let mut daemon = older.run("info");
    let addresses = older.inner_addresses();

    newer.up();

    eventually(seconds(5), "the older client is refused", || older.status().text("/state") == "refused");
    assert!(daemon.output().contains("another host opened a session"), "{}", daemon.output());
    assert_eq!(newer.inner_addresses(), addresses);
    newer.sh("ping -c 1 -W 5 203.0.113.2");
    assert_eq!(exit.status().list("/sessions").len(), 1);
    older.down();
    assert_eq!(daemon.wait(seconds(5)), Some(0), "{}", daemon.output());
}

#[test]
fn a_source_that_is_not_the_client_s_is_dropped_and_counted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    client.sh("ip address add 10.66.77.77/32 dev lo; ip address add fd66:6666::7777/128 dev lo nodad");
    // The client's NAT would otherwise replace these sources with its inner addresses.
    let raw = "type filter hook output priority raw; ip saddr 10.66.77.77 notrack; ip6 saddr fd66:6666::7777 notrack;";
    client.sh(&format!("nft 'table inet spoof {{ chain out {{ {raw} }}; }}'"));
    let spoofed = |exit: &Exit<'_>| exit.status().drop("tun", "spoofed_source");
    assert_eq!(spoofed(&exit), 0);

    let v4 = net.client.sh("ping -I 10.66.77.77 -c 3 -i 0.2 -W 1 203.0.113.2");
    let v6 = net.client.sh("ping -I fd66:6666::7777 -c 3 -i 0.2 -W 1 2001:db8:3::2");

    assert!(!v4.succeeded() && !v6.succeeded());
    assert_eq!(spoofed(&exit), 6);
    // The control: with the client's own addresses the same packets pass, and nothing is counted.
    client.sh("ping -c 3 -i 0.2 -W 5 203.0.113.2 && ping -c 3 -i 0.2 -W 5 2001:db8:3::2");
    assert_eq!(spoofed(&exit), 6);
}

/// Scorecard A4: of 1,000 packets, none arrives with isolation, and all arrive without it.
#[test]
fn isolated_clients_do_not_reach_each_other_and_others_do() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let one = Client::with(&net, &exit.enrol("one"));
    let host = net.second_client();
    let two = Client::on(&host, &exit.enrol("two"));
    one.up();
    two.up();
    let addresses = |client: &Client<'_>| {
        let (ipv4, ipv6) = client.inner_addresses();
        [ipv4, ipv6].map(|address| address.as_str().unwrap().split('/').next().unwrap().to_owned())
    };
    let ([own_v4, own_v6], [ipv4, ipv6]) = (addresses(&one), addresses(&two));
    let rules = format!(
        "iifname \"warren0\" ip saddr {own_v4} counter; iifname \"warren0\" ip6 saddr {own_v6} counter;"
    );
    host.sh(&format!(
        "nft 'table inet seen {{ chain in {{ type filter hook prerouting priority raw; {rules} }}; }}'"
    ))
    .ok();
    let arrived = || -> u64 {
        let listed = host.sh("nft list table inet seen").ok();
        packets_counted(&listed).iter().sum()
    };
    let isolated =
        |exit: &Exit<'_>| exit.status().drop("tun", "isolated") + exit.status().drop("carrier", "isolated");

    eventually(seconds(30), "a thousand packets were dropped", || {
        send_in_every_way(&net, &ipv4, &ipv6);
        isolated(&exit) >= 1_000
    });
    assert_eq!(arrived(), 0);
    one.sh("ping -c 1 -W 5 203.0.113.2");

    exit.configure(|config| config.with("clients", "isolation", false));
    exit.warren.run("reload exit").ok();
    let before = isolated(&exit);
    eventually(seconds(30), "a thousand packets arrive", || {
        send_in_every_way(&net, &ipv4, &ipv6);
        arrived() >= 1_000
    });
    assert_eq!(isolated(&exit), before);
    one.sh(&format!("ping -c 1 -W 5 {ipv4} && ping -c 1 -W 5 {ipv6}"));
    host.sh("nft delete table inet seen").ok();
    one.down();
    two.down();
}

/// ICMP, TCP and UDP over both IP versions, about five hundred packets.
fn send_in_every_way(net: &Net, ipv4: &str, ipv6: &str) {
    for address in [ipv4, ipv6] {
        net.client.sh(&format!("ping -q -i 0.002 -c 150 -W 1 {address}"));
        let address: std::net::IpAddr = address.parse().unwrap();
        let sending = net.client.enter(move || {
            let any: std::net::IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let socket = std::net::UdpSocket::bind((any, 0)).unwrap();
            for number in 0..100 {
                // Without isolation the socket may report an ICMP error for an earlier packet.
                drop(socket.send_to(b"hello", (address, 9)));
                let connection = socket2::Socket::new(
                    socket2::Domain::for_address((address, 22).into()),
                    socket2::Type::STREAM,
                    None,
                )
                .unwrap();
                connection.set_nonblocking(true).unwrap();
                drop(connection.connect(&std::net::SocketAddr::from((address, 22)).into()));
                if number % 10 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
        });
        sending.join().unwrap();
    }
}
