//! A coalescer's writes: checked as the kernel checks them, and cut into packets again.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use warren_packet::coalesce::{Coalescer, MAX_PARTS, Merge, Outcome};
use warren_packet::datagram::Flags;
use warren_packet::ip::IpPacket;
use warren_packet::receive::accept;
use warren_packet::segment::segment;
use warren_packet::tuple::FiveTuple;
use warren_packet::virtio::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader};

use crate::build::{assert_checksums, complete};

/// A packet as received from a peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) partial: bool,
}

impl Packet {
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, partial: false }
    }

    pub(crate) fn partial(bytes: Vec<u8>) -> Self {
        Self { bytes, partial: true }
    }

    /// The packet as the receiving host's applications see it, with its checksum completed. `None` if it is refused.
    pub(crate) fn delivered(&self) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.clone();
        let header = accept(Flags::new(self.partial), &mut bytes).ok()?;
        if header.needs_checksum() {
            complete(header, &mut bytes);
        }
        Some(bytes)
    }
}

/// One write with its parts joined.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) header: VirtioNetHeader,
    pub(crate) bytes: Vec<u8>,
    pub(crate) packets: u64,
}

/// Pushes a batch and flushes it. Only packets that `accept` refuses may be refused, and no other packet may be
/// missing.
pub(crate) fn coalesce(merge: Merge, batch: &[Packet]) -> Vec<Written> {
    let mut coalescer = Coalescer::new(merge);
    let (mut pushed, mut pushed_bytes) = (0, 0);
    for packet in batch {
        let result = coalescer.push(Flags::new(packet.partial), packet.bytes.as_slice());
        let accepted = accept(Flags::new(packet.partial), &mut packet.bytes.clone());
        assert_eq!(result.err(), accepted.err());
        if result.is_ok() {
            pushed += 1;
            pushed_bytes += packet.bytes.len() as u64;
        }
    }
    let mut written = Vec::new();
    let (mut packets, mut bytes) = (0, 0);
    coalescer.flush(|write| {
        assert!(write.parts.len() <= MAX_PARTS);
        packets += write.packets;
        bytes += write.bytes;
        let whole = write.parts.concat();
        assert_eq!(write.flow_hash, FiveTuple::of(&IpPacket::parse(&whole).unwrap()).symmetric_hash());
        written.push(Written { header: write.header, bytes: whole, packets: write.packets });
        Outcome::Written
    });
    assert_eq!((packets, bytes), (pushed, pushed_bytes), "nothing is lost");
    assert!(coalescer.is_empty());
    coalescer.flush(|_| panic!("everything was flushed"));
    written
}

impl Written {
    pub(crate) fn is_merged(&self) -> bool {
        self.header.gso_type != GSO_NONE
    }

    /// Cuts the write as a receiving host's kernel does. Every resulting packet has a complete checksum.
    pub(crate) fn cut(&self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        segment(self.header, &self.bytes, &mut |segment| {
            let packet = Packet { bytes: segment.parts().concat(), partial: segment.partial_checksum };
            packets.push(packet.delivered().unwrap());
        })
        .unwrap();
        assert_eq!(packets.len() as u64, self.packets);
        packets
    }

    /// Checks the write against the rules of the kernel's `tun_get_user` and `virtio_net_hdr_to_skb`, and with etherparse.
    pub(crate) fn assert_valid(&self) {
        let header = self.header;
        assert!(IpPacket::parse(&self.bytes).is_ok());
        if header == VirtioNetHeader::default() {
            assert_eq!(self.packets, 1);
            return;
        }
        assert_eq!(header.flags, NEEDS_CSUM);
        let sliced = SlicedPacket::from_ip(&self.bytes).unwrap();
        let is_v4 = matches!(sliced.net, Some(NetSlice::Ipv4(_)));
        let (transport, payload, offset, gso_type) = match sliced.transport.as_ref().unwrap() {
            TransportSlice::Tcp(tcp) => {
                (tcp.slice(), tcp.payload(), 16, if is_v4 { GSO_TCPV4 } else { GSO_TCPV6 })
            }
            TransportSlice::Udp(udp) => (udp.slice(), udp.payload(), 6, GSO_UDP_L4),
            other @ (TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_)) => {
                panic!("not TCP or UDP: {other:?}")
            }
        };
        assert_eq!(usize::from(header.checksum_start), self.bytes.len() - transport.len());
        assert_eq!(header.checksum_offset, offset);
        assert_eq!(usize::from(header.header_length), self.bytes.len() - payload.len());
        let packet = IpPacket::parse(&self.bytes).unwrap();
        let mut completed = self.bytes.clone();
        complete(header, &mut completed);
        if !self.is_merged() {
            assert_eq!((self.packets, header.gso_size), (1, 0));
            // A flagged packet may carry a wrong IP header checksum, which the kernel verifies itself.
            return;
        }
        assert_checksums(&completed, (packet.source(), packet.destination()));
        assert_eq!(header.gso_type, gso_type);
        let size = usize::from(header.gso_size);
        assert!(size > 0 && payload.len() > size, "{} bytes in segments of {size}", payload.len());
        assert_eq!(payload.len().div_ceil(size) as u64, self.packets);
        assert!(self.packets < 64, "UDP_MAX_SEGMENTS");
    }
}
