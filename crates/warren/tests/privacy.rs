//! Tests what a running exit records about its clients.

use crate::support::{Client, Exit, ExitOptions, Net, OpenMetrics, flows};

/// Scorecard K10, for a running exit. No log or metric contains a client's location, its destinations or a secret.
#[test]
fn a_busy_exit_writes_down_neither_where_its_clients_are_nor_where_they_go() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("metrics", "clients", true));
    exit.run();
    let line = exit.warren.run("exit invite phone").ok();
    let host = net.second_client();
    let phone = Client::bare(&host);
    phone.warren.run(line.trim().strip_prefix("warren ").unwrap()).ok();
    phone.warren.run("up").ok();
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_008), 8);
    assert_eq!(flows::echo_from_each(&host, 20_000..20_008), 8);
    // Renaming, rate limits, spoofing and refusals all write log lines.
    client.sh("ip address add 10.66.77.77/32 dev lo");
    let raw = "type filter hook output priority raw; ip saddr 10.66.77.77 notrack;";
    client.sh(&format!("nft 'table inet spoof {{ chain out {{ {raw} }}; }}'"));
    assert!(
        !net.client.sh(&format!("ping -I 10.66.77.77 -c 2 -i 0.2 -W 1 {}", Net::INTERNET_V4)).succeeded()
    );
    exit.warren.run("exit client set laptop --rate-limit 10mbit").ok();
    exit.warren.run("reload exit").ok();
    exit.warren.run("exit client remove phone").ok();
    phone.warren.run("up phone");

    let page = OpenMetrics::page(&net);
    let log = exit.daemon().output();

    assert!(log.contains("laptop") && page.contains("client=\"laptop\""), "the log has lines to search");
    let token = line.trim().rsplit_once(':').unwrap().1;
    let keys = [profile.value("client", "private_key"), token];
    let secret = std::fs::read_to_string(exit.warren.config("exit.key")).unwrap();
    let places =
        [Net::CLIENT_V4, Net::CLIENT_V6, "192.0.3.2", "2001:db8:4::2", Net::INTERNET_V4, Net::INTERNET_V6];
    for text in places.into_iter().chain(keys).chain([secret.trim()]) {
        assert!(!log.contains(text), "{text} is in the log:\n{log}");
        assert!(!page.contains(text), "{text} is in the metrics");
    }
}
