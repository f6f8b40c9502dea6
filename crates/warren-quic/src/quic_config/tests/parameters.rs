//! Transport parameters that are allowed, but that an honest peer does not choose (RFC 9000 section 18.2). They pass the
//! library's checks and reach the code after them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use noq_proto::{
    ClientConfig, ConnectError, ConnectionId, Side, VarInt,
    coding::{Decodable as _, Encodable as _},
    crypto::{self, Keys, Session, UnsupportedVersion, rustls::QuicClientConfig},
    transport_parameters::TransportParameters,
};

use super::{
    client_transport,
    world::{ADDRESSES, CLIENT, Configs, EXIT, FULL, World, keyed, settings},
};

const MAX_IDLE_TIMEOUT: u64 = 0x01;
const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
const INITIAL_MAX_DATA: u64 = 0x04;
const INITIAL_MAX_STREAM_DATA: [u64; 3] = [0x05, 0x06, 0x07];
const INITIAL_MAX_STREAMS: [u64; 2] = [0x08, 0x09];
const ACK_DELAY_EXPONENT: u64 = 0x0a;
const MAX_ACK_DELAY: u64 = 0x0b;
const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
/// The parameter of draft-ietf-quic-ack-frequency. It is in microseconds, whereas `MAX_ACK_DELAY` is in
/// milliseconds.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

const LARGEST: u64 = (1 << 62) - 1;

/// Parameters that take the place of the usual ones.
struct Chosen(Vec<(u64, u64)>);

impl Chosen {
    /// Replaces some of the usual parameters by the chosen ones. Returns the result as `reader` parses it.
    fn put_into(&self, usual: &TransportParameters, reader: Side) -> TransportParameters {
        let mut bytes = Vec::new();
        usual.write(&mut bytes);
        let (mut rest, mut out) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let whole = rest;
            let id = read(&mut rest);
            let length = usize::try_from(read(&mut rest)).unwrap();
            rest = &rest[length..];
            if self.0.iter().all(|(chosen, _)| *chosen != id) {
                out.extend(&whole[..whole.len() - rest.len()]);
            }
        }
        for &(id, value) in &self.0 {
            let mut content = Vec::new();
            write(value, &mut content);
            write(id, &mut out);
            write(content.len() as u64, &mut out);
            out.extend(content);
        }
        TransportParameters::read(reader, &mut out.as_slice()).expect("only valid ones are chosen")
    }
}

/// Appends a variable-length integer (RFC 9000 section 16) in its shortest encoding, which parameters must use.
fn write(integer: u64, out: &mut Vec<u8>) {
    VarInt::from_u64(integer).unwrap().encode(out);
}

fn read(from: &mut &[u8]) -> u64 {
    VarInt::decode(from).unwrap().into_inner()
}

/// A TLS configuration with chosen parameters.
struct Choosing<T: ?Sized> {
    tls: Arc<T>,
    chosen: Chosen,
}

impl crypto::ClientConfig for Choosing<dyn crypto::ClientConfig> {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        usual: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        self.tls.start_session(version, server_name, &self.chosen.put_into(usual, Side::Server))
    }
}

impl crypto::ServerConfig for Choosing<dyn crypto::ServerConfig> {
    fn initial_keys(&self, version: u32, destination: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.tls.initial_keys(version, destination)
    }

    fn retry_tag(&self, version: u32, destination: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.tls.retry_tag(version, destination, packet)
    }

    fn start_session(&self, version: u32, usual: &TransportParameters) -> Box<dyn Session> {
        self.tls.start_session(version, &self.chosen.put_into(usual, Side::Client))
    }
}

