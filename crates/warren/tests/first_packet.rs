//! What an observer on the path can read in a client's first packets, which anybody can decrypt: their keys derive from a
//! connection ID in the packet (RFC 9001 section 5.2). The packets come from the real binary.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::net::UdpSocket;

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::attacker::{Attacker, crypto_frame};
use crate::support::{Client, Exit, ExitOptions, Net, Profile, eventually, seconds};

/// TLS extensions by their registered numbers: server name, groups, point formats, signature algorithms, ALPN, certificate types
/// (two), versions, resumption, key shares and transport parameters. The list also has status request and extended master secret,
/// which other libraries send.
const KNOWN_EXTENSIONS: [u16; 13] = [0, 5, 10, 11, 13, 16, 19, 20, 23, 43, 45, 51, 57];
/// Transport parameters that QUIC libraries send: those of RFC 9000, RFC 9221 and the acknowledgement frequency draft.
const KNOWN_PARAMETERS: [u64; 13] =
    [0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x0e, 0x0f, 0x20, 0xff04_de1b];

#[test]
fn a_client_s_first_packets_say_nothing_that_only_warren_says() {
    let Some(net) = Net::new() else { return };
    let keys: Vec<PublicKey> = (0..2).map(|_| PrivateKey::generate().unwrap().public()).collect();
    let pinned: Vec<toml::Value> = keys.iter().map(|key| key.to_string().into()).collect();
    let exit = Exit::init(&net, &ExitOptions::default());
    let profile = exit.enrol("laptop").with_exit("public_key", pinned);

    let seen = Seen::read(&first_packets(&net, &profile));
    seen.assert_quiet(&keys);
    assert_eq!(seen.extension(16), Some(&b"\0\x03\x02h3"[..]), "ALPN is HTTP/3's alone");
    assert_eq!(seen.extension(0), None, "no server is named");
    for number in seen.extensions.keys() {
        assert!(KNOWN_EXTENSIONS.contains(number), "extension {number}");
    }
    for id in seen.parameters() {
        // Identifiers of the form 31 N + 27 are reserved and must be ignored (RFC 9000 section 18.1). Some libraries send them.
        assert!(KNOWN_PARAMETERS.contains(&id) || id % 31 == 27, "transport parameter {id:#x}");
    }

    let named = profile.with_exit("server_name", "www.example.org");
    let seen = Seen::read(&first_packets(&net, &named));
    seen.assert_quiet(&keys);
    assert_eq!(
        seen.extension(0),
        Some(&b"\0\x12\0\0\x0fwww.example.org"[..]),
        "the profile's server name is sent"
    );
    assert_eq!(seen.extension(16), Some(&b"\0\x03\x02h3"[..]));
}

