//! A key of an exit, which may be taken away while connections have its configuration.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::signing::certified;
use crate::key::PrivateKey;

/// The key that an exit proves; clones are the same one. It is read once a handshake.
#[derive(Clone, Debug)]
pub(crate) struct ExitIdentity(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl ExitIdentity {
    pub(crate) fn new(key: &PrivateKey) -> Self {
        Self(Arc::new(RwLock::new(Some(certified(key)))))
    }

    /// Proves this key from now on.
    pub(crate) fn hold(&self, key: &PrivateKey) {
        self.set(Some(certified(key)));
    }

    /// Proves nothing from now on, and keeps no key.
    pub(crate) fn forget(&self) {
        self.set(None);
    }

    fn set(&self, key: Option<Arc<CertifiedKey>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }
}

impl ResolvesServerCert for ExitIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}
