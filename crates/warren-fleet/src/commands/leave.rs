//! `warren fleet leave`: the exit keeps its clients, and nothing is shared any more.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use etcd_client::{Txn, TxnOp};
use warren_config::clients_text;
use warren_config::storage::create_new;
use warren_session::clients::ClientRegistry;

use super::begin::exit_toml;
use super::{connect, print};
use crate::config::FleetConfig;
use crate::link::{Pair, rows_of};
use crate::run::Directories;
use crate::snapshot::StateDirectory;
use crate::store::{in_words, read_all};

/// `warren fleet leave`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaveArguments {
    /// Write the fleet's clients into this file, which `warren exit client import` reads.
    #[arg(long, value_name = "FILE", default_value = "clients.toml")]
    clients: PathBuf,
}

/// Leaves the fleet.
///
/// # Errors
/// If the clients cannot be read from anywhere or written.
pub(crate) async fn leave(directories: Directories<'_>, arguments: &LeaveArguments) -> anyhow::Result<()> {
    let config = FleetConfig::read(directories.config)?;
    let state = StateDirectory::new(directories.state);
    let (pairs, is_away) = match from_store(&directories, &config).await {
        Ok(pairs) => (pairs, false),
        Err(error) => {
            let snapshot = state.load()?;
            let snapshot = snapshot.with_context(|| {
                format!("the store cannot be used ({error:#}), and there is no copy here")
            })?;
            tracing::warn!(
                "the store cannot be used: {error:#}; the clients are those of the copy on this disk"
            );
            (snapshot.pairs, true)
        }
    };
    let rows = rows_of(&config.keys(), &pairs);
    let registry = ClientRegistry::from_rows(rows.iter().map(|(_, row)| row.content.clone()))?;
    let text = clients_text(&arguments.clients, &registry)?;
    create_new(&arguments.clients, text.as_bytes(), 0o600).with_context(|| {
        format!("{} cannot be written; name another file with --clients", arguments.clients.display())
    })?;
    let path = FleetConfig::path(directories.config);
    let left = path.with_extension("toml.left");
    warren_host::durable_file::rename(&path, &left)
        .with_context(|| format!("{} cannot be renamed", path.display()))?;
    state.clear()?;
    let note = if is_away {
        format!(" Run `warren fleet remove {}` at another exit.", config.exit)
    } else {
        String::new()
    };
    print(&format!(
        "{} has left fleet {:?}.{note} {} clients are in {}.\nNext: take `[fleet]` out of {}, stop warren-fleet.service, run \
         `systemctl restart warren-exit`, then `warren exit client import {}`.\n",
        config.exit,
        config.fleet,
        registry.len(),
        arguments.clients.display(),
        exit_toml(directories.config).display(),
        arguments.clients.display(),
    ))
}

/// Reads everything, and takes this exit out of the fleet.
async fn from_store(directories: &Directories<'_>, config: &FleetConfig) -> anyhow::Result<Vec<Pair>> {
    let mut fleet = connect(directories.config).await?;
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    let deletes = fleet.keys.of_exit(&config.exit).map(|key| TxnOp::delete(key, None));
    in_words(fleet.client.txn(Txn::new().and_then(deletes)).await)?;
    Ok(pairs)
}
