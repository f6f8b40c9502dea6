//! `warren fleet leave`: the exit keeps its clients, and no longer shares them with other exits.
//!
//! The command may be killed at any moment and run again. It writes the clients into a file, takes the exit out of the fleet, and
//! then gives `fleet.toml` another name. From then on, it needs neither the store nor the link's copy, and removes the copy and
//! the credentials. Until the end, the file `leave.json` contains the message for the operator.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use etcd_client::GetOptions;
use serde::{Deserialize, Serialize};
use warren_config::storage::{create_new, remove_abandoned, write_atomic};
use warren_config::{clients_text, counted, load_clients, load_exit};
use warren_host::durable_file::{remove, rename};
use warren_session::PublicKey;
use warren_session::clients::{ClientRegistry, RowChange, RowId};

use super::attempt::host_of_join;
use super::files::{forget, forget_credentials, forget_exits_file, lock, owed_changes, write};
use super::{Connected, connect, print, roster};
use crate::config::{FleetConfig, exit_toml, is_absent, is_there};
use crate::exits::{Member, Removed};
use crate::keys::Key;
use crate::link::{Pair, rows_of};
use crate::membership::leaving;
use crate::planted::reached;
use crate::run::Directories;
use crate::snapshot::{Owner, StateDirectory};
use crate::store::{Transact as _, ended, get, in_words, read_all};
use crate::transaction::Expected;
use crate::users::{self, user_name};

/// The file that says how far the command has come.
const KEPT: &str = "leave.json";

/// `warren fleet leave`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaveArguments {
    /// Write the fleet's clients into this file, which `warren exit client import` reads.
    #[arg(long, value_name = "FILE", default_value = "clients.toml")]
    clients: PathBuf,
}

/// What a killed command leaves for the next one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The file with the clients.
    clients: PathBuf,
    count: usize,
    /// The names of open invitations that are not in the file.
    #[serde(default)]
    left_out: Vec<String>,
    /// The digest of each content that the command has written to `clients`. A file with any other content does not belong to the
    /// command.
    digests: Vec<String>,
    /// The remaining work in the fleet, as a text. Set once the exit is out of the fleet.
    note: Option<String>,
}

impl Kept {
    /// Reads the file. `None` if it does not exist or is damaged.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    fn read(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(KEPT);
        match std::fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write(&directory.join(KEPT), &serde_json::to_vec(self)?)
    }

    /// Whether the file still has the content that an earlier command has written.
    fn has_written(&self, clients: &Path) -> bool {
        self.clients == clients
            && std::fs::read(clients).is_ok_and(|content| self.digests.contains(&digest_of(&content)))
    }
}

fn digest_of(content: &[u8]) -> String {
    STANDARD.encode(digest(&SHA256, content))
}

/// Leaves the fleet.
///
/// # Errors
/// If no copy of the clients can be read, or the file cannot be written.
pub(crate) async fn leave(directories: Directories<'_>, arguments: &LeaveArguments) -> anyhow::Result<()> {
    let _lock = lock(&directories)?;
    let path = FleetConfig::path(directories.config);
    let earlier = Kept::read(directories.config)?;
    if !is_there(&path)?
        && let Some(kept) = earlier.as_ref().filter(|kept| kept.note.is_some())
    {
        return finish(&directories, kept);
    }
    let config = FleetConfig::read(directories.config)?;
    let own_host = host_of_join(directories.config)?;
    let clients = std::path::absolute(&arguments.clients)?;
    // A file that somebody has changed since is not this command's, and is never replaced.
    let earlier = earlier.filter(|kept| kept.has_written(&clients));
    let (pairs, fleet) = clients_of(&directories, &config, earlier.is_some()).await?;
    let mut kept = match (pairs, earlier) {
        (Some(pairs), earlier) => write_clients(&directories, &config, &clients, &pairs, earlier)?,
        // An earlier command has written the clients. The exit may have been out of the fleet since then.
        (None, earlier) => earlier.unwrap_or_default(),
    };
    reached("clients written");
    let note = match fleet {
        Some(fleet) => take_out(fleet, &config, own_host).await.with_context(|| {
            format!("the clients are in {}, and nothing else on this host was changed", clients.display())
        })?,
        None => kept
            .note
            .take()
            .unwrap_or_else(|| format!(
                " The store could not be used. If `warren fleet status` at another exit still lists {0}, and no other host has joined under that name, run \
                 `warren fleet remove {0}` there. Clients that were removed elsewhere since this host's copy was made are still enrolled.",
                config.exit
            )),
    };
    reached("out of the fleet");
    let owed = match owed_changes(&directories)? {
        0 => String::new(),
        count => format!(
            " {} of clients that you made here may not have reached the fleet: make them again at another exit.",
            counted(count, "change")
        ),
    };
    // The note is saved before the rename, because the store is not asked again after the rename.
    kept.note = Some(note + &owed);
    kept.write(directories.config)?;
    rename(&path, &left_half(&path)).with_context(|| format!("{} cannot be renamed", path.display()))?;
    reached("configuration renamed");
    finish(&directories, &kept)
}

