//! The rate limits of clients that have been connected since the exit started.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use warren_packet::reason::DropCounters;
use warren_session::PublicKey;
use warren_session::clients::ClientRegistry;

use warren_tunnel::ClientLimit;

/// Each client's limit, shared with the workers. The limit outlives the session, so that a client cannot get a new burst by
/// reconnecting.
#[derive(Debug, Default)]
pub(super) struct ClientLimits(HashMap<PublicKey, Arc<ClientLimit>>);

impl ClientLimits {
    /// The limit of a client, with its rate from the registry.
    pub(super) fn of(&mut self, registry: &ClientRegistry, key: PublicKey) -> Arc<ClientLimit> {
        let rate = registry.by_key(key).and_then(|client| client.rate_limit);
        let limit = self.0.entry(key).or_insert_with(|| Arc::new(ClientLimit::new(rate, Instant::now())));
        limit.set(rate);
        limit.clone()
    }

    /// Sets a client's limit to the registry's rate. Forgets the limit of a client that was removed.
    pub(super) fn follow(&mut self, registry: &ClientRegistry, key: PublicKey) {
        match registry.by_key(key) {
            Some(client) => self.0.get(&key).into_iter().for_each(|limit| limit.set(client.rate_limit)),
            None => drop(self.0.remove(&key)),
        }
    }

    /// Does [`Self::follow`] for every client, after an import.
    pub(super) fn follow_all(&mut self, registry: &ClientRegistry) {
        let keys: Vec<PublicKey> = self.0.keys().copied().collect();
        keys.into_iter().for_each(|key| self.follow(registry, key));
    }

    /// A client's dropped packets, by reason.
    pub(super) fn drops(&self, key: PublicKey) -> DropCounters {
        self.0.get(&key).map(|limit| limit.drops()).unwrap_or_default()
    }

    /// Number of a client's packets that its rate limit has dropped.
    pub(super) fn refused(&self, key: PublicKey) -> u64 {
        self.0.get(&key).map(|limit| limit.refused()).unwrap_or_default()
    }
}
