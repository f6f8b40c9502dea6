//! `warren fleet admit` and `warren fleet rotate-key`, and the roster's part of `warren fleet remove`: what needs the fleet key.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_config::storage::create_new;
use warren_fleet_link::ExitId;
use warren_session::PublicKey;
use warren_session::roster::{
    ExitState, FleetKey, RosterChange, RosterEndpoint, RosterExit, SignedRoster, begin, change, rotate,
};

use super::{Connected, connect, print};
use crate::exits::Member;
use crate::keys::Key;
use crate::run::Directories;
use crate::store::{in_words, pairs_of};

/// `warren fleet admit`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdmitArguments {
    /// The exit's name.
    exit: String,
    /// The file of the fleet key. For a fleet's first exit it is made if it does not exist.
    #[arg(long, value_name = "FILE")]
    fleet_key: PathBuf,
    /// The exit's public key, as `warren status exit` shows it there. Without it, nothing is signed.
    #[arg(long, value_name = "KEY")]
    public_key: Option<PublicKey>,
    /// Where the exit is, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    region: String,
    /// Its share of clients, compared with the weights of other exits.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    weight: u32,
}

/// `warren fleet rotate-key`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RotateKeyArguments {
    /// The file of the fleet key that is in use.
    #[arg(long, value_name = "FILE")]
    fleet_key: PathBuf,
    /// The file for the new fleet key, which must not exist.
    #[arg(long, value_name = "FILE")]
    new_key: PathBuf,
}

/// The roster in the store, and the revision of its latest change.
struct Stored {
    roster: Option<SignedRoster>,
    modified: i64,
}

/// Signs a roster that has the exit.
///
/// # Errors
/// If the exit is not known, has another key, or the roster cannot be signed or stored.
pub(crate) async fn admit(directories: Directories<'_>, arguments: &AdmitArguments) -> anyhow::Result<()> {
    let mut fleet = connect(directories.config).await?;
    let id = ExitId::try_from(arguments.exit.clone())?;
    let answer = in_words(fleet.client.get(fleet.keys.name(&Key::Member(id.clone())), None).await)?;
    let member = pairs_of(&answer).into_iter().next().and_then(|pair| pair.parse::<Member>("exit"));
    let member =
        member.with_context(|| format!("the fleet has no exit {id}; `warren fleet status` lists all"))?;
    let key = member.key.with_context(|| {
        format!("the exit {id} has not been linked yet, so its key is not known; start warren-fleet there")
    })?;
    match arguments.public_key {
        Some(expected) if expected == key => {}
        Some(expected) => bail!(
            "the store has the key {key} for {id}, and not {expected}: somebody may have put it there; nothing was signed"
        ),
        None => bail!(
            "the store has the key {key} for {id}. Compare it with `warren status exit` there; if it is the same, run this again with \
             --public-key {key}"
        ),
    }
    let endpoints = member.endpoints.iter().map(|endpoint| endpoint.parse::<RosterEndpoint>());
    let exit = RosterExit {
        name: id.to_string(),
        public_keys: vec![key],
        endpoints: endpoints.collect::<Result<_, _>>()?,
        region: arguments.region.clone(),
        weight: arguments.weight,
        state: ExitState::Serving,
    };
    let stored = read(&mut fleet).await?;
    let now = SystemTime::now();
    let (signed, note) = match &stored.roster {
        Some(old) => {
            (change(old, RosterChange::Admit(exit), &read_key(&arguments.fleet_key)?, now)?, String::new())
        }
        None => {
            let (key, note) = read_or_make_key(&arguments.fleet_key)?;
            (begin(fleet.config.fleet.parse()?, vec![exit], &key, now)?, note)
        }
    };
    store(&mut fleet, &stored, &signed).await?;
    print(&format!("{note}{id} is in the roster. {}", summary(&signed)))
}

