//! An exit's key, which can be revoked while connections hold its configuration.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::signing::certified;
use crate::key::PrivateKey;

/// The key that an exit proves, shared by clones. Read once per handshake.
#[derive(Clone, Debug)]
pub(crate) struct ExitIdentity(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl ExitIdentity {
    pub(crate) fn new(key: &PrivateKey) -> Self {
        Self(Arc::new(RwLock::new(Some(certified(key)))))
    }

    /// Sets the key to prove.
    pub(crate) fn hold(&self, key: &PrivateKey) {
        self.set(Some(certified(key)));
    }

    /// Erases the key. Later handshakes fail.
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
