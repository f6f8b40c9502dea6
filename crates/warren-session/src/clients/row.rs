//! The registry as rows, which is how a store keeps it.

use std::collections::BTreeMap;

use super::{Client, ClientRegistry, Invitation, RegistryError, RemovedKey};
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

impl ClientRegistry {
    /// Every row: removed keys, then clients sorted by name, then invitations.
    pub fn rows(&self) -> impl Iterator<Item = RowChange> + '_ {
        let removed = self.removed_keys().into_iter().cloned().map(RowChange::from);
        let clients = self.iter().cloned().map(RowChange::from);
        removed.chain(clients).chain(self.invitations().cloned().map(RowChange::from))
    }

    /// Makes a registry from changes of rows, such as those of a log. The last change of each row counts.
    ///
    /// # Errors
    ///
    /// If the rows that remain contradict each other, or one is invalid.
    pub fn from_rows(rows: impl IntoIterator<Item = RowChange>) -> Result<Self, RegistryError> {
        let last: BTreeMap<RowId, RowChange> = rows.into_iter().map(|row| (row.id(), row)).collect();
        let mut registry = Self::new();
        // Removed keys first, so that a client with one is refused.
        last.into_values().try_for_each(|row| registry.load(row))?;
        Ok(registry)
    }
}