/// The control: the check finds forbidden content anywhere in the packets.
#[test]
fn what_only_warren_says_is_found_in_first_packets_that_have_it() {
    let key = PrivateKey::generate().unwrap().public();
    let attacker = Attacker::new(1);
    let hex: String = key.0[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let sealed = |text: &[u8]| attacker.initial(0, &[7; 16], &crypto_frame(0, text));
    for (planted, found) in [
        (sealed(b"....warren/1...."), "warren"),
        (sealed(b"....WARREN...."), "warren"),
        (sealed(format!("key={hex}").as_bytes()), "of the key in hexadecimal"),
        (sealed(&key.0[3..9]), "of the key"),
        (attacker.initial(0, &key.0[..16], &crypto_frame(0, b"....")), "of the key"),
    ] {
        let findings = Seen::read(&[planted]).findings(&[key]);
        assert!(findings.iter().any(|finding| finding.contains(found)), "{findings:?} lacks {found:?}");
    }
    assert_eq!(Seen::read(&[sealed(b"....h3....")]).findings(&[key]), Vec::<String>::new());
}

/// The first packets that `warren up` sends with this profile, to a silent socket at the exit's address.
fn first_packets(net: &Net, profile: &Profile) -> Vec<Vec<u8>> {
    let bind = || {
        let socket = UdpSocket::bind((Net::EXIT_V4, 443)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let listener = net.exit.enter(bind).join().unwrap();
    let client = Client::with(net, profile);
    let mut up = client.warren.start("up home --timeout 4s");
    let (mut packets, mut buffer) = (Vec::new(), [0; 2_048]);
    eventually(seconds(20), "a hello is complete", || {
        while let Ok(length) = listener.recv(&mut buffer) {
            packets.push(buffer[..length].to_vec());
        }
        packets.len() >= 2 && Seen::read(&packets).is_whole()
    });
    eventually(seconds(20), "warren up gives up", || !up.is_running());
    client.assert_host_unchanged();
    packets
}

/// What an observer reads in a client's Initials.
struct Seen {
    /// The datagrams as sent, and the decrypted payloads of their packets.
    texts: Vec<Vec<u8>>,
    hello: Vec<u8>,
    extensions: BTreeMap<u16, Vec<u8>>,
}

impl Seen {
    /// Reads the first connection attempt among some datagrams.
    fn read(datagrams: &[Vec<u8>]) -> Self {
        let id = &datagrams[0][6..6 + usize::from(datagrams[0][5])];
        let of_first = datagrams.iter().filter(|datagram| datagram.get(6..6 + id.len()) == Some(id));
        let mut texts = Vec::new();
        let mut pieces = BTreeMap::new();
        for datagram in of_first {
            let payload = opened(datagram, id);
            pieces.extend(crypto_frames(&payload));
            texts.extend([datagram.clone(), payload]);
        }
        let mut hello = Vec::new();
        for (offset, piece) in pieces {
            if offset <= hello.len() {
                let known = hello.len() - offset;
                hello.extend(piece.get(known..).unwrap_or_default());
            }
        }
        let mut seen = Self { texts, hello, extensions: BTreeMap::new() };
        if seen.is_whole() {
            seen.extensions = extensions(&seen.hello);
        }
        // The frames' content is joined, so that a text that is split between two frames is found too.
        seen.texts.push(seen.hello.clone());
        seen
    }

    fn is_whole(&self) -> bool {
        self.hello.len() > 4 && self.hello.len() == 4 + big_endian(&self.hello[1..4])
    }

    fn extension(&self, number: u16) -> Option<&[u8]> {
        self.extensions.get(&number).map(Vec::as_slice)
    }

    /// The identifiers of the transport parameters.
    fn parameters(&self) -> Vec<u64> {
        let (mut rest, mut numbers) = (self.extension(57).unwrap(), Vec::new());
        while !rest.is_empty() {
            numbers.push(variable_length(&mut rest));
            let length = variable_length(&mut rest);
            rest = &rest[usize::try_from(length).unwrap()..];
        }
        numbers
    }

    #[track_caller]
    fn assert_quiet(&self, keys: &[PublicKey]) {
        assert!(self.is_whole() && !self.extensions.is_empty());
        assert_eq!(self.findings(keys), Vec::<String>::new());
    }

    /// Every trace of Warren or of these keys.
    fn findings(&self, keys: &[PublicKey]) -> Vec<String> {
        let mut findings = Vec::new();
        for text in &self.texts {
            let lower = text.to_ascii_lowercase();
            let has = |part: &[u8]| lower.windows(part.len()).any(|window| window == part);
            if has(b"warren") {
                findings.push("the word warren".to_owned());
            }
            for key in keys {
                for part in key.0.windows(4) {
                    let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
                    if text.windows(4).any(|window| window == part) {
                        findings.push(format!("{hex} of the key"));
                    }
                    if has(hex.as_bytes()) {
                        findings.push(format!("{hex} of the key in hexadecimal"));
                    }
                }
            }
        }
        findings
    }
}

/// The decrypted payload of a client's Initial, which must be the first packet of its datagram.
fn opened(datagram: &[u8], id: &[u8]) -> Vec<u8> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let keys = suite.quic_suite().unwrap().keys(id, rustls::Side::Server, Version::V1).remote;
    let mut rest = &datagram[6 + id.len()..];
    rest = &rest[1 + usize::from(rest[0])..];
    let token = variable_length(&mut rest);
    rest = &rest[usize::try_from(token).unwrap()..];
    let length = usize::try_from(variable_length(&mut rest)).unwrap();
    let number_at = datagram.len() - rest.len();
    let mut packet = datagram[..number_at + length].to_vec();
    let (head, sealed) = packet.split_at_mut(number_at);
    let (number, behind) = sealed.split_at_mut(4);
    let sample = &behind[..keys.header.sample_len()];
    keys.header.decrypt_in_place(sample, &mut head[0], number).unwrap();
    let number_length = 1 + usize::from(packet[0] & 3);
    let (header, payload) = packet.split_at_mut(number_at + number_length);
    let number = big_endian(&header[number_at..]);
    let mut payload = payload.to_vec();
    keys.packet.decrypt_in_place(number.try_into().unwrap(), header, &mut payload).unwrap().to_vec()
}

/// The CRYPTO frames of a packet, with their offsets.
fn crypto_frames(payload: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (mut rest, mut pieces) = (payload, Vec::new());
    while let Some((&kind, behind)) = rest.split_first() {
        rest = behind;
        match kind {
            // PADDING and PING.
            0 | 1 => {}
            6 => {
                let offset = usize::try_from(variable_length(&mut rest)).unwrap();
                let length = usize::try_from(variable_length(&mut rest)).unwrap();
                let (piece, behind) = rest.split_at(length);
                pieces.push((offset, piece.to_vec()));
                rest = behind;
            }
            other => panic!("a frame of type {other} in a first packet"),
        }
    }
    pieces
}

/// The extensions of a ClientHello (RFC 8446 section 4.1.2).
fn extensions(hello: &[u8]) -> BTreeMap<u16, Vec<u8>> {
    // The message begins with header, version and 32 random bytes. Session ID, cipher suites and compression methods follow, each
    // with a length.
    let mut rest = &hello[4 + 2 + 32..];
    for prefix in [1, 2, 1] {
        rest = &rest[prefix + big_endian(&rest[..prefix])..];
    }
    rest = &rest[2..];
    let mut found = BTreeMap::new();
    while !rest.is_empty() {
        let length = big_endian(&rest[2..4]);
        found.insert(big_endian(&rest[..2]).try_into().unwrap(), rest[4..4 + length].to_vec());
        rest = &rest[4 + length..];
    }
    found
}

fn big_endian(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |value, byte| value << 8 | usize::from(*byte))
}

/// Takes a variable-length integer (RFC 9000 section 16).
fn variable_length(from: &mut &[u8]) -> u64 {
    let length = 1 << (from[0] >> 6);
    let (bytes, rest) = from.split_at(length);
    *from = rest;
    let first = u64::from(bytes[0] & 0x3f);
    bytes[1..].iter().fold(first, |value, byte| value << 8 | u64::from(*byte))
}
