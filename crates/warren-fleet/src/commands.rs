//! The commands of a fleet, besides `run`.

mod attempt;
mod backup;
mod begin;
mod bring;
mod exits;
mod files;
mod join;
mod leave;
mod offline;
pub(crate) mod recover;
mod roster;
mod status;
mod ticket;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use serde::Serialize;

pub(crate) use self::backup::{BackupArguments, backup};
pub(crate) use self::begin::{InitArguments, init};
pub(crate) use self::exits::{DrainArguments, RemoveArguments, drain, remove};
pub(crate) use self::join::{JoinArguments, join};
pub(crate) use self::leave::{LeaveArguments, leave};
pub(crate) use self::offline::{PublishArguments, SignArguments, publish, sign};
pub(crate) use self::recover::{RecoverArguments, recover};
pub(crate) use self::roster::{AdmitArguments, RotateKeyArguments, admit, rotate_key};
pub(crate) use self::status::{StatusArguments, status};
pub(crate) use self::ticket::{TicketArguments, ticket};
use crate::config::FleetConfig;
use crate::keys::{Key, Keys};
use crate::link::{Contents, read};
use crate::meta::{Meta, Mismatch, check};
use crate::run::Directories;
use crate::snapshot::StateDirectory;
use crate::store::{find, in_words, pairs_of};

/// A command's connection to the store.
pub(crate) struct Connected {
    pub(crate) config: FleetConfig,
    pub(crate) keys: Keys,
    pub(crate) client: Client,
    pub(crate) meta: Meta,
    /// If the store lacks what this host's exit knows: why the exit does not use it.
    pub(crate) old_store: Option<Mismatch>,
}

impl Connected {
    /// Reads all values whose keys begin with `prefix`. Also returns the store's revision.
    async fn read_below(&mut self, prefix: String) -> anyhow::Result<(i64, Contents)> {
        let answer = in_words(self.client.get(prefix, Some(GetOptions::new().with_prefix())).await)?;
        let revision = answer.header().context("etcd's answer has no header")?.revision();
        Ok((revision, read(&self.keys, None, &pairs_of(&answer))))
    }
}

/// Connects to the fleet of `fleet.toml`. Warns if the store lacks what this host's exit knows, because the exit does not use such a
/// store.
async fn connect(directories: &Directories<'_>) -> anyhow::Result<Connected> {
    let mut fleet = connect_or_fill(directories.config, |name| {
        bail!(
            "the store has no fleet {name:?}; if it has lost everything, run `warren fleet recover` at the exit whose copy is newest; \
             otherwise correct `endpoints` in fleet.toml"
        )
    })
    .await?;
    // Without a copy on this host, or the right to read it, there is nothing to compare.
    if let Ok(Some(position)) = StateDirectory::new(directories.state).newest_position() {
        let found = find(&mut fleet.client, &fleet.keys, &fleet.config.exit).await?;
        match check(&fleet.config.fleet, Some(&position), &found) {
            Err(mismatch) if mismatch.is_old_store() => {
                tracing::warn!("the exit of this host does not use the store: {mismatch}");
                fleet.old_store = Some(mismatch);
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(fleet)
}

/// Like [`connect`], for a store that may have lost everything. Such a store gets the fleet's agreement ([`Meta`]) that `fill`
/// returns, and the fleet begins again with this agreement.
async fn connect_or_fill(
    directory: &Path,
    fill: impl FnOnce(&str) -> anyhow::Result<Meta>,
) -> anyhow::Result<Connected> {
    let config = FleetConfig::read(directory)?;
    let mut client = config.store.options()?.connect_any().await?;
    let keys = config.keys();
    let meta = match read_meta(&mut client, &keys).await? {
        Some(meta) => meta,
        None => {
            let meta = fill(&config.fleet)?;
            let key = keys.name(&Key::Meta);
            // Another command may have filled the store since it was read. Only an empty store gets the agreement.
            let absent = Compare::version(key.as_str(), CompareOp::Equal, 0);
            let put = TxnOp::put(key, serde_json::to_vec(&meta)?, None);
            let answer = in_words(client.txn(Txn::new().when([absent]).and_then([put])).await)?;
            if !answer.succeeded() {
                bail!("somebody else has just begun a fleet in the store; look at `warren fleet status`");
            }
            meta
        }
    };
    Ok(Connected { config, keys, client, meta, old_store: None })
}

async fn read_meta(client: &mut Client, keys: &Keys) -> anyhow::Result<Option<Meta>> {
    let read = in_words(client.get(keys.name(&Key::Meta), None).await);
    let answer = read.with_context(|| {
        format!(
            "the fleet {:?} cannot be read in the store; if the store refuses permission, this exit was removed from the fleet, or the store's \
             user is neither one of the fleet's exits nor root",
            keys.name_of_fleet()
        )
    })?;
    let Some(pair) = pairs_of(&answer).into_iter().next() else { return Ok(None) };
    Ok(Some(pair.parse("agreement").context("the store's `meta` is damaged; restore a backup")?))
}

/// Returns a warning if etcd's user authentication is off, and otherwise an empty string.
async fn warning_of_open_store(config: &FleetConfig) -> anyhow::Result<String> {
    Ok(match config.store.options()?.is_open_to_all().await {
        true => "WARNING: etcd's user authentication is off, so every exit and every host with a certificate can change everything in the store; \
                 turn it on with `etcdctl auth enable` (docs/fleet.md)\n"
            .to_owned(),
        false => String::new(),
    })
}

/// Writes text to standard output. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output cannot be written"),
    }
}

fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
