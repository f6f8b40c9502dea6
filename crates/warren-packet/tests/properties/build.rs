//! Builds test packets byte by byte, and completes checksums as the kernel does.

use std::net::IpAddr;

use proptest::prelude::*;
use warren_packet::virtio::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// A super-packet as a TUN device delivers it, with the facts that a test checks.
#[derive(Clone, Debug)]
pub(crate) struct SuperPacket {
    pub(crate) header: VirtioNetHeader,
    pub(crate) bytes: Vec<u8>,
    /// Where the transport header starts.
    pub(crate) transport: usize,
    /// Where the payload starts.
    pub(crate) payload: usize,
    /// The addresses that the transport checksum covers.
    pub(crate) checksum_addresses: (IpAddr, IpAddr),
    /// Whether the checksum covers the IP header's own addresses.
    pub(crate) plain: bool,
}

impl SuperPacket {
    pub(crate) fn protocol(&self) -> u8 {
        if self.header.gso_type == GSO_UDP_L4 { UDP } else { TCP }
    }

    /// Turns the packet into UDP without a checksum.
    pub(crate) fn without_checksum(mut self) -> Self {
        let field = self.transport + 6;
        self.bytes[field..field + 2].fill(0);
        self
    }
}

/// Any TCP or UDP super-packet with a partial checksum, over IPv4 with options or IPv6 with extension headers.
pub(crate) fn super_packet() -> impl Strategy<Value = SuperPacket> {
    let payload = prop_oneof![
        1 => Just(Vec::new()),
        8 => prop::collection::vec(any::<u8>(), 1..6_000),
        1 => prop::collection::vec(any::<u8>(), 40_000..64_500),
    ];
    (ip(), transport(), payload, 1..3_000u16, any::<bool>()).prop_map(
        |(ip, transport, payload, gso_size, ecn)| {
            // Keeps the packet to a few hundred segments.
            let gso_size = gso_size.max(u16::try_from(payload.len() / 256).unwrap());
            assemble(&ip, &transport, &payload, gso_size, ecn)
        },
    )
}

#[derive(Clone, Debug)]
pub(crate) struct Ip {
    /// All IP headers. Lengths and protocol are filled in later.
    header: Vec<u8>,
    /// Offset of the last next-header (protocol) field.
    protocol_at: usize,
    checksum_addresses: (IpAddr, IpAddr),
    plain: bool,
}

fn ip() -> impl Strategy<Value = Ip> {
    prop_oneof![ipv4(), ipv6()]
}

