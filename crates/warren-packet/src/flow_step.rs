//! What a TCP packet means for its flow: it opens the flow, ends it, or continues it.

use crate::ip::IpPacket;
use crate::transport::{TransportHeader, TransportKind};

/// The effect of a packet on its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowStep {
    /// A TCP SYN without ACK: the first packet of its flow, or a copy of it.
    Opens,
    /// A TCP packet with FIN or RST.
    Ends,
    /// Any other TCP packet.
    Continues,
    /// A packet of another protocol, or a fragment.
    Unknown,
}

/// Offset of the flags in a TCP header (RFC 9293 section 3.1).
const FLAGS: usize = 13;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

impl FlowStep {
    /// Reads the flags of a packet or of a super-packet.
    pub fn of(packet: &IpPacket<'_>) -> Self {
        let tcp = TransportHeader::of(packet).filter(|header| header.kind == TransportKind::Tcp);
        let Some(tcp) = tcp else { return Self::Unknown };
        let flags = packet.bytes()[tcp.start + FLAGS];
        if flags & (FIN | RST) != 0 {
            Self::Ends
        } else if flags & (SYN | ACK) == SYN {
            Self::Opens
        } else {
            Self::Continues
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet of this protocol. If it is TCP, its header has these flags.
    fn packet(protocol: u8, flags: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, flags, 0, 0, 0, 0, 0, 0]);
        packet
    }

    fn step(protocol: u8, flags: u8) -> FlowStep {
        FlowStep::of(&IpPacket::parse(&packet(protocol, flags)).unwrap())
    }

    #[test]
    fn only_a_syn_without_ack_opens_a_flow() {
        assert_eq!(step(6, SYN), FlowStep::Opens);
        // A SYN that offers ECN has two more flags (RFC 3168).
        assert_eq!(step(6, SYN | 0xc0), FlowStep::Opens);
        assert_eq!(step(6, SYN | ACK), FlowStep::Continues);
        assert_eq!(step(6, ACK), FlowStep::Continues);
        assert_eq!(step(6, FIN | ACK), FlowStep::Ends);
        assert_eq!(step(6, RST), FlowStep::Ends);
        assert_eq!(step(17, SYN), FlowStep::Unknown);
    }
}
