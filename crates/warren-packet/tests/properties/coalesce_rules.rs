//! Which packets merge and which do not, case by case.

use warren_packet::DropReason;
use warren_packet::coalesce::{Coalescer, Merge, Outcome};
use warren_packet::datagram::Flags;
use warren_packet::virtio::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader};

use crate::build::{TCP, UDP, ipv4_packet, ipv6_packet, ones_sum, tcp_header, udp_header};
use crate::written::{Packet, Written, coalesce};

const IPV4: usize = 20;
const IPV6: usize = 40;

/// Packet `index` of a TCP flow over IPv4 that sends 100 bytes at a time.
fn tcp4(index: u8) -> Vec<u8> {
    let tcp = [tcp_header(1_000 + 100 * u32::from(index)), vec![index; 100]].concat();
    with_identification(ipv4_packet(TCP, &tcp), 7 + u16::from(index))
}

fn tcp6(index: u8) -> Vec<u8> {
    ipv6_packet(TCP, &[tcp_header(1_000 + 100 * u32::from(index)), vec![index; 100]].concat())
}

fn udp4(index: u8) -> Vec<u8> {
    with_identification(ipv4_packet(UDP, &[udp_header(100), vec![index; 100]].concat()), 7 + u16::from(index))
}

fn udp6(index: u8) -> Vec<u8> {
    ipv6_packet(UDP, &[udp_header(100), vec![index; 100]].concat())
}

fn with_identification(mut packet: Vec<u8>, identification: u16) -> Vec<u8> {
    packet[4..6].copy_from_slice(&identification.to_be_bytes());
    with_ip_checksum(packet)
}

fn with_ip_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        let header_length = usize::from(packet[0] & 0x0f) * 4;
        packet[10..12].fill(0);
        let checksum = !ones_sum(&[&packet[..header_length]]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}

/// Changes a packet and corrects the IP header checksum.
fn changed(mut packet: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut packet);
    with_ip_checksum(packet)
}

/// Cuts or extends a packet and corrects its lengths.
fn resized(mut packet: Vec<u8>, length: usize) -> Vec<u8> {
    packet.resize(length, 0xaa);
    let (at, ip_length, transport) =
        if packet[0] >> 4 == 4 { (2, length, IPV4) } else { (4, length - IPV6, IPV6) };
    packet[at..at + 2].copy_from_slice(&u16::try_from(ip_length).unwrap().to_be_bytes());
    if packet[if transport == IPV4 { 9 } else { 6 }] == UDP {
        let udp_length = u16::try_from(length - transport).unwrap();
        packet[transport + 4..transport + 6].copy_from_slice(&udp_length.to_be_bytes());
    }
    with_ip_checksum(packet)
}

/// The number of packets in each write, if all packets have partial checksums.
fn merged(packets: &[Vec<u8>]) -> Vec<u64> {
    sizes(&write(packets))
}

fn write(packets: &[Vec<u8>]) -> Vec<Written> {
    let batch: Vec<_> = packets.iter().cloned().map(Packet::partial).collect();
    let written = coalesce(Merge::ALL, &batch);
    written.iter().for_each(Written::assert_valid);
    written
}

fn sizes(written: &[Written]) -> Vec<u64> {
    written.iter().map(|write| write.packets).collect()
}

/// The packet with its checksum completed, so that it needs no flag.
fn whole(packet: Vec<u8>) -> Packet {
    Packet::whole(Packet::partial(packet).delivered().unwrap())
}

#[test]
fn neighbours_of_a_flow_become_one_super_packet() {
    for (make, gso_type, start, header_length, checksum_offset) in [
        (tcp4 as fn(u8) -> Vec<u8>, GSO_TCPV4, 20, 40, 16),
        (tcp6, GSO_TCPV6, 40, 60, 16),
        (udp4, GSO_UDP_L4, 20, 28, 6),
        (udp6, GSO_UDP_L4, 40, 48, 6),
    ] {
        let written = write(&[make(0), make(1), make(2)]);

        let [super_packet] = &written[..] else { panic!("{written:?}") };
        let expected = VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            header_length,
            gso_size: 100,
            checksum_start: start,
            checksum_offset,
        };
        assert_eq!(super_packet.header, expected);
        let payload = &super_packet.bytes[usize::from(header_length)..];
        assert_eq!(payload, [[0; 100], [1; 100], [2; 100]].concat());
    }
}