/// The name of `fleet.toml` while the exit has left the fleet and its files are not removed yet.
fn left_half(path: &Path) -> PathBuf {
    path.with_extension(FleetConfig::LEAVING)
}

/// Reads the fleet's clients: from the store, or from the copy on this disk. `None` if the store cannot be used and an earlier
/// command has written the clients, because the copy may be older than that file.
async fn clients_of(
    directories: &Directories<'_>,
    config: &FleetConfig,
    are_written: bool,
) -> anyhow::Result<(Option<Vec<Pair>>, Option<Connected>)> {
    let snapshot = StateDirectory::new(directories.state).load(&Owner::of(config))?;
    let own_fleet = snapshot.as_ref().map(|snapshot| snapshot.meta.id.as_str());
    let error = match from_store(directories, own_fleet).await {
        Ok((pairs, fleet)) => return Ok((Some(pairs), Some(fleet))),
        Err(error) => error,
    };
    if are_written {
        tracing::warn!(
            "the store cannot be used: {error:#}; the clients are in the file that an earlier run wrote"
        );
        return Ok((None, None));
    }
    let snapshot = snapshot
        .with_context(|| format!("the store cannot be used ({error:#}), and there is no copy here"))?;
    tracing::warn!("the store cannot be used: {error:#}; the clients are those of the copy on this disk");
    Ok((Some(snapshot.pairs), None))
}

/// Writes the clients. Replaces only a file that an earlier command has written.
fn write_clients(
    directories: &Directories<'_>,
    config: &FleetConfig,
    clients: &Path,
    pairs: &[Pair],
    earlier: Option<Kept>,
) -> anyhow::Result<Kept> {
    let rows = rows_of(&config.keys(), pairs);
    let (rows, left_out) = importable(directories, rows.iter().map(|(_, row)| row.content.clone()))?;
    let registry = ClientRegistry::from_rows(rows)?;
    let text = clients_text(clients, &registry)?;
    let is_again = earlier.is_some();
    let mut kept = Kept { clients: clients.to_owned(), note: None, ..earlier.unwrap_or_default() };
    (kept.count, kept.left_out) = (registry.len(), left_out);
    // The digest is saved before the file is written. If the command is killed in between, the next command knows that the file is
    // its own.
    kept.digests.push(digest_of(text.as_bytes()));
    kept.write(directories.config)?;
    reached("leaving begun");
    let written = match is_again {
        true => write_atomic(clients, text.as_bytes(), 0o600),
        false => create_new(clients, text.as_bytes(), 0o600),
    };
    if let Err(error) = written {
        if !is_again {
            let _ = remove(&directories.config.join(KEPT));
        }
        return Err(error).with_context(|| {
            format!("{} cannot be written; name another file with --clients", clients.display())
        });
    }
    Ok(kept)
}

