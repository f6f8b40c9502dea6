//! Tests `quic` as users run it, with a client and an exit process, over loopback and between namespaces.

mod support;

use serde_json::Value;
use support::{Net, bench, json};

#[test]
fn upload_is_counted_at_the_exit_and_cpu_on_both_sides() {
    let result = json(&mut bench("quic --seconds 0.4 --warm-up 0.1 --mtu 1280 --json"));

    let number = |path: &str| {
        result.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {result}"))
    };
    assert!(number("/goodput_mbit_per_s") > 1.0);
    assert!(number("/packets_per_s") > 100.0);
    for path in ["/sender_cpu_percent", "/receiver_cpu_percent", "/cpu_seconds_per_gb", "/rtt_ms/median"] {
        assert!(number(path) > 0.0, "{path}: {result}");
    }
    assert_eq!(number("/datagrams_missing"), 0.0);
    let exit_sent_few =
        number("/exit/totals/udp_datagrams_sent") < number("/client/totals/udp_datagrams_sent");
    assert!(exit_sent_few, "{result}");
    let segments = result.pointer("/client/sockets/segments_per_send").and_then(Value::as_array).unwrap();
    assert!(segments.len() > 1 && segments.len() <= 41, "the default cap is 40 segments: {segments:?}");
}

#[test]
fn cap_of_segments_holds_with_both_drivers() {
    for driver in ["noq", "warren"] {
        let line = format!("quic --driver {driver} --seconds 0.3 --warm-up 0.1 --max-segments 3 --json");
        let result = json(&mut bench(&line));
        assert_eq!(result.pointer("/options/driver").and_then(Value::as_str), Some(driver));
        let segments = result.pointer("/client/sockets/segments_per_send").and_then(Value::as_array).unwrap();
        assert_eq!(segments.len(), 4, "{driver}: {segments:?}");
    }
}

#[test]
fn streams_carry_all_that_is_written_either_way_with_both_drivers() {
    for driver in ["noq", "warren"] {
        for (direction, receiver) in [("up", "exit"), ("down", "client")] {
            let line = format!(
                "quic --mode stream --driver {driver} --direction {direction} --connections 2 --seconds 0.3 \
                 --warm-up 0.1 --json"
            );
            let result = json(&mut bench(&line));
            let number = |path: &str| result.pointer(path).and_then(Value::as_f64);
            assert!(number("/goodput_mbit_per_s") > Some(1.0), "{driver} {direction}: {result}");
            assert_eq!(number(&format!("/{receiver}/totals/datagram_frames_received")), Some(0.0));
            assert_eq!(result.pointer("/datagrams_missing"), Some(&Value::Null));
        }
    }
}

#[test]
fn every_cipher_carries_datagrams() {
    for cipher in ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"] {
        let result = json(&mut bench(&format!("quic --cipher {cipher} --seconds 0.2 --warm-up 0.1 --json")));
        assert_eq!(result.pointer("/options/cipher").and_then(Value::as_str), Some(cipher));
        assert!(result.get("goodput_mbit_per_s").and_then(Value::as_f64) > Some(1.0), "{result}");
    }
}

#[test]
fn both_ways_over_several_connections() {
    let line = "quic --seconds 0.3 --warm-up 0.1 --direction both --connections 3 --datagram-size 200 --pin \
                --json";
    let result = json(&mut bench(line));
    assert_eq!(result.get("sender_cpu_percent"), Some(&Value::Null));
    for side in ["client", "exit"] {
        let received = result.pointer(&format!("/{side}/totals/datagram_frames_received"));
        assert!(received.and_then(Value::as_u64) > Some(100), "{result}");
    }
}

#[test]
fn sides_meet_between_namespaces() {
    let Some(net) = Net::new() else { return };
    let line = format!(
        "quic --seconds 0.3 --warm-up 0.1 --direction down --address 192.0.2.1 --client-namespace {} \
         --exit-namespace {} --json",
        net.client, net.exit
    );
    let result = json(&mut bench(&line));
    assert!(result.get("goodput_mbit_per_s").and_then(Value::as_f64) > Some(1.0), "{result}");
}

#[test]
fn errors_are_one_sentence() {
    for (line, part) in [
        ("quic --seconds 0", "--seconds is 0, but must be from 0.1 to 3600"),
        ("quic --address 192.0.2.77", "cannot bind a UDP socket to 192.0.2.77"),
        ("quic --client-namespace wt-none", "there is no network namespace wt-none"),
        ("quic --mtu 1200 --datagram-size 1400", "a datagram of 1400 bytes does not fit"),
        ("quic --mode stream --datagram-size 900", "a stream has no datagrams"),
    ] {
        let output = bench(line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(part), "{line}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{line}: {said}");
    }
}
