//! The fork's fast paths for bursts of datagrams, one for sending and one for receiving. They deliver the same as the
//! general path, whatever the wire does to a packet.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use noq_proto::{Connection, ConnectionHandle, DatagramEvent, Endpoint, Event, FourTuple};
use proptest::{collection::vec, prelude::*};

use super::{
    world::{ADDRESSES, CLIENT, Configs, EXIT},
    *,
};
use crate::settings::Congestion;

const SEGMENTS: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// What the wire does to a packet.
#[derive(Clone, Debug)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// One byte of the packet is changed. The number is the byte's position in 256ths of the packet's length.
    Forged(u8),
    /// The packet arrives after the next one.
    Late,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => any::<u8>().prop_map(Fate::Forged),
        1 => Just(Fate::Late),
    ]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(1_200_usize), 2 => 1_150_usize..1_200, 2 => 4_usize..1_200, 1 => 4_usize..40]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_datagram_that_arrives_is_delivered_once_and_as_it_was(
        bursts in vec(vec(size(), 1..60), 1..30),
        fates in vec(fate(), 1..200),
    ) {
        let mut pair = Pair::connected();
        let mut fates = fates.into_iter().cycle();
        let (mut sent, mut number) = (Vec::new(), 0_u32);
        for burst in bursts {
            for size in burst {
                let mut data = number.to_be_bytes().to_vec();
                data.resize(size, u8::try_from(number % 251).unwrap());
                let data = Bytes::from(data);
                if pair.quic(CLIENT).datagrams().send(data.clone(), false).is_ok() {
                    sent.push(data);
                }
                number += 1;
            }
            pair.exchange(&mut fates);
        }
        pair.settle();
        prop_assert!(!pair.is_lost, "the connection ended");
        // The general path handles only the packets that the fast path returns: forged ones, and those with other frames.
        prop_assert!(pair.short > 0);
        let mut delivered = pair.delivered.clone();
        delivered.sort();
        let count = delivered.len();
        delivered.dedup();
        prop_assert_eq!(delivered.len(), count, "a datagram came twice");
        prop_assert!(delivered.iter().all(|data| sent.binary_search(data).is_ok()), "a datagram arrived that was not sent");
        // A packet may hold several datagrams, so the missing ones are not counted. Where the wire did no harm, none may be
        // missing.
        if pair.harmed == 0 {
            prop_assert_eq!(count, sent.len());
        }
    }
}

/// The first key update comes after at most 1,000 packets, and later ones whenever the library chooses.
#[test]
fn a_long_run_crosses_key_updates() {
    let mut pair = Pair::connected();
    let mut whole = std::iter::repeat(Fate::Arrives);
    for _ in 0..200 {
        for _ in 0..40 {
            pair.quic(CLIENT).datagrams().send(Bytes::from(vec![1; 1_200]), false).unwrap();
        }
        pair.exchange(&mut whole);
    }
    pair.settle();
    assert_eq!(pair.delivered.len(), 200 * 40);
    assert!(pair.short > 7_000, "{} of 8000 packets took the fast path", pair.short);
}

pub(super) struct Pair {
    pub(super) now: Instant,
    sides: [(Endpoint, Option<(ConnectionHandle, Connection)>); 2],
    /// Datagrams that the exit received.
    delivered: Vec<Bytes>,
    /// Packets that the exit received through the fast path.
    short: usize,
    /// Packets that were lost or forged.
    harmed: usize,
    pub(super) is_lost: bool,
}

impl Pair {
    fn connected() -> Self {
        let mut pair = Self::new();
        pair.settle();
        pair
    }

    /// A client that is about to connect.
    pub(super) fn new() -> Self {
        let settings = TransportSettings {
            initial_mtu: 1_400,
            min_mtu: 1_400,
            max_mtu: 1_400,
            congestion: Congestion::Off.into(),
            ..TransportSettings::default()
        };
        let now = Instant::now();
        let ((first, connection), second) = Configs::new(&settings).endpoints(&settings, now);
        let sides = [(first, Some(connection)), (second, None)];
        Self { now, sides, delivered: Vec::new(), short: 0, harmed: 0, is_lost: false }
    }

