//! The examples in `configs/` match the code.

use super::{PRIVATE_KEY, parse_exit, parse_profile, profile_text};
use crate::profile;

const HOME: &str = include_str!("../../../../configs/home.toml");
const EXIT: &str = include_str!("../../../../configs/exit.toml");

/// Every key that a profile and `exit.toml` may have outside `[transport]`.
const PROFILE_KEYS: &[&str] = &[
    "private_key_file",
    "endpoint",
    "public_key",
    "server_name",
    "name",
    "mtu",
    "queues",
    "include",
    "exclude",
    "lan",
    "prefixes",
    "when_refused",
    "servers",
    "domains",
    "enabled",
    "allow_inbound",
    "down",
    "allow",
    "follow",
];
const EXIT_KEYS: &[&str] = &[
    "listen",
    "private_key_file",
    "endpoint",
    "ipv4",
    "ipv6",
    "enabled",
    "interface",
    "file",
    "isolation",
    "silent",
    "allow",
    "servers",
    "public",
    "clients",
    "max_staleness",
];
/// Every key of `[transport]`, which both files have.
const TRANSPORT_KEYS: &[&str] = &[
    "connections",
    "max_transmit_segments",
    "max_transmit_datagrams",
    "receive_batches",
    "tun_batches",
    "congestion",
    "driver",
    "workers",
    "pin",
    "tun_offload",
    "udp_gso",
    "udp_gro",
];

#[test]
fn example_profile_shows_every_key_with_its_default() {
    let example = parse_home(HOME);
    let minimal = parse_profile(&profile_text("")).unwrap();
    assert_eq!(example.exit.endpoint, minimal.exit.endpoint);
    assert_eq!(example.tun.device, minimal.tun.device);
    assert_eq!(example.tun.mtu, minimal.tun.mtu);
    assert_eq!(example.routes.include, minimal.routes.include);
    assert_eq!(example.routes.when_refused, minimal.routes.when_refused);
    assert_eq!(example.allowed_forwards, minimal.allowed_forwards);
    assert!(example.follows_fleet && minimal.follows_fleet);
    assert_eq!(example.transport, minimal.transport);
    assert!(example.ineffective.is_empty());
    assert_shows(HOME, PROFILE_KEYS);
    assert_shows(HOME, TRANSPORT_KEYS);
}

#[test]
fn example_exit_shows_every_key_with_its_default() {
    let example = parse_exit(EXIT).unwrap();
    let minimal =
        parse_exit("[exit]\nprivate_key_file = \"exit.key\"\n[addresses]\nipv4 = \"10.0.0.0/8\"\n").unwrap();
    assert_eq!(example.listen, minimal.listen);
    assert_eq!((example.nat.ipv4, example.nat.interface), (minimal.nat.ipv4, minimal.nat.interface));
    assert_eq!((example.clients_file, example.isolation), (minimal.clients_file, minimal.isolation));
    assert_eq!((example.silent, example.allow, example.dns), (minimal.silent, minimal.allow, minimal.dns));
    assert_eq!(example.metrics.listen, minimal.metrics.listen);
    assert_eq!(example.metrics.clients, minimal.metrics.clients);
    assert_eq!((example.web, minimal.web), (None, None));
    assert_eq!((example.fleet, minimal.fleet), (None, None));
    assert_eq!(example.transport, minimal.transport);
    assert_shows(EXIT, EXIT_KEYS);
    assert_shows(EXIT, TRANSPORT_KEYS);
}

#[test]
fn what_examples_have_commented_out_is_valid() {
    let uncommented =
        EXIT.lines().map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line));
    let config = parse_exit(&uncommented.collect::<Vec<_>>().join("\n")).unwrap();
    assert!(config.web.is_some());
    let staleness = config.fleet.map(|fleet| (fleet.name, fleet.max_staleness));
    assert_eq!(staleness, Some(("ams1".to_owned(), Some(std::time::Duration::from_secs(3600)))));
}

fn parse_home(text: &str) -> profile::ClientProfile {
    let directory = tempfile::tempdir().unwrap();
    crate::storage::create_new(&directory.path().join("home.key"), PRIVATE_KEY.as_bytes(), 0o600).unwrap();
    profile::parse("home".parse().unwrap(), &directory.path().join("home.toml"), text, 0o644).unwrap()
}

fn assert_shows(example: &str, keys: &[&str]) {
    for key in keys {
        let shown =
            example.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")));
        assert!(shown, "{key} is missing in the example");
    }
}
