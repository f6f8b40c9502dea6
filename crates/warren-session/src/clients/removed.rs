//! Removed keys, remembered for good: one `[[removed]]` table of `clients.toml` each.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::timestamp;
use crate::PublicKey;
use crate::compact::compact;
use crate::key::stored_key;
use crate::planted::{Bug, is_planted};

/// A key that cannot be enrolled again unless the operator allows it. Otherwise anybody with a copy of the key could take the
/// client's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovedKey {
    /// The last name of the client that had the key.
    pub name: String,
    /// The key.
    #[serde(deserialize_with = "stored_key")]
    pub public_key: PublicKey,
    /// When the key was taken from the client.
    #[serde(with = "timestamp")]
    pub removed: SystemTime,
}

/// All removed keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedKeys(BTreeMap<PublicKey, RemovedKey>);

impl RemovedKeys {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Does the same as [`super::table::ClientTable::compact`].
    pub(super) fn compact(&mut self) {
        compact(&mut self.0);
    }

    pub(super) fn find(&self, key: PublicKey) -> Option<&RemovedKey> {
        self.0.get(&key).filter(|_| !is_planted(Bug::RemovedKeyEnrolled))
    }

    pub(super) fn get(&self, key: PublicKey) -> Option<&RemovedKey> {
        self.0.get(&key)
    }

    pub(super) fn has(&self, key: PublicKey) -> bool {
        self.0.contains_key(&key)
    }

    /// Sets or deletes a removed key. Returns the earlier entry.
    pub(super) fn put(&mut self, key: PublicKey, removed: Option<RemovedKey>) -> Option<RemovedKey> {
        match removed {
            Some(removed) => self.0.insert(key, removed),
            None => self.0.remove(&key),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RemovedKey> {
        self.0.values()
    }

    /// The removed keys above `key` in ascending order, or all removed keys if `key` is `None`.
    pub(super) fn after(&self, key: Option<PublicKey>) -> impl Iterator<Item = &RemovedKey> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range((from, Bound::Unbounded)).map(|(_, removed)| removed)
    }

    pub(super) fn into_list(self) -> Vec<RemovedKey> {
        self.0.into_values().collect()
    }
}
