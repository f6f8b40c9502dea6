//! Totals and drops by name.

use std::collections::BTreeMap;

use warren_packet::reason::{DropCounters, DropReason};

use warren_tunnel::{QuicSums, RepairSums, Snapshot};

pub(super) fn totals(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let totals = &snapshot.totals;
    let quic = quic_sums(snapshot);
    let repair = repair_sums(snapshot);
    let waiting = snapshot.connections.iter().map(|connection| connection.repair.order.held_datagrams as u64);
    let kept = snapshot.connections.iter().filter_map(|connection| connection.quic.as_ref());
    [
        ("tun_reads", totals.tun_reads),
        ("handed_over", totals.handed_over),
        ("tun_read_packets", totals.tun_read_packets),
        ("tun_read_bytes", totals.tun_read_bytes),
        ("tun_writes", totals.tun_writes),
        ("tun_written_packets", totals.tun_written_packets),
        ("tun_written_bytes", totals.tun_written_bytes),
        ("carrier_sent_packets", totals.carrier_sent_packets),
        ("marked_packets", totals.marked_packets),
        ("too_big_answers", totals.too_big_answers),
        ("carrier_sent_datagrams", totals.carrier_sent_datagrams),
        ("carrier_received_datagrams", totals.carrier_received_datagrams),
        ("carrier_received_packets", totals.carrier_received_packets),
        ("repairs_sent", totals.repairs_sent),
        ("fragments_sent", totals.fragments_sent),
        ("fragments_received", totals.fragments_received),
        ("queued_packets", snapshot.queued_packets),
        ("assemblies_pending", snapshot.assemblies_pending),
        // These are the datagrams as QUIC counts them, over live and ended connections.
        ("quic_datagrams_sent", quic.datagrams_sent),
        ("quic_datagrams_received", quic.datagrams_received),
        ("quic_lost_packets", quic.lost_packets),
        ("quic_spurious_losses", quic.spurious_losses),
        ("quic_returned_datagrams", quic.datagrams_returned),
        ("quic_forgotten_datagrams", quic.datagrams_forgotten),
        // Only live connections count here, because an ended connection keeps no datagrams.
        ("quic_kept_bytes", kept.map(|quic| quic.kept_bytes).sum()),
        ("repaired_datagrams", repair.repaired),
        ("given_up_datagrams", repair.given_up),
        ("filled_datagrams", repair.filled),
        ("late_datagrams", repair.late),
        ("missing_datagrams", repair.missing),
        ("waiting_datagrams", waiting.sum()),
        ("connections_ended", snapshot.past.connections),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Returns the packets that were dropped outside of the packet path, by reason: by QUIC in either direction, and by the kernel or
/// the driver before QUIC received them.
pub(super) fn transport_drops(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let quic = quic_sums(snapshot);
    let mut drops = DropCounters::default();
    drops.add_many(DropReason::TransportFull, quic.send_drops_full);
    drops.add_many(DropReason::TransportTooLarge, quic.send_drops_too_large);
    drops.add_many(DropReason::TransportStale, quic.send_drops_stale);
    drops.add_many(DropReason::ConnectionLost, quic.send_drops_closed);
    drops.add_many(DropReason::ReceiveBufferFull, quic.receive_drops);
    drops.add_many(DropReason::SocketBufferFull, snapshot.sockets.dropped);
    drops.add_many(DropReason::IntakeFull, snapshot.sockets.intake_drops);
    by_name(&drops)
}

fn quic_sums(snapshot: &Snapshot) -> QuicSums {
    // Ended connections count too, so that no sum ever decreases.
    let mut sums = snapshot.past.sums;
    for quic in snapshot.connections.iter().filter_map(|connection| connection.quic.as_ref()) {
        sums.add(quic);
    }
    sums
}

fn repair_sums(snapshot: &Snapshot) -> RepairSums {
    let mut sums = snapshot.past.repair;
    snapshot.connections.iter().for_each(|connection| sums.add(&connection.repair));
    sums
}

pub(super) fn by_name(drops: &DropCounters) -> BTreeMap<String, u64> {
    drops.iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}
