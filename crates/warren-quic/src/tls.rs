//! TLS 1.3 with raw Ed25519 public keys on both sides (RFC 7250): pinned exit keys, no resumption, no 0-RTT.

mod identity;
mod raw_key;
mod signing;

use std::sync::{Arc, Mutex, PoisonError};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms,
        aws_lc_rs::{self, kx_group},
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

pub(crate) use self::identity::ExitIdentity;
pub use self::raw_key::public_key;
use self::signing::certified;
use crate::{
    ciphers,
    key::{PrivateKey, PublicKey},
    settings::Cipher,
};

/// The ALPN protocol, which is HTTP/3's (RFC 9114 section 3.1), because anybody on the path can read it. `Hello` carries Warren's
/// own version.
pub const ALPN: &[u8] = b"h3";

/// Where a client's verifier stores the key of a refused peer.
pub type PresentedKey = Arc<Mutex<Option<PublicKey>>>;

/// Makes the configuration of a client that accepts the exit keys `pinned` and stores a refused key in `presented`. It prefers
/// `cipher`, or the fastest one on this CPU. Its hello names no server unless `enable_sni` is set.
///
/// # Errors
/// If the TLS library refuses its own ciphers, which does not happen.
pub fn client(
    identity: &PrivateKey,
    pinned: &[PublicKey],
    presented: PresentedKey,
    cipher: Option<Cipher>,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(provider(cipher));
    let verifier =
        Pinned { keys: pinned.to_vec(), presented, algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        // Raw keys have no chain of certificates. `Pinned` compares the key itself.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified(identity))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed handshake proves no key, and early data can be replayed (RFC 8446 sections 2.2 and 8).
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(config)
}

/// Makes the configuration of an exit with this key. It accepts any Ed25519 key that a client proves.
///
/// # Errors
/// If the TLS library refuses its own ciphers, which does not happen.
pub fn exit(identity: &PrivateKey) -> Result<ServerConfig, Error> {
    exit_as(ExitIdentity::new(identity))
}

/// Like [`exit`], with a key that can be revoked.
pub(crate) fn exit_as(identity: ExitIdentity) -> Result<ServerConfig, Error> {
    let provider = Arc::new(provider(None));
    let verifier = AnyKey { algorithms: provider.signature_verification_algorithms };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // No resumption and no early data, for the reasons given in `client`.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    // The client's order decides, because the client lists the cipher first that is fastest on its CPU.
    config.ignore_client_order = false;
    Ok(config)
}

/// Returns aws-lc-rs, with post-quantum key exchange first. The preferred cipher comes first, then the others by their speed on
/// this CPU.
fn provider(first: Option<Cipher>) -> CryptoProvider {
    CryptoProvider {
        cipher_suites: ciphers::in_order(first),
        kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519],
        ..aws_lc_rs::default_provider()
    }
}

/// Checks an Ed25519 signature by the presented raw key.
fn verify_signature(
    message: &[u8],
    spki: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    // A hand-written profile or registry may contain a key of small order, for which a signature proves nothing.
    let proves_nothing = public_key(spki).is_none_or(|key| key.is_of_small_order());
    if proves_nothing || signature.scheme != SignatureScheme::ED25519 {
        return Err(CertificateError::BadSignature.into());
    }
    verify_tls13_signature_with_raw_key(
        message,
        &SubjectPublicKeyInfoDer::from(spki.as_ref()),
        signature,
        algorithms,
    )
}

/// A client's verifier of exits, which accepts only the pinned keys.
#[derive(Debug)]
struct Pinned {
    keys: Vec<PublicKey>,
    presented: PresentedKey,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let key = public_key(end_entity).ok_or(CertificateError::BadEncoding)?;
        // The comparison need not take constant time, because the keys are public.
        if self.keys.contains(&key) {
            return Ok(ServerCertVerified::assertion());
        }
        *self.presented.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Never called, because only TLS 1.3 is offered.
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, spki, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// An exit's verifier of clients. It accepts any Ed25519 key. The session layer knows which keys are enrolled.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        public_key(end_entity).ok_or(CertificateError::BadEncoding)?;
        // TLS itself checks the signature, so the client has this key.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Never called, because only TLS 1.3 is accepted.
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, spki, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_in_result, reason = "a test may panic")]
mod tests;
