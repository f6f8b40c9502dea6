//! What is wrong with certificates, in words that name the file. The TLS library's own errors name no file, and etcd only closes
//! the connection.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::{ANSWER_TIMEOUT, StoreOptions};
use crate::tls::{address_of, chain_of, handshake, host_and_port};

/// How long a member may take to refuse this client's certificate after the handshake.
const REFUSAL: Duration = Duration::from_millis(500);

impl StoreOptions {
    /// Replaces the error of a connection by a clearer one, if a certificate is the cause.
    pub(crate) async fn explained(&self, endpoint: &str, error: anyhow::Error) -> anyhow::Error {
        fault(self, endpoint).await.map_or(error, anyhow::Error::msg)
    }
}

/// Says which certificate is the reason why a member cannot be used. `None` if no certificate is the reason.
async fn fault(options: &StoreOptions, endpoint: &str) -> Option<String> {
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
    // Since TLS 1.3, the member checks this client's certificate after the handshake. If it accepts the certificate, it sends its HTTP/2
    // settings.
    let mut first = [0];
    let read = timeout(REFUSAL, stream.read(&mut first)).await.ok()?;
    refused(read.err().as_ref(), options)
}

/// Says what an alert from a member means for this client's certificate.
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
