//! Sessions and their inner addresses: who holds what, and who may send as whom.

use rustix::process::Signal;

use crate::support::{Client, Exit, Net, seconds};

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
    // In the other order, so that addresses drawn anew would be swapped.
    other.up();
    client.up();

    assert_eq!(client.inner_addresses(), addresses);
}

#[test]
fn the_newest_session_of_a_key_wins_and_the_older_stops_for_good() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let older = Client::with(&net, &profile);
    let host = net.second_client();
    let newer = Client::on(&host, &profile);
    let mut daemon = older.run("info");
    let addresses = older.inner_addresses();

    newer.up();

    assert_eq!(daemon.wait(seconds(5)), Some(4), "{}", daemon.output());
    assert!(daemon.output().contains("another host opened a session"), "{}", daemon.output());
    older.assert_host_unchanged();
    assert_eq!(newer.inner_addresses(), addresses);
    newer.sh("ping -c 1 -W 5 203.0.113.2");
    assert_eq!(exit.status().list("/sessions").len(), 1);
}

#[test]
fn a_source_that_is_not_the_client_s_is_dropped_and_counted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    client.sh("ip address add 10.66.77.77/32 dev lo; ip address add fd66:6666::7777/128 dev lo nodad");
    // The client would give them its inner addresses.
    let raw = "type filter hook output priority raw; ip saddr 10.66.77.77 notrack; ip6 saddr fd66:6666::7777 notrack;";
    client.sh(&format!("nft 'table inet spoof {{ chain out {{ {raw} }}; }}'"));
    let spoofed = |exit: &Exit<'_>| exit.status().drop("tun", "spoofed_source");
    assert_eq!(spoofed(&exit), 0);

    let v4 = net.client.sh("ping -I 10.66.77.77 -c 3 -i 0.2 -W 1 203.0.113.2");
    let v6 = net.client.sh("ping -I fd66:6666::7777 -c 3 -i 0.2 -W 1 2001:db8:3::2");

    assert!(!v4.succeeded() && !v6.succeeded());
    assert_eq!(spoofed(&exit), 6);
    // With its own addresses the same packets pass and nothing is counted.
    client.sh("ping -c 3 -i 0.2 -W 5 203.0.113.2 && ping -c 3 -i 0.2 -W 5 2001:db8:3::2");
    assert_eq!(spoofed(&exit), 6);
}

#[test]
fn isolated_clients_do_not_reach_each_other_and_others_do() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let one = Client::with(&net, &exit.enrol("one"));
    let host = net.second_client();
    let two = Client::on(&host, &exit.enrol("two"));
    one.up();
    two.up();
    let address = |client: &Client<'_>| {
        client.inner_addresses().0.as_str().unwrap().split('/').next().unwrap().to_owned()
    };
    let ping = format!("ping -c 2 -i 0.2 -W 1 {}", address(&two));

    assert!(!net.client.sh(&ping).succeeded());
    assert!(exit.status().drop("tun", "isolated") + exit.status().drop("carrier", "isolated") >= 2);
    one.sh("ping -c 1 -W 5 203.0.113.2");

    one.down();
    two.down();
    exit.stop(Signal::TERM);
    exit.configure(|config| config.with("clients", "isolation", false));
    exit.run();
    one.up();
    two.up();
    one.sh(&ping);
}
