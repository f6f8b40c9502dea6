//! Two of Warren's connections over a model of a path, in virtual time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, FourTuple,
    MtuDiscoveryConfig, PathId, ServerConfig, Transmit,
};

use super::{
    native::{self, Native},
    *,
};
use crate::{key::PrivateKey, tls};

pub(super) const CLIENT: usize = 0;
pub(super) const EXIT: usize = 1;
pub(super) const ADDRESSES: [([u8; 4], u16); 2] = [([192, 0, 2, 1], 1_000), ([192, 0, 2, 2], 443)];

/// Bytes of the datagram that carries a full packet of the default TUN MTU.
pub(super) const FULL: usize = 1_381;

/// The packet sizes of a mix of many flows. The largest size is rare.
pub(super) const MIXED: [usize; 16] =
    [60, 1_250, 300, 90, 1_290, 60, 1_260, 800, 60, 1_230, 1_381, 60, 1_300, 60, 1_220, 1_240];

pub(super) fn settings() -> TransportSettings {
    TransportSettings::default()
}

/// Two sides, the path between them, and the time.
pub(super) struct World {
    pub(super) now: Instant,
    sides: [Side; 2],
    /// Largest UDP payload that the path carries.
    pub(super) limit: usize,
    pub(super) delay: Duration,
    pub(super) loss_per_mille: u64,
    /// How many packets in a row each loss takes.
    pub(super) loss_burst: u64,
    /// How many packets of the present burst are still to be lost.
    burst_left: u64,
    /// The path's capacity in each direction. Without it, the path is as fast as its senders.
    pub(super) bottleneck: Option<Bottleneck>,
    /// Packets that were dropped by a full queue.
    pub(super) overflowed: u64,
    /// The bottleneck marks packets that support ECN if they wait longer than this in its queue. The second
    /// field counts the marked packets.
    pub(super) marks_after: Option<Duration>,
    pub(super) congested: u64,
    /// What the path does to packets that support ECN.
    pub(super) ecn: EcnPath,
    /// When the bottleneck will have sent all packets that it has from each side.
    free: [Instant; 2],
    /// How many of a thousand packets arrive late, and by how much.
    pub(super) late_per_mille: u64,
    pub(super) late_by: Duration,
    /// The largest difference between the travel times of two packets, as on Wi-Fi. The path keeps the order.
    pub(super) jitter: Duration,
    last_arrival: [Instant; 2],
    began: Instant,
    random: u64,
    wire: BinaryHeap<Reverse<Underway>>,
    /// The buffer that receives datagrams, and how often it could not be reused because something kept a part of it.
    buffer: BytesMut,
    pub(super) kept: u64,
    /// Whether the client's packets seem to come from another port. Packets sent to that port reach nobody.
    pub(super) strays: bool,
    /// Datagrams from the exit that were longer than the path carries.
    pub(super) too_long: u64,
    /// Whether the client receives nothing and its timers do not run, so that it acknowledges nothing and never gives up.
    pub(super) is_deaf: bool,
    /// UDP datagrams that were sent, and those of them with an ECN mark.
    pub(super) sent: u64,
    pub(super) marked: u64,
    /// Batches that the client sent, each with one system call.
    pub(super) batches: u64,
    pub(super) sent_by_client: u64,
    /// A flow outside the tunnel, which shares the bottleneck with the client's packets.
    pub(super) native: Option<Native>,
}

/// A link with a drop-tail queue.
#[derive(Clone, Copy)]
pub(super) struct Bottleneck {
    /// Bytes a second.
    pub(super) rate: u32,
    /// How long a packet waits at most.
    pub(super) queue: Duration,
}

/// What a path does to packets that support ECN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EcnPath {
    Keeps,
    Clears,
    /// Turns ECT(0) into ECT(1).
    Swaps,
    /// Marks every packet as congested (CE).
    MarksAll,
    Drops,
}

/// A datagram under way, ordered by its arrival.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Underway {
    arrival: Instant,
    number: u64,
    to: usize,
    /// The ECN bits of the datagram's IP header.
    mark: u8,
    strays: bool,
    content: Vec<u8>,
}

struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    is_connected: bool,
    sent_sizes: usize,
    /// The datagrams that this side received, if they are recorded.
    heard: Option<Vec<Bytes>>,
}

/// The configurations of both sides.
pub(super) struct Configs {
    pub(super) client: ClientConfig,
    pub(super) exit: ServerConfig,
}

impl Configs {
    pub(super) fn new(settings: &TransportSettings) -> Self {
        let (client_tls, exit_tls) = keyed();
        Self::with_tls(settings, client_tls, exit_tls)
    }

    pub(super) fn with_tls(
        settings: &TransportSettings,
        client_tls: rustls::ClientConfig,
        exit_tls: rustls::ServerConfig,
    ) -> Self {
        let remote = ADDRESSES[EXIT].into();
        Self {
            client: client(settings, remote, client_tls),
            exit: exit(settings, remote, exit_tls, &ExitSecrets::new(&[2; 32])),
        }
    }

    /// A client that is about to connect, with its connection, and an exit.
    pub(super) fn endpoints(
        self,
        settings: &TransportSettings,
        now: Instant,
    ) -> ((Endpoint, (ConnectionHandle, Connection)), Endpoint) {
        let own = |listener, key: &[u8]| Arc::new(endpoint(settings, key, listener));
        let mut first = Endpoint::new(own(None, &[1; 32]), None, true);
        let listener = ListenerPlace::all(1).next();
        let second = Endpoint::new(own(listener, &[2; 32]), Some(Arc::new(self.exit)), true);
        let connection = first.connect(now, self.client, ADDRESSES[EXIT].into(), "exit.invalid").unwrap();
        ((first, connection), second)
    }
}

/// The TLS configurations of a client and of the exit whose key the client pins.
pub(super) fn keyed() -> (rustls::ClientConfig, rustls::ServerConfig) {
    let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let client = tls::client(&client_key, &[exit_key.public()], tls::PresentedKey::default(), None).unwrap();
    (client, tls::exit(&exit_key).unwrap())
}

/// Size of the receive buffer in bytes, like the slabs of Warren's driver.
const BUFFER: usize = 64 * 1024;

pub(super) const DELAY: Duration = Duration::from_millis(10);
pub(super) const GAP: Duration = Duration::from_millis(1);

impl World {
    pub(super) fn connected(settings: &TransportSettings) -> Self {
        Self::connected_with(settings, None)
    }

    /// Two sides that know the path's MTU.
    pub(super) fn connected_with(
        settings: &TransportSettings,
        discovery: Option<&MtuDiscoveryConfig>,
    ) -> Self {
        let mut configs = Configs::new(settings);
        if let Some(discovery) = discovery {
            let transport = || {
                let mut config = transport(settings, ADDRESSES[EXIT].into());
                config.mtu_discovery_config(Some(discovery.clone()));
                Arc::new(config)
            };
            configs.client.transport_config(transport());
            configs.exit.transport_config(transport());
        }
        let mut world = Self::beginning(settings, configs);
        world.run_until("both know the path", Duration::from_secs(5), Some(&[100]), |world| {
            world.mtu(CLIENT) == usize::from(ETHERNET_MTU) && world.mtu(EXIT) == usize::from(ETHERNET_MTU)
        });
        world
    }

    /// Two sides before the client's first packet.
    pub(super) fn beginning(settings: &TransportSettings, configs: Configs) -> Self {
        let now = Instant::now();
        let ((first, connection), second) = configs.endpoints(settings, now);
        let side = |endpoint, connection| Side {
            endpoint,
            connection,
            is_connected: false,
            sent_sizes: 0,
            heard: None,
        };
        Self {
            now,
            sides: [side(first, Some(connection)), side(second, None)],
            limit: 1_500,
            delay: DELAY,
            loss_per_mille: 0,
            loss_burst: 1,
            burst_left: 0,
            bottleneck: None,
            overflowed: 0,
            marks_after: None,
            congested: 0,
            ecn: EcnPath::Keeps,
            free: [now; 2],
            late_per_mille: 0,
            late_by: Duration::ZERO,
            jitter: Duration::ZERO,
            last_arrival: [now; 2],
            began: now,
            random: 0x2545_f491_4f6c_dd1d,
            wire: BinaryHeap::new(),
            buffer: BytesMut::with_capacity(BUFFER),
            kept: 0,
            strays: false,
            too_long: 0,
            is_deaf: false,
            sent: 0,
            marked: 0,
            batches: 0,
            sent_by_client: 0,
            native: None,
        }
    }

