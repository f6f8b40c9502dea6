//! The registry as rows.

use std::collections::BTreeMap;

use super::super::row::{RowChange, RowId};
use super::{Client, ClientRegistry, RegistryError, is_valid_name};

impl ClientRegistry {
    /// Every row: removed keys, then clients sorted by name, then invitations.
    pub fn rows(&self) -> impl Iterator<Item = RowChange> + '_ {
        let removed = self.removed.iter().cloned().map(RowChange::from);
        let clients = self.iter().cloned().map(RowChange::from);
        let invitations = self.invitations.iter().map(|(_, invitation)| invitation.clone().into());
        removed.chain(clients).chain(invitations)
    }

    /// Makes a registry from changes of rows, such as those of a log. For each row, the last change counts.
    ///
    /// # Errors
    ///
    /// If the rows that remain contradict each other, or one is invalid.
    pub fn from_rows(rows: impl IntoIterator<Item = RowChange>) -> Result<Self, RegistryError> {
        let last: BTreeMap<RowId, RowChange> = rows.into_iter().map(|row| (row.id(), row)).collect();
        let mut registry = Self::new();
        // Removed keys come first, so that a client with a removed key is refused.
        last.into_values().try_for_each(|row| registry.load(row))?;
        Ok(registry)
    }

    /// Loads a stored row into a registry that does not contain it yet.
    pub(super) fn load(&mut self, row: RowChange) -> Result<(), RegistryError> {
        if let RowChange::Client { client: Some(client), .. } = row {
            self.check(&client)?;
            self.place(client);
            return Ok(());
        }
        if let RowChange::Removed { removed: Some(removed), .. } = &row
            && !is_valid_name(&removed.name)
        {
            return Err(RegistryError::BadName { name: removed.name.clone() });
        }
        self.put(row);
        Ok(())
    }

    /// Applies rows of the store, which always wins. A client that conflicts with one of these rows is deleted, because its own row
    /// is out of date. Returns an error for each refused client, which is invalid or has a removed key. Afterwards, the registry
    /// contains neither a refused client nor another client with a removed key.
    pub(crate) fn take_over(&mut self, rows: Vec<RowChange>) -> Vec<RegistryError> {
        let mut clients = Vec::new();
        for row in rows {
            match row {
                RowChange::Client { key, client } => {
                    // Every changed client is taken out before any is entered, so that clients can exchange names and addresses.
                    self.set_client(key, None);
                    clients.extend(client);
                }
                RowChange::Removed { key, removed: Some(_) } => {
                    // In this registry, the key may already be a client's current key, which the store does not know yet.
                    self.set_client(key, None);
                    if let Some(client) = self.by_next_key(key).cloned() {
                        self.set_client(client.public_key, Some(Client { next_public_key: None, ..client }));
                    }
                    self.put(row);
                }
                RowChange::Removed { .. } | RowChange::Invitation { .. } => self.put(row),
            }
        }
        clients.into_iter().filter_map(|client| self.take_over_client(client).err()).collect()
    }

    fn take_over_client(&mut self, client: Client) -> Result<(), RegistryError> {
        self.check_alone(&client)?;
        while let Some((rival, _)) = self.clients.rival_of(&client) {
            self.set_client(rival, None);
        }
        self.place(client);
        Ok(())
    }
}