#[test]
fn the_last_packet_may_be_shorter_and_none_longer() {
    for make in [tcp4 as fn(u8) -> Vec<u8>, tcp6, udp4, udp6] {
        let length = make(1).len();
        assert_eq!(merged(&[make(0), resized(make(1), length - 99), make(2)]), [2, 1]);
        assert_eq!(merged(&[make(0), resized(make(1), length + 1)]), [1, 1]);
        assert_eq!(merged(&[make(0), resized(make(1), length - 100), make(2)]), [1, 1, 1], "no data");
    }
}

#[test]
fn push_and_fin_end_a_super_packet_and_are_in_its_header() {
    for (flags, last_flags) in [(0x18, 0x18), (0x11, 0x11), (0x19, 0x19)] {
        let with_flags = |index| changed(tcp4(index), |packet| packet[IPV4 + 13] = flags);
        let written = write(&[tcp4(0), tcp4(1), with_flags(2), tcp4(3), tcp4(4)]);
        assert_eq!(sizes(&written), [3, 2]);
        assert_eq!(written[0].bytes[IPV4 + 13], last_flags);
        assert_eq!(written[1].bytes[IPV4 + 13], 0x10);
        assert_eq!(merged(&[with_flags(0), tcp4(1)]), [1, 1]);
    }
}

#[test]
fn other_tcp_flags_stand_alone() {
    for flags in [0x00, 0x12, 0x14, 0x30, 0x90, 0xd0, 0x02, 0x04] {
        let with_flags = |index| changed(tcp4(index), |packet| packet[IPV4 + 13] = flags);
        assert_eq!(merged(&[tcp4(0), with_flags(1), tcp4(2)]), [1, 1, 1], "{flags:#04x}");
        assert_eq!(merged(&[with_flags(0), with_flags(1)]), [1, 1], "{flags:#04x}");
    }
    let echo = |index| changed(tcp4(index), |packet| packet[IPV4 + 13] = 0x50);
    assert_eq!(merged(&[echo(0), echo(1), tcp4(2)]), [2, 1], "ECE merges with ECE");
}

#[test]
fn headers_that_differ_are_not_merged() {
    // Traffic class and TTL; for TCP the acknowledgement, reserved bits, window, urgent pointer and ports.
    let tcp = [8, 11, 14, 15, 18, 19, 0, 1, 2, 3];
    for (make, start, ip_bytes) in [
        (tcp4 as fn(u8) -> Vec<u8>, IPV4, &[1, 8, 12, 15, 16, 19][..]),
        (tcp6, IPV6, &[0, 1, 2, 3, 7, 8, 23, 24, 39]),
    ] {
        for at in ip_bytes.iter().copied().chain(tcp.map(|at| start + at)) {
            let other = changed(make(1), |packet| packet[at] ^= 1);
            assert_eq!(merged(&[make(0), other, make(2)]), [1, 1, 1], "byte {at}");
        }
        let reserved = changed(make(1), |packet| packet[start + 12] |= 1);
        assert_eq!(merged(&[make(0), reserved, make(2)]), [1, 1, 1]);
    }
    for (make, ip_bytes) in [(udp4 as fn(u8) -> Vec<u8>, &[1, 8][..]), (udp6, &[0, 1, 2, 3, 7])] {
        for &at in ip_bytes {
            let other = changed(make(1), |packet| packet[at] ^= 1);
            assert_eq!(merged(&[make(0), other, make(2)]), [1, 1, 1], "byte {at}");
        }
    }
}

#[test]
fn the_sequence_number_must_go_on_and_may_wrap() {
    assert_eq!(merged(&[tcp4(0), tcp4(2)]), [1, 1], "a gap");
    assert_eq!(merged(&[tcp4(1), tcp4(0)]), [1, 1], "a sequence number that goes back");
    assert_eq!(merged(&[tcp6(0), tcp6(0)]), [1, 1], "a repetition");
    let at = |index, sequence_number: u32| {
        changed(tcp4(index), |packet| {
            packet[IPV4 + 4..IPV4 + 8].copy_from_slice(&sequence_number.to_be_bytes());
        })
    };
    assert_eq!(merged(&[at(0, u32::MAX - 149), at(1, u32::MAX - 49), at(2, 50), at(3, 150)]), [4]);
}

