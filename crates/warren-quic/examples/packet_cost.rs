//! Measures what a packet costs in QUIC alone. Two connections run in one thread's memory, without a socket. The clock is
//! read only for the figures.
//!
//! `cargo run --release -p warren-quic --example packet_cost -- size=1350 burst=40` prints nanoseconds per packet for sending
//! (queue, build, encrypt), for receiving (route, decrypt, hand over) and for acknowledgements (both sides). Each figure is
//! the median over bursts, so other programs on the machine hardly affect it. `way=general` receives as a noq endpoint does.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program to be read on a terminal")]

use std::{
    env,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use bytes::{Bytes, BytesMut};
use noq_proto::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
    FourTuple, ServerConfig, TransportConfig, VarInt,
    congestion::CubicConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use warren_quic::{
    key::PrivateKey,
    tls::{self, PresentedKey},
};

const CLIENT: usize = 0;
const EXIT: usize = 1;
const BURSTS: usize = 20_000;
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

fn main() {
    let argument = |name: &str| env::args().find_map(|word| Some(word.strip_prefix(name)?.to_owned()));
    let number = |name: &str, default| argument(name).map_or(default, |word| word.parse().unwrap());
    let (size, burst) = (number("size=", 1_350), number("burst=", 40));
    let takes_short_way = argument("way=").as_deref() != Some("general");

    let mut pair = Pair::connected();
    let payload = Bytes::from(vec![7; size]);
    let mut costs = [("send", Vec::new()), ("receive", Vec::new()), ("acknowledge", Vec::new())];
    let mut delivered = 0;
    for _ in 0..BURSTS {
        pair.now += Duration::from_micros(200);
        let started = Instant::now();
        for _ in 0..burst {
            pair.quic(CLIENT).datagrams().send(payload.clone(), false).unwrap();
        }
        let batches = pair.transmit(CLIENT);
        costs[0].1.push(started.elapsed());
        let batches = batches.into_iter().map(|(contents, stride)| (BytesMut::from(&*contents), stride));
        let batches: Vec<_> = batches.collect();

        let started = Instant::now();
        for (contents, stride) in batches {
            pair.receive(EXIT, contents, stride, takes_short_way);
        }
        while pair.quic(EXIT).datagrams().recv().is_some() {
            delivered += 1;
        }
        costs[1].1.push(started.elapsed());

        pair.now += Duration::from_micros(100);
        let started = Instant::now();
        for (contents, stride) in pair.transmit(EXIT) {
            pair.receive(CLIENT, BytesMut::from(&*contents), stride, takes_short_way);
        }
        costs[2].1.push(started.elapsed());
        pair.settle();
    }
    assert_eq!(delivered, BURSTS * burst, "nothing can be lost here");
    for (what, mut times) in costs {
        times.sort();
        let share = |share: usize| times.get(times.len() * share / 100).unwrap().as_nanos() / burst as u128;
        println!(
            "{what:11} {:5} ns per packet (5 % of bursts below {}, 95 % below {})",
            share(50),
            share(5),
            share(95)
        );
    }
}

/// A client's and an exit's connection and endpoint.
struct Pair {
    now: Instant,
    sides: [(Endpoint, Option<(ConnectionHandle, Connection)>); 2],
}

impl Pair {
    fn connected() -> Self {
        let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let tls = tls::client(&client_key, &[exit_key.public()], PresentedKey::default(), None).unwrap();
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        client.transport_config(transport());
        let tls = tls::exit(&exit_key).unwrap();
        let mut exit = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        exit.transport_config(transport());

        let now = Instant::now();
        let mut first = Endpoint::new(endpoint(), None, true);
        let connection = first.connect(now, client, address(EXIT), "exit.invalid").unwrap();
        let second = Endpoint::new(endpoint(), Some(Arc::new(exit)), true);
        let mut pair = Self { now, sides: [(first, Some(connection)), (second, None)] };
        for _ in 0..100 {
            pair.now += Duration::from_millis(1);
            for from in [CLIENT, EXIT] {
                for (contents, stride) in pair.transmit(from) {
                    pair.receive(1 - from, BytesMut::from(&*contents), stride, false);
                }
            }
            pair.settle();
        }
        pair
    }

    fn quic(&mut self, side: usize) -> &mut Connection {
        let (_, connection) = self.sides.get_mut(side).unwrap();
        &mut connection.as_mut().unwrap().1
    }

    /// Returns everything that a side has to send. Each batch comes with the length of its packets.
    fn transmit(&mut self, side: usize) -> Vec<(Vec<u8>, usize)> {
        let now = self.now;
        let Some((_, Some((_, quic)))) = self.sides.get_mut(side) else { return Vec::new() };
        quic.handle_timeout(now);
        let mut batches = Vec::new();
        let mut buffer = Vec::new();
        while let Some(transmit) = quic.poll_transmit(now, SEGMENTS, &mut buffer) {
            batches.push((std::mem::take(&mut buffer), transmit.segment_size.unwrap_or(transmit.size)));
        }
        batches
    }

    fn receive(&mut self, side: usize, mut contents: BytesMut, stride: usize, takes_short_way: bool) {
        let path = FourTuple::new(address(1 - side), None);
        let (endpoint, connection) = self.sides.get_mut(side).unwrap();
        let mut answer = Vec::new();
        while !contents.is_empty() {
            let mut datagram = contents.split_to(stride.min(contents.len()));
            if takes_short_way
                && let Some(route) = endpoint.route_short(&datagram)
                && let Some((_, quic)) = connection
            {
                let Some(rest) = quic.handle_plain_datagram(self.now, path, None, route, datagram) else {
                    continue;
                };
                datagram = rest;
            }
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
    }

    /// Passes the events of connections to their endpoints, and the answers back.
    fn settle(&mut self) {
        for (endpoint, connection) in &mut self.sides {
            let Some((handle, quic)) = connection else { continue };
            while let Some(event) = quic.poll_endpoint_events() {
                if let Some(answer) = endpoint.handle_event(*handle, event) {
                    quic.handle_event(answer);
                }
            }
            while quic.poll().is_some() {}
        }
    }
}

fn address(side: usize) -> SocketAddr {
    let ([client, exit], port) = ([[192, 0, 2, 1], [192, 0, 2, 2]], 443);
    if side == CLIENT { (client, port).into() } else { (exit, port).into() }
}

fn endpoint() -> Arc<EndpointConfig> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &[1; 32])));
    config.grease_quic_bit(false);
    Arc::new(config)
}

/// Settings like the tunnel's, with a window that no burst fills.
fn transport() -> Arc<TransportConfig> {
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(60))
        .max_ack_delay(Some(Duration::from_millis(5)))
        .reordering_threshold(VarInt::from_u32(99));
    let mut cubic = CubicConfig::default();
    cubic.initial_window(1 << 28);
    let mut config = TransportConfig::default();
    config
        .initial_mtu(1_420)
        .min_mtu(1_420)
        .mtu_discovery_config(None)
        .ack_frequency_config(Some(acknowledgements))
        .packet_threshold(100)
        .datagram_send_buffer_size(1 << 20)
        .datagram_receive_buffer_size(Some(1 << 20))
        .allow_spin(false)
        .keep_alive_interval(Some(Duration::from_secs(5)))
        .congestion_controller_factory(Arc::new(cubic));
    Arc::new(config)
}
