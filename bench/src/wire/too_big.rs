//! Makes the ICMP message that a router sends if a packet exceeds the MTU of the next link: "fragmentation needed" (RFC 792, RFC
//! 1191) or "packet too big" (RFC 4443 section 3.2).

use warren_packet::{
    checksum::{Sum, pseudo_header},
    ip::{IpPacket, protocol},
};

use super::frame::{ETHERNET, Frame, Version, set, version};

/// Returns a frame with the message to the sender of `frame`. None for ICMP errors, for fragments other than the first, and for
/// IPv4 packets without DF. (A router would fragment packets without DF, but the wire drops them.)
///
/// The source address of the message is the destination address of the packet, because the wire has no address, and because this
/// address passes reverse-path filters.
pub(super) fn message(frame: &[u8], mtu: u16) -> Option<Frame> {
    let packet = IpPacket::parse(frame.get(ETHERNET..)?).ok()?;
    let bytes = packet.bytes();
    let reply = match version(frame)? {
        Version::Four => {
            let may_fragment = bytes.get(6)? & 0x40 == 0;
            // The fragment offset is the lower 13 bits (RFC 791).
            let offset = u16::from_be_bytes([bytes.get(6)? & 0x1f, *bytes.get(7)?]);
            let is_error = packet.protocol() == protocol::ICMP && !is_echo4(bytes, packet.header_length());
            // No ICMP error is sent in response to an ICMP error or to a fragment other than the first (RFC 1122 section 3.2.2).
            if may_fragment || offset != 0 || is_error {
                return None;
            }
            four(bytes, packet.header_length(), mtu)?
        }
        Version::Six => {
            // ICMPv6 types below 128 are errors (RFC 4443 section 2.1). No ICMPv6 error is sent in response to an error (section
            // 2.4).
            let is_error = packet.protocol() == protocol::ICMPV6 && bytes.get(40)? & 0x80 == 0;
            if is_error {
                return None;
            }
            six(&packet, mtu)?
        }
    };
    let (destination, rest) = frame.split_at_checked(6)?;
    let source = rest.get(..6)?;
    Some([source, destination, frame.get(12..ETHERNET)?, &reply].concat())
}

fn is_echo4(bytes: &[u8], header: usize) -> bool {
    // Types 0 and 8 are echo reply and echo request (RFC 792). All other types are treated as errors.
    bytes.get(header).is_some_and(|kind| matches!(kind, 0 | 8))
}

/// Makes an ICMP message of type 3, code 4. It contains as much of the packet as fits in 576 bytes (RFC 1812 section 4.3.2.3).
fn four(packet: &[u8], header: usize, mtu: u16) -> Option<Vec<u8>> {
    const REPLY: usize = 20 + 8;
    let quoted = packet.get(..packet.len().min(576 - REPLY).max(header))?;
    let mut icmp = [&[3, 4, 0, 0, 0, 0], mtu.to_be_bytes().as_slice(), quoted].concat();
    let checksum = Sum::of(&icmp).checksum();
    set(&mut icmp, 2, &checksum.to_be_bytes());
    let total = u16::try_from(20 + icmp.len()).ok()?;
    let [high, low] = total.to_be_bytes();
    // 0xc0 is a type of service with precedence 6 (RFC 1812 section 4.3.2.5).
    let mut ip = vec![0x45, 0xc0, high, low, 0, 0, 0, 0, 64, protocol::ICMP, 0, 0];
    ip.extend_from_slice(packet.get(16..20)?);
    ip.extend_from_slice(packet.get(12..16)?);
    let checksum = Sum::of(&ip).checksum();
    set(&mut ip, 10, &checksum.to_be_bytes());
    ip.extend_from_slice(&icmp);
    Some(ip)
}

/// Makes an ICMPv6 message of type 2, code 0. It contains as much of the packet as fits in 1280 bytes (RFC 4443 section 3.2).
fn six(packet: &IpPacket<'_>, mtu: u16) -> Option<Vec<u8>> {
    const REPLY: usize = 40 + 8;
    let bytes = packet.bytes();
    let quoted = bytes.get(..bytes.len().min(1_280 - REPLY))?;
    let mut icmp = [&[2, 0, 0, 0], u32::from(mtu).to_be_bytes().as_slice(), quoted].concat();
    let length = u16::try_from(icmp.len()).ok()?;
    let pseudo = pseudo_header(packet.destination(), packet.source(), protocol::ICMPV6) + Sum::from(length);
    let checksum = (pseudo + Sum::of(&icmp)).checksum();
    set(&mut icmp, 2, &checksum.to_be_bytes());
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend_from_slice(&length.to_be_bytes());
    ip.extend_from_slice(&[protocol::ICMPV6, 64]);
    ip.extend_from_slice(bytes.get(24..40)?);
    ip.extend_from_slice(bytes.get(8..24)?);
    ip.extend_from_slice(&icmp);
    Some(ip)
}

#[cfg(test)]
mod tests {
    use etherparse::{
        Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice, icmpv4::DestUnreachableHeader,
    };

    use super::{
        super::frame::tests::{udp4, udp6},
        *,
    };

    #[test]
    fn sender_of_ipv4_is_told_the_mtu() {
        let frame = udp4(1_400, 0);
        let reply = message(&frame, 1_300).unwrap();
        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        assert_eq!((&reply[..6], &reply[6..12]), (&frame[6..12], &frame[..6]));
        let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("{packet:?}") };
        let header = ip.header().to_header();
        assert_eq!((header.source, header.destination), ([192, 0, 2, 1], [192, 0, 2, 2]));
        assert_eq!(header.calc_header_checksum(), header.header_checksum);
        assert_eq!(usize::from(header.total_len), 576);
        let Some(TransportSlice::Icmpv4(icmp)) = &packet.transport else { panic!("{packet:?}") };
        let told = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
            next_hop_mtu: 1_300,
        });
        assert_eq!(icmp.icmp_type(), told);
        assert_eq!(icmp.header().icmp_type.calc_checksum(icmp.payload()), icmp.checksum());
        assert_eq!(icmp.payload(), &frame[ETHERNET..ETHERNET + 548]);
    }

    #[test]
    fn sender_of_ipv6_is_told_the_mtu() {
        let frame = udp6(1_400, 0);
        let reply = message(&frame, 1_300).unwrap();
        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &packet.net else { panic!("{packet:?}") };
        let header = ip.header().to_header();
        assert_eq!((header.source, header.destination), ([0xfe; 16], [0xfd; 16]));
        assert_eq!(reply.len(), ETHERNET + 1_280);
        let Some(TransportSlice::Icmpv6(icmp)) = &packet.transport else { panic!("{packet:?}") };
        assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1_300 });
        assert!(icmp.is_checksum_valid(header.source, header.destination));
        assert_eq!(icmp.payload(), &frame[ETHERNET..ETHERNET + 1_232]);
    }

    #[test]
    fn nobody_is_told_of_errors_fragments_and_packets_that_may_be_fragmented() {
        let told = message(&udp4(1_400, 0), 1_300).unwrap();
        assert_eq!(message(&told, 100), None);
        let told = message(&udp6(1_400, 0), 1_300).unwrap();
        assert_eq!(message(&told, 100), None);
        let mut may_fragment = udp4(1_400, 0);
        may_fragment[ETHERNET + 6] = 0;
        assert_eq!(message(&may_fragment, 1_300), None);
        assert_eq!(message(&[], 1_300), None);
    }
}