#[test]
fn tcp_options_must_be_equal_byte_for_byte() {
    let with_timestamp = |index: u8, timestamp: u8| {
        let mut tcp = tcp_header(1_000 + 100 * u32::from(index));
        tcp[12] = 0x80;
        tcp.extend_from_slice(&[1, 1, 8, 10, 0, 0, 0, timestamp, 0, 0, 0, 0]);
        with_identification(ipv4_packet(TCP, &[tcp, vec![7; 100]].concat()), index.into())
    };
    assert_eq!(merged(&[with_timestamp(0, 5), with_timestamp(1, 5), with_timestamp(2, 6)]), [2, 1]);
    assert_eq!(merged(&[tcp4(0), with_timestamp(1, 5)]), [1, 1]);
}

#[test]
fn ip_options_extension_headers_and_fragments_stand_alone() {
    let with_option = |index| {
        changed(tcp4(index), |packet| {
            packet[0] = 0x46;
            packet.splice(20..20, [1, 1, 1, 0]);
            packet[3] += 4;
        })
    };
    assert_eq!(merged(&[with_option(0), with_option(1)]), [1, 1]);
    let with_hop_by_hop = |index: u8| {
        let inner = &tcp6(index)[IPV6..];
        ipv6_packet(0, &[&[TCP, 0, 1, 4, 0, 0, 0, 0][..], inner].concat())
    };
    assert_eq!(merged(&[with_hop_by_hop(0), with_hop_by_hop(1)]), [1, 1]);
    let reserved_bit = |index| changed(tcp4(index), |packet| packet[6] |= 0x80);
    assert_eq!(merged(&[reserved_bit(0), reserved_bit(1)]), [1, 1]);
    let fragment = |index| Packet::whole(changed(whole(tcp4(index)).bytes, |packet| packet[6] |= 0x20));
    assert_eq!(sizes(&coalesce(Merge::ALL, &[fragment(0), fragment(1)])), [1, 1]);
}

#[test]
fn the_identification_counts_up_or_stays_where_fragmenting_is_forbidden() {
    let may_be_fragmented = |index, identification| {
        changed(with_identification(tcp4(index), identification), |packet| packet[6] = 0)
    };
    let atomic = |index, identification| with_identification(tcp4(index), identification);
    assert_eq!(merged(&[atomic(0, 0xffff), atomic(1, 0), atomic(2, 1)]), [3]);
    assert_eq!(merged(&[atomic(0, 9), atomic(1, 9), atomic(2, 9)]), [3]);
    assert_eq!(merged(&[atomic(0, 9), atomic(1, 9), atomic(2, 11)]), [2, 1]);
    assert_eq!(merged(&[atomic(0, 9), atomic(1, 10), atomic(2, 9)]), [2, 1]);
    assert_eq!(merged(&[atomic(0, 9), atomic(1, 8)]), [1, 1]);
    assert_eq!(merged(&[may_be_fragmented(0, 0xffff), may_be_fragmented(1, 0)]), [2]);
    assert_eq!(merged(&[may_be_fragmented(0, 9), may_be_fragmented(1, 9)]), [1, 1]);
    assert_eq!(merged(&[may_be_fragmented(0, 9), atomic(1, 10)]), [1, 1]);
}

#[test]
fn udp_without_a_checksum_or_with_a_length_of_its_own_stands_alone() {
    for make in [udp4 as fn(u8) -> Vec<u8>, udp6] {
        let start = make(0).len() - 108;
        // The sum over the whole packet stays right in both cases: the value removed from a field is added to the payload.
        let without = |index| {
            let mut packet = whole(changed(make(index), |packet| packet[start + 8..].fill(0))).bytes;
            let checksum = [packet[start + 6], packet[start + 7]];
            packet[start + 6..start + 8].fill(0);
            packet[start + 8..start + 10].copy_from_slice(&checksum);
            Packet::whole(packet)
        };
        assert_eq!(sizes(&coalesce(Merge::ALL, &[without(0), without(1)])), [1, 1]);
        let padded = |index| {
            let mut packet = whole(make(index)).bytes;
            packet[start + 5] -= 1;
            packet[start + 9] += 1;
            Packet::whole(packet)
        };
        assert_eq!(sizes(&coalesce(Merge::ALL, &[padded(0), padded(1)])), [1, 1]);
    }
}