    pub(super) fn largest_datagram(&mut self, side: usize) -> Option<usize> {
        self.sides[side].connection.as_mut()?.1.datagrams().max_size()
    }

    pub(super) fn mtu(&self, side: usize) -> usize {
        self.sides[side].connection.as_ref().map_or(0, |(_, quic)| quic.current_mtu().into())
    }

    pub(super) fn are_connected(&self) -> bool {
        self.sides.iter().all(|side| side.is_connected)
    }

    /// Whether the client and the exit have given the connection up.
    pub(super) fn lost(&self) -> (bool, bool) {
        let is_lost = |side: usize| self.sides[side].connection.as_ref().unwrap().1.is_closed();
        (is_lost(CLIENT), is_lost(EXIT))
    }

    pub(super) fn black_holes(&mut self, side: usize) -> u64 {
        let (_, quic) = self.sides[side].connection.as_mut().unwrap();
        quic.path_stats(PathId::ZERO).unwrap().black_holes_detected
    }

    pub(super) fn assert_mtu_is_known(&mut self, loss: u64) {
        for side in [CLIENT, EXIT] {
            assert_eq!(self.mtu(side), usize::from(ETHERNET_MTU), "side {side} at {loss} per mille");
            assert_eq!(self.black_holes(side), 0, "side {side} at {loss} per mille");
            let (_, quic) = self.sides[side].connection.as_mut().unwrap();
            assert_eq!(quic.stats().dropped_datagrams.too_large, 0);
        }
    }

    pub(super) fn run(&mut self, time: Duration, sizes: Option<&[usize]>) {
        let end = self.now + time;
        while self.now < end {
            self.step(sizes, end);
        }
    }

    pub(super) fn run_until(
        &mut self,
        what: &str,
        time: Duration,
        sizes: Option<&[usize]>,
        mut holds: impl FnMut(&Self) -> bool,
    ) {
        let end = self.now + time;
        while !holds(self) {
            let mtus = (self.mtu(CLIENT), self.mtu(EXIT));
            assert!(self.now < end, "{what}: not within {time:?}, MTUs are {mtus:?}");
            self.step(sizes, end);
        }
    }

    /// One side's connection.
    pub(super) fn quic(&mut self, side: usize) -> &mut Connection {
        &mut self.sides[side].connection.as_mut().unwrap().1
    }

    /// The datagrams that a side has received since the last call. Datagrams before the first call are not recorded.
    pub(super) fn heard(&mut self, side: usize) -> Vec<Bytes> {
        self.sides[side].heard.replace(Vec::new()).unwrap_or_default()
    }

    pub(super) fn sent_by_exit(&self) -> u64 {
        self.sent - self.sent_by_client
    }

    /// Makes a side send the next packet.
    pub(super) fn speak(&mut self, side: usize, sizes: &[usize]) {
        self.sides[side].speak(sizes);
    }

