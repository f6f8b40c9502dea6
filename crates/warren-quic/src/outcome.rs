//! Translates the QUIC library's results for both drivers: the peer's key, why a connection ended, and its counters.

use std::{any::Any, net::SocketAddr, sync::PoisonError};

use noq_proto::{ConnectionError, PathStats, TransportErrorCode};
use rustls::pki_types::CertificateDer;

use crate::{
    boundary::{CloseReason, ConnectionStats, ControllerState, LossCounts},
    key::PublicKey,
    planted::{Bug, is_planted},
    tls::{PresentedKey, public_key},
};

/// TLS's no_application_protocol (RFC 7301 section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;
/// Maximum number of characters of a peer's reason phrase that are shown.
const LONGEST_WORDS: usize = 200;

/// Reads the key that a peer proved.
pub(crate) fn peer_key(identity: Option<Box<dyn Any>>) -> Option<PublicKey> {
    let identity = identity?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    public_key(identity.first()?)
}

/// Returns why a connection ended. `presented` is where a client's verifier stores a refused key.
pub(crate) fn close_reason(error: ConnectionError, presented: Option<&PresentedKey>) -> CloseReason {
    let refused_key = || *presented?.lock().unwrap_or_else(PoisonError::into_inner);
    let no_protocol = TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL);
    match error {
        ConnectionError::LocallyClosed => CloseReason::Local,
        ConnectionError::TimedOut => CloseReason::TimedOut,
        ConnectionError::Reset => CloseReason::Reset,
        ConnectionError::ApplicationClosed(close) => CloseReason::Peer {
            code: close.error_code.into_inner(),
            reason: printable(&String::from_utf8_lossy(&close.reason)),
        },
        // Either side may find that there is no common protocol: the peer closes the connection, or this side's TLS fails.
        ConnectionError::ConnectionClosed(close) if close.error_code == no_protocol => {
            CloseReason::NoCommonProtocol
        }
        ConnectionError::TransportError(error) if error.code == no_protocol => CloseReason::NoCommonProtocol,
        // The verifier refuses a key by a TLS error, which does not name the key.
        ConnectionError::TransportError(error) => match refused_key() {
            Some(presented) => CloseReason::WrongPeerKey { presented },
            None => CloseReason::Transport(printable(&error.to_string())),
        },
        ConnectionError::ConnectionClosed(_)
        | ConnectionError::VersionMismatch
        | ConnectionError::CidsExhausted => CloseReason::Transport(printable(&error.to_string())),
    }
}

/// Makes a peer's reason phrase safe for a terminal or log: no control characters, bounded length. Before the handshake
/// completes, anybody on the path can forge it.
fn printable(words: &str) -> String {
    words.chars().filter(|letter| !letter.is_control()).take(LONGEST_WORDS).collect()
}

/// A driver's own counts of a connection's datagrams.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    /// Datagrams that were accepted but had become too large when they were sent.
    pub(crate) too_large: u64,
}

/// Combines a connection's counters. If `last` is true, the connection has ended, so datagrams that were never sent or delivered
/// count as dropped.
pub(crate) fn connection_stats(
    remote: SocketAddr,
    stats: &noq_proto::ConnectionStats,
    path: &PathStats,
    controller: Option<ControllerState>,
    tally: Tally,
    last: bool,
) -> ConnectionStats {
    let dropped = stats.dropped_datagrams;
    let sent = stats.frame_tx.datagram;
    let received = stats.frame_rx.datagram;
    let too_large = dropped.too_large + tally.too_large;
    let missing =
        tally.accepted.saturating_sub(sent + dropped.send_buffer_full + too_large + dropped.discarded);
    ConnectionStats {
        remote,
        rtt: path.rtt,
        cwnd: path.cwnd,
        controller,
        mtu: path.current_mtu,
        sent_packets: stats.sent_packets,
        lost_packets: stats.lost_packets,
        spurious_losses: stats.spurious_losses,
        lost_mtu_probes: path.lost_plpmtud_probes,
        black_holes: path.black_holes_detected,
        congestion_events: path.congestion_events,
        datagrams_accepted: tally.accepted,
        datagrams_sent: sent,
        datagrams_returned: stats.kept_datagrams.lost,
        datagrams_forgotten: if is_planted(Bug::ForgottenUncounted) {
            0
        } else {
            stats.kept_datagrams.forgotten
        },
        kept_bytes: stats.kept_datagrams.bytes,
        datagrams_received: received,
        datagrams_delivered: tally.delivered,
        send_drops_full: dropped.send_buffer_full,
        send_drops_too_large: too_large,
        send_drops_stale: dropped.discarded,
        // While the connection lives, accepted datagrams that were not sent are still queued, not lost.
        send_drops_closed: if last { missing } else { 0 },
        // Datagrams that the connection still held for the worker are lost with it.
        receive_drops: if last {
            received.saturating_sub(tally.delivered)
        } else {
            dropped.receive_buffer_full
        },
        udp_datagrams_sent: stats.udp_tx.datagrams,
        udp_bytes_sent: stats.udp_tx.bytes,
        udp_datagrams_received: stats.udp_rx.datagrams,
        udp_bytes_received: stats.udp_rx.bytes,
        largest_received: path.largest_received.unwrap_or_default(),
        acks_sent: stats.frame_tx.acks,
        acks_received: stats.frame_rx.acks,
        largest_drive: stats.largest_drive,
    }
}

/// Returns the losses of a connection's path. MTU probes do not count, because they are expected to be lost.
pub(crate) fn loss_counts(
    stats: &noq_proto::ConnectionStats,
    path: &PathStats,
    controller: Option<ControllerState>,
) -> LossCounts {
    let kept = stats.kept_datagrams;
    LossCounts {
        sent_packets: path.sent_packets.saturating_sub(path.sent_plpmtud_probes),
        lost_packets: path.lost_packets.saturating_sub(path.lost_plpmtud_probes),
        spurious_losses: path.spurious_losses,
        congestion_events: path.congestion_events,
        kept_bytes: kept.bytes,
        forgotten: kept.forgotten,
        returned: kept.lost,
        window: path.cwnd,
        rtt: path.rtt,
        reordering: path.reordering_window,
        is_searching: controller.is_some_and(ControllerState::is_searching),
    }
}

#[cfg(test)]
mod tests {
    use noq_proto::{ApplicationClose, ConnectionClose, VarInt};

    use super::*;

    #[test]
    fn words_of_a_peer_do_nothing_to_a_terminal() {
        let words = format!("\x1b[2J\x07\u{9b}31mgone\n{}", "x".repeat(10_000));
        let reason = words.clone().into();
        let by_peer = ConnectionError::ApplicationClosed(ApplicationClose {
            error_code: VarInt::from_u32(0x7777),
            reason,
        });
        let by_anybody = ConnectionError::ConnectionClosed(ConnectionClose {
            error_code: TransportErrorCode::CONNECTION_REFUSED,
            frame_type: noq_proto::MaybeFrame::None,
            reason: words.into(),
        });

        for error in [by_peer, by_anybody] {
            let reason = close_reason(error, None);
            let (CloseReason::Peer { reason: told, .. } | CloseReason::Transport(told)) = reason else {
                panic!("{reason:?}")
            };
            assert!(told.contains("gone") && !told.contains(char::is_control), "{told:?}");
            assert!(told.chars().count() <= LONGEST_WORDS, "{told:?}");
        }
    }
}
