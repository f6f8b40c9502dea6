//! Imports of `clients.toml`: what an import changes, and which imports are refused.

use std::collections::{BTreeSet, HashMap};
use std::time::{Instant, SystemTime};

use anyhow::bail;
use warren_session::PublicKey;
use warren_session::clients::{Client, ClientRegistry};
use warren_session::exit::{ExitSessions, SessionConfig};

use warren_config::ClientsImport;
use warren_control::ImportSummary;

/// Refuses a file without any clients. Somebody who empties the file hardly wants to end every session.
///
/// # Errors
/// The file, and what to do.
pub(crate) fn refuse_silent(import: &ClientsImport, clients: &ClientRegistry) -> anyhow::Result<()> {
    if import.is_silent() && !clients.is_empty() {
        bail!(
            "{} names no client; remove it, or write `client = []` into it to remove every client",
            import.path().display()
        );
    }
    Ok(())
}

/// The registry as it would be after an import.
///
/// # Errors
/// Why the exit refuses the import.
pub(crate) fn registry_after(
    settings: &SessionConfig,
    before: ClientRegistry,
    edited: ClientRegistry,
) -> anyhow::Result<ClientRegistry> {
    let (now, entropy) = (Instant::now(), warren_daemon::entropy::source());
    let mut sessions = ExitSessions::new(settings.clone(), before, now, SystemTime::now(), entropy)?;
    // The sessions adopt a change once it is stored. This trial stores nothing, so it reports to the sessions that the change is
    // stored.
    if let Some(id) = sessions.adopt(now, edited)? {
        sessions.stored(now, id, Ok(()));
    }
    Ok(sessions.registry().clone())
}

/// Returns the changes from one registry to the other.
pub(crate) fn changes(before: &ClientRegistry, after: &ClientRegistry) -> ImportSummary {
    let mut summary = ImportSummary::default();
    // If the import finished a key rotation, the client is now known by the key that was its next key.
    let next: HashMap<PublicKey, &Client> =
        before.iter().filter_map(|client| Some((client.next_public_key?, client))).collect();
    for client in after.iter() {
        let key = client.public_key;
        let earlier = before.by_key(key).or_else(|| next.get(&key).copied());
        match earlier {
            None => summary.added.add(&client.name),
            Some(earlier) if settings(earlier) == settings(client) => summary.unchanged += 1,
            Some(_) => summary.changed.add(&client.name),
        }
    }
    // A client is gone only if the file has neither its key nor its next key, because a rotation may have been finished.
    let gone = |client: &&Client| {
        let keys = [Some(client.public_key), client.next_public_key];
        !keys.into_iter().flatten().any(|key| after.by_key(key).is_some())
    };
    before.iter().filter(gone).for_each(|client| summary.removed.add(&client.name));
    let now = SystemTime::now();
    let open: BTreeSet<_> = after.open_invitations(now).into_iter().map(|open| open.token_sha256).collect();
    let withdrawn = before.open_invitations(now).into_iter().filter(|one| !open.contains(&one.token_sha256));
    withdrawn.for_each(|one| summary.withdrawn.add(&one.name));
    summary
}

/// Returns a client's settings that an operator chooses: everything except leases and dates.
fn settings(client: &Client) -> Client {
    Client {
        leased_ipv4: None,
        leased_ipv6: None,
        last_seen: None,
        exit_key: None,
        created: SystemTime::UNIX_EPOCH,
        ..client.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_session::clients::Invitation;
    use warren_session::invite::InviteToken;

    use super::*;

    fn client(name: &str, key: u8) -> Client {
        Client::new(name, PublicKey([key; 32]), SystemTime::UNIX_EPOCH)
    }

    fn registry(clients: impl IntoIterator<Item = Client>) -> ClientRegistry {
        let mut registry = ClientRegistry::new();
        clients.into_iter().for_each(|client| registry.add(client).unwrap());
        registry
    }

    #[test]
    fn summary_tells_what_is_added_removed_changed_and_withdrawn() {
        let rotating = Client { next_public_key: Some(PublicKey([9; 32])), ..client("rotating", 4) };
        let mut before = registry([client("gone", 1), client("kept", 2), client("named", 3), rotating]);
        let token = InviteToken::new([7; 16]).digest();
        let expires = SystemTime::now() + Duration::from_secs(60);
        let invitation = Invitation {
            name: "guest".to_owned(),
            token_sha256: token,
            expires,
            used_by: None,
            upgrades: None,
        };
        before.invite(invitation, SystemTime::now()).unwrap();
        let seen = Client { last_seen: Some(SystemTime::now()), ..client("kept", 2) };
        let after = registry([seen, client("renamed", 3), client("rotating", 9), client("new", 5)]);

        let summary = changes(&before, &after);

        let names = [&summary.added, &summary.removed, &summary.changed, &summary.withdrawn]
            .map(|named| &named.names);
        assert_eq!(names, [&vec!["new"], &vec!["gone"], &vec!["renamed", "rotating"], &vec!["guest"]]);
        assert_eq!((summary.changed.count, summary.unchanged), (2, 1));
    }

    #[test]
    fn summary_of_many_has_their_number_and_the_first_names() {
        let clients = (0..=255).map(|key| client(&format!("client-{key:03}"), key));
        let summary = changes(&ClientRegistry::new(), &registry(clients));
        assert_eq!((summary.added.count, summary.added.names.len()), (256, 20));
    }
}
