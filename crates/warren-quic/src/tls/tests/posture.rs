//! What a scanner finds out about Warren's TLS: everything that a client offers, and what an exit refuses.

use rustls::{HandshakeKind, client::Resumption, server::ServerSessionMemoryCache};

use super::*;

const TLS_1_2: u16 = 0x0303;
const TLS_1_3: u16 = 0x0304;
const SUPPORTED_VERSIONS: u16 = 43;

#[test]
fn a_client_offers_exactly_this() {
    let mut hello = Hello::of(configs(None).0);
    hello.ciphers.sort_unstable();
    assert_eq!(hello.ciphers, [0x1301, 0x1302, 0x1303]);
    assert_eq!(hello.list(SUPPORTED_VERSIONS, 1), [TLS_1_3]);
    assert_eq!(hello.list(10, 2), [0x11ec, 0x001d], "groups: X25519MLKEM768, X25519");
    assert_eq!(hello.list(13, 2), [0x0807], "signatures: Ed25519");
    assert_eq!(hello.extension(16), Some(&b"\0\x03\x02h3"[..]), "protocols: HTTP/3");
    assert_eq!((hello.list(19, 1), hello.list(20, 1)), (vec![2], vec![2]), "certificates: raw public keys");
    assert!(hello.extension(51).is_some_and(|shares| shares.len() > 1184), "a share of ML-KEM-768");
    for (number, what) in
        [(0, "a server's name"), (35, "tickets"), (41, "a session to resume"), (42, "0-RTT")]
    {
        assert_eq!(hello.extension(number), None, "{what}");
    }
}

#[test]
fn an_exit_takes_no_earlier_tls() {
    let (_, exit) = configs(None);
    let answer = |version| {
        let mut hello = Hello::of(configs(None).0);
        hello.set_version(version);
        let mut exit = ServerConnection::new(Arc::new(exit.clone())).unwrap();
        exit.read_tls(&mut hello.bytes.as_slice()).unwrap();
        exit.process_new_packets().map(drop)
    };
    answer(TLS_1_3).unwrap();
    assert!(matches!(answer(TLS_1_2), Err(Error::PeerIncompatible(_))), "{:?}", answer(TLS_1_2));
}

#[test]
fn an_exit_exchanges_keys_in_no_other_way() {
    let (client, exit) = configs(None);
    let kx_groups = vec![kx_group::SECP256R1, kx_group::SECP384R1];
    let provider = Arc::new(CryptoProvider { kx_groups, ..provider(None) });
    let verifier = Pinned {
        keys: Vec::new(),
        presented: PresentedKey::default(),
        algorithms: provider.signature_verification_algorithms,
    };
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(client.client_auth_cert_resolver);
    assert!(matches!(handshake(client, exit).unwrap_err(), Error::PeerIncompatible(_)));
}

#[test]
fn an_exit_lets_nobody_resume_nor_send_before_the_handshake() {
    let (mut client, mut exit) = configs(None);
    client.resumption = Resumption::in_memory_sessions(8);
    client.enable_early_data = true;
    let kind = |exit: &ServerConfig| handshake(client.clone(), exit.clone()).unwrap().handshake_kind();
    for _ in 0..3 {
        assert_eq!(kind(&exit), Some(HandshakeKind::Full));
    }
    assert_eq!(exit.max_early_data_size, 0);

    // The control: an exit that lets clients resume.
    exit.session_storage = ServerSessionMemoryCache::new(8);
    exit.send_tls13_tickets = 2;
    assert_eq!(kind(&exit), Some(HandshakeKind::Full));
    assert_eq!(kind(&exit), Some(HandshakeKind::Resumed));
}

/// A ClientHello taken apart (RFC 8446 section 4.1.2).
struct Hello {
    /// The TLS record that contains the hello.
    bytes: Vec<u8>,
    ciphers: Vec<u16>,
    /// Each extension: its number, its content, and where the content begins in `bytes`.
    extensions: Vec<(u16, Vec<u8>, usize)>,
}

impl Hello {
    fn of(client: ClientConfig) -> Self {
        let mut client =
            ClientConnection::new(Arc::new(client), ServerName::try_from("exit.invalid").unwrap()).unwrap();
        let bytes = flight(|to| client.write_tls(to));
        // The headers of record and message, a version, 32 random bytes and a session's identifier.
        let mut at = 5 + 4 + 2 + 32;
        at += 1 + usize::from(bytes[at]);
        let length = usize::from(number(&bytes, at));
        let ciphers = numbers(&bytes[at + 2..][..length]);
        at += 2 + length;
        at += 1 + usize::from(bytes[at]);
        let end = at + 2 + usize::from(number(&bytes, at));
        at += 2;
        let mut extensions = Vec::new();
        while at < end {
            let length = usize::from(number(&bytes, at + 2));
            extensions.push((number(&bytes, at), bytes[at + 4..][..length].to_vec(), at + 4));
            at += 4 + length;
        }
        assert_eq!((at, end), (bytes.len(), bytes.len()), "it ends where it says");
        Self { bytes, ciphers, extensions }
    }

    fn extension(&self, wanted: u16) -> Option<&[u8]> {
        self.extensions
            .iter()
            .find(|(number, ..)| *number == wanted)
            .map(|(_, content, _)| content.as_slice())
    }

    /// The numbers in an extension, after a length field of `prefix` bytes.
    fn list(&self, number: u16, prefix: usize) -> Vec<u16> {
        let list = &self.extension(number).unwrap()[prefix..];
        if list.len() == 1 { vec![list[0].into()] } else { numbers(list) }
    }

    /// Makes the hello offer one version of TLS.
    fn set_version(&mut self, version: u16) {
        let (_, _, at) = self.extensions.iter().find(|(number, ..)| *number == SUPPORTED_VERSIONS).unwrap();
        self.bytes[at + 1..at + 3].copy_from_slice(&version.to_be_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn numbers(bytes: &[u8]) -> Vec<u16> {
    (0..bytes.len()).step_by(2).map(|at| number(bytes, at)).collect()
}
