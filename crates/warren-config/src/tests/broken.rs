//! Broken configurations: each gives one line that names file, line and key.

use super::{PRIVATE_KEY, PUBLIC_KEY, exit_error, exit_text, profile_error, profile_text};

/// The text from line 7 on, and how the error begins after `home.toml:`.
const BROKEN_PROFILES: &[(&str, &str)] = &[
    // Names
    (
        "[transport]\nconections = 4\n",
        "8: unknown key \"conections\" in [transport]; did you mean \"connections\"?",
    ),
    (
        "[transport]\nmax-transmit-segments = 4\n",
        "8: unknown key \"max-transmit-segments\" in [transport]; did you mean",
    ),
    (
        "[transport]\nfoo = 4\n",
        "8: unknown key \"foo\" in [transport]; the keys are connections, max_transmit_segments",
    ),
    ("[trasport]\nconnections = 4\n", "7: unknown section [trasport]; did you mean [transport]?"),
    (
        "[addresses]\nipv4 = \"10.0.0.0/8\"\n",
        "7: unknown section [addresses]; the sections are [exit], [tun]",
    ),
    ("[routes.extra]\na = 1\n", "7: unknown key \"extra\" in [routes]"),
    ("[\"a\\nb\"]\n", "7: unknown section [\"a\\nb\"]; the sections are"),
    ("[tun]\n\"na\\u0000me\" = \"x\"\n", "8: unknown key \"na\\0me\" in [tun]"),
    ("tun.nam = \"x\"\n[tun]\n", "7: unknown key \"tun\" in [exit]"),
    // Structure
    ("[tun]\nname = \"a\"\nname = \"b\"\n", "9: name is set twice; remove one of the two, or join them"),
    ("[tun]\n[tun]\n", "8: tun is set twice; remove one of the two, or join them"),
    ("[tun]\nname = \"a\n", "8: this is not TOML ("),
    ("[tun\nname = \"a\"\n", "7: this is not TOML ("),
    ("[tun]\nname = warren0\n", "8: this is not TOML ("),
    ("[tun]\nname =\n", "8: this is not TOML ("),
    ("[[tun]]\nname = \"a\"\n", "7: [[tun]] is a list here; write [tun], once"),
    // Types
    ("[tun]\nname = 5\n", "8: name in [tun] is a number, but must be a device name such as \"warren0\""),
    (
        "[tun]\nmtu = 1400.0\n",
        "8: mtu in [tun] is a number with a fraction, but must be a number from 1280 to 65535",
    ),
    ("[tun]\nmtu = \"1400\"\n", "8: mtu in [tun] is \"1400\", but must be \"auto\" or a number"),
    (
        "[routes]\ninclude = \"0.0.0.0/0\"\n",
        "8: include in [routes] is \"0.0.0.0/0\", but must be \"exit\" or a list of networks",
    ),
    (
        "[routes]\ninclude = \"exit\"\n[kill_switch]\nenabled = true\n",
        "10: enabled in [kill_switch] needs to know which networks to block before an exit answers; list them in include",
    ),
    ("[routes]\nlan = 1\n", "8: lan in [routes] is a number, but must be true, false or \"auto\""),
    (
        "[routes]\nwhen_refused = \"shut\"\n",
        "8: when_refused in [routes] is \"shut\", but must be \"closed\" or \"open\"",
    ),
    (
        "[dns]\ndomains = [\"corp.example\"]\n",
        "8: domains in [dns] needs a split tunnel, because a full tunnel lets no query leave outside",
    ),
    (
        "[routes]\ninclude = [\"10.0.0.0/8\"]\n[dns]\nservers = []\ndomains = [\"corp.example\"]\n",
        "11: domains in [dns] needs a resolver",
    ),
    (
        "[kill_switch]\ndown = \"users\"\n",
        "8: down in [kill_switch] is \"users\", but must be \"root\" or \"group\"",
    ),
    (
        "[dns]\ndomains = [\"~.\"]\n",
        "8: domains in [dns] has \"~.\", but must have domains such as \"corp.example\"",
    ),
    ("[dns]\ndomain = [\"corp.example\"]\n", "8: unknown key \"domain\" in [dns]; did you mean \"domains\"?"),
    ("[routes]\ninclude = [{}]\n", "8: include in [routes] is a section, but must be a network"),
    (
        "[routes]\ninclude = 1979-05-27\n",
        "8: include in [routes] is a date or time, but must be \"exit\" or a list of networks",
    ),
    (
        "[transport]\ncongestion = true\n",
        "8: congestion in [transport] is true or false, but must be \"adaptive\"",
    ),
    ("[transport]\nudp_gso = true\n", "8: udp_gso in [transport] is true, but must be \"auto\""),
    (
        "[transport]\nudp_gro = \"off\"\n",
        "8: udp_gro in [transport] is \"off\", but must be \"auto\" or false",
    ),
    (
        "[transport]\ntun_offload = 0\n",
        "8: tun_offload in [transport] is a number, but must be \"auto\" or false",
    ),
    // Ranges
    (
        "[transport]\nconnections = 0\n",
        "8: connections in [transport] is 0, but must be a number from 1 to 32",
    ),
    (
        "[transport]\nconnections = 33\n",
        "8: connections in [transport] is 33, but must be a number from 1 to 32",
    ),
    (
        "[transport]\nconnections = -1\n",
        "8: connections in [transport] is -1, but must be a number from 1 to 32",
    ),
    (
        "[transport]\nconnections = 99999999999999999999999\n",
        "8: connections in [transport] is 99999999999999999999999, but must be a number from 1 to 32",
    ),
    (
        "[transport]\nmax_transmit_segments = 129\n",
        "8: max_transmit_segments in [transport] is 129, but must be a",
    ),
    (
        "[transport]\nmax_transmit_datagrams = 1025\n",
        "8: max_transmit_datagrams in [transport] is 1025, but must be a",
    ),
    ("[transport]\nworkers = 0\n", "8: workers in [transport] is 0, but must be a number from 1 to 64"),
    (
        "[transport]\nworkers = \"many\"\n",
        "8: workers in [transport] is \"many\", but must be \"auto\" or a number",
    ),
    ("[tun]\nmtu = 1279\n", "8: mtu in [tun] is 1279, but must be a number from 1280 to 65535"),
    ("[tun]\nmtu = 65536\n", "8: mtu in [tun] is 65536, but must be a number from 1280 to 65535"),
    ("[tun]\nqueues = 257\n", "8: queues in [tun] is 257, but must be a number from 1 to 64"),
    // Words
    (
        "[transport]\ncongestion = \"reno\"\n",
        "8: congestion in [transport] is \"reno\", but must be \"adaptive\", \"cubic\", \"bbr3\", \"newreno\" or \"off\"",
    ),
    (
        "[transport]\ndriver = \"quinn\"\n",
        "8: driver in [transport] is \"quinn\", but must be \"warren\" or \"noq\"",
    ),
    // Device names
    ("[tun]\nname = \"\"\n", "8: name in [tun] is \"\", but must not be empty"),
    (
        "[tun]\nname = \"sixteen_bytes_xx\"\n",
        "8: name in [tun] is \"sixteen_bytes_xx\", but must have at most 15 bytes",
    ),
    ("[tun]\nname = \"a/b\"\n", "8: name in [tun] is \"a/b\", but must not have spaces or any of /"),
    ("[tun]\nname = \"a%d\"\n", "8: name in [tun] is \"a%d\", but must not have spaces or any of /"),
    ("[tun]\nname = \"a b\"\n", "8: name in [tun] is \"a b\", but must not have spaces or any of /"),
    ("[tun]\nname = \"..\"\n", "8: name in [tun] is \"..\", but must be a name"),
    ("[tun]\nname = \"\"\"\na\nb\"\"\"\n", "8: name in [tun] is \"a\\nb\", but must not have spaces"),
    // Networks and addresses
    (
        "[routes]\ninclude = [\"10.0.0.0/33\"]\n",
        "8: include in [routes] is \"10.0.0.0/33\", but must be a network",
    ),
    (
        "[routes]\ninclude = [\n\"10.0.0.0/8\",\n\"x\"]\n",
        "10: include in [routes] is \"x\", but must be a network",
    ),
    (
        "[routes]\ninclude = [\"10.0.0.1/8\"]\n",
        "8: include in [routes] is \"10.0.0.1/8\", but has host bits set; write \"10.0.0.0/8\"",
    ),
    (
        "[routes]\nexclude = [\"10.0.0.1\"]\n",
        "8: exclude in [routes] is \"10.0.0.1\", but lacks a prefix length; write \"10.0.0.1/32\"",
    ),
    (
        "[routes]\nprefixes = [\"fd00::1\"]\n",
        "8: prefixes in [routes] is \"fd00::1\", but lacks a prefix length",
    ),
    ("[routes]\ninclude = [\"::/0\", \"::/0\"]\n", "8: include in [routes] names the same value twice"),
    (
        "[dns]\nservers = \"local\"\n",
        "8: servers in [dns] is \"local\", but must be \"exit\" or a list of addresses",
    ),
    (
        "[dns]\nservers = [\"9.9.9\"]\n",
        "8: servers in [dns] is \"9.9.9\", but must be an address such as \"9.9.9.9\"",
    ),
    (
        "[kill_switch]\nenabled = \"yes\"\n",
        "8: enabled in [kill_switch] is a string, but must be true or false",
    ),
    (
        "[exec]\nusers = [\"al ice\"]\n",
        "8: users in [exec] is \"al ice\", but must be the name or the number of a user",
    ),
    (
        "[kill_switch]\nallow_inbound = [\"22\"]\n",
        "8: allow_inbound in [kill_switch] is \"22\", but must be \"tcp/\"",
    ),
    (
        "[kill_switch]\nallow_inbound = [\"tcp/0\"]\n",
        "8: allow_inbound in [kill_switch] is \"tcp/0\", but must be",
    ),
    (
        "[kill_switch]\nallow_inbound = [\"sctp/1\"]\n",
        "8: allow_inbound in [kill_switch] is \"sctp/1\", but must be",
    ),
    // [forwards]
    ("[forwards]\nallow = \"tcp/443\"\n", "8: allow in [forwards] is a string, but must be a list of ports"),
    (
        "[forwards]\nallow = [\"443\"]\n",
        "8: allow in [forwards] is \"443\", but must be \"tcp/\" or \"udp/\"",
    ),
    ("[forwards]\nallow = [\"tcp/9-8\"]\n", "8: allow in [forwards] is \"tcp/9-8\", but must be"),
    ("[forwards]\nports = []\n", "8: unknown key \"ports\" in [forwards]"),
    // A second exit
    ("[[exit]]\nendpoint = \"a\"\n", "7: public_key is missing in [exit]; write the key that"),
    ("[[exit]]\nport = 443\n", "8: unknown key \"port\" in [exit]"),
    ("[[exit]]\nserver_name = \"192.0.2.1\"\n", "8: server_name in [exit] is \"192.0.2.1\", but it must be"),
    (
        "[[exit]]\nserver_name = \"a.example.\"\n",
        "8: server_name in [exit] is \"a.example.\", but it must be",
    ),
    ("[[exit]]\nserver_name = \"a b\"\n", "8: server_name in [exit] is \"a b\", but it must be a DNS name"),
    ("[[exit]]\nserver_name = \"\"\n", "8: server_name in [exit] is \"\", but it must be a DNS name"),
    ("[[exit]]\nserver_name = 5\n", "8: server_name in [exit] is a number, but must be a DNS name"),
];

