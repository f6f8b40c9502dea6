//! The counts of the tunnel's connections between two samples.

use serde::Serialize;
use warren_control::status::{ConnectionStatus, Status, percent};

/// Packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Loss {
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) percent: f64,
}

impl Loss {
    fn new(sent: u64, lost: u64) -> Self {
        Self { sent, lost, percent: percent(lost, sent) }
    }
}

/// The sum of the changes of all connections. A connection that is missing from the first sample is left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    pub(super) to_exit: Loss,
    pub(super) from_exit: Loss,
    /// Bytes of inner packets sent.
    pub(super) bytes_out: u64,
}

impl Change {
    pub(super) fn between(before: &Status, after: &Status) -> Self {
        let (mut sent, mut lost, mut numbered, mut missing, mut bytes_out) = (0, 0, 0, 0.0, 0);
        for now in &after.connections {
            let Some(then) = before.connections.iter().find(|then| then.id == now.id) else { continue };
            let grown = |of: fn(&ConnectionStatus) -> u64| of(now).saturating_sub(of(then));
            sent += grown(|one| one.sent_packets);
            lost += grown(truly_lost);
            bytes_out += grown(|one| one.bytes_out);
            // The exit numbers its packets consecutively, and each packet is a separate UDP datagram. So the difference between
            // two packet numbers is the number of datagrams sent.
            let numbers = grown(|one| one.largest_received);
            numbered += numbers;
            missing += numbers as f64
                - grown(|one| one.received_packets) as f64
                - (skipped(now.largest_received) - skipped(then.largest_received));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let missing = missing.round().max(0.0) as u64;
        Self { to_exit: Loss::new(sent, lost.min(sent)), from_exit: Loss::new(numbered, missing), bytes_out }
    }
}

/// Returns how many packet numbers below this one the exit has skipped on average. The exit skips numbers to detect peers that
/// acknowledge packets that they never received (RFC 9000 section 21.4): a random one of the first 64, and one of each further
/// range, each of which is twice as long as the one before.
fn skipped(number: u64) -> f64 {
    let range = number.max(64).ilog2();
    let of_first = number.min(64) as f64 / 64.0;
    let of_last = number.max(64) as f64 / 2_f64.powi(range.cast_signed()) - 1.0;
    of_first + f64::from(range - 6) + of_last
}

/// Returns the number of lost packets, without those that were acknowledged late, and without MTU probes, whose loss is expected.
fn truly_lost(connection: &ConnectionStatus) -> u64 {
    connection.lost_packets.saturating_sub(connection.spurious_losses + connection.lost_mtu_probes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::status::example;

    fn status(connections: &[(u64, [u64; 6])]) -> Status {
        let numbers: Vec<_> = connections.iter().map(|(id, _)| (*id, 0, 0)).collect();
        let mut status = example(&numbers);
        for (connection, (_, [sent, lost, late, probes, received, largest])) in
            status.connections.iter_mut().zip(connections)
        {
            connection.sent_packets = *sent;
            connection.lost_packets = *lost;
            connection.spurious_losses = *late;
            connection.lost_mtu_probes = *probes;
            connection.received_packets = *received;
            connection.largest_received = *largest;
        }
        status
    }

    #[test]
    fn losses_of_both_ways_are_what_changed_on_connections_that_stayed() {
        let before = status(&[(1, [100, 4, 1, 2, 50, 1 << 20]), (2, [0; 6])]);
        let after =
            status(&[(1, [1_100, 17, 2, 4, 1_040, (1 << 20) + 1_000]), (3, [500, 500, 0, 0, 0, 900])]);

        let change = Change::between(&before, &after);

        assert_eq!((change.to_exit.sent, change.to_exit.lost), (1_000, 10));
        assert_eq!((change.from_exit.sent, change.from_exit.lost), (1_000, 10));
        assert!((change.from_exit.percent - 1.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_that_the_exit_left_out_are_not_missing() {
        for (number, left_out) in [(0, 0.0), (32, 0.5), (64, 1.0), (96, 1.5), (128, 2.0), (1 << 20, 15.0)] {
            assert!((skipped(number) - left_out).abs() < 1e-9, "{number}: {}", skipped(number));
        }
        let before = status(&[(1, [0, 0, 0, 0, 60, 64])]);
        let after = status(&[(1, [0, 0, 0, 0, 120, 128])]);
        assert_eq!(Change::between(&before, &after).from_exit.lost, 3);
    }
}
