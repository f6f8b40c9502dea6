//! Packets that no honest peer sends, by kind, and what the receiver must do with each.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::support::library_client::{udp, udp6};

/// The destination port of all UDP: an echo.
const PORT: u16 = 7;

/// The apparent source and destination of packets.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) ipv4: [Ipv4Addr; 2],
    pub(super) ipv6: [Ipv6Addr; 2],
}

/// Lies of one kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) datagrams: Vec<Vec<u8>>,
    /// How many packets the receiver must count for these lies.
    pub(super) packets: u64,
    pub(super) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// The receiver drops the packet and counts it under this reason.
    Refused(&'static str),
    /// The headers are valid, so the packet reaches the exit's kernel, which must not forward it.
    LeftToKernel,
}

/// Malformed packets and datagrams. They are invalid no matter who sends them.
pub(super) fn malformed(ends: Ends, each: u16) -> Vec<Kind> {
    let (v4, v6) = (ends.udp(), ends.udp6());
    let (v4, v6) = (v4.as_slice(), v6.as_slice());
    let packet = |name, bytes: &dyn Fn(u16) -> Vec<u8>| {
        Kind::new(name, Fate::Refused("bad_packet"), each, |number| framed(&bytes(number)))
    };
    let datagram =
        |name, reason, bytes: &dyn Fn(u16) -> Vec<u8>| Kind::new(name, Fate::Refused(reason), each, bytes);
    vec![
        packet("IP versions that do not exist", &|number| with(v4, 0, &[other_version(number) << 4 | 5])),
        packet("IPv4 that says it is IPv6", &|_| with(v4, 0, &[0x65])),
        packet("an IPv4 header of four words", &|_| with(v4, 0, &[0x44])),
        packet("an IPv4 header beyond the packet", &|_| with(v4, 0, &[0x4f])),
        packet("an IPv4 length of 0", &|_| with(v4, 2, &[0, 0])),
        packet("an IPv4 length of 65,535", &|_| with(v4, 2, &[0xff, 0xff])),
        packet("an IPv4 length that is one byte too small", &|_| with(v4, 3, &[v4[3] - 1])),
        packet("an IPv4 packet with an additional byte", &|_| [v4, &[0]].concat()),
        packet("an IPv4 header cut short", &|number| v4[..1 + usize::from(number) % 19].to_vec()),
        packet("IPv6 that says it is another", &|number| with(v6, 0, &[other_version(number) << 4])),
        packet("IPv6 that says it is IPv4", &|_| with(v6, 0, &[0x45])),
        packet("an IPv6 length of 0", &|_| with(v6, 4, &[0, 0])),
        packet("an IPv6 length of 65,535", &|_| with(v6, 4, &[0xff, 0xff])),
        packet("an IPv6 length that is one byte too small", &|_| with(v6, 5, &[v6[5] - 1])),
        packet("an IPv6 packet with an additional byte", &|_| [v6, &[0]].concat()),
        packet("an IPv6 header cut short", &|number| v6[..1 + usize::from(number) % 39].to_vec()),
        // RFC 2675: the length field is 0, and an option holds the real length.
        packet("an IPv6 jumbogram", &|_| {
            let option = [17, 0, 0xc2, 4, 0, 1, 0, 0];
            [&with(&with(v6, 4, &[0, 0]), 6, &[0])[..40], &option, &v6[40..]].concat()
        }),
        datagram("datagrams without a packet", "bad_datagram", &|number| {
            let none: [&[u8]; 4] = [&[], &[0x00], &[0x01], &[0x10, 0, 0, 0, 0, 0, 9, 0]];
            none[usize::from(number) % 4].to_vec()
        }),
        datagram("datagrams of other kinds", "bad_datagram", &|number| {
            [&[(2 + low(number, 14)) << 4], v4].concat()
        }),
        datagram("datagrams with other flags", "bad_datagram", &|number| {
            [&[2 + low(number, 14)], v4].concat()
        }),
        datagram("partial checksums of packets without a checksum", "bad_checksum_flag", &|number| {
            // ICMP, and UDP that declares to have no checksum.
            flagged(&with(v4, 9, &[[1, 17][usize::from(number) % 2]]))
        }),
        Kind::new("first halves without the second", Fate::Refused("fragment_timeout"), each, |number| {
            fragment(id(1, number), 1_000, 0, 500)
        }),
        Kind::new("the start of 65,535 bytes", Fate::Refused("fragment_timeout"), each, |number| {
            fragment(id(2, number), u16::MAX, 0, 1_100)
        }),
        datagram("fragments of nothing", "bad_fragment", &|number| fragment(id(3, number), 0, 0, 10)),
        datagram("fragments without a byte", "bad_fragment", &|number| fragment(id(3, number), 1_000, 0, 0)),
        datagram("fragments that are the whole packet", "bad_fragment", &|number| {
            fragment(id(3, number), 500, 0, 500)
        }),
        datagram("fragments beyond their packet", "bad_fragment", &|number| {
            fragment(id(3, number), 1_000, 999, 2)
        }),
        in_parts("fragments that overlap", "bad_fragment", each, |number| {
            vec![fragment(id(4, number), 1_000, 0, 600), fragment(id(4, number), 1_000, 500, 500)]
        }),
        in_parts("fragments that come twice", "bad_fragment", each, |number| {
            vec![fragment(id(5, number), 1_000, 0, 600); 2]
        }),
        in_parts("fragments that disagree on the packet's length", "bad_fragment", each, |number| {
            vec![fragment(id(6, number), 1_000, 0, 500), fragment(id(6, number), 1_001, 500, 500)]
        }),
        // There are only a twentieth as many, because each of these packets takes 60 datagrams.
        in_parts("65,535 bytes that are not a packet", "bad_packet", each.div_ceil(20), |number| {
            (0..60_u16)
                .map(|part| {
                    let length = 1_100_u16.min(u16::MAX - part * 1_100);
                    fragment(id(7, number), u16::MAX, part * 1_100, length.into())
                })
                .collect()
        }),
        in_parts("fragments of a broken packet", "bad_packet", each, |number| {
            let broken = with(v4, 2, &[0xff, 0xff]);
            let part = |from: usize, to: usize| {
                let head = fragment(id(8, number), u16::from(v4[3]), u16::try_from(from).unwrap(), 0);
                [head, broken[from..to].to_vec()].concat()
            };
            vec![part(0, 20), part(20, broken.len())]
        }),
    ]
}