    /// Does everything that is due now, then moves the time to the next moment at which something is due.
    pub(super) fn step(&mut self, sizes: Option<&[usize]>, end: Instant) {
        for side in [CLIENT, EXIT] {
            if let Some(sizes) = sizes {
                self.sides[side].speak(sizes);
            }
            self.transmit(side);
        }
        self.transmit_native();
        let timed = usize::from(self.is_deaf)..;
        let sides = self.sides[timed.clone()].iter();
        let timers = sides.filter_map(|side| side.connection.as_ref()?.1.poll_timeout());
        let arrival = self.wire.peek().map(|Reverse(datagram)| datagram.arrival);
        let native = self.native.as_ref().and_then(Native::due);
        let speak = sizes.map(|_| self.now + GAP);
        // The library's timers may lie in the past.
        let next = timers.chain(arrival).chain(native).chain(speak).chain([end]).min().unwrap().max(self.now);
        self.now = if next == self.now { next + Duration::from_micros(10) } else { next };
        for side in &mut self.sides[timed] {
            if let Some((_, quic)) = &mut side.connection
                && quic.poll_timeout().is_some_and(|due| due <= self.now)
            {
                quic.handle_timeout(self.now);
            }
        }
        while self.wire.peek().is_some_and(|Reverse(datagram)| datagram.arrival <= self.now) {
            let Reverse(datagram) = self.wire.pop().unwrap();
            self.deliver(&datagram);
        }
    }

    fn transmit_native(&mut self) {
        let Some(mut native) = self.native.take() else { return };
        native.hear(self.now);
        for _ in 0..native.wants() {
            let passed = if self.loses() { None } else { self.pass_bottleneck(CLIENT, native::PACKET) };
            native.sent(self.now, passed.map(|(_, leaves)| leaves + 2 * self.delay));
        }
        self.native = Some(native);
    }

    fn transmit(&mut self, from: usize) {
        loop {
            self.sides[from].settle();
            let Some((_, quic)) = &mut self.sides[from].connection else { return };
            let mut buffer = Vec::new();
            let Some(transmit) = quic.poll_transmit(self.now, NonZeroUsize::new(10).unwrap(), &mut buffer)
            else {
                return;
            };
            self.put_on_wire(from, &transmit, &buffer);
        }
    }

    fn put_on_wire(&mut self, from: usize, transmit: &Transmit, buffer: &[u8]) {
        self.batches += u64::from(from == CLIENT);
        let arrives = transmit.destination == ADDRESSES[1 - from].into();
        for datagram in buffer[..transmit.size].chunks(transmit.segment_size.unwrap_or(transmit.size)) {
            self.sent += 1;
            self.sent_by_client += u64::from(from == CLIENT);
            self.marked += u64::from(transmit.ecn.is_some());
            self.too_long += u64::from(from == EXIT && datagram.len() > self.limit);
            let is_heard = from == CLIENT || !self.is_deaf;
            if arrives
                && is_heard
                && datagram.len() <= self.limit
                && !self.loses()
                && !(transmit.ecn.is_some() && self.ecn == EcnPath::Drops)
                && let Some((waits, leaves)) = self.pass_bottleneck(from, datagram.len())
            {
                let is_late = self.late_per_mille > 0 && self.random(1_000) < self.late_per_mille;
                let late_by = if is_late { self.late_by } else { self.jittered(from, leaves) };
                let arrival = leaves + self.delay + late_by;
                let mark = transmit.ecn.map_or(0, |sent| self.mark(sent, waits));
                let strays = from == CLIENT && self.strays;
                let content = datagram.to_vec();
                let number = self.sent;
                self.wire.push(Reverse(Underway { arrival, number, to: 1 - from, mark, strays, content }));
            }
        }
    }

