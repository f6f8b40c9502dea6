//! `warren fleet leave`: the exit keeps its clients, and nothing is shared any more.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use etcd_client::{Txn, TxnOp};
use warren_config::storage::create_new;
use warren_config::{clients_text, counted};
use warren_session::clients::ClientRegistry;

use super::begin::exit_toml;
use super::files::forget_credentials;
use super::ticket::user_name;
use super::{Connected, connect, print};
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
/// If no copy of the clients can be read, or the file cannot be written.
pub(crate) async fn leave(directories: Directories<'_>, arguments: &LeaveArguments) -> anyhow::Result<()> {
    let config = FleetConfig::read(directories.config)?;
    let state = StateDirectory::new(directories.state);
    let (pairs, fleet) = match from_store(&directories).await {
        Ok((pairs, fleet)) => (pairs, Some(fleet)),
        Err(error) => {
            let snapshot = state.load()?;
            let snapshot = snapshot.with_context(|| {
                format!("the store cannot be used ({error:#}), and there is no copy here")
            })?;
            tracing::warn!(
                "the store cannot be used: {error:#}; the clients are those of the copy on this disk"
            );
            (snapshot.pairs, None)
        }
    };
    let rows = rows_of(&config.keys(), &pairs);
    let registry = ClientRegistry::from_rows(rows.iter().map(|(_, row)| row.content.clone()))?;
    let text = clients_text(&arguments.clients, &registry)?;
    create_new(&arguments.clients, text.as_bytes(), 0o600).with_context(|| {
        format!("{} cannot be written; name another file with --clients", arguments.clients.display())
    })?;
    let note = match fleet {
        Some(fleet) => take_out(fleet, &config).await.with_context(|| {
            format!("the clients are in {}, and nothing else was changed", arguments.clients.display())
        })?,
        None => format!(" Run `warren fleet remove {}` at another exit.", config.exit),
    };
    state.clear()?;
    let kept = forget_credentials(directories.config, &config.store)?;
    // Last, so that the command can be run again if something above fails.
    let path = FleetConfig::path(directories.config);
    let left = path.with_extension("toml.left");
    warren_host::durable_file::rename(&path, &left)
        .with_context(|| format!("{} cannot be renamed", path.display()))?;
    let kept: String =
        kept.iter().map(|path| format!("{} still opens the store: delete it.\n", path.display())).collect();
    print(&format!(
        "{} has left fleet {:?}.{note} {} are in {}.\n{kept}Next: take `[fleet]` out of {}, stop warren-fleet.service, run \
         `systemctl restart warren-exit`, then `warren exit client import {}`.\n",
        config.exit,
        config.fleet,
        counted(registry.len(), "client"),
        arguments.clients.display(),
        exit_toml(directories.config).display(),
        arguments.clients.display(),
    ))
}

/// Reads everything that the store has.
async fn from_store(directories: &Directories<'_>) -> anyhow::Result<(Vec<Pair>, Connected)> {
    let fleet = connect(directories.config).await?;
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    Ok((pairs, fleet))
}

/// Takes this exit out of the fleet, with its user of the store. Returns what is left to do.
async fn take_out(mut fleet: Connected, config: &FleetConfig) -> anyhow::Result<String> {
    let deletes = fleet.keys.of_exit(&config.exit).map(|key| TxnOp::delete(key, None));
    in_words(fleet.client.txn(Txn::new().and_then(deletes)).await)?;
    let user = user_name(&config.fleet, &config.exit);
    let mut auth = fleet.client.auth_client();
    let note = match in_words(auth.user_delete(&user).await) {
        // A user may not delete itself, and only the store's root may delete users.
        Err(error) if error.to_string().contains("permission denied") => {
            format!(" Its user in the store remains: run `etcdctl user delete {user}`.")
        }
        Ok(_) | Err(_) => String::new(),
    };
    let _ = auth.role_delete(&user).await;
    Ok(note)
}
