//! `warren fleet init`: begins a fleet with the clients of this exit.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use etcd_client::{Client, Compare, CompareOp, DeleteOptions, Txn, TxnOp};
use ipnet::IpNet;
use warren_config::{ClientsImport, counted, ipv4_pool, ipv6_pool, load_exit};
use warren_fleet_link::{ExitId, Pools};
use warren_host::durable_file::remove_abandoned;
use warren_session::clients::ClientRegistry;

use super::attempt::check_not_joining;
use super::bring::{misplaced, own_registry};
use super::files::{forget, forget_attempt, forget_exits_file, lock, write_config};
use super::{print, warning_of_open_store};
use crate::config::{FleetConfig, StoreConfig, exit_toml, is_there};
use crate::exits::Member;
use crate::keys::{Key, Keys, is_fleet_name};
use crate::link::{Pair, Transaction, pools_text, rows_of};
use crate::meta::{FORMAT, Meta};
use crate::planted::reached;
use crate::rows::named;
use crate::run::{Directories, random_name};
use crate::snapshot::StateDirectory;
use crate::store::{Transact, apply, end_of, in_words, read_all};
use crate::transaction::Expected;

/// `warren fleet init`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InitArguments {
    /// The name of the fleet.
    #[arg(long, value_name = "NAME", default_value = "fleet")]
    fleet: String,
    /// The name of this exit in the fleet, as in [fleet] of exit.toml.
    #[arg(long, value_name = "NAME")]
    exit: String,
    #[command(flatten)]
    store: StoreArguments,
    /// Delete a fleet of this name that no longer has an exit, with its clients, and begin a new one.
    #[arg(long)]
    replace: bool,
    /// Take the clients from this clients.toml instead of this exit's.
    #[arg(long, value_name = "FILE")]
    clients: Option<PathBuf>,
    /// Take this address pool instead of those in exit.toml. May be given twice: IPv4 and IPv6.
    #[arg(long, value_name = "NETWORK")]
    pool: Vec<IpNet>,
}

/// How to reach the store.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArguments {
    /// The members of etcd, separated by commas.
    #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
    store: Vec<String>,
    /// The certificate of the store's authority, in PEM. The user warren-fleet must be able to read this file and the next ones.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// This exit's certificate for the store. Its common name is the store's user.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// The store's user, if it is not the certificate's.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// A file with the user's password.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl StoreArguments {
    fn config(&self) -> anyhow::Result<StoreConfig> {
        let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
        Ok(StoreConfig {
            endpoints: self.store.clone(),
            ca: absolute(&self.ca)?,
            certificate: absolute(&self.certificate)?,
            key: absolute(&self.key)?,
            user: self.user.clone(),
            password_file: absolute(&self.password_file)?,
        })
    }
}

