//! A client that makes each byte of its Initials itself, and an exit without sockets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::Instant,
};

use aws_lc_rs::hmac;
use bytes::BytesMut;
use noq::crypto::rustls::QuicServerConfig;
use noq_proto::{
    Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, FourTuple, Incoming, ServerConfig,
};
use rustls::{
    SupportedCipherSuite,
    crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    quic::{ClientConnection, Version},
};
use warren_quic::{key::PrivateKey, tls};

const ATTACKER: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 4433);

/// Bytes of a packet number, and of the tag behind what is sealed.
const NUMBER: usize = 4;
const TAG: usize = 16;

/// Most bytes of a hello in one Initial.
const PART: usize = 900;

/// One attempt.
pub(crate) struct Attacker {
    destination: Vec<u8>,
    source: [u8; 8],
}

impl Attacker {
    /// An attempt with IDs of its own.
    pub(crate) fn new(number: u64) -> Self {
        let destination = [&[0xd1; 12][..], &number.to_be_bytes()].concat();
        Self { destination, source: (number | 0x5c << 56).to_be_bytes() }
    }

    /// The transport parameters that a client must send.
    pub(crate) fn usual_parameters(&self) -> Vec<u8> {
        [&[0x0f, 8][..], &self.source].concat()
    }

    /// The Initials of a TLS hello with these transport parameters.
    pub(crate) fn hello(&self, parameters: &[u8]) -> Vec<Vec<u8>> {
        self.hello_with(parameters, &[])
    }

    /// The Initials after a Retry: to its ID, with its token.
    pub(crate) fn after_retry(&self, retry: &Retry) -> Vec<Vec<u8>> {
        let second = Self { destination: retry.source.clone(), source: self.source };
        second.hello_with(&self.usual_parameters(), &retry.token)
    }

    fn hello_with(&self, parameters: &[u8], token: &[u8]) -> Vec<Vec<u8>> {
        let key = || PrivateKey::generate().unwrap();
        let config = tls::client(&key(), &[key().public()], tls::PresentedKey::default(), None).unwrap();
        let name = "exit.invalid".try_into().unwrap();
        let mut connection =
            ClientConnection::new(Arc::new(config), Version::V1, name, parameters.to_vec()).unwrap();
        let mut hello = Vec::new();
        assert!(connection.write_hs(&mut hello).is_none());
        let parts = (0..).zip(hello.chunks(PART));
        parts
            .map(|(number, part)| {
                self.initial(number, token, &crypto_frame(u64::from(number) * PART as u64, part))
            })
            .collect()
    }

    /// An Initial with these frames and padding behind them.
    pub(crate) fn initial(&self, number: u32, token: &[u8], frames: &[u8]) -> Vec<u8> {
        let mut payload = frames.to_vec();
        payload.resize(frames.len().max(1_170 - token.len()), 0);
        self.sealed(number, token, payload)
    }

    /// An Initial that ends with these frames, behind padding.
    pub(crate) fn full_initial(&self, number: u32, frames: &[u8]) -> Vec<u8> {
        let mut payload = vec![0; 1_170 - frames.len()];
        payload.extend(frames);
        self.sealed(number, &[], payload)
    }

    fn sealed(&self, number: u32, token: &[u8], mut payload: Vec<u8>) -> Vec<u8> {
        let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256;
        let keys =
            suite.quic_suite().unwrap().keys(&self.destination, rustls::Side::Client, Version::V1).local;
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        let mut packet = [
            &[0xc0 | 3, 0, 0, 0, 1][..],
            &[length(&self.destination)],
            &self.destination,
            &[8],
            &self.source,
        ]
        .concat();
        packet.extend(variable_length_integer(token.len() as u64));
        packet.extend(token);
        packet.extend((u16::try_from(NUMBER + payload.len() + TAG).unwrap() | 0x4000).to_be_bytes());
        let number_at = packet.len();
        packet.extend(number.to_be_bytes());
        let tag = keys.packet.encrypt_in_place(number.into(), &packet, &mut payload).unwrap();
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let (head, rest) = packet.split_at_mut(number_at);
        let (number, sealed) = rest.split_at_mut(NUMBER);
        let sample = &sealed[..keys.header.sample_len()];
        keys.header.encrypt_in_place(sample, &mut head[0], number).unwrap();
        packet
    }
}

/// A part of the handshake's stream.
pub(crate) fn crypto_frame(offset: u64, data: &[u8]) -> Vec<u8> {
    [&[0x06][..], &variable_length_integer(offset), &variable_length_integer(data.len() as u64), data]
        .concat()
}

