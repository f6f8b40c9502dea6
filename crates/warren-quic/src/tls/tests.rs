mod posture;

use rustls::{ClientConnection, NamedGroup, ServerConnection};

use super::*;

/// Runs a handshake in memory. Returns the client's side, or the error of either side.
fn handshake(client: ClientConfig, exit: ServerConfig) -> Result<ClientConnection, Error> {
    let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from("exit.invalid").unwrap())?;
    let mut exit = ServerConnection::new(Arc::new(exit))?;
    while client.is_handshaking() || exit.is_handshaking() {
        let question = flight(|bytes| client.write_tls(bytes));
        exit.read_tls(&mut question.as_slice()).unwrap();
        exit.process_new_packets()?;
        let answer = flight(|bytes| exit.write_tls(bytes));
        client.read_tls(&mut answer.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(client)
}

fn flight(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    bytes
}

fn configs(cipher: Option<Cipher>) -> (ClientConfig, ServerConfig) {
    let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let client = client(&client_key, &[exit_key.public()], PresentedKey::default(), cipher).unwrap();
    (client, exit(&exit_key).unwrap())
}

#[test]
fn keys_are_told_as_the_document_shows() {
    let document = include_str!("../../../../docs/wire-protocol.md");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let key = PublicKey([0x11; 32]);
    let spki = raw_key::spki(&key);
    assert_eq!(public_key(&spki), Some(key));
    let public = PrivateKey::from_base64("qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqo=").unwrap().public();
    for (kind, shown) in [
        ("alpn", String::from_utf8(ALPN.to_vec()).unwrap()),
        ("certificate", hex(&spki)),
        ("public key", hex(&public.0)),
        (
            "proof",
            hex(&crate::strangers::token(&[key], &std::array::from_fn(|index| u8::try_from(index).unwrap()))),
        ),
    ] {
        let line = |line: &str| line.starts_with(kind) && line.ends_with(&format!("-> {shown}"));
        assert!(document.lines().any(line), "docs/wire-protocol.md lacks {kind} {shown}");
    }
}

#[test]
fn cipher_is_the_one_that_the_client_asks_for() {
    for cipher in Cipher::ALL {
        let (client, exit) = configs(Some(cipher));
        let client = handshake(client, exit).unwrap();
        assert_eq!(client.negotiated_cipher_suite(), Some(ciphers::suite(cipher)));
    }
}

#[test]
fn handshake_takes_post_quantum_key_exchange_and_the_cipher_of_this_cpu() {
    let (client, exit) = configs(None);
    let client = handshake(client, exit).unwrap();
    assert_eq!(client.negotiated_key_exchange_group().unwrap().name(), NamedGroup::X25519MLKEM768);
    let expected = if ciphers::cpu_has_aes() { Cipher::Aes128Gcm } else { Cipher::ChaCha20Poly1305 };
    assert_eq!(client.negotiated_cipher_suite(), Some(ciphers::suite(expected)));
    assert_eq!(client.alpn_protocol(), Some(ALPN));
    assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
}

#[test]
fn key_exchange_is_post_quantum_first() {
    let provider = provider(None);
    let groups: Vec<_> = provider.kx_groups.iter().map(|group| group.name()).collect();
    assert_eq!(groups, [NamedGroup::X25519MLKEM768, NamedGroup::X25519]);
}

#[test]
fn exit_with_another_key_is_refused_and_its_key_noted() {
    let (client_key, exit_key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let presented = PresentedKey::default();
    let client = client(&client_key, &[client_key.public()], presented.clone(), None).unwrap();
    let refused = handshake(client, exit(&exit_key).unwrap()).unwrap_err();
    assert!(matches!(refused, Error::InvalidCertificate(_)), "{refused}");
    assert_eq!(*presented.lock().unwrap(), Some(exit_key.public()));
}

#[test]
fn client_without_a_key_is_refused() {
    let (mut client, exit) = configs(None);
    client.client_auth_cert_resolver = Arc::new(NoKey);
    handshake(client, exit).unwrap_err();
}

#[test]
fn key_is_read_from_its_der_and_nothing_else() {
    let key = PrivateKey::generate().unwrap().public();
    let der = raw_key::spki(&key);
    assert_eq!(public_key(&der), Some(key));
    assert_eq!(public_key(&der[..43]), None);
    assert_eq!(public_key(&[&der[..], &[0]].concat()), None);
    assert_eq!(public_key(&key.0), None);
}

#[derive(Debug)]
struct NoKey;

impl rustls::client::ResolvesClientCert for NoKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        false
    }
}