/// Signs a roster without the exit, if it is in the roster.
///
/// # Errors
/// If the roster cannot be signed or stored.
pub(super) async fn expel(fleet: &mut Connected, exit: &ExitId, key: &Path) -> anyhow::Result<String> {
    let stored = read(fleet).await?;
    let Some(old) = stored.roster.as_ref().filter(|old| old.content().exit(exit.as_str()).is_some()) else {
        return Ok(String::new());
    };
    let removal = RosterChange::Remove { name: exit.to_string() };
    let signed = change(old, removal, &read_key(key)?, SystemTime::now())?;
    store(fleet, &stored, &signed).await?;
    Ok(format!("{exit} is no longer in the roster. {}", summary(&signed)))
}

/// Whether clients still find an exit in the roster.
pub(super) async fn has(fleet: &mut Connected, exit: &ExitId) -> anyhow::Result<bool> {
    let stored = read(fleet).await?;
    Ok(stored.roster.is_some_and(|roster| roster.content().exit(exit.as_str()).is_some()))
}

/// Hands the fleet over to a new fleet key.
///
/// # Errors
/// If there is no roster yet, or it cannot be signed or stored.
pub(crate) async fn rotate_key(
    directories: Directories<'_>,
    arguments: &RotateKeyArguments,
) -> anyhow::Result<()> {
    let mut fleet = connect(directories.config).await?;
    let stored = read(&mut fleet).await?;
    let old =
        stored.roster.as_ref().context("there is no roster yet; `warren fleet admit` signs the first one")?;
    let old_key = read_key(&arguments.fleet_key)?;
    if old_key.public() != old.content().signer {
        bail!(
            "{} has another key than the roster's signer {}",
            arguments.fleet_key.display(),
            old.content().signer
        );
    }
    let new_key = make_key(&arguments.new_key)?;
    let signed = rotate(old, &old_key, &new_key, SystemTime::now())?;
    store(&mut fleet, &stored, &signed).await?;
    print(&format!(
        "The fleet key is {} now, in {}. {}",
        new_key.public(),
        arguments.new_key.display(),
        summary(&signed)
    ))
}

fn summary(signed: &SignedRoster) -> String {
    let roster = signed.content();
    let names: Vec<&str> = roster.exits.iter().map(|exit| exit.name.as_str()).collect();
    format!("Roster {} has {}; clients learn it from the exits.\n", roster.serial, names.join(", "))
}

async fn read(fleet: &mut Connected) -> anyhow::Result<Stored> {
    let answer = in_words(fleet.client.get(fleet.keys.name(&Key::Roster), None).await)?;
    let Some(pair) = pairs_of(&answer).into_iter().next() else {
        return Ok(Stored { roster: None, modified: 0 });
    };
    let bytes = pair.value.unwrap_or_default();
    let roster = SignedRoster::decode(&bytes).context("the roster in the store is damaged")?;
    Ok(Stored { roster: Some(roster), modified: pair.modified })
}

async fn store(fleet: &mut Connected, stored: &Stored, signed: &SignedRoster) -> anyhow::Result<()> {
    let key = fleet.keys.name(&Key::Roster);
    let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, stored.modified);
    let put = TxnOp::put(key, signed.as_bytes(), None);
    let answer = in_words(fleet.client.txn(Txn::new().when([unchanged]).and_then([put])).await)?;
    if !answer.succeeded() {
        bail!("somebody else has just signed a roster; nothing was changed. Run this again");
    }
    Ok(())
}

fn read_key(path: &Path) -> anyhow::Result<FleetKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    FleetKey::from_file_text(&text).with_context(|| format!("{} has no fleet key", path.display()))
}

/// Reads the fleet key, or makes the first one and says so.
fn read_or_make_key(path: &Path) -> anyhow::Result<(FleetKey, String)> {
    if path.exists() {
        return Ok((read_key(path)?, String::new()));
    }
    let note =
        format!("Made the fleet key {}. Keep it away from every exit, and keep a copy.\n", path.display());
    Ok((make_key(path)?, note))
}

fn make_key(path: &Path) -> anyhow::Result<FleetKey> {
    let key = FleetKey::generate()?;
    create_new(path, key.to_line().as_bytes(), 0o600)
        .with_context(|| format!("{} cannot be made", path.display()))?;
    Ok(key)
}