/// Begins a fleet.
///
/// # Errors
/// If the fleet exists already, or the store cannot be written.
pub(crate) async fn init(directories: Directories<'_>, arguments: &InitArguments) -> anyhow::Result<()> {
    if !is_fleet_name(&arguments.fleet) {
        bail!(
            "{:?} is not a name for a fleet; use up to 63 lower-case letters, digits, `-`, `_` and `.`",
            arguments.fleet
        );
    }
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let config = FleetConfig { fleet: arguments.fleet.clone(), exit, store: arguments.store.config()? };
    let _lock = lock(&directories)?;
    let path = FleetConfig::path(directories.config);
    // An earlier `init` may have been killed after it wrote this file.
    let is_written = is_there(&path)?;
    if FleetConfig::read(directories.config).ok().as_ref() != Some(&config) {
        FleetConfig::check_free(directories.config)?;
    }
    check_not_joining(directories.config)?;
    remove_abandoned(directories.config);
    config.store.check()?;
    let (pools, registry) = own_clients(&directories, arguments)?;
    let mut client = config.store.options()?.connect_any().await?;
    let keys = config.keys();
    let beginning = Beginning::new(&keys, &config, pools)?;
    if arguments.replace && !is_written {
        delete_abandoned(&mut client, &keys).await?;
    }
    // If `fleet.toml` is here but the store has no fleet, the store has lost it. In that case `warren fleet recover` restores the
    // fleet, so no new one may begin.
    let begun = match if is_written { None } else { beginning.begin(&mut client).await? } {
        Some(revision) => Some(revision),
        None => beginning.begin_again(&mut client).await?,
    };
    let Some(revision) = begun else {
        FleetConfig::check_free(directories.config)?;
        let what = match succeeds(&mut client, without_exits(&keys)).await?.is_some() {
            true => "it has no exit any more; delete it with its clients and begin a new one with --replace",
            false => "join it with a ticket from one of its exits (`warren fleet ticket NAME`)",
        };
        bail!("the store has a fleet {:?} already; {what}, or name another one with --fleet", config.fleet);
    };
    reached("fleet begun");
    let begun = complete(&directories, &config, &mut Begun { client, keys, revision }, &registry).await;
    let count = begun.map_err(|error| match error.is::<BegunAgain>() {
        true => error,
        false => error.context("the fleet was begun, but is not complete; run this again"),
    })?;
    let open = warning_of_open_store(&config).await?;
    print(&format!(
        "Fleet {:?} has begun with {}. {} is written.\nNext: put `[fleet]` with `name = \"{}\"` into exit.toml, \
         then run `systemctl enable --now warren-fleet` and `systemctl restart warren-exit`.\nFor each further exit: `warren fleet ticket NAME`.\n{open}",
        config.fleet,
        counted(count, "client"),
        path.display(),
        config.exit,
    ))
}

/// Stores the clients and writes `fleet.toml`. Returns the number of clients.
async fn complete(
    directories: &Directories<'_>,
    config: &FleetConfig,
    begun: &mut Begun,
    registry: &ClientRegistry,
) -> anyhow::Result<usize> {
    let count = begun.upload(registry).await?;
    reached("clients stored");
    // An earlier fleet's copy may be left. `fleet.toml` is written last, so that no link begins to serve an incomplete fleet.
    StateDirectory::new(directories.state).clear()?;
    forget_exits_file(directories)?;
    forget_attempt(directories.config)?;
    write_config(directories.config, config)?;
    reached("configuration written");
    if !begun.is_ended().await {
        forget(&FleetConfig::path(directories.config))?;
        return Err(BegunAgain.into());
    }
    Ok(count)
}

/// The pools and clients to begin with.
fn own_clients(
    directories: &Directories<'_>,
    arguments: &InitArguments,
) -> anyhow::Result<(Pools, ClientRegistry)> {
    let path = exit_toml(directories.config);
    let is_needed = arguments.pool.is_empty() || arguments.clients.is_none();
    let settings = (is_needed || path.exists()).then(|| load_exit(&path)).transpose()?;
    let own = settings.as_ref().map(|settings| Pools { ipv4: settings.ipv4, ipv6: settings.ipv6 });
    let pools = match (given_pools(&arguments.pool)?, own) {
        (Some(given), Some(own)) if given != own => bail!(
            "--pool is {} and {} has {}: the exit would not fit its fleet; give both the same",
            pools_text(&given),
            path.display(),
            pools_text(&own)
        ),
        (Some(pools), _) | (None, Some(pools)) => pools,
        (None, None) => Pools { ipv4: None, ipv6: None },
    };
    let registry = match &arguments.clients {
        Some(file) => {
            let import = ClientsImport::read(file)?;
            import.with_context(|| format!("{} does not exist", file.display()))?.registry
        }
        None => own_registry(directories)?,
    };
    // Without --pool, the pools are those of this exit, and its clients already fit them.
    for client in registry.iter().filter(|_| !arguments.pool.is_empty()) {
        if let Some((_, error)) = misplaced(client, &pools).next() {
            bail!("the client {} does not fit --pool: {error}", client.name);
        }
    }
    Ok((pools, registry))
}

