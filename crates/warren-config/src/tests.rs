//! Tests of the meaning of files, and of the errors for invalid files.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_in_result,
    reason = "clippy allows these in test functions, not in their helpers"
)]

mod broken;
mod changes;
mod corpus;
mod examples;
mod files;
mod properties;

use std::path::Path;

use warren_host::dns::Servers;

use super::exit::ExitSettings;
use super::ineffective::IneffectiveSetting;
use super::kill_switch::{KillSwitchSettings, PortalOpener};
use super::web::WebListen;
use super::{ClientProfile, ConfigError, Lan, WhenRefused, profile};

const PRIVATE_KEY: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const OTHER_PUBLIC_KEY: &str = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
const PUBLIC_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A minimal profile and `rest`, whose first line is line 7.
fn profile_text(rest: &str) -> String {
    format!(
        "[client]\nprivate_key = \"{PRIVATE_KEY}\"\n[[exit]]\nendpoint = \"exit.example.net\"\n\
         public_key = \"{PUBLIC_KEY}\"\n\n{rest}"
    )
}

fn parse_profile(text: &str) -> Result<ClientProfile, ConfigError> {
    profile::parse("home".parse().unwrap(), Path::new("home.toml"), text, 0o600)
}

fn profile_error(text: &str) -> String {
    parse_profile(text).expect_err(text).to_string()
}

/// A minimal configuration of an exit and `rest`, whose first line is line 5.
fn exit_text(rest: &str) -> String {
    format!("[exit]\nprivate_key_file = \"exit.key\"\n[addresses]\nipv4 = \"10.66.0.0/16\"\n{rest}")
}

/// Parses an exit's configuration in a directory that has its key.
fn parse_exit(text: &str) -> Result<ExitSettings, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    crate::storage::create_new(&directory.path().join("exit.key"), PRIVATE_KEY.as_bytes(), 0o600).unwrap();
    super::exit::parse(&directory.path().join("exit.toml"), text)
}

/// The error without the temporary directory's name.
fn exit_error(text: &str) -> String {
    let error = parse_exit(text).expect_err(text).to_string();
    let start = error.find("exit.toml:").unwrap_or(0);
    error.get(start..).unwrap().to_owned()
}

fn keys_of(ineffective: &[IneffectiveSetting]) -> Vec<(&str, usize)> {
    ineffective.iter().map(|setting| (setting.key.as_str(), setting.line)).collect()
}

