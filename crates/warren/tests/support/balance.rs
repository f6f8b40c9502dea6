//! The balance equations of `docs/counters.md`, which hold exactly.

use std::time::Duration;

use super::{Client, Exit, Status, eventually, seconds};

/// Waits until no packet moves and none is queued on either side.
pub fn drained(client: &Client<'_>, exit: &Exit<'_>) -> (Status, Status) {
    let mut last = (0, 0);
    eventually(seconds(30), "both sides drain", || {
        std::thread::sleep(Duration::from_millis(1_200));
        let counts = (moved(&client.status()), moved(&exit.status()));
        std::mem::replace(&mut last, counts) == counts
    });
    (client.status(), exit.status())
}

fn moved(status: &Status) -> u64 {
    let total = |name: &str| status.number(&format!("/totals/{name}"));
    assert!(total("queued_packets") < 1_000_000, "the queue is bounded");
    let waiting = total("queued_packets") + total("assemblies_pending");
    total("tun_read_packets") + total("carrier_received_datagrams") + waiting * 1_000_000_000
}

/// Asserts that each packet that came in has left or was counted as a drop.
#[track_caller]
pub fn assert_balanced(role: &str, status: &Status) {
    let total = |name: &str| status.number(&format!("/totals/{name}"));
    assert_eq!(total("queued_packets") + total("assemblies_pending"), 0, "{role} is drained");
    assert_eq!(
        total("tun_read_packets"),
        total("carrier_sent_packets") + status.drops("carrier"),
        "{role}: packets to the carrier, {:#}",
        status.0
    );
    // These drops are not part of the balance, because they happen before there is a packet that could be counted as received.
    let before_a_packet: u64 = ["bad_datagram", "bad_fragment", "fragment_timeout"]
        .iter()
        .map(|reason| status.drop("tun", reason))
        .sum();
    assert_eq!(
        total("carrier_received_packets"),
        total("tun_written_packets") + status.drops("tun") - before_a_packet,
        "{role}: packets from the carrier, {:#}",
        status.0
    );
    let transport = |reason: &str| status.number(&format!("/transport_drops/{reason}"));
    assert_eq!(
        total("carrier_sent_datagrams") + total("repairs_sent"),
        total("quic_datagrams_sent")
            + transport("transport_full")
            + transport("transport_too_large")
            + transport("transport_stale")
            + transport("connection_lost"),
        "{role}: datagrams given to QUIC"
    );
    assert_eq!(
        total("carrier_received_datagrams") + transport("receive_buffer_full"),
        total("quic_datagrams_received"),
        "{role}: datagrams taken from QUIC"
    );
    assert_eq!(
        transport("transport_full") + transport("transport_too_large"),
        0,
        "{role}: noq itself drops nothing"
    );
}

/// Asserts that the receiver of each direction counts at most as many packets as the sender.
#[track_caller]
pub fn assert_wire_only_loses(one: &Status, other: &Status) {
    for (sender, receiver) in [(one, other), (other, one)] {
        let sent = sender.number("/totals/quic_datagrams_sent");
        let received = receiver.number("/totals/quic_datagrams_received");
        assert!(sent >= received, "{received} datagrams were received of {sent}");
    }
}
