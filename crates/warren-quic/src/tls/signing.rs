//! Signs handshakes without giving the TLS library a copy of the private key.

use std::sync::Arc;

use rustls::{
    Error, SignatureAlgorithm, SignatureScheme,
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer},
    sign::{CertifiedKey, Signer, SigningKey},
};

use super::raw_key::spki;
use crate::key::PrivateKey;

/// A key in the form in which TLS proves it.
pub(super) fn certified(identity: &PrivateKey) -> Arc<CertifiedKey> {
    let certificate = CertificateDer::from(spki(&identity.public()));
    Arc::new(CertifiedKey::new(vec![certificate], Arc::new(Signing(identity.clone()))))
}

#[derive(Clone, Debug)]
struct Signing(PrivateKey);

impl SigningKey for Signing {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(spki(&self.0.public())))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature = self.0.sign(message);
        signature
            .map(|signature| signature.as_ref().to_vec())
            .map_err(|_| Error::General("out of memory".into()))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}
