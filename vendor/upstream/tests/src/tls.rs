//! TLS that asks for nothing but a signature: certificates are zeros of any length, and no client looks at them.

use std::sync::Arc;

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::{default_provider, sign::any_eddsa_type},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

/// The head of an Ed25519 key's PKCS #8 (RFC 8410 section 7); the key follows.
const HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// A server whose certificate has this length.
pub fn server_tls(certificate: usize) -> ServerConfig {
    let key = [HEAD.as_slice(), &[7; 32]].concat();
    let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).unwrap();
    let certified = CertifiedKey::new(vec![CertificateDer::from(vec![0; certificate])], key);
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
}

pub fn client_tls() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth()
}

pub fn quic_client(tls: ClientConfig) -> Arc<QuicClientConfig> {
    Arc::new(QuicClientConfig::try_from(tls).unwrap())
}

pub fn quic_server(tls: ServerConfig) -> Arc<QuicServerConfig> {
    Arc::new(QuicServerConfig::try_from(tls).unwrap())
}

/// Takes every server for the right one.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("TLS 1.2 is not offered")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
