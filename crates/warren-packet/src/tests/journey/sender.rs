//! A sending host: a few flows of TCP and UDP over IPv4 and IPv6, in super-packets and single packets.

use super::kernel::{put, sum};
use crate::virtio::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader};
use warren_simulation::Random;

const FLOWS: u64 = 6;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;

pub(super) struct Sender {
    flows: Vec<Flow>,
    /// A counter that makes every payload unique.
    marks: u32,
}

/// One read from the TUN device, and the packets that it represents.
pub(super) struct Turn {
    pub(super) header: VirtioNetHeader,
    pub(super) super_packet: Vec<u8>,
    pub(super) packets: Vec<Sent>,
}

pub(super) struct Sent {
    pub(super) flow: usize,
    pub(super) packet: Vec<u8>,
}

#[derive(Clone)]
struct Flow {
    is_v6: bool,
    is_tcp: bool,
    source_port: u16,
    sequence: u32,
    acknowledged: u32,
    identification: u16,
    ttl: u8,
    /// Payload bytes of the flow's segments.
    step: usize,
}

impl Sender {
    pub(super) fn new(random: &mut Random) -> Self {
        let flow = |random: &mut Random| Flow {
            is_v6: random.once_in(2),
            is_tcp: !random.once_in(3),
            source_port: u16::try_from(1_024 + random.below(4)).unwrap(),
            sequence: u32::try_from(random.below(1 << 32)).unwrap(),
            acknowledged: 7,
            identification: u16::try_from(random.below(1 << 16)).unwrap(),
            ttl: 64,
            step: usize::try_from(8 + random.below(1_300)).unwrap(),
        };
        Self { flows: (0..FLOWS).map(|_| flow(random)).collect(), marks: 0 }
    }

    pub(super) fn turn(&mut self, random: &mut Random) -> Turn {
        let which = usize::try_from(random.below(FLOWS)).unwrap();
        let flow = &mut self.flows[which];
        flow.wander(random);
        let count = if random.once_in(3) { 1 } else { 1 + random.below(8) };
        let is_super = count > 1;
        let short = usize::try_from(random.below(flow.step as u64)).unwrap();
        let mut length = flow.step * usize::try_from(count - 1).unwrap() + (flow.step - short).max(4);
        if !is_super && random.once_in(4) {
            // Longer than the previous packets.
            length += 40;
        }
        let mut payload: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let step = if is_super { flow.step } else { length };
        for part in payload.chunks_mut(step) {
            self.marks += 1;
            let mark = self.marks.to_be_bytes();
            let length = part.len().min(4);
            part[..length].copy_from_slice(&mark[..length]);
        }
        let closing = [0, 0, PSH, PSH | FIN][usize::try_from(random.below(4)).unwrap()];

        let first = flow.clone();
        let is_partial = is_super || random.once_in(2);
        let mut packets = Vec::new();
        let parts: Vec<&[u8]> = payload.chunks(step).collect();
        for (number, part) in parts.iter().enumerate() {
            let flags = if number + 1 == parts.len() { ACK | closing } else { ACK };
            packets.push(Sent { flow: which, packet: flow.packet(flags, part, false) });
            flow.sequence = flow.sequence.wrapping_add(u32::try_from(part.len()).unwrap());
            flow.identification = flow.identification.wrapping_add(1);
        }
        let mut super_packet = first.packet(ACK | closing, &payload, is_partial);
        if !is_partial && random.once_in(4) {
            // A packet corrupted in memory, which the receiver must detect.
            let last = super_packet.len() - 1;
            super_packet[last] ^= 0x40;
            packets[0].packet.clone_from(&super_packet);
        }
        Turn { header: first.offload(is_super, is_partial), super_packet, packets }
    }
}

impl Flow {
    /// Changes header fields that senders change occasionally.
    fn wander(&mut self, random: &mut Random) {
        if random.once_in(8) {
            self.sequence = self.sequence.wrapping_add(9_000);
        }
        if random.once_in(8) {
            self.acknowledged = self.acknowledged.wrapping_add(100);
        }
        if random.once_in(8) {
            self.ttl = self.ttl.wrapping_sub(1).max(9);
        }
    }

    fn transport(&self) -> usize {
        if self.is_v6 { 40 } else { 20 }
    }

    fn payload(&self) -> usize {
        self.transport() + if self.is_tcp { 20 } else { 8 }
    }

    fn offload(&self, is_super: bool, is_partial: bool) -> VirtioNetHeader {
        let gso_type = match (is_super, self.is_tcp, self.is_v6) {
            (false, ..) => GSO_NONE,
            (true, true, false) => GSO_TCPV4,
            (true, true, true) => GSO_TCPV6,
            (true, false, _) => GSO_UDP_L4,
        };
        let short = |length: usize| u16::try_from(length).unwrap();
        VirtioNetHeader {
            flags: if is_partial { NEEDS_CSUM } else { 0 },
            gso_type,
            header_length: short(self.payload()),
            gso_size: if is_super { short(self.step) } else { 0 },
            checksum_start: short(self.transport()),
            checksum_offset: if self.is_tcp { 16 } else { 6 },
        }
    }

    /// A packet, or a super-packet whose checksum is partial.
    fn packet(&self, flags: u8, payload: &[u8], is_partial: bool) -> Vec<u8> {
        let mut transport = vec![0; self.payload() - self.transport()];
        put(&mut transport, 0, self.source_port);
        put(&mut transport, 2, 443);
        let length = u16::try_from(transport.len() + payload.len()).unwrap();
        if self.is_tcp {
            transport[4..8].copy_from_slice(&self.sequence.to_be_bytes());
            transport[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
            transport[12..16].copy_from_slice(&[0x50, flags, 0xff, 0]);
        } else {
            put(&mut transport, 4, length);
        }
        transport.extend_from_slice(payload);

        let protocol = if self.is_tcp { 6 } else { 17 };
        let mut ip = vec![0; self.transport()];
        let addresses = if self.is_v6 {
            put(&mut ip, 0, 0x6000);
            put(&mut ip, 4, length);
            ip[6..8].copy_from_slice(&[protocol, self.ttl]);
            (ip[8], ip[23], ip[24], ip[39]) = (0xfd, 1, 0xfd, 2);
            8..40
        } else {
            put(&mut ip, 0, 0x4500);
            put(&mut ip, 2, 20 + length);
            put(&mut ip, 4, self.identification);
            ip[8..10].copy_from_slice(&[self.ttl, protocol]);
            (ip[12], ip[15], ip[16], ip[19]) = (10, 1, 10, 2);
            let checksum = !sum(&[&ip]);
            put(&mut ip, 10, checksum);
            12..20
        };
        let pseudo = [&ip[addresses], &[0, protocol], &length.to_be_bytes()].concat();
        let field = if self.is_tcp { 16 } else { 6 };
        let checksum = if is_partial { sum(&[&pseudo]) } else { !sum(&[&pseudo, &transport]) };
        // A UDP checksum of 0 is sent as its other zero.
        let checksum = if checksum == 0 && !is_partial { 0xffff } else { checksum };
        put(&mut transport, field, checksum);
        [ip, transport].concat()
    }
}