#[test]
fn profile_without_options_has_the_defaults() {
    let profile = parse_profile(&profile_text("")).unwrap();
    assert_eq!(profile.name.as_str(), "home");
    assert_eq!(profile.exit.endpoint.to_string(), "exit.example.net:443");
    assert_eq!(profile.exit.public_keys, [PUBLIC_KEY.parse().unwrap()]);
    assert_eq!((profile.tun.device, profile.tun.mtu), (None, None));
    assert_eq!(profile.routes.include, ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    assert_eq!(profile.transport.connections, None);
    assert_eq!((profile.transport.max_transmit_segments, profile.transport.max_transmit_datagrams), (40, 80));
    assert!(profile.ineffective.is_empty());
    assert_eq!(profile.routes.when_refused, WhenRefused::Closed);
}

#[test]
fn a_profile_may_leave_its_networks_to_the_exit() {
    let of_exit = parse_profile(&profile_text("[routes]\ninclude = \"exit\"\n")).unwrap();
    assert_eq!((of_exit.routes.of_exit, of_exit.routes.include.len()), (true, 0));
    let of_profile = parse_profile(&profile_text("[routes]\ninclude = []\n")).unwrap();
    assert!(!of_profile.routes.of_exit);
    assert_eq!(of_profile.changes(&of_exit), ["include in [routes]"]);
}

#[test]
fn every_option_of_a_profile_is_taken() {
    let text = profile_text(
        "[tun]\nname = \"wt0\"\nmtu = 1400\n[routes]\ninclude = [\"10.0.0.0/8\"]\nwhen_refused = \"open\"\n[transport]\nconnections = 0x20\n\
         max_transmit_segments = 1\nmax_transmit_datagrams = 1_024\ncongestion = \"bbr3\"\nreceive_batches = 2\ntun_batches = 3\ntun_offload = false\n\
         udp_gso = false\nudp_gro = false\n",
    );
    let profile = parse_profile(&text).unwrap();
    assert_eq!((profile.tun.device.as_deref(), profile.tun.mtu), (Some("wt0"), Some(1400)));
    assert_eq!(profile.routes.include, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(profile.routes.when_refused, WhenRefused::Open);
    let transport = profile.transport;
    assert_eq!(transport.connections, Some(32));
    assert_eq!((transport.max_transmit_segments, transport.max_transmit_datagrams), (1, 1024));
    assert_eq!((transport.receive_batches, transport.tun_batches), (2, 3));
    assert_eq!(transport.congestion, warren_quic::settings::Congestion::Bbr3);
    assert!(!transport.tun_offload && !transport.udp_gso && !transport.udp_gro);
}

#[test]
fn exit_may_have_several_keys_while_one_is_being_rotated() {
    let text = profile_text("")
        .replace(&format!("\"{PUBLIC_KEY}\""), &format!("[\"{PUBLIC_KEY}\", \"{OTHER_PUBLIC_KEY}\"]"));
    assert_eq!(parse_profile(&text).unwrap().exit.public_keys.len(), 2);
}

#[test]
fn exit_has_a_server_name_if_the_profile_says_so() {
    let named = profile_text("").replace("[[exit]]\n", "[[exit]]\nserver_name = \"WWW.example.org\"\n");
    assert_eq!(parse_profile(&named).unwrap().exit.server_name.as_deref(), Some("www.example.org"));
    assert_eq!(parse_profile(&profile_text("")).unwrap().exit.server_name, None);
}

#[test]
fn lan_is_closed_in_a_profile_that_does_not_say_and_follows_the_kill_switch_in_a_new_one() {
    let lan = |text: &str| parse_profile(&profile_text(text)).unwrap().routes.lan;
    let without_and_with = |lan: Lan| (lan.is_reachable(false), lan.is_reachable(true));

    assert_eq!(without_and_with(lan("")), (false, false));
    assert_eq!(without_and_with(lan("[routes]\nlan = false")), (false, false));
    assert_eq!(without_and_with(lan("[routes]\nlan = true")), (true, true));
    assert_eq!(without_and_with(lan("[routes]\nlan = \"auto\"")), (true, false));
    let key = super::ClientKey::Ours(parse_profile(&profile_text("")).unwrap().private_key);
    let exit = PUBLIC_KEY.parse().unwrap();
    let new = super::profile_text("home", &"exit.example.net".parse().unwrap(), &[exit], &key);
    assert_eq!(parse_profile(&new).unwrap().routes.lan, Lan::UnlessKillSwitch);
}

#[test]
fn byte_order_mark_and_windows_line_ends_are_no_error() {
    let text = format!("\u{feff}{}", profile_text("[tun]\nname = \"wt0\"\n").replace('\n', "\r\n"));
    assert_eq!(parse_profile(&text).unwrap().tun.device.as_deref(), Some("wt0"));
}

#[test]
fn settings_that_this_version_lacks_are_reported_with_their_lines() {
    let text = profile_text(&format!(
        "[[exit]]\nendpoint = \"192.0.2.9\"\npublic_key = \"{PUBLIC_KEY}\"\n[routes]\nexclude = [\"10.0.0.0/8\"]\n\
         lan = true\nprefixes = [\"10.1.0.0/16\"]\n[dns]\nservers = [\"9.9.9.9\"]\n[transport]\n\
         workers = 2\npin = true\n[tun]\nqueues = 4\n"
    ));
    let profile = parse_profile(&text).unwrap();
    assert_eq!(keys_of(&profile.ineffective), [("queues in [tun]", 20)]);
    assert!(parse_profile(&text.replace("queues = 4", "queues = 2")).unwrap().ineffective.is_empty());
    assert_eq!((profile.transport.workers, profile.transport.pin), (Some(2), true));
    assert_eq!(profile.routes.exclude, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(profile.routes.lan, Lan::Reachable);
    assert_eq!(profile.other_exits.len(), 1);
    let queues = profile.ineffective[0].to_string();
    assert!(queues.starts_with("home.toml:20: queues in [tun] has no effect in this version: "), "{queues}");
}

#[test]
fn networks_behind_the_client_are_whole_ones_and_not_everything() {
    let prefixes = |list: &str| parse_profile(&profile_text(&format!("[routes]\nprefixes = {list}\n")));
    let office = prefixes("[\"192.168.7.0/24\", \"fd07::/64\"]").unwrap().routes.prefixes;
    assert_eq!(office, ["192.168.7.0/24".parse().unwrap(), "fd07::/64".parse().unwrap()]);
    let everything = prefixes("[\"0.0.0.0/0\"]").unwrap_err().to_string();
    assert!(everything.contains("must name the networks behind this host"), "{everything}");
    let many: Vec<String> = (0..65).map(|place| format!("\"10.1.{place}.0/24\"")).collect();
    let too_many = prefixes(&format!("[{}]", many.join(", "))).unwrap_err().to_string();
    assert!(too_many.contains("can have at most 64"), "{too_many}");
}

#[test]
fn a_network_is_included_or_excluded() {
    let refused = |routes: &str| parse_profile(&profile_text(&format!("[routes]\n{routes}\n"))).map(|_| ());
    for both in
        ["exclude = [\"::/0\"]", "include = [\"10.0.0.0/8\"]\nexclude = [\"10.1.0.0/16\", \"10.0.0.0/8\"]"]
    {
        let why = refused(both).unwrap_err().to_string();
        assert!(
            why.contains("exclude in [routes] contains")
                && why.contains("but include contains that network too"),
            "{why}"
        );
    }
    refused("include = [\"10.0.0.0/8\"]\nexclude = [\"10.0.0.0/9\", \"0.0.0.0/0\"]").unwrap();
}

#[test]
fn kill_switch_has_its_ports() {
    let text = profile_text("[kill_switch]\nenabled = true\nallow_inbound = [\"tcp/22\", \"udp/500\"]\n");
    let kill_switch = parse_profile(&text).unwrap().kill_switch;

    let ports: Vec<String> = kill_switch.allow_inbound.iter().map(ToString::to_string).collect();
    assert!(kill_switch.enabled);
    assert_eq!(ports, ["tcp/22", "udp/500"]);
    assert_eq!(parse_profile(&profile_text("")).unwrap().kill_switch, KillSwitchSettings::default());
}

#[test]
fn forwards_are_allowed_by_port_and_by_range() {
    let text = profile_text("[forwards]\nallow = [\"tcp/443\", \"udp/6881-6889\"]\n");
    let allowed = parse_profile(&text).unwrap().allowed_forwards;

    let ports: Vec<String> = allowed.iter().map(|ports| format!("{}/{ports}", ports.protocol)).collect();
    assert_eq!(ports, ["tcp/443", "udp/6881-6889"]);
    assert!(parse_profile(&profile_text("")).unwrap().allowed_forwards.is_empty());
}

#[test]
fn values_that_ask_for_nothing_are_not_reported() {
    let text = profile_text(
        "[routes]\nexclude = []\nlan = false\nprefixes = []\n[dns]\nservers = []\n[kill_switch]\nenabled = false\n\
         allow_inbound = [\"tcp/22\"]\n[transport]\ndriver = \"noq\"\nworkers = 1\npin = false\n[tun]\nqueues = 1\n",
    );
    assert!(parse_profile(&text).unwrap().ineffective.is_empty());
}

#[test]
fn domains_of_a_split_tunnel_are_read_as_names_in_lower_case() {
    let split = |domains: &str| {
        let text = format!("[routes]\ninclude = [\"10.0.0.0/8\"]\n[dns]\ndomains = {domains}\n");
        parse_profile(&profile_text(&text)).unwrap()
    };
    let (none, some) = (split("[]"), split("[\"Corp.Example.\", \"10.in-addr.arpa\", \"_x-1\"]"));

    assert_eq!(some.dns.domains, ["corp.example", "10.in-addr.arpa", "_x-1"]);
    assert_eq!(none.changes(&some), ["domains in [dns]"]);
}

#[test]
fn tunnel_rests_on_the_networks_that_are_named_and_opens_a_kill_switch_only_if_told() {
    let home = "[on_demand]\ntrusted = [\"home 192.168.1.7/24 4c:11:bf:00:00:01\"]\n";
    let read = |text: &str| parse_profile(&profile_text(text));
    let names = |text: &str| read(text).unwrap().on_demand.trusted[0].to_string();
    assert_eq!(names(home), "home 192.168.1.0/24 4c:11:bf:00:00:01");
    assert!(read("").unwrap().on_demand.trusted.is_empty());

    let guarded = format!("[kill_switch]\nenabled = true\n{home}");
    let refused = read(&guarded).unwrap_err().to_string();
    assert!(refused.contains("trusted_opens_kill_switch = true"), "{refused}");
    assert!(read(&format!("{guarded}trusted_opens_kill_switch = true\n")).is_ok());
    let wrong = read("[on_demand]\ntrusted = [\"home\"]\n").unwrap_err().to_string();
    assert!(wrong.contains("`warren network`"), "{wrong}");
}

#[test]
fn portal_is_roots_unless_the_profile_says_otherwise() {
    let portal = |text: &str| parse_profile(&profile_text(text)).unwrap().kill_switch.portal;
    assert_eq!(portal(""), PortalOpener::Root);
    assert_eq!(portal("[kill_switch]\nportal = \"group\"\n"), PortalOpener::Group);
    assert_eq!(portal("[kill_switch]\nportal = \"off\"\n"), PortalOpener::Nobody);
}

#[test]
fn resolvers_are_the_exits_unless_others_or_none_are_listed() {
    let servers = |text: &str| parse_profile(&profile_text(text)).unwrap().dns.servers;

    assert_eq!(servers(""), Servers::Exit);
    assert_eq!(servers("[dns]\nservers = \"exit\"\n"), Servers::Exit);
    assert_eq!(servers("[dns]\nservers = []\n"), Servers::Listed(Vec::new()));
    let listed = vec!["9.9.9.9".parse().unwrap(), "2620:fe::fe".parse().unwrap()];
    assert_eq!(servers("[dns]\nservers = [\"9.9.9.9\", \"2620:fe::fe\"]\n"), Servers::Listed(listed));
}

#[test]
fn web_page_is_served_within_this_host_or_not_at_all() {
    let web = |listen: &str| {
        parse_exit(&exit_text(&format!("[web]\nlisten = \"{listen}\"\n"))).map(|config| config.web)
    };
    assert_eq!(parse_exit(&exit_text("")).unwrap().web, None);
    for address in ["127.0.0.1:9467", "127.9.9.9:1", "[::1]:9467", "[::ffff:127.0.0.1]:9467"] {
        assert_eq!(web(address).unwrap(), Some(WebListen::Loopback(address.parse().unwrap())));
    }
    let path = "/run/warren/exit/web.sock";
    assert_eq!(web(path).unwrap(), Some(WebListen::Unix(path.into())));

    for address in ["0.0.0.0:9467", "[::]:9467", "198.51.100.2:9467", "10.0.0.1:9467", "[fd00::1]:9467"] {
        let refused = web(address).unwrap_err().to_string();
        assert!(refused.contains("exit.toml:6: listen in [web]"), "{refused}");
        assert!(refused.contains("write a loopback address") && !refused.contains('\n'), "{refused}");
    }
    for other in ["localhost:9467", "web.sock", &format!("/{}", "x".repeat(107))] {
        let refused = web(other).unwrap_err().to_string();
        assert!(refused.contains("exit.toml:6: listen in [web]"), "{refused}");
    }
}

#[test]
fn metrics_are_served_on_the_loopback_unless_another_address_is_asked_for() {
    let metrics = |text: &str| parse_exit(&exit_text(text)).map(|config| config.metrics);
    let default = metrics("").unwrap();
    assert_eq!(default.listen, Some("127.0.0.1:9466".parse().unwrap()));
    assert!(!default.is_asked_for && !default.clients);

    assert_eq!(metrics("[metrics]\nlisten = \"off\"\n").unwrap().listen, None);
    let private = metrics("[metrics]\nlisten = \"[fd00::1]:9000\"\nclients = true\n").unwrap();
    assert_eq!(private.listen, Some("[fd00::1]:9000".parse().unwrap()));
    assert!(private.is_asked_for && private.clients);

    for address in ["0.0.0.0:9466", "[::]:9466", "198.51.100.2:9466", "[::ffff:198.51.100.2]:9466"] {
        let text = format!("[metrics]\nlisten = \"{address}\"\n");
        let refused = metrics(&text).unwrap_err().to_string();
        assert!(refused.contains("exit.toml:6: listen in [metrics]"), "{refused}");
        assert!(refused.contains("or add public = true"), "{refused}");
        assert_eq!(metrics(&format!("{text}public = true\n")).unwrap().listen, address.parse().ok());
    }
}

#[test]
fn an_exit_is_silent_unless_it_is_told_otherwise() {
    let silent = |text: &str| parse_exit(&exit_text(text)).unwrap().silent;
    assert!(silent("") && silent("[access]\nsilent = true\n"));
    assert!(!silent("[access]\nsilent = false\n"));
}

#[test]
fn wireguard_is_served_where_the_section_says_and_nowhere_without_it() {
    let read = |text: &str| parse_exit(&exit_text(text)).unwrap().wireguard;
    assert_eq!(read(""), None);
    let one = read("[wireguard]\nlisten = \"0.0.0.0:51820\"\n").unwrap();
    assert_eq!((one.listen.len(), one.endpoint), (1, None));
    let two = "[wireguard]\nlisten = [\"0.0.0.0:51820\", \"[::]:51820\"]\nendpoint = \"vpn.example:1\"\n";
    assert_eq!(read(two).unwrap().listen.len(), 2);
    for (text, said) in [
        ("[wireguard]\nlisten = []\n", "is empty"),
        ("[wireguard]\nlisten = \"0.0.0.0\"\n", "must be an IP address with a port"),
        ("[wireguard]\nlisten = \"0.0.0.0:443\"\n", "UDP port 443"),
        ("[wireguard]\nendpoint = \"vpn.example:1\"\n", "without listen"),
    ] {
        assert!(exit_error(&exit_text(text)).contains(said), "{}", exit_error(&exit_text(text)));
    }
}

#[test]
fn wireguard_key_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = super::wireguard_key_path(&directory.path().join("clients.toml"));
    assert!(super::read_wireguard_key(&path).unwrap().is_none());
    let key = warren_wireguard::PrivateKey::new([7; 32]);
    super::write_wireguard_key(&path, &key).unwrap();
    assert_eq!(super::read_wireguard_key(&path).unwrap().unwrap().public(), key.public());
    assert!(super::write_wireguard_key(&path, &key).is_err(), "it is never replaced");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = super::read_wireguard_key(&path).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn exit_without_options_has_the_defaults() {
    let config = parse_exit(&exit_text("")).unwrap();
    assert_eq!(config.listen, ["0.0.0.0:443".parse().unwrap(), "[::]:443".parse().unwrap()]);
    assert_eq!(config.endpoint, None);
    assert_eq!((config.ipv4, config.ipv6), (Some("10.66.0.0/16".parse().unwrap()), None));
    assert!(config.nat.ipv4 && config.isolation && config.allow.is_empty() && config.dns.is_empty());
    assert_eq!(config.nat.interface, super::NatInterface::Auto);
    assert_eq!(config.clients_path(Path::new("/state")), Path::new("/state/exit/clients.toml"));
    assert_eq!(config.transport.connections(), 32);
}

#[test]
fn address_for_a_client_lies_in_the_pool_and_is_not_the_exits() {
    let ipv4 = Some("10.66.0.0/24".parse().unwrap());
    let ipv6 = Some("fd66::/64".parse().unwrap());
    for free in ["10.66.0.2", "10.66.0.254", "fd66::2", "fd66::ffff:ffff:ffff:ffff"] {
        assert_eq!(super::client_address(free.parse().unwrap(), ipv4, ipv6), Ok(()), "{free}");
    }
    for taken in ["10.66.0.0", "10.66.0.1", "10.66.0.255", "10.66.1.2", "fd66::", "fd66::1", "fd67::2", "::1"]
    {
        assert!(super::client_address(taken.parse().unwrap(), ipv4, ipv6).is_err(), "{taken}");
    }
    assert!(super::client_address("10.66.0.2".parse().unwrap(), None, ipv6).is_err());
    assert!(super::client_address("fd66::2".parse().unwrap(), ipv4, None).is_err());
}
