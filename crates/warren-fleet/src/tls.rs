//! Certificates and private keys in PEM, and TLS handshakes that only look at certificates.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// Checks that a file has the certificates of an authority.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn check_authority(name: &str, pem: &str) -> anyhow::Result<()> {
    end_of_pem(pem).map(drop).with_context(|| {
        format!("{name} does not have the certificate of the store's CA in PEM; name the file that has it")
    })
}

/// Checks that a private key belongs to a certificate.
///
/// # Errors
/// If it does not, or one of the two cannot be read.
pub(crate) fn check_pair(
    (certificate_name, certificate): (&str, &str),
    (key_name, key): (&str, &str),
) -> anyhow::Result<()> {
    let chain = chain_of(certificate).and_then(|chain| match chain.is_empty() {
        true => bail!("there is no certificate in it"),
        false => Ok(chain),
    });
    let chain = chain.with_context(|| {
        format!("{certificate_name} does not have a certificate in PEM; name the file that has it")
    })?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
        anyhow!("{key_name} does not have a private key in PEM; name the file that has the key of {certificate_name}")
    })?;
    match CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()) {
        Ok(_) => Ok(()),
        Err(Error::InconsistentKeys(_)) => bail!(
            "{key_name} is not the private key of {certificate_name}; name the two files that were made together"
        ),
        Err(error) => bail!("{certificate_name} and {key_name} cannot be used: {error}; make new ones"),
    }
}

/// Returns when the first certificate in a PEM file expires, in seconds since 1970.
pub(crate) fn end_of_pem(pem: &str) -> anyhow::Result<i64> {
    first_end(&chain_of(pem)?)
}

pub(crate) fn parsed(der: &CertificateDer<'_>) -> anyhow::Result<Certificate> {
    Certificate::from_der(der).map_err(|error| anyhow!("it is not a certificate: {error}"))
}

pub(crate) fn first_end(chain: &[CertificateDer<'_>]) -> anyhow::Result<i64> {
    let ends = chain.iter().map(|der| {
        let end = parsed(der)?.tbs_certificate().validity().not_after.to_unix_duration();
        Ok(i64::try_from(end.as_secs()).unwrap_or(i64::MAX))
    });
    let ends = ends.collect::<anyhow::Result<Vec<i64>>>()?;
    ends.into_iter().min().context("there is no certificate in it")
}

/// Returns the host and port of an endpoint, such as `https://HOST:PORT/`.
pub(crate) fn address_of(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// Connects to a member without checking the member's certificate.
pub(crate) async fn handshake(
    address: &str,
    identity: Option<(String, String)>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let (host, port) = host_and_port(address)?;
    let name = ServerName::try_from(host.to_owned())?;
    let connection = TcpStream::connect((host, port)).await?;
    let connector = TlsConnector::from(Arc::new(seeing(identity)?));
    Ok(connector.connect(name, connection).await?)
}

pub(crate) fn host_and_port(address: &str) -> anyhow::Result<(&str, u16)> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().context("it has no port")?),
        Some(_) | None => (address, 443),
    };
    Ok((host.trim_matches(['[', ']']), port))
}

/// Reads the certificates of a PEM file.
pub(crate) fn chain_of(pem: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    chain.map_err(|error| anyhow!("it is not PEM: {error:?}"))
}

/// Makes a TLS client that reads certificates, even expired ones.
fn seeing(identity: Option<(String, String)>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)));
    let mut config = match identity {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
            builder.with_client_auth_cert(
                chain_of(&certificate)?,
                key.map_err(|error| anyhow!("the key is not PEM: {error:?}"))?,
            )?
        }
        None => builder.with_no_client_auth(),
    };
    // etcd serves gRPC, which is HTTP/2.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Accepts every certificate, because only its expiry matters here, and nothing is sent to its holder. The link to the store uses
/// a separate TLS client, which checks everything.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use ::aws_lc_rs::rand::SystemRandom;
    use ::aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Made by `openssl req -x509 -newkey ec ... -days 1`.
    const PEM: &str = include_str!("certificates/test.pem");

    /// A key that belongs to no certificate.
    fn other_key() -> String {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(key))
    }

    #[test]
    fn files_that_were_mixed_up_are_named() {
        let other_key = &other_key();
        let pair = |certificate, key| check_pair(("a.pem", certificate), ("a.key", key));
        let failed = |checked: anyhow::Result<()>| checked.unwrap_err().to_string();
        assert!(failed(pair(PEM, other_key)).contains("a.key is not the private key of a.pem"));
        assert!(failed(pair(other_key, other_key)).contains("a.pem does not have a certificate"));
        assert!(failed(pair(PEM, PEM)).contains("a.key does not have a private key"));
        assert!(failed(pair("", other_key)).contains("a.pem does not have a certificate"));
        assert!(failed(check_authority("ca.pem", other_key)).contains("ca.pem does not have"));
        check_authority("ca.pem", PEM).unwrap();
    }

    #[test]
    fn a_member_is_named_by_host_and_port() {
        assert_eq!(address_of("https://a.example.net:2379"), "a.example.net:2379");
        assert_eq!(address_of("https://[2001:db8::1]:2379/"), "[2001:db8::1]:2379");
    }
}
