//! `warren fleet leave`: the exit keeps its clients, and nothing is shared any more.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn};
use warren_config::storage::create_new;
use warren_config::{clients_text, counted};
use warren_session::clients::ClientRegistry;

use super::attempt::host_of_join;
use super::begin::exit_toml;
use super::exits::leaving;
use super::files::forget_credentials;
use super::{Connected, connect, print};
use crate::config::FleetConfig;
use crate::link::{Pair, rows_of};
use crate::run::Directories;
use crate::snapshot::StateDirectory;
use crate::store::{in_words, read_all};
use crate::users::{self, user_name};

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
    let own_host = host_of_join(directories.config)?;
    let state = StateDirectory::new(directories.state);
    let snapshot = state.load()?;
    let own_fleet = snapshot.as_ref().map(|snapshot| snapshot.meta.id.as_str());
    let (pairs, fleet) = match from_store(&directories, own_fleet).await {
        Ok((pairs, fleet)) => (pairs, Some(fleet)),
        Err(error) => {
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
        Some(fleet) => take_out(fleet, &config, own_host).await.with_context(|| {
            format!(
                "the clients are in {}, and nothing on this host was changed",
                arguments.clients.display()
            )
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

/// Reads everything in the store. Refuses another fleet of the same name, because this exit does not belong to it.
async fn from_store(
    directories: &Directories<'_>,
    own_fleet: Option<&str>,
) -> anyhow::Result<(Vec<Pair>, Connected)> {
    let fleet = connect(directories.config).await?;
    if own_fleet.is_some_and(|own| own != fleet.meta.id) {
        bail!("it has another fleet of the same name");
    }
    let (_, pairs) = read_all(&fleet.client, &fleet.keys).await?;
    Ok((pairs, fleet))
}

/// Takes this exit out of the fleet, with its etcd user. Returns what remains to be done. If an exit on another host now has the
/// same name, that one stays: this one was removed, and the other has joined in its place.
async fn take_out(
    mut fleet: Connected,
    config: &FleetConfig,
    own_host: Option<String>,
) -> anyhow::Result<String> {
    let granted = users::granted(&mut fleet.client, &fleet.keys, &config.exit).await?;
    let host =
        granted.as_ref().and_then(|granted| granted.grant.host.clone()).filter(|host| !host.is_empty());
    if host.is_some() && host != own_host {
        return Ok(" Another host has joined the fleet by this name, and stays in it.".to_owned());
    }
    let same = Compare::mod_revision(
        fleet.keys.grant(&config.exit),
        CompareOp::Equal,
        granted.map_or(0, |granted| granted.modified),
    );
    let then = leaving(&fleet.keys, &config.exit)?;
    let answer = in_words(fleet.client.txn(Txn::new().when([same]).and_then(then)).await)?;
    if !answer.succeeded() {
        bail!("this exit's place in the fleet is being changed right now; run this again");
    }
    let user = user_name(&config.fleet, &config.exit);
    Ok(match users::remove_of(&mut fleet.client, &fleet.keys, &config.exit).await {
        Ok(_) => String::new(),
        // A user may not remove itself, and only the store's root may remove users.
        Err(_) => format!(
            " Its etcd user, {user}, is removed within ten seconds by an exit whose own user may do so. If there is none, run `etcdctl \
             user delete {user}`."
        ),
    })
}