#[test]
fn broken_profile_gives_one_line_with_its_place_and_reason() {
    for (rest, expected) in BROKEN_PROFILES {
        assert_one_line(&profile_error(&profile_text(rest)), "home.toml", expected);
    }
}

#[test]
fn broken_identity_of_a_profile_is_named_and_no_key_is_shown() {
    let exit = format!("[[exit]]\nendpoint = \"a\"\npublic_key = \"{PUBLIC_KEY}\"\n");
    let client = format!("[client]\nprivate_key = \"{PRIVATE_KEY}\"\n");
    let short = PRIVATE_KEY.get(..42).unwrap();
    let own = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    let cases = [
        (String::new(), "1: there is no section [client], which must have private_key_file; make a key with"),
        (
            "# nothing\n".to_owned(),
            "1: there is no section [client], which must have private_key_file; make a key with",
        ),
        (format!("[client]\n{exit}"), "1: private_key_file is missing in [client]; make a key with"),
        (client.clone(), "1: no exit is named; add an [[exit]] section"),
        (format!("exit = []\n{client}"), "1: no exit is named; add an [[exit]] section"),
        (
            format!("exit = 5\n{client}"),
            "1: exit is not a list of sections; a profile lists its exits as [[exit]]",
        ),
        (
            format!("exit = [1]\n{client}"),
            "1: exit is not a list of sections; a profile lists its exits as [[exit]]",
        ),
        (
            format!("{client}{}", exit.replace("[[exit]]", "[exit]")),
            "3: [exit] is a single section; a profile lists its exits as [[exit]], with double brackets",
        ),
        (
            format!("{client}private_key_file = \"k\"\n{exit}"),
            "3: private_key and private_key_file are both set; keep",
        ),
        (
            format!("[client]\nprivate_key = \"{short}\"\n{exit}"),
            "2: private_key in [client] is not a private key; it must",
        ),
        (
            format!("[client]\nprivate_key = \"c2hvcnQ=\"\n{exit}"),
            "2: private_key in [client] is not a private key; it must",
        ),
        (
            format!("[client]\nprivate_key = 5\n{exit}"),
            "2: private_key in [client] is a number, but must be a key",
        ),
        (
            format!("[client]\nprivate_key_file = \"\"\n{exit}"),
            "2: private_key_file in [client] is empty, but must be",
        ),
        (
            format!("[client]\nprivate_key_file = \"/nowhere/k\"\n{exit}"),
            "2: private_key_file: cannot read /nowhere/k: no such file",
        ),
        (format!("[client]\nprivate_key_file = \"/tmp\"\n{exit}"), "2: private_key_file: the key file /tmp"),
        (
            format!("[client]\nprivat_key = \"{PRIVATE_KEY}\"\n{exit}"),
            "2: unknown key \"privat_key\" in [client]; did you mean \"private_key\"?",
        ),
        (
            format!("[client]\nprivate_key_file = \"{PRIVATE_KEY}\"\n{exit}"),
            "2: private_key_file: cannot read ",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"{PRIVATE_KEY}\"\n"),
            "4: endpoint in [exit] is \"(a key, not shown)\", but ",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"a {PRIVATE_KEY} b\"\n"),
            "4: endpoint in [exit] is \"a (a key, not shown) b\", but ",
        ),
        (format!("private_key = \"{PRIVATE_KEY}\"\n"), "1: unknown key \"private_key\" outside any section"),
        (format!("client = 5\n{exit}"), "1: client is not a section; write [client] and its keys below it"),
        (
            format!("{client}[[exit]]\npublic_key = \"{PUBLIC_KEY}\"\n"),
            "3: endpoint is missing in [exit]; write the exit's host",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"a\"\n"),
            "3: public_key is missing in [exit]; write the key",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"a:0\"\n"),
            "4: endpoint in [exit] is \"a:0\", but the port must be a number",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"a:x\"\n"),
            "4: endpoint in [exit] is \"a:x\", but the port must be a number",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"::1\"\n"),
            "4: endpoint in [exit] is \"::1\", but an IPv6 address must be in",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"1.2.3\"\n"),
            "4: endpoint in [exit] is \"1.2.3\", but this is neither",
        ),
        (
            format!("{client}[[exit]]\npublic_key = \"x\"\n"),
            "4: public_key in [exit] is not a public key; it must be",
        ),
        (
            format!("{client}[[exit]]\npublic_key = []\n"),
            "4: public_key in [exit] is an empty list; write the key",
        ),
        (
            format!("{client}[[exit]]\npublic_key = [\"{PUBLIC_KEY}\", \"{PUBLIC_KEY}\"]\n"),
            "4: public_key in [exit] has the same key twice",
        ),
        (
            format!("{client}[[exit]]\nendpoint = \"a\"\npublic_key = \"{own}\"\n"),
            "5: public_key in [[exit]] is this client's own; write the key",
        ),
    ];
    for (text, expected) in &cases {
        let error = profile_error(text);
        assert_one_line(&error, "home.toml", expected);
        assert!(!error.contains(short) && !error.contains("c2hvcnQ"), "{error}");
    }
}