/// Returns the rows that this exit can import, and the names of the open invitations that it cannot import. If the exit has missed the
/// latest changes, it would mistake invitations that were made at another exit for invitations that were withdrawn here. A client that was
/// removed here stays removed, even if the store has not heard of it.
fn importable(
    directories: &Directories<'_>,
    rows: impl Iterator<Item = RowChange>,
) -> anyhow::Result<(Vec<RowChange>, Vec<String>)> {
    let rows: Vec<_> = rows.collect();
    let path = exit_toml(directories.config);
    if !is_there(&path)? {
        return Ok((rows, Vec::new()));
    }
    let own = load_clients(&load_exit(&path)?.clients_path(directories.state))?;
    let removed: BTreeSet<PublicKey> = own.removed_after(None).map(|removed| removed.public_key).collect();
    let known: BTreeSet<RowId> = own.rows().map(|row| row.id()).collect();
    let mut left_out = Vec::new();
    let kept = rows.into_iter().filter(|row| match row {
        RowChange::Client { client: Some(client), .. } => {
            let keys = [Some(client.public_key), client.next_public_key];
            !keys.iter().flatten().any(|key| removed.contains(key))
        }
        RowChange::Invitation { invitation: Some(open), .. } if open.used_by.is_none() => {
            let is_known = known.contains(&row.id());
            if !is_known && open.is_open(SystemTime::now()) {
                left_out.push(open.name.clone());
            }
            is_known
        }
        RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => true,
    });
    let kept = kept.collect();
    Ok((kept, left_out))
}

/// Removes the exit's copy and credentials, and prints the next steps. Needs neither the store nor the copy.
fn finish(directories: &Directories<'_>, kept: &Kept) -> anyhow::Result<()> {
    let path = FleetConfig::path(directories.config);
    let (half, left) = (left_half(&path), path.with_extension("toml.left"));
    // A killed command may already have given the file its final name.
    let is_named = !is_there(&half)?;
    let config = FleetConfig::find_at(if is_named { &left } else { &half })?
        .with_context(|| format!("{} does not exist; nothing is left to do here", half.display()))?;
    StateDirectory::new(directories.state).clear()?;
    reached("copy removed");
    // Otherwise, an exit that joins another fleet would refuse that fleet's roster because of this roster.
    let roster = roster::file_of_exit(directories.state);
    forget(&roster)?;
    forget_exits_file(directories)?;
    let secrets = forget_credentials(directories.config, &config.store)?;
    remove_abandoned(directories.config);
    reached("credentials forgotten");
    if !is_named {
        rename(&half, &left).with_context(|| format!("{} cannot be renamed", half.display()))?;
    }
    reached("configuration left");
    let secrets: String = secrets
        .iter()
        .map(|path| format!("{} still opens the store: delete it.\n", path.display()))
        .collect();
    let left_out = match kept.left_out.as_slice() {
        [] => String::new(),
        names => format!(
            "This exit did not know the open invitations for {} yet, so they are not in that file: make them again with `warren exit invite`.\n",
            names.join(", ")
        ),
    };
    print(&format!(
        "{} has left fleet {:?}.{} {} has {}.\n{left_out}{secrets}Next: take `[fleet]` out of {}, stop warren-fleet.service, run \
         `systemctl restart warren-exit`, then `warren exit client import {}`.\n",
        config.exit,
        config.fleet,
        kept.note.as_deref().unwrap_or_default(),
        kept.clients.display(),
        counted(kept.count, "client"),
        exit_toml(directories.config).display(),
        kept.clients.display(),
    ))?;
    // The file is removed last, so that the next steps are printed at least once.
    forget(&directories.config.join(KEPT))
}

