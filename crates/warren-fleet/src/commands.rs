//! The commands of a fleet, beside `run`.

mod backup;
mod begin;
mod exits;
mod files;
mod leave;
mod roster;
mod status;
mod ticket;

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use etcd_client::Client;
use serde::Serialize;

pub(crate) use self::backup::{BackupArguments, RecoverArguments, backup, recover};
pub(crate) use self::begin::{InitArguments, init};
pub(crate) use self::exits::{DrainArguments, RemoveArguments, drain, remove};
pub(crate) use self::leave::{LeaveArguments, leave};
pub(crate) use self::roster::{AdmitArguments, RotateKeyArguments, admit, rotate_key};
pub(crate) use self::status::{StatusArguments, status};
pub(crate) use self::ticket::{JoinArguments, TicketArguments, join, ticket};
use crate::config::FleetConfig;
use crate::keys::{Key, Keys};
use crate::meta::Meta;
use crate::store::{in_words, pairs_of};

/// A command's connection to the store.
pub(crate) struct Connected {
    pub(crate) config: FleetConfig,
    pub(crate) keys: Keys,
    pub(crate) client: Client,
    pub(crate) meta: Meta,
}

/// Connects to the fleet of `fleet.toml`.
async fn connect(directory: &Path) -> anyhow::Result<Connected> {
    let config = FleetConfig::read(directory)?;
    let mut client = config.store.options()?.connect_any().await?;
    let keys = config.keys();
    let meta = read_meta(&mut client, &keys).await?.with_context(|| {
        format!("the store has no fleet {:?}; begin it with `warren fleet init`", config.fleet)
    })?;
    Ok(Connected { config, keys, client, meta })
}

async fn read_meta(client: &mut Client, keys: &Keys) -> anyhow::Result<Option<Meta>> {
    let answer = in_words(client.get(keys.name(&Key::Meta), None).await)?;
    let Some(pair) = pairs_of(&answer).into_iter().next() else { return Ok(None) };
    Ok(Some(pair.parse("agreement").context("the store's `meta` is damaged; restore a backup")?))
}

/// Writes text to standard output. A reader that went away is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output cannot be written"),
    }
}

fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
