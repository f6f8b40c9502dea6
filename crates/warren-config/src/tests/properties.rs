//! Loading any file returns a value or an error of one line.

use proptest::prelude::*;

use super::{PRIVATE_KEY, profile_text};
use crate::fuzzing::configuration;

/// Texts that resemble a configuration closely enough to get past the TOML parser.
fn plausible() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "client",
        "exit",
        "tun",
        "routes",
        "dns",
        "kill_switch",
        "exec",
        "users",
        "forwards",
        "transport",
        "addresses",
        "nat",
        "clients",
        "access",
        "metrics",
        "web",
        "private_key",
        "private_key_file",
        "endpoint",
        "public_key",
        "name",
        "mtu",
        "include",
        "servers",
        "enabled",
        "connections",
        "congestion",
        "workers",
        "listen",
        "ipv4",
        "ipv6",
        "file",
        "interface",
        "allow",
        "\"\"",
        "\"\\u0000\"",
        "é",
    ]);
    let value = prop_oneof![
        Just("true".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just(format!("\"{PRIVATE_KEY}\"")),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        "[0-9a-f.:/\\[\\]]{0,20}".prop_map(|text| format!("\"{text}\"")),
        "\\PC{0,90}".prop_map(|text| format!("{text:?}")),
        "[0-9a-f.:/]{0,20}".prop_map(|text| format!("[\"{text}\", \"{text}\"]")),
    ];
    let line = prop_oneof![
        word.clone().prop_map(|word| format!("[{word}]")),
        word.clone().prop_map(|word| format!("[[{word}]]")),
        (word, value).prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn any_text_is_a_value_or_one_line(text in "(?s).{0,400}") {
        configuration(text.as_bytes());
    }

    #[test]
    fn any_plausible_text_is_a_value_or_one_line(text in plausible()) {
        configuration(text.as_bytes());
        configuration(profile_text(&text).as_bytes());
    }

    #[test]
    fn any_endpoint_that_is_accepted_reads_back_what_it_writes(text in "\\PC{0,40}|[a-z0-9.:\\[\\]-]{0,30}") {
        if let Ok(endpoint) = text.parse::<crate::Endpoint>() {
            prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
    }
}
