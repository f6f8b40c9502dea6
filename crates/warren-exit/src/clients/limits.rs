//! The rate limits of clients that have been connected since the exit started.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use warren_session::PublicKey;
use warren_session::clients::ClientRegistry;

use warren_tunnel::ClientLimit;

/// Each client's limit, shared with the workers. It outlives the session, so that a client cannot get a new burst by reconnecting.
#[derive(Debug, Default)]
pub(super) struct ClientLimits(HashMap<PublicKey, Arc<ClientLimit>>);

impl ClientLimits {
    /// The limit of a client, with the rate that the registry has.
    pub(super) fn of(&mut self, registry: &ClientRegistry, key: PublicKey) -> Arc<ClientLimit> {
        let rate = registry.by_key(key).and_then(|client| client.rate_limit);
        let limit = self.0.entry(key).or_insert_with(|| Arc::new(ClientLimit::new(rate, Instant::now())));
        limit.set(rate);
        limit.clone()
    }

    /// Sets every limit to the registry's rate, and forgets clients that are gone.
    pub(super) fn follow(&mut self, registry: &ClientRegistry) {
        self.0.retain(|key, limit| {
            let client = registry.by_key(*key);
            if let Some(client) = client {
                limit.set(client.rate_limit);
            }
            client.is_some()
        });
    }

    /// How many packets of a client its limit has dropped.
    pub(super) fn refused(&self, key: PublicKey) -> u64 {
        self.0.get(&key).map(|limit| limit.refused()).unwrap_or_default()
    }
}
