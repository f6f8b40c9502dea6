//! What a store that was restored from an old backup has forgotten, compared with a link's copy.

use std::collections::BTreeSet;

use warren_session::PublicKey;
use warren_session::clients::{Client, RowChange, RowId};

use crate::planted::{Bug, is_planted};
use crate::rows::Rows;

/// Removed keys and used or withdrawn invitations that the store lacks, and that must never come back. Each group is a
/// transaction.
pub(crate) fn revocations(copy: &Rows, store: &Rows) -> Vec<Vec<RowChange>> {
    let mut groups = Vec::new();
    if is_planted(Bug::TombstoneForgotten) {
        return groups;
    }
    for (id, row) in copy.iter() {
        match id {
            RowId::Removed(key) if !store.has(id) => groups.push(revocation(key, &row.content, store)),
            RowId::Invitation(_) if is_used(&row.content) && !is_used(&store.content(id)) => {
                groups.push(vec![row.content.clone()]);
            }
            RowId::Removed(_) | RowId::Invitation(_) | RowId::Client(_) => {}
        }
    }
    // Invitations that were withdrawn, or whose clients were removed.
    let gone = store.iter().filter(|(id, _)| matches!(id, RowId::Invitation(_)) && !copy.has(*id));
    groups.extend(gone.map(|(id, _)| vec![id.deletion()]));
    groups
}

/// Clients that the store lacks, or contains only in an earlier state. What was removed is left out.
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

/// Removes a key, and the client whose key or next key it is.
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
    rows.into_iter().filter(|row| row.is_set() && seen.insert(row.id())).map(|row| vec![row]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use warren_session::clients::RemovedKey;
    use warren_simulation::finds;

    use super::*;
    use crate::keys::Keys;
    use crate::rows::Unseen;
    use crate::transaction::{Known, draft};

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn client(number: u8) -> Client {
        Client::new(format!("client{number}"), key(number), SystemTime::UNIX_EPOCH)
    }

    fn removed(number: u8) -> RowChange {
        RemovedKey { name: "x".to_owned(), public_key: key(number), removed: SystemTime::UNIX_EPOCH }.into()
    }

    fn rows(all: &[RowChange]) -> Rows {
        let mut rows = Rows::default();
        all.iter().for_each(|row| rows.put(row.clone(), 1));
        rows
    }

    fn keys_removed_since_the_backup_stay_out() {
        // Since the backup, client 1 was removed, and so was the next key of client 2, which is client 3 now.
        let waiting = Client { next_public_key: Some(key(3)), ..client(2) };
        let mut store = rows(&[client(1).into(), waiting.into(), client(4).into()]);
        let copy = rows(&[removed(1), removed(3), client(2).into(), client(4).into()]);
        let (keys, unseen) = (Keys::new("home"), Unseen::default());
        for group in revocations(&copy, &store) {
            let known = Known { keys: &keys, rows: &store, unseen: &unseen, basis: i64::MAX };
            let draft = draft(known, &group, &group).unwrap();
            draft.rows.into_iter().for_each(|row| store.put(row, 2));
        }
        assert!(store.client(key(1)).is_none(), "a removed client is back");
        assert!(store.has(RowId::Removed(key(1))) && store.has(RowId::Removed(key(3))));
        assert_eq!(store.client(key(2)), Some(&client(2)));
        assert_eq!(store.client(key(4)), Some(&client(4)));
    }

    #[test]
    fn a_recovery_lets_no_removed_key_in() {
        keys_removed_since_the_backup_stay_out();
        assert!(finds(Bug::TombstoneForgotten, keys_removed_since_the_backup_stay_out));
    }
}
