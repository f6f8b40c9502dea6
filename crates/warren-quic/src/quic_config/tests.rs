//! Tests of configurations: two endpoints over a path in virtual time.

mod adaptive;
mod deaf;
mod ecn;
mod fast_path;
mod handshake_probe;
mod idle;
mod kept;
mod native;
mod parameters;
mod path_mtu;
mod repair;
mod sending;
mod world;

use super::*;

#[test]
fn default_settings_are_within_their_bounds() {
    check(&TransportSettings::default()).unwrap();
}

#[test]
fn all_endpoints_of_an_exit_together_reset_fifty_connections_a_second_at_most() {
    assert_eq!(reset_interval(1), Duration::from_millis(20));
    assert_eq!(reset_interval(4), Duration::from_nanos(83_333_334));
    for endpoints in 1..=50 {
        let each = Duration::from_secs(1).as_nanos().div_ceil(reset_interval(endpoints).as_nanos());
        assert!(each > 0 && each * u128::from(endpoints) <= 50, "{endpoints}");
    }
    for endpoints in [51, 100, 128, 640] {
        assert!(reset_interval(endpoints).as_secs() * 50 >= endpoints, "{endpoints}");
    }
}

#[test]
fn settings_out_of_bounds_are_refused_by_name() {
    let default = TransportSettings::default;
    let cases = [
        (TransportSettings { max_mtu: 1_199, ..default() }, "max_mtu"),
        (TransportSettings { initial_mtu: 65_508, ..default() }, "initial_mtu"),
        (TransportSettings { min_mtu: 1_300, ..default() }, "min_mtu"),
        (TransportSettings { idle_timeout: Duration::from_secs(5), ..default() }, "keep-alive"),
        (TransportSettings { idle_timeout: Duration::MAX, ..default() }, "idle timeout"),
        (TransportSettings { reordering_threshold: 2, ..default() }, "reordering_threshold"),
        (TransportSettings { datagram_receive_buffer: 1_000, ..default() }, "buffer"),
        (TransportSettings { datagram_send_buffer: Some(1_000), ..default() }, "buffer"),
    ];
    for (settings, name) in cases {
        let error = check(&settings).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
