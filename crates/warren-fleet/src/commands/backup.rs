//! `warren fleet backup` and `warren fleet recover`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_config::counted;
use warren_config::storage::create_new;

use super::{Connected, connect, connect_or_fill, print};
use crate::exits::rejoin;
use crate::keys::Key;
use crate::link::rows_of;
use crate::meta::{Meta, Position};
use crate::recovery::{clients, revocations};
use crate::run::Directories;
use crate::snapshot::{Snapshot, StateDirectory, decode, encode};
use crate::store::{apply, find, in_words, read_all};
use crate::users;

/// `warren fleet backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArguments {
    /// The file to write.
    file: PathBuf,
}

/// `warren fleet recover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoverArguments {
    /// Recover from this file of `warren fleet backup`, instead of this exit's own copy.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// Writes all clients, invitations, removed keys, exits and the roster into a file.
///
/// # Errors
/// If the store cannot be read, or the file cannot be written.
pub(crate) async fn backup(directories: Directories<'_>, arguments: &BackupArguments) -> anyhow::Result<()> {
    let mut fleet = connect(directories.config).await?;
    let found = find(&mut fleet.client, &fleet.keys, &fleet.config.exit).await?;
    let (revision, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let rows = rows_of(&fleet.keys, &pairs);
    let position = Position {
        fleet: fleet.meta.id.clone(),
        epoch: fleet.meta.epoch,
        cluster: found.cluster,
        revision,
        own: found.own,
    };
    let lasting = pairs.into_iter().filter(|pair| match fleet.keys.parse(&pair.key) {
        Some(Key::Row(_) | Key::Member(_) | Key::Roster) => true,
        Some(_) | None => false,
    });
    let snapshot = Snapshot { meta: fleet.meta, position, revision, pairs: lasting.collect() };
    let path = &arguments.file;
    create_new(path, &encode(&snapshot)?, 0o600)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    print(&format!(
        "Wrote {} at revision {revision} to {}. Keep that as secret as the store.\n",
        counted(rows.iter().count(), "row"),
        path.display()
    ))
}

/// Brings back the data that a store restored from an old backup lacks, and lets the exits use the store again.
///
/// # Errors
/// If there is no copy to recover from, or it belongs to another fleet.
pub(crate) async fn recover(
    directories: Directories<'_>,
    arguments: &RecoverArguments,
) -> anyhow::Result<()> {
    let own = StateDirectory::new(directories.state).load()?;
    let mut latest = own.as_ref().map_or(0, |own| own.position.epoch);
    let own_fleet = own.as_ref().map(|own| own.meta.id.clone());
    let snapshot = match &arguments.from {
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
            decode(&bytes).with_context(|| format!("{} is not a backup", path.display()))?
        }
        None => own.context("this exit has no copy of the fleet; run this at an exit that has one, or name a backup with --from")?,
    };
    // Checked before anything is written: an empty store would take any fleet.
    if own_fleet.is_some_and(|own| own != snapshot.meta.id) {
        bail!("the backup is of a fleet other than this exit's; nothing was changed");
    }
    latest = latest.max(snapshot.position.epoch);
    let mut fleet = connect_or_fill(directories.config, |name| {
        tracing::warn!(
            "the store no longer has the fleet {name:?}; it begins again with what the copy contains"
        );
        // A fleet has epoch 0 only until its recovery has ended, so an interrupted recovery can go on.
        Ok(Meta { epoch: 0, ..snapshot.meta.clone() })
    })
    .await?;
    if snapshot.meta.id != fleet.meta.id {
        bail!("the copy is of a fleet other than the store's; run this where the store's fleet has an exit");
    }
    if fleet.meta.epoch == 0 {
        bring_back_exits(&mut fleet, &snapshot).await?;
    }
    let copy = rows_of(&fleet.keys, &snapshot.pairs);
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let mut rows = rows_of(&fleet.keys, &pairs);
    let revoked = revocations(&copy, &rows);
    let counts = (revoked.len(), clients(&copy, &rows).len());
    let refused = apply(&mut fleet.client, &fleet.keys, &mut rows, revoked).await?;
    if let Some(first) = refused.first() {
        bail!("{} removed keys cannot be stored; the first is {first:?}; run this again", refused.len());
    }
    let missing = clients(&copy, &rows);
    let refused = apply(&mut fleet.client, &fleet.keys, &mut rows, missing).await?;
    for group in &refused {
        tracing::warn!(
            "this is not brought back, because other clients have its name or address now: {group:?}"
        );
    }
    rejoin(&mut fleet.client, &fleet.keys, &fleet.config.exit).await?;
    for pair in &snapshot.pairs {
        if let Some(Key::Member(exit)) = fleet.keys.parse(&pair.key) {
            users::keep(&mut fleet.client, &fleet.keys, &exit).await?;
        }
    }
    begin_epoch(&mut fleet, latest).await?;
    print(&format!(
        "Stored {} of removed keys and used invitations again, and {} of clients and invitations that it lacked. The exits use the store again, and each \
         replays the removed keys that it knows.\n",
        counted(counts.0, "row"),
        counted(counts.1, "row")
    ))
}

/// Brings exits and the roster back into a store that has lost everything. Without the roster, the next one would begin with a serial
/// that clients refuse.
async fn bring_back_exits(fleet: &mut Connected, snapshot: &Snapshot) -> anyhow::Result<()> {
    for pair in &snapshot.pairs {
        let (Some(Key::Member(_) | Key::Roster), Some(value)) = (fleet.keys.parse(&pair.key), &pair.value)
        else {
            continue;
        };
        let absent = Compare::version(pair.key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(pair.key.clone(), value.clone(), None);
        in_words(fleet.client.txn(Txn::new().when([absent]).and_then([put])).await)?;
    }
    Ok(())
}

/// Tells all links that the store's history has a new beginning.
async fn begin_epoch(fleet: &mut Connected, latest: u64) -> anyhow::Result<()> {
    let key = fleet.keys.name(&Key::Meta);
    let before = serde_json::to_vec(&fleet.meta)?;
    // The backup may be older than an earlier recovery.
    let after = Meta { epoch: fleet.meta.epoch.max(latest) + 1, ..fleet.meta.clone() };
    let same = Compare::value(key.as_str(), CompareOp::Equal, before);
    let put = TxnOp::put(key, serde_json::to_vec(&after)?, None);
    let answer = in_words(fleet.client.txn(Txn::new().when([same]).and_then([put])).await)?;
    if !answer.succeeded() {
        bail!(
            "somebody else has just recovered the store; `warren fleet status` shows whether the exits use it"
        );
    }
    Ok(())
}
