//! The keys of an exit, which may become others while it runs.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::{certified, hint};
use crate::key::PrivateKey;

/// An exit's keys, each with the hint of clients that pin it; clones have the same. They are read once a handshake.
#[derive(Clone, Debug)]
pub(crate) struct Identities(Arc<RwLock<Vec<Identity>>>);

type Identity = (Vec<u8>, Arc<CertifiedKey>);

impl Identities {
    pub(crate) fn new(keys: &[PrivateKey]) -> Self {
        Self(Arc::new(RwLock::new(identities(keys))))
    }

    /// Proves these keys from now on, in place of those before.
    pub(crate) fn set(&self, keys: &[PrivateKey]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = identities(keys);
    }
}

fn identities(keys: &[PrivateKey]) -> Vec<Identity> {
    keys.iter().map(|key| (hint(&key.public()), certified(key))).collect()
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identities = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let offered: Vec<&[u8]> = hello.alpn().map(Iterator::collect).unwrap_or_default();
        let pinned = identities.iter().find(|(hint, _)| offered.contains(&hint.as_slice()));
        pinned.or(identities.first()).map(|(_, key)| Arc::clone(key))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}