/// Reads everything in the store. Refuses another fleet of the same name, because this exit does not belong to it.
async fn from_store(
    directories: &Directories<'_>,
    own_fleet: Option<&str>,
) -> anyhow::Result<(Vec<Pair>, Connected)> {
    let fleet = connect(directories).await?;
    // A restored store may contain clients that were removed since the backup.
    if let Some(mismatch) = &fleet.old_store {
        bail!("{mismatch}");
    }
    if own_fleet.is_some_and(|own| own != fleet.meta.id) {
        bail!("it has another fleet of the same name");
    }
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    Ok((pairs, fleet))
}

/// Takes this exit out of the fleet, with its etcd user. Returns what remains to be done. If this exit was already removed and an
/// exit on another host has joined under its name, that other exit stays in the fleet.
async fn take_out(
    mut fleet: Connected,
    config: &FleetConfig,
    own_host: Option<String>,
) -> anyhow::Result<String> {
    let granted = users::granted(&mut fleet.client, &fleet.keys, &config.exit).await?;
    // A grant that a recovery has made has an empty host, because the recovery does not know the host (`users::keep`).
    let host =
        granted.as_ref().and_then(|granted| granted.grant.host.clone()).filter(|host| !host.is_empty());
    if host.is_some() && host != own_host {
        return Ok(" Another host has joined the fleet under this name, and stays in it.".to_owned());
    }
    let removed = ended(&mut fleet.client, &fleet.keys, &config.exit).await?;
    let member = get(&mut fleet.client, &fleet.keys.name(&Key::Member(config.exit.clone()))).await?;
    let has_newer_ticket = granted
        .as_ref()
        .is_some_and(|granted| granted.grant.host.is_none() && !granted.grant.ticket.is_empty());
    if has_newer_ticket && member.is_none() {
        return Ok(
            " It was out of the fleet already. The newer ticket for its name is still valid.".to_owned()
        );
    }
    // If another host joins at this moment, the grant changes and the transaction fails.
    let modified = granted.map_or(0, |granted| granted.modified);
    let member = member.and_then(|pair| pair.parse::<Member>("exit"));
    let mut transaction = leaving(&fleet.keys, &config.exit, end_of(member.as_ref(), removed))?;
    transaction.expected.insert(fleet.keys.grant(&config.exit), Expected::Modified(modified));
    if fleet.client.transact(&transaction).await?.is_none() {
        bail!("this exit's place in the fleet is being changed right now; run this again");
    }
    let user = user_name(&config.fleet, &config.exit);
    let members = fleet.client.get(fleet.keys.members(), Some(GetOptions::new().with_prefix().with_limit(1)));
    let is_last = in_words(members.await)?.kvs().is_empty();
    let last = match is_last {
        true => format!(
            " It was the last exit: the store keeps the fleet, but only `warren fleet init --fleet {} --replace` can use it again, with new \
             clients.",
            config.fleet
        ),
        false => String::new(),
    };
    Ok(last
        + &match users::remove_of(&mut fleet.client, &fleet.keys, &config.exit).await {
            Ok(_) => String::new(),
            // A user may not remove itself, and only the store's root may remove users.
            Err(_) => format!(
                " Its etcd user, {user}, is removed within twenty seconds by an exit whose own user may do so. If there is none, run `etcdctl \
             user delete {user}`."
            ),
        })
}

/// The end of a membership whose exit leaves by itself. If the exit was already removed, its removal still names that membership.
fn end_of(member: Option<&Member>, removed: Option<Removed>) -> Removed {
    let membership = match member {
        Some(member) => member.membership,
        None => removed.and_then(|removed| removed.membership),
    };
    Removed { membership, ..Removed::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_membership_that_has_ended_is_kept() {
        let member = |membership| Member { membership, ..Member::default() };
        let removed = Removed { membership: Some(1), ..Removed::default() };
        let number = |member: Option<Member>, removed| end_of(member.as_ref(), removed).membership;
        assert_eq!(number(None, Some(removed)), Some(1));
        assert_eq!(number(Some(member(Some(2))), Some(removed)), Some(2));
        assert_eq!(number(Some(member(None)), Some(removed)), None, "an earlier membership has ended");
        assert_eq!(number(None, None), None);
    }
}
