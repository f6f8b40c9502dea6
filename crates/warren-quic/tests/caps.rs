//! The caps on sends take effect, can change while a connection runs, and never exceed what the kernel accepts.

#![allow(clippy::print_stdout, reason = "the figures are part of what the test shows")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

mod common;

use common::{Drivers, Pair, Way};
use warren_quic::{
    driver::SocketStats,
    settings::{Congestion, TransmitCaps, TransportSettings},
};

test_every_driver!(
    both_caps_act_at_every_mtu_and_no_send_is_too_long,
    caps_change_while_the_connection_runs,
    congestion_control_changes_while_the_connection_runs,
    without_segmentation_every_datagram_is_a_send,
);

const MAX_GSO_BYTES: usize = 65_507;

fn settings(caps: (usize, usize), mtu: u16) -> TransportSettings {
    TransportSettings {
        caps: TransmitCaps::new(caps.0, caps.1),
        initial_mtu: mtu,
        min_mtu: mtu,
        max_mtu: mtu,
        // Only the caps and the kernel limit a single send.
        congestion: Congestion::Off.into(),
        datagram_send_buffer: Some(4 * 1024 * 1024),
        datagram_receive_buffer: 64 * 1024 * 1024,
        ..Default::default()
    }
}

async fn both_caps_act_at_every_mtu_and_no_send_is_too_long(drivers: Drivers) {
    for mtu in [1_200_u16, 1_452, 8_952] {
        for caps in [(10, 20), (40, 80), (64, 128)] {
            let mut pair = Pair::new(drivers, &settings(caps, mtu));
            let (at_client, _) = pair.connect().await;
            let size = pair.client.endpoint.max_datagram_size(at_client).unwrap();
            pair.send_all(Way::Up, at_client, (0..1_000).map(|_| size)).await;
            pair.until("all are sent", |pair| pair.client.stats(at_client).datagrams_sent == 1_000).await;

            let expected = caps.0.min(MAX_GSO_BYTES / usize::from(mtu)).min(64);
            let (sockets, drive) =
                (pair.client.endpoint.socket_stats(), pair.client.stats(at_client).largest_drive);
            println!(
                "mtu {mtu}, caps {caps:?}: at most {} segments a send, {drive} datagrams a drive; sends by segments: {}",
                sockets.largest_send(),
                histogram(&sockets)
            );
            assert_eq!(sockets.largest_send(), expected, "mtu {mtu}, caps {caps:?}");
            let full = caps.1..caps.1 + expected;
            assert!(
                full.contains(&usize::try_from(drive).unwrap()),
                "mtu {mtu}, caps {caps:?}: {drive} datagrams in a drive"
            );
            assert_eq!(sockets.send_errors.total(), 0, "mtu {mtu}, caps {caps:?}: {:?}", sockets.send_errors);
        }
    }
}

async fn caps_change_while_the_connection_runs(drivers: Drivers) {
    let settings = settings((10, 20), 1_452);
    let caps = settings.caps.clone();
    let mut pair = Pair::new(drivers, &settings);
    let (at_client, _) = pair.connect().await;
    let size = pair.client.endpoint.max_datagram_size(at_client).unwrap();
    let mut total = 0;
    let mut largest_sends = Vec::new();
    for (segments, datagrams) in [(10, 20), (40, 80), (5, 10)] {
        caps.set(segments, datagrams);
        let before = pair.client.endpoint.socket_stats();
        total += 1_000;
        pair.send_all(Way::Up, at_client, (0..1_000).map(|_| size)).await;
        pair.until("all are sent", |pair| pair.client.stats(at_client).datagrams_sent == total).await;
        largest_sends.push(since(pair.client.endpoint.socket_stats(), &before).largest_send());
        if segments == 10 {
            assert!(pair.client.stats(at_client).largest_drive < 30);
        }
    }
    assert_eq!(largest_sends, [10, 40, 5]);
    assert!((80..120).contains(&pair.client.stats(at_client).largest_drive));
}

async fn congestion_control_changes_while_the_connection_runs(drivers: Drivers) {
    let settings = settings((10, 20), 1_452);
    let mut pair = Pair::new(drivers, &settings);
    let (at_client, _) = pair.connect().await;
    let mut total = 0;
    for congestion in [Congestion::Cubic, Congestion::Off, Congestion::Bbr3, Congestion::NewReno] {
        settings.congestion.set(congestion);
        total += 500;
        pair.send_all(Way::Up, at_client, (0..500).map(|_| 1_000)).await;
        pair.until("all have arrived", |pair| pair.exit.datagrams.len() == total).await;
        let unlimited = pair.client.stats(at_client).cwnd > 1 << 32;
        assert_eq!(unlimited, congestion == Congestion::Off, "{congestion}");
    }
}

async fn without_segmentation_every_datagram_is_a_send(drivers: Drivers) {
    let settings = TransportSettings { udp_gso: false, udp_gro: false, ..settings((40, 80), 1_452) };
    let mut pair = Pair::new(drivers, &settings);
    let (at_client, _) = pair.connect().await;
    pair.send_all(Way::Up, at_client, (0..500).map(|_| 1_000)).await;
    pair.until("all have arrived", |pair| pair.exit.datagrams.len() == 500).await;
    assert_eq!(pair.client.endpoint.socket_stats().largest_send(), 1);
    assert!(pair.exit.endpoint.socket_stats().bytes_received > 500_000);
}

/// The sends counted after `before`.
fn since(mut now: SocketStats, before: &SocketStats) -> SocketStats {
    for (now, before) in now.segments_per_send.iter_mut().zip(&before.segments_per_send) {
        *now -= before;
    }
    now
}

fn histogram(stats: &SocketStats) -> String {
    let sends = stats.segments_per_send.iter().enumerate().filter(|(_, sends)| **sends > 0);
    sends.map(|(segments, sends)| format!("{segments}:{sends}")).collect::<Vec<_>>().join(" ")
}
