//! A row of the registry, which is how a store keeps it.

use std::collections::BTreeMap;

use super::{Client, Invitation, RemovedKey};
use crate::PublicKey;
use crate::invite::TokenDigest;

/// A change of one row of the registry. Applying it twice is the same as applying it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// The client with a key.
    Client {
        /// The key.
        key: PublicKey,
        /// The client. `None` deletes the row.
        client: Option<Client>,
    },
    /// An invitation.
    Invitation {
        /// The hash of its token.
        token: TokenDigest,
        /// The invitation. `None` deletes the row.
        invitation: Option<Invitation>,
    },
    /// A removed key.
    Removed {
        /// The key.
        key: PublicKey,
        /// When it was taken, and from whom. `None` deletes the row.
        removed: Option<RemovedKey>,
    },
}

/// Names a row. Removed keys come first, then clients, then invitations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowId {
    Removed(PublicKey),
    Client(PublicKey),
    Invitation(TokenDigest),
}

impl RowChange {
    pub(crate) fn id(&self) -> RowId {
        match self {
            Self::Client { key, .. } => RowId::Client(*key),
            Self::Invitation { token, .. } => RowId::Invitation(*token),
            Self::Removed { key, .. } => RowId::Removed(*key),
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

/// The rows that a change touched, as they were before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before(BTreeMap<RowId, RowChange>);

impl Before {
    /// The touched clients' keys with the clients that had them before.
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

    /// Remembers a row as it was, unless the change has touched it before.
    pub(super) fn note(&mut self, id: RowId, was: impl FnOnce() -> RowChange) {
        self.0.entry(id).or_insert_with(was);
    }
}
