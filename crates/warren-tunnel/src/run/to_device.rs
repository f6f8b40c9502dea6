//! To the TUN: one write for each packet or super-packet of a batch, and one system call for the batch where there is io_uring. If the
//! kernel refuses a super-packet, its packets are written one by one.

use std::io;

use bytes::Bytes;
use rustix::io::Errno;
use warren_packet::coalesce::{Coalescer, Outcome, Writes};
use warren_packet::reason::DropReason;
use warren_tun::{Lane, WriteBatch};

use super::{Device, Worker};
use crate::counters::{Drops, Occupancy, Totals};

impl Worker {
    /// Writes the packets of the batch. No packet waits for the next batch, which may never come.
    pub(super) fn write_to_device(&mut self) {
        let Some(Device { queue, coalescer, bulk_flows, .. }) = &mut self.device else { return };
        let before = coalescer.merge();
        let (ring, tun_writes) = (&mut self.ring, &self.tuning.tun_writes);
        let write = |writes: &Writes<'_, Bytes>, results: &mut Vec<io::Result<()>>| {
            let mut batch = WriteBatch::with_capacity(writes.len());
            writes.for_each(|write| {
                let lane = if bulk_flows.is_bulk(write.flow_hash) { Lane::Bulk } else { Lane::Prompt };
                batch.push(lane, write.header, write.parts);
            });
            // Without a ring, each packet's call woke the receiver, which then ran 30,000 to 40,000 times a second at IMIX.
            if let Err(error) = queue.write_all(&batch, ring, results) {
                tun_writes.found(false);
                tracing::warn!(
                    "the kernel no longer allows io_uring ({error}); each packet to the TUN costs a system call from now on"
                );
            }
        };
        write_all(coalescer, &mut self.totals, &mut self.drops, &mut self.occupancy, write);
        let after = coalescer.merge();
        // Each worker learns of the refusal from its own queue, and only the first one warns.
        if after != before && self.tuning.tun_offload.restrict(after) {
            tracing::warn!(
                "the TUN device refused a super-packet; packets of its kind are written one by one from now on"
            );
        }
    }
}

/// Writes a batch by `write`, which pushes a result for each packet or super-packet. Counts the results.
fn write_all(
    coalescer: &mut Coalescer<Bytes>,
    totals: &mut Totals,
    drops: &mut Drops,
    occupancy: &mut Occupancy,
    mut write: impl FnMut(&Writes<'_, Bytes>, &mut Vec<io::Result<()>>),
) {
    let mut results = Vec::new();
    coalescer.flush_together(|writes, outcomes| {
        results.clear();
        write(writes, &mut results);
        debug_assert_eq!(results.len(), writes.len(), "every write has a result");
        outcomes.extend(writes.contents().zip(&results).map(|((packets, bytes), result)| match result {
            Ok(()) => {
                totals.tun_writes += 1;
                totals.tun_written_packets += packets;
                totals.tun_written_bytes += bytes;
                occupancy.packets_per_tun_write.record(packets);
                Outcome::Written
            }
            // An old kernel returns `EINVAL` for an offload type that it does not know. The coalescer offers the
            // packets again, one by one.
            Err(error) if packets > 1 && Errno::from_io_error(error) == Some(Errno::INVAL) => {
                Outcome::Refused
            }
            Err(_) => {
                drops.to_tun.add_many(DropReason::TunWrite, packets);
                Outcome::Lost
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use warren_packet::coalesce::{GatherWrite, Merge};
    use warren_packet::datagram::Flags;
    use warren_packet::virtio::{GSO_NONE, GSO_UDP_L4};

    use super::*;

    /// An IPv4 packet with 100 bytes of UDP payload. Its UDP checksum is left to the receiver.
    const DATAGRAM: [u8; 128] = {
        let mut packet = [0; 128];
        let headers = [
            0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0x26, 0x6b, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 108,
            0x12, 0x34,
        ];
        let mut index = 0;
        while index < headers.len() {
            packet[index] = headers[index];
            index += 1;
        }
        packet
    };

    const OTHER_FLOW: [u8; 128] = {
        let mut packet = DATAGRAM;
        packet[21] = 8;
        packet
    };

    /// Four datagrams of one flow.
    fn batch() -> Coalescer<Bytes> {
        let mut coalescer = Coalescer::new(Merge::ALL);
        for _ in 0..4 {
            coalescer.push(Flags::PARTIAL_CHECKSUM, Bytes::from_static(&DATAGRAM)).unwrap();
        }
        coalescer
    }

    fn counts(
        coalescer: &mut Coalescer<Bytes>,
        mut write: impl FnMut(&GatherWrite<'_, '_>) -> io::Result<()>,
    ) -> (Totals, u64) {
        let (mut totals, mut drops, mut occupancy) =
            (Totals::default(), Drops::default(), Occupancy::default());
        write_all(coalescer, &mut totals, &mut drops, &mut occupancy, |writes, results| {
            writes.for_each(|one| results.push(write(&one)));
        });
        assert_eq!(occupancy.packets_per_tun_write.counts().iter().sum::<u64>(), totals.tun_writes);
        (totals, drops.to_tun.iter().map(|(_, count)| count).sum())
    }

    #[test]
    fn a_kernel_without_udp_super_packets_gets_each_datagram_and_loses_none() {
        let mut coalescer = batch();
        let mut refusals = 0;
        let (totals, dropped) = counts(&mut coalescer, |GatherWrite { header, .. }| {
            if header.gso_type == GSO_UDP_L4 {
                refusals += 1;
                return Err(Errno::INVAL.into());
            }
            assert_eq!(header.gso_type, GSO_NONE);
            assert!(header.needs_checksum());
            Ok(())
        });
        assert_eq!((totals.tun_writes, totals.tun_written_packets, dropped, refusals), (4, 4, 0, 1));
        assert_eq!(totals.tun_written_bytes, 4 * 128);
        assert_eq!(coalescer.merge(), Merge { tcp: true, udp: false });
    }

    #[test]
    fn every_other_error_drops_the_packets_of_its_write_alone() {
        let errors =
            [Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM, Errno::IO, Errno::BADFD].map(io::Error::from);
        for error in errors.into_iter().chain([io::ErrorKind::WriteZero.into()]) {
            let mut coalescer = batch();
            coalescer.push(Flags::PARTIAL_CHECKSUM, Bytes::from_static(&OTHER_FLOW)).unwrap();
            let (kind, mut error) = (error.to_string(), Some(error));
            let (totals, dropped) = counts(&mut coalescer, |_| error.take().map_or(Ok(()), Err));
            assert_eq!((totals.tun_writes, totals.tun_written_packets, dropped), (1, 1, 4), "{kind}");
            assert_eq!(coalescer.merge(), Merge::ALL, "{kind}");
        }
    }

    #[test]
    fn a_device_that_is_down_loses_the_batch_and_keeps_its_super_packets() {
        let mut coalescer = batch();
        let mut writes = 0;
        let (totals, dropped) = counts(&mut coalescer, |_| {
            writes += 1;
            Err(Errno::IO.into())
        });
        assert_eq!((totals.tun_writes, dropped, writes), (0, 4, 1));
        assert_eq!(coalescer.merge(), Merge::ALL);
    }

    #[test]
    fn a_device_that_refuses_everything_is_not_blamed_for_super_packets() {
        let mut coalescer = batch();
        let (totals, dropped) = counts(&mut coalescer, |_| Err(Errno::INVAL.into()));
        assert_eq!((totals.tun_writes, dropped), (0, 4));
        assert_eq!(coalescer.merge(), Merge::ALL);
    }
}