    pub(super) fn quic(&mut self, side: usize) -> &mut Connection {
        &mut self.sides[side].1.as_mut().unwrap().1
    }

    /// Lets half a second pass on a wire that does no harm.
    pub(super) fn settle(&mut self) {
        let mut whole = std::iter::repeat(Fate::Arrives);
        for _ in 0..50 {
            self.now += Duration::from_millis(10);
            self.exchange(&mut whole);
        }
    }

    /// Carries packets until neither side has anything more to send.
    fn exchange(&mut self, fates: &mut impl Iterator<Item = Fate>) {
        self.now += Duration::from_millis(1);
        let mut quiet = 0;
        while quiet < 2 {
            for from in [CLIENT, EXIT] {
                let packets = self.transmit(from);
                quiet = if packets.is_empty() { quiet + 1 } else { 0 };
                self.carry(from, packets, fates);
            }
        }
    }

    pub(super) fn transmit(&mut self, from: usize) -> Vec<Vec<u8>> {
        let now = self.now;
        let Some((_, quic)) = &mut self.sides[from].1 else { return Vec::new() };
        quic.handle_timeout(now);
        let mut packets = Vec::new();
        let mut buffer = Vec::new();
        while let Some(transmit) = quic.poll_transmit(now, SEGMENTS, &mut buffer) {
            let stride = transmit.segment_size.unwrap_or(transmit.size);
            packets.extend(buffer[..transmit.size].chunks(stride).map(<[u8]>::to_vec));
            buffer.clear();
        }
        packets
    }

    fn carry(&mut self, from: usize, packets: Vec<Vec<u8>>, fates: &mut impl Iterator<Item = Fate>) {
        let mut late = None;
        for mut packet in packets {
            // Packets of the handshake always arrive. Handshakes that fail are another test's subject.
            let fate = if packet[0] & 0x80 == 0 { fates.next().unwrap() } else { Fate::Arrives };
            match fate {
                Fate::Arrives => self.deliver(1 - from, &packet),
                Fate::Lost => self.harmed += 1,
                Fate::Twice => {
                    self.deliver(1 - from, &packet);
                    self.deliver(1 - from, &packet);
                }
                Fate::Forged(share) => {
                    self.harmed += 1;
                    // The first byte is never changed. A packet with a changed connection ID belongs to no
                    // connection.
                    let index = (usize::from(share) * packet.len() / 256).max(1);
                    packet[index] ^= 1 << (share % 8);
                    self.deliver(1 - from, &packet);
                }
                Fate::Late => {
                    if let Some(packet) = late.replace(packet) {
                        self.deliver(1 - from, &packet);
                    }
                    continue;
                }
            }
            if let Some(packet) = late.take() {
                self.deliver(1 - from, &packet);
            }
        }
        if let Some(packet) = late {
            self.deliver(1 - from, &packet);
        }
    }

    pub(super) fn deliver(&mut self, to: usize, packet: &[u8]) {
        let path = FourTuple::new(ADDRESSES[1 - to].into(), None);
        let (endpoint, connection) = &mut self.sides[to];
        let mut datagram = BytesMut::from(packet);
        let mut answer = Vec::new();
        let mut is_taken = false;
        if let Some(route) = endpoint.route_short(&datagram)
            && let Some((_, quic)) = connection
        {
            match quic.handle_plain_datagram(self.now, path, None, route, datagram) {
                None => {
                    self.short += usize::from(to == EXIT);
                    is_taken = true;
                    datagram = BytesMut::new();
                }
                Some(rest) => {
                    datagram = rest;
                }
            }
        }
        if !is_taken {
            match endpoint.handle(self.now, path, None, datagram, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    connection.as_mut().unwrap().1.handle_event(event);
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    *connection = endpoint.accept(incoming, self.now, &mut answer, None).ok();
                }
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
        let Some((handle, quic)) = connection else { return };
        while let Some(event) = quic.poll() {
            self.is_lost |= matches!(event, Event::ConnectionLost { .. });
        }
        while let Some(data) = quic.datagrams().recv() {
            self.delivered.push(data);
        }
        while let Some(event) = quic.poll_endpoint_events() {
            if let Some(answer) = endpoint.handle_event(*handle, event) {
                quic.handle_event(answer);
            }
        }
    }
}
