//! Rows of the registry. A store keeps the registry as rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Client, Invitation, RemovedKey};
use crate::PublicKey;
use crate::invite::TokenDigest;
use crate::key::{StoredKey, stored_key};

/// A change of one row of the registry. Applying it twice is the same as applying it once.
///
/// Serialized, it is an object with one field: the row to set, such as `{"client": {...}}`, or the key of a row to remove, such as
/// `{"no_client": "KEY"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredChange", into = "StoredChange")]
pub enum RowChange {
    /// The client with this key.
    Client {
        /// The key.
        key: PublicKey,
        /// The client. `None` deletes the row.
        client: Option<Client>,
    },
    /// An invitation.
    Invitation {
        /// The hash of the invitation's token.
        token: TokenDigest,
        /// The invitation. `None` deletes the row.
        invitation: Option<Invitation>,
    },
    /// A removed key.
    Removed {
        /// The key.
        key: PublicKey,
        /// When the key was taken, and from whom. `None` deletes the row.
        removed: Option<RemovedKey>,
    },
}

/// The name of a row. Sorted names begin with removed keys, then come clients, then invitations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowId {
    /// A removed key.
    #[serde(deserialize_with = "stored_key")]
    Removed(PublicKey),
    /// The client with a key.
    #[serde(deserialize_with = "stored_key")]
    Client(PublicKey),
    /// The invitation with a token of this hash.
    Invitation(TokenDigest),
}

impl RowId {
    /// The change that deletes the row.
    pub fn deletion(self) -> RowChange {
        match self {
            Self::Removed(key) => RowChange::Removed { key, removed: None },
            Self::Client(key) => RowChange::Client { key, client: None },
            Self::Invitation(token) => RowChange::Invitation { token, invitation: None },
        }
    }
}

impl RowChange {
    /// The row's name.
    pub fn id(&self) -> RowId {
        match self {
            Self::Client { key, .. } => RowId::Client(*key),
            Self::Invitation { token, .. } => RowId::Invitation(*token),
            Self::Removed { key, .. } => RowId::Removed(*key),
        }
    }

    /// Whether the change sets its row, instead of deleting it.
    pub fn is_set(&self) -> bool {
        match self {
            Self::Client { client, .. } => client.is_some(),
            Self::Invitation { invitation, .. } => invitation.is_some(),
            Self::Removed { removed, .. } => removed.is_some(),
        }
    }
}

impl From<Client> for RowChange {
    fn from(client: Client) -> Self {
        Self::Client { key: client.public_key, client: Some(client) }
    }
}

impl From<Invitation> for RowChange {
    fn from(invitation: Invitation) -> Self {
        Self::Invitation { token: invitation.token_sha256, invitation: Some(invitation) }
    }
}

impl From<RemovedKey> for RowChange {
    fn from(removed: RemovedKey) -> Self {
        Self::Removed { key: removed.public_key, removed: Some(removed) }
    }
}

/// A change in the form that a store's file and messages contain. The names of the variants are part of both formats.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredChange {
    Client(Client),
    NoClient(StoredKey),
    Invitation(Invitation),
    NoInvitation(TokenDigest),
    Removed(RemovedKey),
    NoRemoved(StoredKey),
}

impl From<RowChange> for StoredChange {
    fn from(change: RowChange) -> Self {
        match change {
            RowChange::Client { client: Some(client), .. } => Self::Client(client),
            RowChange::Client { key, client: None } => Self::NoClient(StoredKey(key)),
            RowChange::Invitation { invitation: Some(invitation), .. } => Self::Invitation(invitation),
            RowChange::Invitation { token, invitation: None } => Self::NoInvitation(token),
            RowChange::Removed { removed: Some(removed), .. } => Self::Removed(removed),
            RowChange::Removed { key, removed: None } => Self::NoRemoved(StoredKey(key)),
        }
    }
}

impl From<StoredChange> for RowChange {
    fn from(stored: StoredChange) -> Self {
        match stored {
            StoredChange::Client(client) => client.into(),
            StoredChange::NoClient(StoredKey(key)) => Self::Client { key, client: None },
            StoredChange::Invitation(invitation) => invitation.into(),
            StoredChange::NoInvitation(token) => Self::Invitation { token, invitation: None },
            StoredChange::Removed(removed) => removed.into(),
            StoredChange::NoRemoved(StoredKey(key)) => Self::Removed { key, removed: None },
        }
    }
}

/// The rows that a change touched, as they were before the change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before(BTreeMap<RowId, RowChange>);

impl Before {
    /// The keys of the touched clients, each with the client that had the key before the change.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (PublicKey, Option<&Client>)> {
        self.rows().filter_map(|row| match row {
            RowChange::Client { key, client } => Some((*key, client.as_ref())),
            RowChange::Invitation { .. } | RowChange::Removed { .. } => None,
        })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &RowChange> {
        self.0.values()
    }

    pub(super) fn into_rows(self) -> impl Iterator<Item = RowChange> {
        self.0.into_values()
    }

    /// Remembers the earlier content of a row, unless the change has already touched the row.
    pub(super) fn note(&mut self, id: RowId, was: impl FnOnce() -> RowChange) {
        self.0.entry(id).or_insert_with(was);
    }
}
