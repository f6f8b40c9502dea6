//! What is wrong with certificates, in words that name the file. The TLS library's own errors name no file, and etcd only closes
//! the connection.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::{address_of, chain_of, end_of_pem, handshake, host_and_port};
use crate::store::{ANSWER_TIMEOUT, StoreOptions};

/// How long a member may take to refuse this client's certificate after the handshake.
const REFUSAL: Duration = Duration::from_millis(500);

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
        Err(error) => bail!("{certificate_name} and {key_name} cannot be used: {error}; make others"),
    }
}

/// Says which certificate is the reason why a member cannot be used. `None` if no certificate is the reason.
pub(crate) async fn fault(options: &StoreOptions, endpoint: &str) -> Option<String> {
    if !endpoint.starts_with("https://") {
        return None;
    }
    let looked = timeout(ANSWER_TIMEOUT, look(options, address_of(endpoint))).await;
    looked.ok().flatten()
}

async fn look(options: &StoreOptions, address: &str) -> Option<String> {
    let mut stream = match handshake(address, options.identity.clone()).await {
        Ok(stream) => stream,
        Err(error) => return refused(error.downcast_ref(), options),
    };
    let shown = stream.get_ref().1.peer_certificates()?.to_vec();
    if let Some(why) = why_untrusted(&shown, options, address) {
        return Some(why);
    }
    // Since TLS 1.3, the member checks this client's certificate after the handshake. A member that accepts it sends its settings.
    let mut first = [0];
    let read = timeout(REFUSAL, stream.read(&mut first)).await.ok()?;
    refused(read.err().as_ref(), options)
}

/// What an alert of a member means for this client's certificate.
fn refused(error: Option<&std::io::Error>, options: &StoreOptions) -> Option<String> {
    let alert = error?.get_ref()?.downcast_ref::<Error>()?;
    matches!(alert, Error::AlertReceived(_)).then(|| match &options.identity {
        Some(_) => format!(
            "it refuses {}; name a certificate that has not expired, and that the CA of the store's clients has signed",
            options.certificate_name
        ),
        None => "it asks for a certificate; name one and its key".to_owned(),
    })
}

/// Why a member's certificate is not accepted. `None` if it is.
fn why_untrusted(shown: &[CertificateDer<'_>], options: &StoreOptions, address: &str) -> Option<String> {
    let (first, rest) = shown.split_first()?;
    let (host, _) = host_and_port(address).ok()?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain_of(options.ca.as_deref()?).ok()?);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let not_signed = format!(
        "its certificate is not signed by {}; name the certificate of the CA that has signed it",
        options.ca_name
    );
    // Only a file without any usable root is refused here.
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build() else {
        return Some(not_signed);
    };
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let error = verifier.verify_server_cert(first, rest, &name, &[], UnixTime::now()).err()?;
    let Error::InvalidCertificate(fault) = &error else {
        return Some(format!("its certificate is not accepted: {error}"));
    };
    if matches!(fault, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        return Some(not_signed);
    }
    if matches!(fault, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
        return Some(
            "its certificate has expired; replace it on that host (docs/fleet.md says how)".to_owned(),
        );
    }
    if matches!(fault, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) {
        return Some(format!("its certificate is not for {host}; make one whose subjectAltName has {host}"));
    }
    Some(format!("its certificate is not accepted: {error}"))
}

#[cfg(test)]
mod tests {
    use ::aws_lc_rs::rand::SystemRandom;
    use ::aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Made by `openssl req -x509 -newkey ec ... -days 1`.
    const PEM: &str = include_str!("test.pem");

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
}