/// Two sides, one of which has these parameters.
fn world(liar: usize, chosen: &[(u64, u64)]) -> World {
    let (settings, chosen) = (settings(), Chosen(chosen.to_vec()));
    let (client_tls, exit_tls) = keyed();
    let mut configs = Configs::with_tls(&settings, client_tls.clone(), exit_tls);
    if liar == CLIENT {
        let tls: Arc<dyn crypto::ClientConfig> = Arc::new(QuicClientConfig::try_from(client_tls).unwrap());
        configs.client = ClientConfig::new(Arc::new(Choosing { tls, chosen }));
        let transport = client_transport(&settings, ADDRESSES[EXIT].into());
        configs.client.transport_config(Arc::new(transport));
    } else {
        let tls = configs.exit.crypto.clone();
        configs.exit.crypto = Arc::new(Choosing { tls, chosen });
    }
    World::beginning(&settings, configs)
}

/// One parameter at a time, at the limits of its valid range.
fn single() -> Vec<Vec<(u64, u64)>> {
    let streams = 1 << 60;
    let mut ends = vec![
        (MAX_IDLE_TIMEOUT, vec![0, 1, LARGEST]),
        (MAX_UDP_PAYLOAD_SIZE, vec![1_200, 1_201, 65_527, LARGEST]),
        (INITIAL_MAX_DATA, vec![0, 1, LARGEST]),
        (ACK_DELAY_EXPONENT, vec![0, 20]),
        (MAX_ACK_DELAY, vec![1, (1 << 14) - 1]),
        (ACTIVE_CONNECTION_ID_LIMIT, vec![2, LARGEST]),
        (MAX_DATAGRAM_FRAME_SIZE, vec![0, 1, 9, 65_535, LARGEST]),
        (MIN_ACK_DELAY, vec![0, 1, 5_000]),
    ];
    ends.extend(INITIAL_MAX_STREAM_DATA.map(|id| (id, vec![0, 1, LARGEST])));
    ends.extend(INITIAL_MAX_STREAMS.map(|id| (id, vec![0, 1, streams])));
    ends.iter().flat_map(|(id, values)| values.iter().map(|value| vec![(*id, *value)])).collect()
}

/// The minimum delay of acknowledgements may be as long as the maximum, which may be far above any round trip.
fn slow_to_acknowledge() -> Vec<Vec<(u64, u64)>> {
    let delays = [6, 25, 26, 1_000, (1 << 14) - 1];
    delays.map(|delay| vec![(MAX_ACK_DELAY, delay), (MIN_ACK_DELAY, delay * 1_000)]).to_vec()
}

#[test]
fn valid_parameters_however_extreme_are_survived_by_either_side() {
    for chosen in single().into_iter().chain(slow_to_acknowledge()) {
        for liar in [CLIENT, EXIT] {
            for loss in [0, 200] {
                let mut world = world(liar, &chosen);
                world.loss_per_mille = loss;
                world.run(Duration::from_secs(2), Some(&[60, FULL]));
                world.run(Duration::from_secs(120), None);
                world.run(Duration::from_secs(1), Some(&[60, FULL]));
            }
        }
    }
}

#[test]
fn chosen_parameters_reach_the_peer() {
    let mut honest = world(CLIENT, &[]);
    honest.run(Duration::from_secs(1), None);
    assert!(honest.largest_datagram(EXIT).is_some_and(|largest| largest > 1_000));
    for liar in [CLIENT, EXIT] {
        let mut world = world(liar, &[(MAX_DATAGRAM_FRAME_SIZE, 100)]);
        world.run(Duration::from_secs(1), None);
        assert!(world.largest_datagram(1 - liar).is_some_and(|largest| largest < 100));
    }
}

/// A closed connection is kept for three probe timeouts (RFC 9000 section 10.2). A probe timeout includes the peer's
/// `max_ack_delay`.
#[test]
fn a_closed_connection_is_gone_in_seconds_however_slowly_its_peer_acknowledges() {
    let mut world = world(CLIENT, slow_to_acknowledge().last().unwrap());
    world.run(Duration::from_secs(1), None);
    let now = world.now;
    world.quic(EXIT).close(now, VarInt::from_u32(0), Bytes::new());
    world.run(Duration::from_secs(4), None);
    assert!(!world.quic(EXIT).is_drained(), "late packets are answered for a while");
    world.run(Duration::from_secs(2), None);
    assert!(world.quic(EXIT).is_drained());
}