/// An integer of RFC 9000 section 16, in as few bytes as can be.
pub(crate) fn variable_length_integer(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value.to_be_bytes()[7]],
        0x40..0x4000 => (value | 0x4000).to_be_bytes()[6..].to_vec(),
        0x4000..0x4000_0000 => (value | 0x8000_0000).to_be_bytes()[4..].to_vec(),
        _ => (value | 0xc0 << 56).to_be_bytes().to_vec(),
    }
}

/// What a Retry says.
pub(crate) struct Retry {
    source: Vec<u8>,
    token: Vec<u8>,
}

/// What became of an attempt.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// The exit goes on with the handshake.
    Answered,
    /// The exit refused it or closed the connection.
    Closed,
}

/// The QUIC library as an exit has it, but without a socket.
pub(crate) struct Exit {
    endpoint: Endpoint,
    now: Instant,
    attempts: u64,
}

impl Exit {
    pub(crate) fn new() -> Self {
        let tls = tls::exit(&[PrivateKey::generate().unwrap()]).unwrap();
        let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 64]);
        let endpoint =
            Endpoint::new(Arc::new(EndpointConfig::new(Arc::new(reset_key))), Some(Arc::new(config)), true);
        Self { endpoint, now: Instant::now(), attempts: 0 }
    }

    pub(crate) fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Takes an attempt in, gives its connection the other packets, and ends it.
    pub(crate) fn take_in(&mut self, packets: &[Vec<u8>]) -> Fate {
        let Some(incoming) = self.attempt(&packets[0]) else { return Fate::Closed };
        let accepted = self.endpoint.accept(incoming, self.now, &mut Vec::new(), None);
        let Ok((handle, mut connection)) = accepted else { return Fate::Closed };
        self.settle(handle, &mut connection);
        for packet in &packets[1..] {
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = self.handle(packet) {
                connection.handle_event(event);
            }
            self.settle(handle, &mut connection);
        }
        let answered = !connection.is_closed() && connection.crypto_session().handshake_data().is_some();
        connection.close(self.now, 0_u32.into(), bytes::Bytes::new());
        while !connection.is_drained() {
            self.settle(handle, &mut connection);
            let Some(timeout) = connection.poll_timeout() else { break };
            self.now = self.now.max(timeout);
            connection.handle_timeout(self.now);
        }
        self.settle(handle, &mut connection);
        if answered { Fate::Answered } else { Fate::Closed }
    }

    /// Asks whoever sent this Initial to prove its address.
    pub(crate) fn retry(&mut self, packet: &[u8]) -> Retry {
        let incoming = self.attempt(packet).unwrap();
        let mut answer = Vec::new();
        let transmit = self.endpoint.retry(incoming, &mut answer).unwrap();
        let answer = &answer[..transmit.size];
        let (_, ids) = answer.split_at(5);
        let (_, rest) = ids[1..].split_at(ids[0].into());
        let (source, rest) = rest[1..].split_at(rest[0].into());
        Retry { source: source.to_vec(), token: rest[..rest.len() - TAG].to_vec() }
    }

    pub(crate) fn ignore(&mut self, packet: &[u8]) {
        if let Some(incoming) = self.attempt(packet) {
            self.endpoint.ignore(incoming);
        }
    }

    pub(crate) fn refuse(&mut self, packet: &[u8]) {
        if let Some(incoming) = self.attempt(packet) {
            let _close = self.endpoint.refuse(incoming, &mut Vec::new());
        }
    }

    pub(crate) fn assert_it_still_answers(&mut self) {
        self.attempts += 1;
        let attacker = Attacker::new(1 << 40 | self.attempts);
        assert_eq!(self.take_in(&attacker.hello(&attacker.usual_parameters())), Fate::Answered);
    }

    fn attempt(&mut self, packet: &[u8]) -> Option<Incoming> {
        match self.handle(packet) {
            Some(DatagramEvent::NewConnection(incoming)) => Some(incoming),
            _ => None,
        }
    }

    fn handle(&mut self, packet: &[u8]) -> Option<DatagramEvent> {
        let path = FourTuple::new(SocketAddr::from(ATTACKER), None);
        self.endpoint.handle(self.now, path, None, BytesMut::from(packet), &mut Vec::new())
    }

    /// Does what the connection and the endpoint have for each other, and lets it send.
    fn settle(&mut self, handle: ConnectionHandle, connection: &mut Connection) {
        while connection.poll_transmit(self.now, NonZeroUsize::MIN, &mut Vec::new()).is_some() {}
        while connection.poll().is_some() {}
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
    }
}