    /// Returns the extra delay of a datagram that leaves at `leaves`. The delay changes linearly between random values, one for
    /// each interval of twice the jitter.
    #[expect(clippy::cast_possible_truncation, reason = "worlds live for minutes")]
    fn jittered(&mut self, from: usize, leaves: Instant) -> Duration {
        if self.jitter.is_zero() {
            return Duration::ZERO;
        }
        let place = leaves.duration_since(self.began).as_secs_f64() / (2.0 * self.jitter.as_secs_f64());
        let point = |index: u64| {
            let mixed = (index * 2 + from as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f64 / (1_u64 << 24) as f64
        };
        let (index, rest) = (place.floor() as u64, place.fract());
        let late_by = self.jitter.mul_f64(point(index) * (1.0 - rest) + point(index + 1) * rest);
        let arrival = (leaves + late_by).max(self.last_arrival[from]);
        self.last_arrival[from] = arrival;
        arrival - leaves
    }

    /// Returns how long a datagram waits at the bottleneck and when it leaves the bottleneck; `None` if the queue is full.
    fn pass_bottleneck(&mut self, from: usize, length: usize) -> Option<(Duration, Instant)> {
        let Some(Bottleneck { rate, queue }) = self.bottleneck else {
            return Some((Duration::ZERO, self.now));
        };
        let starts = self.free[from].max(self.now);
        if starts - self.now > queue {
            self.overflowed += 1;
            return None;
        }
        self.free[from] = starts + Duration::from_secs(1) * u32::try_from(length).unwrap() / rate;
        Some((starts - self.now, self.free[from]))
    }

    /// The ECN bits with which a datagram arrives after it waited this long at the bottleneck.
    fn mark(&mut self, sent: EcnCodepoint, waited: Duration) -> u8 {
        let is_congested = self.marks_after.is_some_and(|longest| waited > longest);
        self.congested += u64::from(is_congested);
        match self.ecn {
            EcnPath::Clears => 0,
            EcnPath::Swaps => EcnCodepoint::Ect1 as u8,
            EcnPath::MarksAll => EcnCodepoint::Ce as u8,
            EcnPath::Keeps | EcnPath::Drops if is_congested => EcnCodepoint::Ce as u8,
            EcnPath::Keeps | EcnPath::Drops => sent as u8,
        }
    }

    fn deliver(&mut self, datagram: &Underway) {
        let Underway { to, mark, strays, ref content, .. } = *datagram;
        let (address, port) = ADDRESSES[1 - to];
        let path = FourTuple::new((address, port + u16::from(strays)).into(), None);
        let mut answer = Vec::new();
        let side = &mut self.sides[to];
        let mark = EcnCodepoint::from_bits(mark);
        if !self.buffer.try_reclaim(BUFFER) {
            self.buffer = BytesMut::with_capacity(BUFFER);
            self.kept += 1;
        }
        self.buffer.extend_from_slice(content);
        let event = side.endpoint.handle(self.now, path, mark, self.buffer.split(), &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                side.connection.as_mut().unwrap().1.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                side.connection = side.endpoint.accept(incoming, self.now, &mut answer, None).ok();
            }
            Some(DatagramEvent::Response(transmit)) => self.put_on_wire(to, &transmit, &answer),
            None => {}
        }
        self.sides[to].settle();
    }

    /// Whether the path loses the next packet. A loss outside of a burst begins a new burst.
    fn loses(&mut self) -> bool {
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return true;
        }
        let begins = self.random(1_000 * self.loss_burst) < self.loss_per_mille;
        if begins {
            self.burst_left = self.loss_burst - 1;
        }
        begins
    }

    /// How long a packet that a side sends now waits at the bottleneck.
    pub(super) fn wait(&self, from: usize) -> Duration {
        self.free[from].saturating_duration_since(self.now)
    }

    /// A number below `bound`, by xorshift.
    fn random(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }
}

impl Side {
    /// Passes events between the connection and its endpoint, and reads the received datagrams.
    fn settle(&mut self) {
        let Some((handle, quic)) = &mut self.connection else { return };
        while let Some(event) = quic.poll() {
            self.is_connected |= matches!(event, noq_proto::Event::Connected);
        }
        while let Some(datagram) = quic.datagrams().recv() {
            self.heard.iter_mut().for_each(|heard| heard.push(datagram.clone()));
        }
        while let Some(event) = quic.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                quic.handle_event(answer);
            }
        }
    }

    /// Sends the next packet, as two fragments if it does not fit into one datagram.
    fn speak(&mut self, sizes: &[usize]) {
        let Some((_, quic)) = self.connection.as_mut().filter(|_| self.is_connected) else { return };
        let size = sizes[self.sent_sizes % sizes.len()];
        self.sent_sizes += 1;
        let Some(largest) = quic.datagrams().max_size() else { return };
        let parts = if size > largest { vec![size / 2, size / 2] } else { vec![size] };
        for part in parts {
            let _full = quic.datagrams().send(Bytes::from(vec![0; part]), false);
        }
    }
}
