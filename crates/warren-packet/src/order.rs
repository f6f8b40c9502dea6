//! Decides which packets need the order in which they were sent.
//!
//! TCP and QUIC senders treat a packet as lost when three later ones arrive before it. A transfer's packets therefore wait for
//! those before them. Packets of calls, games and DNS, and acknowledgements without data, do not wait: to them, delay does
//! more harm than disorder.

use crate::datagram::Lane;
use crate::ip::IpPacket;
use crate::transport::{TransportHeader, TransportKind};
use crate::tuple::FiveTuple;

/// The port of QUIC.
const QUIC_PORT: u16 = 443;
/// Size in bytes from which a QUIC packet counts as part of a transfer.
const FULL_PACKET: usize = 1_000;

impl Lane {
    /// The lane of a packet: the lane of its flow if the packet must stay in order, else the unordered lane.
    pub fn of_packet(packet: &[u8]) -> Self {
        let Ok(packet) = IpPacket::parse(packet) else { return Self::UNORDERED };
        let Some(header) = TransportHeader::of(&packet) else { return Self::UNORDERED };
        let length = packet.bytes().len();
        let flow = FiveTuple::of(&packet);
        let needs_order = match header.kind {
            // Acknowledgements without data need no order, because each one replaces those before it.
            TransportKind::Tcp => length > header.end,
            TransportKind::Udp => {
                length >= FULL_PACKET && [flow.source_port, flow.destination_port].contains(&QUIC_PORT)
            }
        };
        if needs_order { Self::of_flow(flow.symmetric_hash()) } else { Self::UNORDERED }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet of this protocol whose transport header is followed by `payload` bytes.
    fn packet(protocol: u8, ports: (u16, u16), payload: usize) -> Vec<u8> {
        let mut transport = vec![0; if protocol == 6 { 20 } else { 8 }];
        transport[..2].copy_from_slice(&ports.0.to_be_bytes());
        transport[2..4].copy_from_slice(&ports.1.to_be_bytes());
        if protocol == 6 {
            transport[12] = 5 << 4;
        }
        let total = u16::try_from(20 + transport.len() + payload).unwrap().to_be_bytes();
        let mut packet =
            vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend(transport);
        packet.resize(packet.len() + payload, 0);
        packet
    }

    #[test]
    fn only_what_carries_a_transfer_needs_order() {
        for (is_ordered, protocol, ports, payload) in [
            (true, 6, (50_000, 80), 1),
            (false, 6, (50_000, 80), 0),
            (true, 17, (50_000, 443), 1_200),
            (true, 17, (443, 50_000), 1_200),
            (false, 17, (50_000, 443), 900),
            (false, 17, (50_000, 5_004), 1_200),
            (false, 1, (8, 0), 1_200),
        ] {
            let lane = Lane::of_packet(&packet(protocol, ports, payload));
            assert_eq!(lane.is_ordered(), is_ordered, "{protocol} {ports:?} {payload}");
        }
        assert_eq!(Lane::of_packet(&[]), Lane::UNORDERED);
    }

    #[test]
    fn a_flow_has_one_lane() {
        let lane = Lane::of_packet(&packet(6, (50_000, 80), 10));
        assert_eq!(Lane::of_packet(&packet(6, (50_000, 80), 1_000)), lane);
        assert_ne!(Lane::of_packet(&packet(6, (50_001, 80), 1_000)), lane);
    }
}