#[test]
fn whole_packets_are_merged_once_their_checksums_were_verified() {
    for make in [tcp4 as fn(u8) -> Vec<u8>, tcp6, udp4, udp6] {
        let good = |index| whole(make(index));
        let bad = |index| {
            let mut packet = good(index);
            *packet.bytes.last_mut().unwrap() ^= 1;
            packet
        };
        let written = coalesce(Merge::ALL, &[good(0), good(1), good(2)]);
        written.iter().for_each(Written::assert_valid);
        assert_eq!(sizes(&written), [3]);
        assert_eq!(sizes(&coalesce(Merge::ALL, &[bad(0), good(1), good(2)])), [1, 2]);
        let written = coalesce(Merge::ALL, &[good(0), good(1), bad(2), good(3), good(4)]);
        assert_eq!(sizes(&written), [2, 1, 2]);
        assert_eq!(written[1].bytes, bad(2).bytes, "the wrong checksum stays for the receiver to see");
    }
}

#[test]
fn a_wrong_ip_header_checksum_is_never_made_right() {
    let wrong = |index| {
        let mut packet = tcp4(index);
        packet[10] ^= 1;
        packet
    };
    assert_eq!(merged(&[wrong(0), tcp4(1), tcp4(2)]), [1, 2]);
    let written = write(&[tcp4(0), wrong(1), tcp4(2)]);
    assert_eq!(sizes(&written), [1, 1, 1]);
    assert_eq!(written[1].bytes[10..12], wrong(1)[10..12]);
}

#[test]
fn flagged_and_whole_packets_are_not_merged_with_each_other() {
    let batch = [Packet::partial(tcp4(0)), whole(tcp4(1)), whole(tcp4(2)), Packet::partial(tcp4(3))];
    assert_eq!(sizes(&coalesce(Merge::ALL, &batch)), [1, 2, 1]);
}

#[test]
fn only_what_the_device_takes_is_merged() {
    let batch = [tcp4(0), tcp4(1), udp4(0), udp4(1)].map(Packet::partial);
    for (tcp, udp, expected) in [
        (true, true, &[2, 2][..]),
        (true, false, &[2, 1, 1]),
        (false, true, &[1, 1, 2]),
        (false, false, &[1; 4]),
    ] {
        assert_eq!(sizes(&coalesce(Merge { tcp, udp }, &batch)), expected);
    }
}

#[test]
fn a_write_has_at_most_64_parts_and_64_kib() {
    let small: Vec<_> = (0..130).map(udp6).collect();
    assert_eq!(merged(&small), [63, 63, 4]);
    let large = |index| resized(udp6(index), 1_448);
    assert_eq!(merged(&(0..100).map(large).collect::<Vec<_>>()), [46, 46, 8]);
    let written = write(&(0..46).map(large).collect::<Vec<_>>());
    assert_eq!(written[0].bytes.len(), 48 + 46 * 1_400);
    // Two packets of 32 KiB would make 65,512 bytes with a header: one byte too many.
    assert_eq!(merged(&[resized(udp6(0), 32_779), resized(udp6(1), 32_780)]), [1, 1]);
    assert_eq!(merged(&[resized(udp6(0), 32_780), resized(udp6(1), 32_779)]), [2]);
    assert_eq!(merged(&[resized(udp6(0), 32_780), resized(udp6(1), 32_780)]), [1, 1]);
    assert_eq!(merged(&[resized(udp6(0), 65_535), udp6(1)]), [1, 1]);
}

#[test]
fn flows_are_interleaved_and_written_in_order_of_arrival() {
    let other = |index| changed(tcp4(index), |packet| packet[IPV4] ^= 1);
    let written = write(&[other(0), tcp4(0), udp6(0), tcp4(1), other(1), udp6(1), tcp4(2)]);
    assert_eq!(sizes(&written), [2, 3, 2]);
    assert_eq!(written[0].bytes[IPV4], other(0)[IPV4]);
}

#[test]
fn of_more_than_16_flows_the_oldest_no_longer_merges() {
    let of_flow = |flow: u8, index| changed(udp4(index), |packet| packet[IPV4] = flow);
    let mut batch: Vec<_> = (0..17).map(|flow| of_flow(flow, 0)).collect();
    batch.extend([of_flow(0, 1), of_flow(16, 1), of_flow(2, 1)]);
    let written = write(&batch);
    assert_eq!(written.len(), 18);
    assert_eq!(written.iter().filter(|write| write.packets == 2).count(), 2);
}