/// Complete packets with somebody else's source address: another client, the exit, internet hosts, multicast groups and
/// unassigned addresses.
pub(super) fn spoofed(ends: Ends, each: u16) -> Vec<Kind> {
    let ipv4: [Ipv4Addr; 8] = [
        [10, 66, 255, 254].into(),
        [10, 66, 0, 1].into(),
        ends.ipv4[1],
        [127, 0, 0, 1].into(),
        [0; 4].into(),
        [255; 4].into(),
        [224, 0, 0, 1].into(),
        [169, 254, 169, 254].into(),
    ];
    let ipv6: [Ipv6Addr; 8] = [
        "fd66:6666::1",
        "fd66:6666::ffff",
        "2001:db8:3::2",
        "fe80::1",
        "::1",
        "::",
        "ff02::1",
        "::ffff:10.66.0.1",
    ]
    .map(|address| address.parse().unwrap());
    let fate = Fate::Refused("spoofed_source");
    let from = move |number: u16| {
        let place = usize::from(number) % 8;
        Ends { ipv4: [ipv4[place], ends.ipv4[1]], ipv6: [ipv6[place], ends.ipv6[1]] }
    };
    vec![
        Kind::new("IPv4 from others", fate, each, |number| framed(&from(number).udp())),
        Kind::new("IPv6 from others", fate, each, |number| framed(&from(number).udp6())),
        Kind::new("header chains from others", fate, each, |number| framed(&from(number).chain(number))),
    ]
}

/// Packets with valid lengths, which the exit's kernel and its rules must stop.
pub(super) fn left_to_kernel(ends: Ends, each: u16) -> Vec<Kind> {
    let v4: [Ipv4Addr; 5] =
        [[127, 0, 0, 1].into(), [0; 4].into(), [255; 4].into(), [224, 0, 0, 1].into(), [240, 0, 0, 1].into()];
    let v6: [Ipv6Addr; 4] = ["::1", "::", "ff02::1", "fe80::1"].map(|address| address.parse().unwrap());
    let kind = |name, bytes: &dyn Fn(u16) -> Vec<u8>| {
        Kind::new(name, Fate::LeftToKernel, each, |number| framed(&bytes(number)))
    };
    vec![
        kind("chains of IPv6 headers", &|number| ends.chain(number)),
        kind("an IPv4 header with a wrong checksum", &|_| with(&ends.udp(), 10, &[0xab, 0xcd])),
        kind("UDP over IPv6 with a wrong checksum", &|_| ends.udp6()),
        kind("IPv4 without the UDP header that it announces", &|_| ends.empty_udp()),
        kind("IPv4 to groups, to itself and to nobody", &|number| {
            Ends { ipv4: [ends.ipv4[0], v4[usize::from(number) % 5]], ..ends }.udp()
        }),
        Kind::new("IPv6 to groups, to itself and to nobody", Fate::LeftToKernel, each, |number| {
            flagged(&Ends { ipv6: [ends.ipv6[0], v6[usize::from(number) % 4]], ..ends }.udp6())
        }),
    ]
}

