//! What a listening socket of an exit accepts connections with: a configuration for each of the exit's keys. A client's proof
//! says which key it pins ([`Gate::pinned_by`](crate::strangers::Gate::pinned_by)); nothing else on the wire does.

use std::sync::Arc;

use noq_proto::{ServerConfig, crypto::rustls::QuicServerConfig};

use crate::{key::PrivateKey, tls};

/// The configurations of one socket, in the order of the exit's keys.
#[derive(Clone)]
pub(crate) struct Identities(Vec<Arc<ServerConfig>>);

impl Identities {
    /// Gives each of these keys a configuration like `base`.
    ///
    /// # Errors
    /// When the TLS library refuses its own ciphers, which it does not.
    pub(crate) fn like(base: &ServerConfig, keys: &[PrivateKey]) -> Result<Self, rustls::Error> {
        let of_key = |key| {
            let tls = QuicServerConfig::try_from(tls::exit(key)?)
                .expect("the provider has AES-128-GCM, which QUIC's Initial packets need");
            let mut config = base.clone();
            config.crypto = Arc::new(tls);
            Ok(Arc::new(config))
        };
        keys.iter().map(of_key).collect::<Result<_, _>>().map(Self)
    }

    /// The one of the key at this place.
    pub(crate) fn at(&self, place: usize) -> Option<Arc<ServerConfig>> {
        self.0.get(place).cloned()
    }

    /// The one of the exit's first key.
    pub(crate) fn first(&self) -> Option<Arc<ServerConfig>> {
        self.at(0)
    }
}