#[test]
fn broken_exit_gives_one_line_with_its_place_and_reason() {
    let cases = [
        (
            "[clients]\nisolated = true\n",
            "6: unknown key \"isolated\" in [clients]; did you mean \"isolation\"?",
        ),
        ("[clients]\nfile = \"\"\n", "6: file in [clients] must be a file name such as \"clients.toml\""),
        ("[clients]\nfile = \"a/\"\n", "6: file in [clients] must be a file name such as \"clients.toml\""),
        ("[tun]\nname = \"a\"\n", "5: unknown section [tun]; the sections are [addresses]"),
        (
            "[fleet]\nname = \"Ams 1\"\n",
            "6: name in [fleet] is \"Ams 1\", but must be a name for this exit such as \"ams1\"",
        ),
        ("[fleet]\nmax_staleness = \"1h\"\n", "6: max_staleness in [fleet] has no effect without name"),
        (
            "[fleet]\nname = \"ams1\"\nmax_staleness = \"an hour\"\n",
            "7: max_staleness in [fleet] is \"an hour\", but must be a time up to a year such as \"1h\"",
        ),
        (
            "[fleet]\nname = \"ams1\"\nmax_staleness = 60\n",
            "7: max_staleness in [fleet] is a number, but must be",
        ),
        ("[fleet]\nnames = \"ams1\"\n", "6: unknown key \"names\" in [fleet]; did you mean \"name\"?"),
        ("[nat]\ninterface = \"a/b\"\n", "6: interface in [nat] is \"a/b\", but must not have spaces"),
        ("[nat]\nenabled = \"yes\"\n", "6: enabled in [nat] is a string, but must be true or false"),
        (
            "[access]\nallow = [\"192.168.1.1/24\"]\n",
            "6: allow in [access] is \"192.168.1.1/24\", but has host bits set",
        ),
        ("[dns]\nservers = \"exit\"\n", "6: servers in [dns] is a string, but must be a list of addresses"),
        (
            "[metrics]\nlisten = \"9466\"\n",
            "6: listen in [metrics] is \"9466\", but must be an IP address with a port such as \"127.0.0.1:9466\", or \"off\"",
        ),
        (
            "[metrics]\nlisten = \"127.0.0.1:0\"\n",
            "6: listen in [metrics] is \"127.0.0.1:0\", but must have a port from 1 to",
        ),
        (
            "[web]\nlisten = \"127.0.0.1:0\"\n",
            "6: listen in [web] is \"127.0.0.1:0\", but must have a port from 1 to",
        ),
        ("ipv6 = \"10.0.0.0/8\"\n", "5: ipv6 in [addresses] is \"10.0.0.0/8\", but must be an IPv6 network"),
        ("ipv6 = \"fe80::/64\"\n", "5: ipv6 in [addresses] is \"fe80::/64\", but must be unicast"),
        (
            "ipv6 = \"fd00::/127\"\n",
            "5: ipv6 in [addresses] is \"fd00::/127\", but must have a prefix length from",
        ),
        ("ipv6 = \"::/64\"\n", "5: ipv6 in [addresses] is \"::/64\", but must be unicast"),
    ];
    for (rest, expected) in cases {
        assert_one_line(&exit_error(&exit_text(rest)), "exit.toml", expected);
    }
    let whole = [
        ("[exit]\nlisten = []\n", "2: listen in [exit] is empty, but must be a list of addresses"),
        (
            "[exit]\nlisten = [\"443\"]\n",
            "2: listen in [exit] is \"443\", but must be an IP address with a port",
        ),
        ("[exit]\nlisten = [\"[::]:443\", \"[::]:443\"]\n", "2: listen in [exit] names the same value twice"),
        (
            "[exit]\nprivate_key = \"x\"\n",
            "2: unknown key \"private_key\" in [exit]; did you mean \"private_key_file\"?",
        ),
        (
            "[exit]\n",
            "1: private_key_file is missing in [exit]; make a key with \"warren keygen\" and name its file here, \
             or let \"warren exit init\" write both",
        ),
        ("[exit]\nprivate_key_file = \"other.key\"\n", "2: private_key_file: cannot read "),
        (
            "[exit]\nprivate_key_file = \"exit.key\"\n",
            "1: no inner prefix is set; write ipv4 = \"10.66.0.0/16\"",
        ),
        (
            "[addresses]\nipv4 = \"10.66.0.0/31\"\n",
            "2: ipv4 in [addresses] is \"10.66.0.0/31\", but must have a prefix",
        ),
        (
            "[addresses]\nipv4 = \"10.66.0.0\"\n",
            "2: ipv4 in [addresses] is \"10.66.0.0\", but lacks a prefix length",
        ),
        (
            "[addresses]\nipv4 = \"224.0.0.0/8\"\n",
            "2: ipv4 in [addresses] is \"224.0.0.0/8\", but must be unicast",
        ),
        (
            "[addresses]\nipv4 = \"127.0.0.0/16\"\n",
            "2: ipv4 in [addresses] is \"127.0.0.0/16\", but must be unicast",
        ),
        (
            "[addresses]\nipv4 = \"fd00::/64\"\n",
            "2: ipv4 in [addresses] is \"fd00::/64\", but must be an IPv4 network",
        ),
        ("[[exit]]\nendpoint = \"a\"\n", "1: [[exit]] is a list here; write [exit], once"),
    ];
    for (text, expected) in whole {
        assert_one_line(&exit_error(text), "exit.toml", expected);
    }
}

fn assert_one_line(error: &str, file: &str, expected: &str) {
    assert!(error.starts_with(&format!("{file}:{expected}")), "expected: {expected}\nbut was:  {error}");
    assert!(!error.chars().any(char::is_control), "{error:?}");
    assert!(error.len() < 300, "{error}");
}
