//! `warren fleet backup`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use warren_config::counted;
use warren_config::storage::create_new;

use super::{connect, print};
use crate::keys::Key;
use crate::link::rows_of;
use crate::meta::Position;
use crate::run::Directories;
use crate::snapshot::{Owner, Snapshot, encode};
use crate::store::{find, read_all};

/// `warren fleet backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArguments {
    /// The file to write.
    file: PathBuf,
}

/// Writes all clients, invitations, removed keys, exits and the roster into a file.
///
/// # Errors
/// If the store cannot be read, or the file cannot be written.
pub(crate) async fn backup(directories: Directories<'_>, arguments: &BackupArguments) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let found = find(&mut fleet.client, &fleet.keys, &fleet.config.exit).await?;
    let (revision, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let rows = rows_of(&fleet.keys, &pairs);
    let position = Position {
        fleet: fleet.meta.id.clone(),
        epoch: fleet.meta.epoch,
        cluster: found.cluster,
        revision,
        own: found.own,
        ..Position::default()
    };
    // Sessions, heartbeats and the like belong to running exits. A backup must not bring them back.
    let lasting = pairs.into_iter().filter(|pair| match fleet.keys.parse(&pair.key) {
        Some(Key::Row(_) | Key::Member(_) | Key::RemovedExit(_) | Key::Roster) => true,
        Some(_) | None => false,
    });
    let owner = Owner::of(&fleet.config);
    let snapshot = Snapshot { owner, meta: fleet.meta, position, revision, pairs: lasting.collect() };
    let path = &arguments.file;
    // An earlier backup is never overwritten, because the store may be damaged by now.
    create_new(path, &encode(&snapshot)?, 0o600)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    print(&format!(
        "Wrote {} at revision {revision} to {}. Keep that as secret as the store.\n",
        counted(rows.iter().count(), "row"),
        path.display()
    ))
}
