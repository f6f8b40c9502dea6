//! A client that builds each byte of its Initials itself. It seals them properly, with keys that anybody can derive
//! from the first connection ID (RFC 9001 section 5.2), and puts hostile content inside. Tests of the daemon use it too.

use std::sync::Arc;

use rustls::{
    crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    quic::{ClientConnection, Version},
};
use warren_quic::{key::PrivateKey, tls};

/// Bytes of a packet number, and of the AEAD tag.
const NUMBER: usize = 4;
const TAG: usize = 16;

/// The most bytes of a ClientHello in one Initial.
const PART: usize = 900;

/// Frame types that no version of QUIC and no extension used by Warren defines.
const UNKNOWN_TYPES: [u64; 11] =
    [0x1f, 0x20, 0x21, 0x2f, 0x3f, 0xff, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, (1 << 62) - 1];

/// One connection attempt.
pub(crate) struct Attacker {
    pub(crate) destination: Vec<u8>,
    pub(crate) source: [u8; 8],
}

impl Attacker {
    /// An attempt with its own connection IDs.
    pub(crate) fn new(number: u64) -> Self {
        let destination = [&[0xd1; 12][..], &number.to_be_bytes()].concat();
        Self { destination, source: (number | 0x5c << 56).to_be_bytes() }
    }

    /// The transport parameters that a client must send.
    pub(crate) fn usual_parameters(&self) -> Vec<u8> {
        [&[0x0f, 8][..], &self.source].concat()
    }

    /// The Initials of a ClientHello with these transport parameters.
    pub(crate) fn hello(&self, parameters: &[u8]) -> Vec<Vec<u8>> {
        self.hello_with(parameters, &[])
    }

    /// The same attempt after a Retry, addressed to the Retry's source connection ID.
    pub(crate) fn after_retry(&self, retry: &Retry) -> Self {
        Self { destination: retry.source.clone(), source: self.source }
    }

    /// The Initials of a ClientHello with these transport parameters, and with a token.
    pub(crate) fn hello_with(&self, parameters: &[u8], token: &[u8]) -> Vec<Vec<u8>> {
        self.initials(token, &Self::hello_frames(parameters))
    }

    /// Initials with these frames, one packet for each item.
    pub(crate) fn initials(&self, token: &[u8], frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        (0..).zip(frames).map(|(number, frames)| self.initial(number, token, frames)).collect()
    }

    /// The CRYPTO frames of a ClientHello with these transport parameters, each for a packet of its own.
    pub(crate) fn hello_frames(parameters: &[u8]) -> Vec<Vec<u8>> {
        let key = || PrivateKey::generate().unwrap();
        let config = tls::client(&key(), &[key().public()], tls::PresentedKey::default(), None).unwrap();
        let name = "exit.invalid".try_into().unwrap();
        let mut connection =
            ClientConnection::new(Arc::new(config), Version::V1, name, parameters.to_vec()).unwrap();
        let mut hello = Vec::new();
        assert!(connection.write_hs(&mut hello).is_none());
        (0..).zip(hello.chunks(PART)).map(|(number, part)| crypto_frame(number * PART as u64, part)).collect()
    }

    /// An Initial with these frames followed by padding.
    pub(crate) fn initial(&self, number: u32, token: &[u8], frames: &[u8]) -> Vec<u8> {
        let mut payload = frames.to_vec();
        payload.resize(frames.len().max(1_170 - token.len()), 0);
        self.sealed(number, token, payload)
    }

    /// An Initial with padding followed by these frames.
    pub(crate) fn full_initial(&self, number: u32, token: &[u8], frames: &[u8]) -> Vec<u8> {
        let mut payload = vec![0; 1_170 - token.len() - frames.len()];
        payload.extend(frames);
        self.sealed(number, token, payload)
    }

    fn sealed(&self, number: u32, token: &[u8], mut payload: Vec<u8>) -> Vec<u8> {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
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

/// Frames of unknown types: in the shortest encoding, in eight bytes, and truncated. A truncated frame must be the last of its packet.
pub(crate) fn unknown_frames() -> Vec<[Vec<u8>; 3]> {
    let of = |frame_type: u64| {
        let short = [&variable_length_integer(frame_type)[..], &[0; 8]].concat();
        let long = (frame_type | 0xc0 << 56).to_be_bytes();
        [short, long.to_vec(), long[..3].to_vec()]
    };
    UNKNOWN_TYPES.map(of).to_vec()
}

/// Transport parameters to append to the usual ones: every known one and some unknown ones. Most of their values and lengths are invalid.
pub(crate) fn odd_parameters() -> Vec<Vec<u8>> {
    let ids = (0..=0x11).chain([0x20, 0x2ab2, 0x0f73_9bbc_1b66_6d09, 0xff04_de1a, 0xff04_de1b, 0x3e]);
    let largest = variable_length_integer((1 << 62) - 1);
    let values: [&[u8]; 8] =
        [&[], &[0], &[0x15], &[0x40], &[0x7f, 0xff], &[0xff; 3], &largest, &[0x80, 0, 0x40, 0]];
    let mut parameters = Vec::new();
    for id in ids {
        for value in values {
            for length in [value.len(), value.len() + 1, 0x3fff] {
                let (id, length) = (variable_length_integer(id), variable_length_integer(length as u64));
                parameters.push([&id[..], &length, value].concat());
            }
        }
    }
    parameters
}

/// A CRYPTO frame.
pub(crate) fn crypto_frame(offset: u64, data: &[u8]) -> Vec<u8> {
    [&[0x06][..], &variable_length_integer(offset), &variable_length_integer(data.len() as u64), data]
        .concat()
}

/// A variable-length integer (RFC 9000 section 16) in its shortest encoding.
pub(crate) fn variable_length_integer(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value.to_be_bytes()[7]],
        0x40..0x4000 => (value | 0x4000).to_be_bytes()[6..].to_vec(),
        0x4000..0x4000_0000 => (value | 0x8000_0000).to_be_bytes()[4..].to_vec(),
        _ => (value | 0xc0 << 56).to_be_bytes().to_vec(),
    }
}

/// The fields of a Retry.
pub(crate) struct Retry {
    pub(crate) source: Vec<u8>,
    pub(crate) token: Vec<u8>,
}

impl Retry {
    /// Parses a Retry for `attacker`. Returns `None` for any other packet (RFC 9000 section 17.2.5).
    pub(crate) fn read(attacker: &Attacker, packet: &[u8]) -> Option<Self> {
        let (head, ids) = packet.split_at_checked(5)?;
        let (destination, rest) = ids.get(1..)?.split_at_checked(ids[0].into())?;
        let (source, rest) = rest.get(1..)?.split_at_checked(rest[0].into())?;
        let token = &rest[..rest.len().checked_sub(TAG)?];
        let is_ours = head[0] & 0xf0 == 0xf0 && destination == attacker.source;
        is_ours.then(|| Self { source: source.to_vec(), token: token.to_vec() })
    }
}
