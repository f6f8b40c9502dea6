//! The names of the settings in which two files differ.

use super::{OTHER_PUBLIC_KEY, exit_text, parse_exit, parse_profile, profile_text};

const TRANSPORT: &[(&str, &str)] = &[
    ("connections = 8", "connections in [transport]"),
    ("max_transmit_segments = 10", "max_transmit_segments in [transport]"),
    ("max_transmit_datagrams = 10", "max_transmit_datagrams in [transport]"),
    ("receive_batches = 2", "receive_batches in [transport]"),
    ("tun_batches = 2", "tun_batches in [transport]"),
    ("congestion = \"bbr3\"", "congestion in [transport]"),
    ("repair = false", "repair in [transport]"),
    ("driver = \"noq\"", "driver in [transport]"),
    ("workers = 3", "workers in [transport]"),
    ("pin = true", "pin in [transport]"),
    ("tun_offload = false", "tun_offload in [transport]"),
    ("udp_gso = false", "udp_gso in [transport]"),
    ("udp_gro = false", "udp_gro in [transport]"),
];

#[test]
fn each_setting_of_a_profile_that_changes_is_named_and_no_other() {
    let before = parse_profile(&profile_text("")).unwrap();
    let other_exit = format!("[[exit]]\nendpoint = \"b.example.net\"\npublic_key = \"{OTHER_PUBLIC_KEY}\"");
    let of_host = [
        ("[tun]\nname = \"tun7\"", "name in [tun]"),
        ("[tun]\nmtu = 1300", "mtu in [tun]"),
        ("[routes]\ninclude = [\"10.0.0.0/8\"]", "include in [routes]"),
        ("[routes]\nexclude = [\"10.0.0.0/8\"]", "exclude in [routes]"),
        ("[routes]\nlan = true", "lan in [routes]"),
        ("[routes]\nprefixes = [\"10.1.0.0/16\"]", "prefixes in [routes]"),
        ("[routes]\nwhen_refused = \"open\"", "when_refused in [routes]"),
        ("[dns]\nservers = []", "servers in [dns]"),
        ("[kill_switch]\nenabled = true", "enabled in [kill_switch]"),
        ("[kill_switch]\nallow_inbound = [\"tcp/22\"]", "allow_inbound in [kill_switch]"),
        ("[kill_switch]\nallow_exec_outside = true", "allow_exec_outside in [kill_switch]"),
        ("[exec]\nusers = [\"alice\"]", "users in [exec]"),
        ("[kill_switch]\ndown = \"group\"", "down in [kill_switch]"),
        ("[forwards]\nallow = [\"tcp/443\"]", "allow in [forwards]"),
        ("[fleet]\nfollow = false", "follow in [fleet]"),
    ];
    let transport = TRANSPORT.iter().map(|(line, name)| (format!("[transport]\n{line}"), *name));
    for (text, name) in of_host.map(|(text, name)| (text.to_owned(), name)).into_iter().chain(transport) {
        let after = parse_profile(&profile_text(&text)).expect(&text);
        assert_eq!(before.changes(&after), [name], "{text}");
    }
    let after = parse_profile(&profile_text(&other_exit)).unwrap();
    assert_eq!(
        before.changes(&after),
        ["endpoint in [[exit]]", "public_key in [[exit]]", "server_name in [[exit]]"]
    );
    assert!(before.changes(&parse_profile(&profile_text("[tun]\nmtu = \"auto\"")).unwrap()).is_empty());
}

#[test]
fn an_exit_is_put_first_by_its_endpoint_or_its_host() {
    let more = format!(
        "[[exit]]\nendpoint = \"b.example.net:8443\"\npublic_key = \"{OTHER_PUBLIC_KEY}\"\n\
         [[exit]]\nendpoint = \"c.example.net\"\npublic_key = \"{OTHER_PUBLIC_KEY}\""
    );
    let order = |name: &str| {
        let mut profile = parse_profile(&profile_text(&more)).unwrap();
        let is_found = profile.put_first(name);
        let hosts: Vec<String> = profile.exits().map(|exit| exit.endpoint.host().to_owned()).collect();
        (is_found, hosts.iter().filter_map(|host| host.chars().next()).collect::<String>())
    };
    assert_eq!(order("exit.example.net"), (true, "ebc".to_owned()));
    assert_eq!(order("b.example.net:8443"), (true, "bec".to_owned()));
    assert_eq!(order("c.example.net"), (true, "ceb".to_owned()));
    assert_eq!(order("b.example.net:443"), (false, "ebc".to_owned()));
}

#[test]
fn each_setting_of_an_exit_that_changes_is_named_and_no_other() {
    let before = parse_exit(&exit_text("")).unwrap();
    let sections = [
        ("[nat]\nenabled = false", "enabled in [nat]"),
        ("[nat]\nipv6 = false", "ipv6 in [nat]"),
        ("[nat]\ninterface = \"eth7\"", "interface in [nat]"),
        ("[clients]\nfile = \"others.toml\"", "file in [clients]"),
        ("[clients]\nisolation = false", "isolation in [clients]"),
        ("[access]\nsilent = false", "silent in [access]"),
        ("[access]\nallow = [\"192.168.1.0/24\"]", "allow in [access]"),
        ("[dns]\nservers = [\"9.9.9.9\"]", "servers in [dns]"),
        ("[metrics]\nlisten = \"off\"", "listen in [metrics]"),
        ("[metrics]\nclients = true", "clients in [metrics]"),
        ("[web]\nlisten = \"127.0.0.1:9467\"", "listen in [web]"),
    ];
    let fleet = parse_exit(&exit_text("[fleet]\nname = \"ams1\"")).unwrap();
    assert_eq!(before.changes(&fleet), ["name in [fleet]", "max_staleness in [fleet]"]);
    let never = parse_exit(&exit_text("[fleet]\nname = \"ams1\"\nmax_staleness = \"never\"")).unwrap();
    assert_eq!(fleet.changes(&never), ["max_staleness in [fleet]"]);
    // For an exit, the default of `connections` is the maximum, so the test sets another value.
    let transport = TRANSPORT.iter().map(|(line, name)| (format!("[transport]\n{line}"), *name));
    for (text, name) in sections.map(|(text, name)| (text.to_owned(), name)).into_iter().chain(transport) {
        let after = parse_exit(&exit_text(&text)).expect(&text);
        assert_eq!(before.changes(&after), [name], "{text}");
    }
    let text = exit_text("ipv6 = \"fd00:7::/64\"");
    assert_eq!(before.changes(&parse_exit(&text).unwrap()), ["ipv6 in [addresses]"]);
    let text = exit_text("").replace("10.66.0.0/16", "10.67.0.0/16");
    assert_eq!(before.changes(&parse_exit(&text).unwrap()), ["ipv4 in [addresses]"]);
    let text = exit_text("")
        .replace("[addresses]", "listen = [\"0.0.0.0:8443\"]\nendpoint = \"a.example.net\"\n[addresses]");
    assert_eq!(before.changes(&parse_exit(&text).unwrap()), ["listen in [exit]", "endpoint in [exit]"]);
}