pub(crate) fn ipv4() -> impl Strategy<Value = Ip> {
    let options = prop_oneof![
        4 => Just((vec![], true)),
        1 => Just((vec![1, 1, 1, 0], true)),
        1 => Just((vec![148, 4, 0, 0], true)),
        1 => Just(([&[7, 39, 4][..], &[0; 37]].concat(), true)),
        1 => Just((vec![131, 7, 4, 9, 9, 9, 9, 0], false)),
    ];
    let fields = (any::<u8>(), any::<u16>(), any::<bool>(), 1u8..);
    (options, fields, any::<[u8; 4]>(), any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(
        |((options, plain), (tos, id, dont_fragment, ttl), source, destination, last_hop)| {
            let words = u8::try_from(5 + options.len() / 4).unwrap();
            let [i0, i1] = id.to_be_bytes();
            let mut header =
                vec![0x40 | words, tos, 0, 0, i0, i1, u8::from(dont_fragment) << 6, 0, ttl, 0, 0, 0];
            header.extend_from_slice(&source);
            header.extend_from_slice(&destination);
            header.extend_from_slice(&options);
            let final_destination = if plain { destination } else { last_hop };
            Ip {
                header,
                protocol_at: 9,
                checksum_addresses: (source.into(), final_destination.into()),
                plain,
            }
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ip> {
    const KINDS: [(u8, u8, usize, bool); 6] = [
        // next header value, fourth byte, length in bytes, whether the addresses stay plain
        (0, 0, 8, true),
        (0, 0, 64, true),
        (60, 0, 16, false),
        (43, 0, 24, true),
        (43, 1, 24, false),
        (51, 0, 24, false),
    ];
    let extensions = prop_oneof![
        3 => Just(vec![]),
        2 => prop::sample::subsequence(&KINDS, 0..=KINDS.len()),
    ];
    (extensions, any::<u32>(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(
        |(extensions, label, source, destination, last_hop)| {
            let mut header = (0x6000_0000 | label >> 4).to_be_bytes().to_vec();
            header.extend_from_slice(&[0, 0, 0, 64]);
            header.extend_from_slice(&source);
            header.extend_from_slice(&destination);
            let (mut protocol_at, mut plain) = (6, true);
            for (kind, fourth, length, stays_plain) in extensions {
                // etherparse accepts hop-by-hop options only as the first header, and each kind once.
                if header[6] == 0 && protocol_at != 6 && kind == 0 {
                    continue;
                }
                header[protocol_at] = kind;
                protocol_at = header.len();
                let units = if kind == 51 { length / 4 - 2 } else { length / 8 - 1 };
                header.extend_from_slice(&[0, u8::try_from(units).unwrap(), 0, fourth]);
                header.resize(protocol_at + length, 0);
                plain &= stays_plain;
            }
            let final_destination = if plain { destination } else { last_hop };
            Ip { header, protocol_at, checksum_addresses: (source.into(), final_destination.into()), plain }
        },
    )
}

#[derive(Clone, Debug)]
enum Transport {
    Tcp(Vec<u8>),
    Udp(Vec<u8>),
}

fn transport() -> impl Strategy<Value = Transport> {
    let tcp = (any::<[u8; 12]>(), 5..=15u8, any::<u8>(), any::<[u8; 6]>()).prop_map(
        |(start, words, flags, [w0, w1, _, _, u0, u1])| {
            let mut header = start.to_vec();
            header.extend_from_slice(&[words << 4, flags, w0, w1, 0, 0, u0, u1]);
            header.resize(usize::from(words) * 4, 1);
            Transport::Tcp(header)
        },
    );
    let udp = any::<[u8; 4]>().prop_map(|ports| Transport::Udp([&ports[..], &[0; 4]].concat()));
    prop_oneof![tcp, udp]
}

fn assemble(ip: &Ip, transport: &Transport, payload: &[u8], gso_size: u16, ecn: bool) -> SuperPacket {
    let is_v4 = ip.header[0] >> 4 == 4;
    let (protocol, header, checksum_offset, gso_type) = match transport {
        Transport::Tcp(header) if is_v4 => (TCP, header, 16, GSO_TCPV4),
        Transport::Tcp(header) => (TCP, header, 16, GSO_TCPV6),
        Transport::Udp(header) => (UDP, header, 6, GSO_UDP_L4),
    };
    let start = ip.header.len();
    let mut bytes = [&ip.header[..], header, payload].concat();
    bytes[ip.protocol_at] = protocol;
    let transport_length = u16::try_from(bytes.len() - start).unwrap();
    if protocol == UDP {
        bytes[start + 4..start + 6].copy_from_slice(&transport_length.to_be_bytes());
    }
    if is_v4 {
        let total = u16::try_from(bytes.len()).unwrap();
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        let checksum = !ones_sum(&[&bytes[..start]]);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let length = u16::try_from(bytes.len() - 40).unwrap();
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
    }
    let pseudo = pseudo_header_sum(ip.checksum_addresses, protocol, transport_length);
    let field = start + usize::from(checksum_offset);
    bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    SuperPacket {
        header: VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso_type: if ecn && protocol == TCP { gso_type | GSO_ECN } else { gso_type },
            header_length: 1, // only a hint, and a wrong one
            gso_size,
            checksum_start: u16::try_from(start).unwrap(),
            checksum_offset,
        },
        bytes,
        transport: start,
        payload: start + header.len(),
        checksum_addresses: ip.checksum_addresses,
        plain: ip.plain,
    }
}

/// A plain IPv4 packet with the given transport bytes.
pub(crate) fn ipv4_packet(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + transport.len()).unwrap().to_be_bytes();
    let mut bytes =
        vec![0x45, 0, total[0], total[1], 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let checksum = !ones_sum(&[&bytes]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend_from_slice(transport);
    bytes
}

/// A plain IPv6 packet with the given bytes after its fixed header.
pub(crate) fn ipv6_packet(next_header: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    let mut bytes = vec![0x60, 0, 0, 0, length[0], length[1], next_header, 64];
    bytes.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend_from_slice(rest);
    bytes
}

/// A TCP header without options, flags ACK.
pub(crate) fn tcp_header(sequence_number: u32) -> Vec<u8> {
    let mut header = vec![0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&sequence_number.to_be_bytes());
    header
}

/// A UDP header for a payload of `length` bytes. The checksum field is 1, because 0 would mean "no checksum".
pub(crate) fn udp_header(length: u16) -> Vec<u8> {
    let [l0, l1] = (8 + length).to_be_bytes();
    vec![0x30, 0x39, 0, 53, l0, l1, 0, 1]
}

/// Completes a `NEEDS_CSUM` checksum as the kernel does: the field holds the pseudo-header's sum.
pub(crate) fn complete(header: VirtioNetHeader, packet: &mut [u8]) {
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    let checksum = match !ones_sum(&[&packet[start..]]) {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of RFC 1071, written literally. Each part is padded to whole words.
pub(crate) fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for word in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

pub(crate) fn pseudo_header_sum((source, destination): (IpAddr, IpAddr), protocol: u8, length: u16) -> u16 {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    ones_sum(&[&octets(source), &octets(destination), &[0, protocol], &length.to_be_bytes()])
}

/// Checks with etherparse that the packet is complete and its transport checksum covers `addresses`.
pub(crate) fn assert_checksums(packet: &[u8], addresses: (IpAddr, IpAddr)) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    let sliced = SlicedPacket::from_ip(packet).unwrap();
    if let Some(NetSlice::Ipv4(ip)) = &sliced.net {
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
    }
    let (expected, found) = match (sliced.transport.unwrap(), addresses) {
        (TransportSlice::Tcp(tcp), (IpAddr::V4(source), IpAddr::V4(destination))) => (
            tcp.to_header()
                .calc_checksum_ipv4_raw(source.octets(), destination.octets(), tcp.payload())
                .unwrap(),
            tcp.checksum(),
        ),
        (TransportSlice::Tcp(tcp), (IpAddr::V6(source), IpAddr::V6(destination))) => (
            tcp.to_header()
                .calc_checksum_ipv6_raw(source.octets(), destination.octets(), tcp.payload())
                .unwrap(),
            tcp.checksum(),
        ),
        (TransportSlice::Udp(udp), (IpAddr::V4(source), IpAddr::V4(destination))) => (
            udp.to_header()
                .calc_checksum_ipv4_raw(source.octets(), destination.octets(), udp.payload())
                .unwrap(),
            udp.checksum(),
        ),
        (TransportSlice::Udp(udp), (IpAddr::V6(source), IpAddr::V6(destination))) => (
            udp.to_header()
                .calc_checksum_ipv6_raw(source.octets(), destination.octets(), udp.payload())
                .unwrap(),
            udp.checksum(),
        ),
        other => panic!("not TCP or UDP: {other:?}"),
    };
    // TCP may write a zero checksum as 0x0000 or 0xffff.
    assert_eq!(expected % 0xffff, found % 0xffff);
}
