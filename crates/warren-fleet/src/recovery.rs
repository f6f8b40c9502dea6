//! What a store that was restored from an old backup has forgotten, compared with a link's copy.

use std::collections::BTreeSet;

use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange};

use crate::keys::{RowId, is_set};
use crate::rows::Rows;

/// Removed keys and used or withdrawn invitations that the store does not have: what must never come back. Each group is a transaction.
pub(crate) fn revocations(copy: &Rows, store: &Rows) -> Vec<Vec<RowChange>> {
    let mut groups = Vec::new();
    for (id, row) in copy.iter() {
        match id {
            RowId::Removed(key) if !store.has(id) => groups.push(revocation(key, &row.content, store)),
            RowId::Invitation(_) if is_used(&row.content) && !is_used(&store.content(id)) => {
                groups.push(vec![row.content.clone()]);
            }
            RowId::Removed(_) | RowId::Invitation(_) | RowId::Client(_) => {}
        }
    }
    // Withdrawn, or of a client that was removed.
    let gone = store.iter().filter(|(id, _)| matches!(id, RowId::Invitation(_)) && !copy.has(*id));
    groups.extend(gone.map(|(id, _)| vec![id.deletion()]));
    groups
}

/// Clients that the store does not have, or has as they were before. What was removed is left out.
pub(crate) fn clients(copy: &Rows, store: &Rows) -> Vec<Vec<RowChange>> {
    let differs = |id: RowId, row: &RowChange| store.content(id) != *row;
    let clients = copy.iter().filter(|(id, row)| match id {
        RowId::Client(key) => differs(*id, &row.content) && !store.has(RowId::Removed(*key)),
        RowId::Invitation(_) => differs(*id, &row.content),
        RowId::Removed(_) => false,
    });
    clients.map(|(_, row)| vec![row.content.clone()]).collect()
}

fn is_used(row: &RowChange) -> bool {
    matches!(row, RowChange::Invitation { invitation: Some(invitation), .. } if invitation.used_by.is_some())
}

/// Removes a key, and the client that has it or is about to have it.
fn revocation(key: PublicKey, tombstone: &RowChange, store: &Rows) -> Vec<RowChange> {
    let mut group = vec![tombstone.clone()];
    if store.client(key).is_some() {
        group.push(RowId::Client(key).deletion());
    }
    let waiting = store.holder(&crate::rows::Claim::NextKey(key)).filter(|holder| *holder != key);
    if let Some(client) = waiting.and_then(|holder| store.client(holder)) {
        group.push(Client { next_public_key: None, ..client.clone() }.into());
    }
    group
}

/// All rows of a registry in groups: each client, invitation and removed key by itself.
pub(crate) fn all(rows: impl IntoIterator<Item = RowChange>) -> Vec<Vec<RowChange>> {
    let mut seen = BTreeSet::new();
    rows.into_iter().filter(|row| is_set(row) && seen.insert(RowId::of(row))).map(|row| vec![row]).collect()
}
