//! The counters of several workers together. Each struct is destructured by name, so that no counter is left
//! out.

use super::{Histogram, Occupancy, PastConnections, QuicSums, RepairSums, Snapshot, Totals, WorkerShare};

impl Snapshot {
    /// Adds up the workers' counters. Also contains each worker's share, in the order of `workers`.
    pub fn of_all(workers: Vec<Self>) -> Self {
        let mut all = Self { workers: workers.iter().map(WorkerShare::of).collect(), ..Self::default() };
        workers.into_iter().for_each(|worker| all.merge(worker));
        all
    }

    fn merge(&mut self, other: Self) {
        let Self {
            totals,
            queued_packets,
            assemblies_pending,
            drops_to_carrier,
            drops_to_tun,
            connections,
            clients,
            sockets,
            occupancy,
            past,
            // `of_all` fills this list.
            workers: _,
        } = self;
        totals.merge(&other.totals);
        *queued_packets += other.queued_packets;
        *assemblies_pending += other.assemblies_pending;
        drops_to_carrier.merge(&other.drops_to_carrier);
        drops_to_tun.merge(&other.drops_to_tun);
        connections.extend(other.connections);
        for (client, traffic) in other.clients {
            clients.entry(client).or_default().add(&traffic);
        }
        sockets.merge(&other.sockets);
        occupancy.merge(&other.occupancy);
        past.merge(&other.past);
    }
}

impl WorkerShare {
    fn of(Snapshot { totals, connections, .. }: &Snapshot) -> Self {
        Self {
            connections: connections.len(),
            tun_reads: totals.tun_reads,
            handed_over: totals.handed_over,
            tun_writes: totals.tun_writes,
            carrier_sent_packets: totals.carrier_sent_packets,
            carrier_received_packets: totals.carrier_received_packets,
        }
    }
}

impl Totals {
    fn merge(&mut self, other: &Self) {
        let Self {
            tun_read_packets,
            tun_read_bytes,
            tun_reads,
            handed_over,
            tun_writes,
            tun_written_packets,
            tun_written_bytes,
            carrier_sent_packets,
            marked_packets,
            waits,
            too_big_answers,
            carrier_sent_datagrams,
            carrier_received_datagrams,
            carrier_received_packets,
            repairs_sent,
            fragments_sent,
            fragments_received,
        } = self;
        *tun_read_packets += other.tun_read_packets;
        *tun_read_bytes += other.tun_read_bytes;
        *tun_reads += other.tun_reads;
        *handed_over += other.handed_over;
        *tun_writes += other.tun_writes;
        *tun_written_packets += other.tun_written_packets;
        *tun_written_bytes += other.tun_written_bytes;
        *carrier_sent_packets += other.carrier_sent_packets;
        *marked_packets += other.marked_packets;
        waits.add(&other.waits);
        *too_big_answers += other.too_big_answers;
        *carrier_sent_datagrams += other.carrier_sent_datagrams;
        *carrier_received_datagrams += other.carrier_received_datagrams;
        *carrier_received_packets += other.carrier_received_packets;
        *repairs_sent += other.repairs_sent;
        *fragments_sent += other.fragments_sent;
        *fragments_received += other.fragments_received;
    }
}

impl Occupancy {
    fn merge(&mut self, other: &Self) {
        let Self { packets_per_tun_read, packets_per_tun_write, drives_per_wakeup } = self;
        packets_per_tun_read.merge(&other.packets_per_tun_read);
        packets_per_tun_write.merge(&other.packets_per_tun_write);
        drives_per_wakeup.merge(&other.drives_per_wakeup);
    }
}

impl Histogram {
    fn merge(&mut self, other: &Self) {
        let Self { counts, sum } = self;
        for (count, more) in counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        *sum = sum.saturating_add(other.sum);
    }
}

impl PastConnections {
    fn merge(&mut self, other: &Self) {
        let Self { connections, sums, repair } = self;
        *connections += other.connections;
        sums.merge(&other.sums);
        repair.merge(&other.repair);
    }
}

impl RepairSums {
    fn merge(&mut self, other: &Self) {
        let Self { repaired, given_up, filled, late, missing } = self;
        *repaired += other.repaired;
        *given_up += other.given_up;
        *filled += other.filled;
        *late += other.late;
        *missing += other.missing;
    }
}

impl QuicSums {
    fn merge(&mut self, other: &Self) {
        let Self {
            datagrams_sent,
            datagrams_received,
            lost_packets,
            spurious_losses,
            datagrams_returned,
            datagrams_forgotten,
            send_drops_full,
            send_drops_too_large,
            send_drops_stale,
            send_drops_closed,
            receive_drops,
        } = self;
        *datagrams_sent += other.datagrams_sent;
        *datagrams_received += other.datagrams_received;
        *lost_packets += other.lost_packets;
        *spurious_losses += other.spurious_losses;
        *datagrams_returned += other.datagrams_returned;
        *datagrams_forgotten += other.datagrams_forgotten;
        *send_drops_full += other.send_drops_full;
        *send_drops_too_large += other.send_drops_too_large;
        *send_drops_stale += other.send_drops_stale;
        *send_drops_closed += other.send_drops_closed;
        *receive_drops += other.receive_drops;
    }
}

#[cfg(test)]
mod tests {
    use warren_packet::reason::DropReason;
    use warren_session::PublicKey;

    use super::*;
    use crate::Traffic;

    #[test]
    fn workers_counters_add_up_and_each_ones_share_stays_known() {
        let worker = |count: u64| {
            let mut worker = Snapshot { queued_packets: count, ..Snapshot::default() };
            worker.totals.tun_reads = count;
            worker.totals.waits.record(std::time::Duration::from_micros(count));
            worker.drops_to_tun.add_many(DropReason::SpoofedSource, count);
            worker.occupancy.packets_per_tun_read.record(count);
            worker.past.sums.datagrams_sent = count;
            worker.clients.insert(PublicKey([1; 32]), Traffic { bytes_in: count, ..Traffic::default() });
            worker
        };

        let all = Snapshot::of_all(vec![worker(3), worker(40)]);

        assert_eq!((all.queued_packets, all.totals.tun_reads, all.past.sums.datagrams_sent), (43, 43, 43));
        assert_eq!(all.totals.waits.sum().as_micros(), 43);
        assert_eq!(all.drops_to_tun.get(DropReason::SpoofedSource), 43);
        assert_eq!(all.occupancy.packets_per_tun_read.to_string(), "3:1 40:1");
        assert_eq!(all.occupancy.packets_per_tun_read.sum(), 43);
        assert_eq!(all.clients[&PublicKey([1; 32])].bytes_in, 43);
        assert_eq!(all.workers.iter().map(|share| share.tun_reads).collect::<Vec<_>>(), [3, 40]);
    }
}