/// The pools of `--pool`, checked by the rules of exit.toml.
fn given_pools(given: &[IpNet]) -> anyhow::Result<Option<Pools>> {
    let mut pools = Pools { ipv4: None, ipv6: None };
    for pool in given {
        let text = pool.to_string();
        let is_second = match pool {
            IpNet::V4(_) => {
                pools.ipv4.replace(ipv4_pool(&text).map_err(|error| anyhow!("--pool {error}"))?).is_some()
            }
            IpNet::V6(_) => {
                pools.ipv6.replace(ipv6_pool(&text).map_err(|error| anyhow!("--pool {error}"))?).is_some()
            }
        };
        if is_second {
            bail!("--pool {text} is the second one of its kind; give one for IPv4 and one for IPv6");
        }
    }
    Ok((!given.is_empty()).then_some(pools))
}

/// Deletes a fleet that has no exit.
///
/// # Errors
/// If the fleet has an exit, or the store does not answer.
async fn delete_abandoned(client: &mut Client, keys: &Keys) -> anyhow::Result<()> {
    if succeeds(client, without_exits(keys).and_then(deletion(keys))).await?.is_none() {
        bail!(
            "the fleet {:?} still has an exit, so it is not replaced; its exits can leave it with `warren fleet leave`",
            keys.name_of_fleet()
        );
    }
    Ok(())
}

/// A transaction that succeeds only if a fleet has no exit.
fn without_exits(keys: &Keys) -> Txn {
    Txn::new().when([Compare::version(keys.members(), CompareOp::Equal, 0).with_prefix()])
}

/// Deletes everything of a fleet except the grants, which tell links whose etcd users must still be removed.
fn deletion(keys: &Keys) -> [TxnOp; 2] {
    let [grants, end] = [keys.grants(), keys.prefix().to_owned()].map(|prefix| end_of(prefix.as_bytes()));
    let range =
        |start: Vec<u8>, end: Vec<u8>| TxnOp::delete(start, Some(DeleteOptions::new().with_range(end)));
    [range(keys.prefix().into(), keys.grants().into()), range(grants, end)]
}

/// The first rows of a fleet: its agreement, and this exit as its first member.
struct Beginning<'a> {
    keys: &'a Keys,
    exit: &'a ExitId,
    operations: [TxnOp; 4],
}

impl<'a> Beginning<'a> {
    fn new(keys: &'a Keys, config: &'a FleetConfig, pools: Pools) -> anyhow::Result<Self> {
        let meta = Meta { format: FORMAT, id: random_name()?, epoch: 1, pools, recoveries: Vec::new() };
        let own = keys.name(&Key::Member(config.exit.clone()));
        let operations = [
            TxnOp::put(keys.name(&Key::Meta), serde_json::to_vec(&meta)?, None),
            TxnOp::put(own, serde_json::to_vec(&Member::joining()?)?, None),
            TxnOp::put(keys.beginning(), config.exit.as_str(), None),
            // An earlier fleet of this name may have left this key.
            TxnOp::delete(keys.name(&Key::RemovedExit(config.exit.clone())), None),
        ];
        Ok(Self { keys, exit: &config.exit, operations })
    }

    /// Begins the fleet. Returns the store's revision, or `None` if the store already has the fleet.
    async fn begin(&self, client: &mut Client) -> anyhow::Result<Option<i64>> {
        let absent = Compare::version(self.keys.name(&Key::Meta), CompareOp::Equal, 0);
        succeeds(client, Txn::new().when([absent]).and_then(self.operations.clone())).await
    }

    /// Begins the fleet again. Returns `None` unless an earlier `init` of this exit has begun it and no link has used it since.
    /// Deletes the clients, invitations and removed keys in the store first, because those of this exit may have changed since
    /// then.
    async fn begin_again(&self, client: &mut Client) -> anyhow::Result<Option<i64>> {
        let is_incomplete = [
            Compare::value(self.keys.beginning(), CompareOp::Equal, self.exit.as_str()),
            // Each link writes its position with its first heartbeat.
            Compare::version(self.keys.positions(), CompareOp::Equal, 0).with_prefix(),
        ];
        let all = Some(DeleteOptions::new().with_prefix());
        let deletes = self.keys.of_registry().map(|kind| TxnOp::delete(kind, all.clone()));
        let anew: Vec<TxnOp> = deletes.into_iter().chain(self.operations.clone()).collect();
        succeeds(client, Txn::new().when(is_incomplete).and_then(anew)).await
    }
}