/// Complete packets with a destination other than the receiver.
pub(super) fn to_others(ends: Ends, each: u16) -> Vec<Kind> {
    let ipv4 = [[10, 99, 0, 3], [192, 0, 2, 2], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]].map(Ipv4Addr::from);
    let fate = Fate::Refused("wrong_destination");
    vec![
        Kind::new("IPv4 to others", fate, each, |number| {
            framed(&Ends { ipv4: [ends.ipv4[0], ipv4[usize::from(number) % 5]], ..ends }.udp())
        }),
        Kind::new("IPv6 to a client without IPv6", fate, each, |_| framed(&ends.udp6())),
        Kind::new("header chains to others", fate, each, |number| framed(&ends.chain(number))),
    ]
}

/// Honest packets, made in the same way. Each has its own flow, so that they are not merged on the way.
pub(super) fn honest(ends: Ends, count: u16) -> Vec<Vec<u8>> {
    let port = |number: u16| (20_000 + number).to_be_bytes();
    let ipv4 = (0..count).map(|number| framed(&with(&ends.udp(), 20, &port(number))));
    let ipv6 = (0..count).map(|number| flagged(&with(&ends.udp6(), 40, &port(number))));
    ipv4.chain(ipv6).collect()
}

impl Ends {
    fn udp(self) -> Vec<u8> {
        udp(self.ipv4[0], (self.ipv4[1], PORT), 30_000, b"hello")
    }

    fn udp6(self) -> Vec<u8> {
        let [source, destination] = self.ipv6.map(|address| address.to_string());
        udp6(&source, &destination, b"hello")
    }

    /// An IPv4 header that announces UDP and has nothing after it.
    fn empty_udp(self) -> Vec<u8> {
        let whole = self.udp();
        let mut packet = with(&whole[..20], 2, &[0, 20, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    /// Invalid IPv6 header chains: endless, longer than the packet, or with a truncated routing or fragment header.
    fn chain(self, number: u16) -> Vec<u8> {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const OPTIONS: u8 = 60;
        let endless = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0].repeat(100);
        let (first, headers) = match number % 5 {
            0 => (OPTIONS, endless(OPTIONS)),
            1 => (HOP_BY_HOP, endless(HOP_BY_HOP)),
            2 => (OPTIONS, vec![17, 255, 1, 4, 0, 0, 0, 0]),
            3 => (ROUTING, vec![17]),
            _ => (FRAGMENT, vec![17, 0, 0]),
        };
        let header = self.udp6();
        let length = u16::try_from(headers.len()).unwrap().to_be_bytes();
        [&with(&with(&header[..40], 4, &length), 6, &[first]), headers.as_slice()].concat()
    }
}

impl Kind {
    fn new(name: &'static str, fate: Fate, count: u16, datagram: impl Fn(u16) -> Vec<u8>) -> Self {
        Self { name, datagrams: (0..count).map(datagram).collect(), packets: count.into(), fate }
    }
}

/// Packets in several fragments. Each packet counts once.
fn in_parts(
    name: &'static str,
    reason: &'static str,
    count: u16,
    parts: impl Fn(u16) -> Vec<Vec<u8>>,
) -> Kind {
    let datagrams = (0..count).flat_map(parts).collect();
    Kind { name, datagrams, packets: count.into(), fate: Fate::Refused(reason) }
}

/// The packet with the bytes at `at` replaced.
fn with(packet: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    packet
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&[0x00], packet].concat()
}

/// The packet in a datagram that tells the receiver's kernel to complete the checksum.
fn flagged(packet: &[u8]) -> Vec<u8> {
    [&[0x01], packet].concat()
}

/// A fragment ID, greater than the IDs of all earlier kinds.
fn id(kind: u32, number: u16) -> u32 {
    kind << 16 | u32::from(number)
}

fn fragment(id: u32, total: u16, offset: u16, length: usize) -> Vec<u8> {
    let head = [&[0x10], id.to_be_bytes().as_slice(), &total.to_be_bytes(), &offset.to_be_bytes()].concat();
    [head, vec![0x45; length]].concat()
}

/// Each of the 14 IP versions that are neither 4 nor 6, in turn.
fn other_version(number: u16) -> u8 {
    const OTHERS: [u8; 14] = [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    OTHERS[usize::from(number) % 14]
}

fn low(number: u16, below: u16) -> u8 {
    u8::try_from(number % below).unwrap()
}