#[test]
fn a_flow_that_cannot_go_on_takes_no_other_flows_place() {
    let of_flow = |flow: u8, index| changed(udp4(index), |packet| packet[IPV4] = flow);
    let mut batch: Vec<_> = (0..16).map(|flow| of_flow(flow, 0)).collect();
    // A shorter packet ends the run of flow 5.
    batch.extend([resized(of_flow(5, 1), 100), of_flow(16, 0), of_flow(0, 1), of_flow(16, 1)]);
    assert_eq!(sizes(&write(&batch)).iter().filter(|&&packets| packets == 2).count(), 3);
}

#[test]
fn nothing_overtakes_a_packet_of_its_flow() {
    let pure_ack = changed(resized(tcp4(1), 40), |packet| packet[IPV4 + 7] = 0);
    assert_eq!(merged(&[tcp4(0), pure_ack, tcp4(1), tcp4(2)]), [1, 1, 2]);
    // A fragment may belong to any flow between its two addresses, but to no flow of other addresses.
    let fragment = Packet::whole(changed(udp4(9), |packet| packet[6] = 0x20));
    let elsewhere = |index| Packet::partial(changed(udp4(index), |packet| packet[19] ^= 1));
    let partial = |index| Packet::partial(udp4(index));
    let batch = [elsewhere(0), partial(0), partial(1), fragment, partial(2), partial(3), elsewhere(1)];
    assert_eq!(sizes(&coalesce(Merge::ALL, &batch)), [2, 2, 1, 2]);
}

#[test]
fn a_coalescer_is_empty_after_a_flush_and_merges_nothing_into_what_is_written() {
    let mut coalescer = Coalescer::new(Merge::ALL);
    for index in 0..4 {
        coalescer.push(Flags::PARTIAL_CHECKSUM, tcp4(index)).unwrap();
        assert!(!coalescer.is_empty());
        let mut writes = 0;
        coalescer.flush(|write| {
            assert_eq!((write.packets, write.bytes), (1, 140));
            writes += 1;
            Outcome::Written
        });
        assert_eq!(writes, 1);
        assert!(coalescer.is_empty());
    }
}

#[test]
fn what_is_refused_leaves_the_rest_as_it_was() {
    let mut coalescer = Coalescer::new(Merge::ALL);
    let flags = Flags::PARTIAL_CHECKSUM;
    coalescer.push(flags, tcp4(0)).unwrap();
    assert_eq!(coalescer.push(flags, vec![0x45; 10]), Err(DropReason::BadPacket));
    assert_eq!(coalescer.push(flags, ipv4_packet(1, &[8; 60])), Err(DropReason::BadChecksumFlag));
    coalescer.push(flags, tcp4(1)).unwrap();
    let mut sizes = Vec::new();
    coalescer.flush(|write| {
        sizes.push((write.packets, write.bytes));
        Outcome::Written
    });
    assert_eq!(sizes, [(2, 280)]);
}

#[test]
fn a_device_that_takes_no_super_packets_gets_every_packet_once_and_no_more_merged_ones() {
    let mut coalescer = Coalescer::new(Merge::ALL);
    for round in 0..3 {
        for number in 0..4 {
            coalescer.push(Flags::PARTIAL_CHECKSUM, tcp4(number)).unwrap();
        }
        let (mut attempts, mut taken) = (0, Vec::new());
        coalescer.flush(|write| {
            attempts += 1;
            if write.header.gso_type != GSO_NONE {
                return Outcome::Refused;
            }
            taken.push((write.packets, write.header.needs_checksum(), write.parts.concat().len()));
            Outcome::Written
        });
        assert_eq!(taken, [(1, true, 140); 4]);
        assert_eq!(attempts, if round == 0 { 5 } else { 4 });
        assert_eq!(coalescer.merge(), Merge { tcp: false, udp: true });
    }
}

#[test]
fn a_device_that_takes_nothing_for_a_while_is_not_blamed_for_super_packets() {
    let mut coalescer = Coalescer::new(Merge::ALL);
    for number in 0..4 {
        coalescer.push(Flags::PARTIAL_CHECKSUM, tcp4(number)).unwrap();
    }
    let mut attempts = 0;
    coalescer.flush(|_| {
        attempts += 1;
        Outcome::Refused
    });
    assert_eq!((attempts, coalescer.merge()), (5, Merge::ALL));
}
