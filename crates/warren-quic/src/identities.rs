//! The server configurations of a listening socket, one for each of the exit's keys. Only a client's proof shows which key the
//! client pins ([`Gate::pinned_by`](crate::strangers::Gate::pinned_by)).

use std::sync::Arc;

use noq_proto::ServerConfig;

use crate::{
    key::{PrivateKey, PublicKey},
    quic_config,
    tls::{self, ExitIdentity},
};

/// The configurations of one socket, in the order of the exit's keys.
pub(crate) struct Identities(Vec<OfKey>);

#[derive(Clone)]
struct OfKey {
    key: PublicKey,
    identity: ExitIdentity,
    config: Arc<ServerConfig>,
}

impl Identities {
    /// Makes a copy of `base` for each key.
    ///
    /// # Errors
    /// If the TLS library refuses its own ciphers, which does not happen.
    pub(crate) fn new(base: &ServerConfig, keys: &[PrivateKey]) -> Result<Self, rustls::Error> {
        keys.iter().map(|key| OfKey::new(base, key)).collect::<Result<_, _>>().map(Self)
    }

    /// Replaces the keys. Handshakes continue if their key is also one of the new keys. A removed key is erased from all
    /// configurations, including those that running connections still hold.
    ///
    /// # Errors
    /// As [`Self::new`]. In that case the previous keys stay.
    pub(crate) fn set(&mut self, keys: &[PrivateKey]) -> Result<(), rustls::Error> {
        let Some(base) = self.first() else { return Ok(()) };
        let of_key = |key: &PrivateKey| {
            let kept = self.0.iter().find(|of_key| of_key.key == key.public()).cloned();
            kept.map_or_else(|| OfKey::new(&base, key), Ok)
        };
        let of_keys: Vec<OfKey> = keys.iter().map(of_key).collect::<Result<_, _>>()?;
        // Forgets all keys. The remaining ones are set again below, because the new list shares their identities.
        self.0.iter().for_each(|old| old.identity.forget());
        // A key that stays may have been read from its file again. Only the new copy is kept, so that there is
        // one copy in memory.
        of_keys.iter().zip(keys).for_each(|(of_key, key)| of_key.identity.hold(key));
        self.0 = of_keys;
        Ok(())
    }

    /// The configuration of the key at this index.
    pub(crate) fn at(&self, place: usize) -> Option<Arc<ServerConfig>> {
        self.0.get(place).map(|of_key| of_key.config.clone())
    }

    /// The key at this index.
    pub(crate) fn key_at(&self, place: usize) -> Option<PublicKey> {
        self.0.get(place).map(|of_key| of_key.key)
    }

    /// The configuration of the exit's first key.
    pub(crate) fn first(&self) -> Option<Arc<ServerConfig>> {
        self.at(0)
    }
}

impl OfKey {
    fn new(base: &ServerConfig, key: &PrivateKey) -> Result<Self, rustls::Error> {
        let identity = ExitIdentity::new(key);
        let mut config = base.clone();
        config.crypto = quic_config::exit_crypto(tls::exit_as(identity.clone())?);
        Ok(Self { key: key.public(), identity, config: Arc::new(config) })
    }
}
