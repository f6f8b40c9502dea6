//! What a listening socket of an exit accepts connections with: a configuration for each of the exit's keys. A client's proof
//! says which key it pins ([`Gate::pinned_by`](crate::strangers::Gate::pinned_by)); nothing else on the wire does.

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
    /// Gives each of these keys a configuration like `base`.
    ///
    /// # Errors
    /// When the TLS library refuses its own ciphers, which it does not.
    pub(crate) fn new(base: &ServerConfig, keys: &[PrivateKey]) -> Result<Self, rustls::Error> {
        keys.iter().map(|key| OfKey::new(base, key)).collect::<Result<_, _>>().map(Self)
    }

    /// Has these keys from now on. Handshakes by a key that stays go on; one that goes is in no configuration any more, although a
    /// connection keeps that which it was accepted with.
    ///
    /// # Errors
    /// As [`Self::new`]; the keys stay as they were then.
    pub(crate) fn set(&mut self, keys: &[PrivateKey]) -> Result<(), rustls::Error> {
        let Some(base) = self.first() else { return Ok(()) };
        let of_key = |key: &PrivateKey| {
            let kept = self.0.iter().find(|of_key| of_key.key == key.public()).cloned();
            kept.map_or_else(|| OfKey::new(&base, key), Ok)
        };
        let of_keys: Vec<OfKey> = keys.iter().map(of_key).collect::<Result<_, _>>()?;
        self.0.iter().for_each(|old| old.identity.forget());
        // The same key may have been read again: it is to be in memory once.
        of_keys.iter().zip(keys).for_each(|(of_key, key)| of_key.identity.hold(key));
        self.0 = of_keys;
        Ok(())
    }

    /// The one of the key at this place.
    pub(crate) fn at(&self, place: usize) -> Option<Arc<ServerConfig>> {
        self.0.get(place).map(|of_key| of_key.config.clone())
    }

    /// The one of the exit's first key.
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