/// Runs a transaction. Returns the store's revision afterwards, or `None` if the transaction's condition did not hold.
async fn succeeds(client: &mut Client, transaction: Txn) -> anyhow::Result<Option<i64>> {
    let answer = in_words(client.txn(transaction).await).context(
        "cannot write to the store; check that it answers, and that its user has rights to the fleet's keys",
    )?;
    let revision = answer.header().context("etcd's answer has no header")?.revision();
    Ok(answer.succeeded().then_some(revision))
}

/// A fleet that this command has begun. Another host's `init` for an exit of the same name begins it again: from then on, this
/// command changes nothing more in the store.
struct Begun {
    client: Client,
    keys: Keys,
    /// The revision at which this command has begun the fleet.
    revision: i64,
}

impl Begun {
    /// Stores all clients, invitations and removed keys. Returns the number of clients.
    async fn upload(&mut self, registry: &ClientRegistry) -> anyhow::Result<usize> {
        let keys = self.keys.clone();
        let (_, pairs) = read_all(&self.client, &keys).await?;
        let mut rows = rows_of(&keys, &pairs);
        let groups = registry.rows().map(|row| vec![row]).collect();
        let refused = apply(self, &keys, &mut rows, groups).await?;
        if let Some(first) = refused.first() {
            // If nothing was stored because the fleet was begun again, the error says so.
            self.transact(&Transaction::default()).await?.ok_or(BegunAgain)?;
            bail!(
                "{} are not stored, because other rows conflict with them; the first is {}",
                counted(refused.len(), "row"),
                first.first().map(named).unwrap_or_default()
            );
        }
        Ok(registry.len())
    }

    /// Ends the beginning: from now on, no `init` begins this fleet again. Returns `false` if another `init` has already begun it again.
    async fn is_ended(&mut self) -> bool {
        let then = BTreeMap::from([(self.keys.beginning(), None)]);
        let ended = self.transact(&Transaction { then, ..Transaction::default() }).await;
        // If the answer is lost, a leftover key does no harm: after the first heartbeat of any link, no `init` begins it again.
        ended.map_or(true, |revision| revision.is_some())
    }
}

/// Another `init` has begun this fleet again.
#[derive(Debug, thiserror::Error)]
#[error(
    "another host has just begun this fleet with an exit of the same name, so this host is not in it; give this exit another name, and join \
     the fleet with a ticket from that host (`warren fleet ticket NAME`)"
)]
struct BegunAgain;

impl Transact for Begun {
    async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
        self.client.all(keys).await
    }

    async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
        self.client.some(key, prefix).await
    }

    async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
        let mut transaction = transaction.clone();
        transaction.expected.insert(self.keys.name(&Key::Meta), Expected::Modified(self.revision));
        self.client.transact(&transaction).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_on_the_command_line_has_the_rules_of_exit_toml() {
        let given = |pools: &[&str]| {
            let pools: Vec<IpNet> = pools.iter().map(|pool| pool.parse().unwrap()).collect();
            given_pools(&pools).map_err(|error| error.to_string())
        };
        assert_eq!(given(&[]), Ok(None));
        let both = given(&["10.66.0.0/16", "fd66::/64"]).unwrap().unwrap();
        assert!(both.ipv4.is_some() && both.ipv6.is_some());
        let cases: [(&[&str], &str); 5] = [
            (&["10.66.0.1/16"], "host bits"),
            (&["10.66.0.0/31"], "from 8 to 30"),
            (&["224.0.0.0/8"], "unicast"),
            (&["fd66::/127"], "from 32 to 126"),
            (&["10.66.0.0/16", "10.67.0.0/16"], "second one"),
        ];
        for (wrong, part) in cases {
            let error = given(wrong).unwrap_err();
            assert!(error.contains(part) && error.contains("--pool"), "{error}");
        }
    }
}
