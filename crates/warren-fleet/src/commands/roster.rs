//! `warren fleet admit`, `warren fleet rotate-key`, and the roster's part of `warren fleet remove`. All of them need the fleet key.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_config::storage::create_new;
use warren_fleet_link::ExitId;
use warren_host::durable_file::remove_abandoned;
use warren_host::{directory_of, read_plain};
use warren_session::PublicKey;
use warren_session::roster::{
    ExitState, FleetKey, RosterChange, RosterEndpoint, RosterError, RosterExit, SignedRoster, begin, change,
    rotate,
};

use super::{Connected, connect, print};
use crate::config::read_text;
use crate::exits::Member;
use crate::keys::{Key, Keys};
use crate::link::Contents;
use crate::planted::reached;
use crate::run::Directories;
use crate::store::restored::newer_roster;
use crate::store::{in_words, pairs_of};

/// `warren fleet admit`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdmitArguments {
    /// The exit's name.
    exit: String,
    /// The file of the fleet key. For a fleet's first exit it is made if it does not exist.
    #[arg(long, value_name = "FILE")]
    fleet_key: PathBuf,
    /// The exit's public key, as `warren status exit` shows it there. Without it, nothing is signed. While the exit's key is being
    /// rotated, give it twice: the new key and the old one.
    #[arg(long, value_name = "KEY")]
    public_key: Vec<PublicKey>,
    #[command(flatten)]
    listing: Listing,
}

/// The facts about an exit in the roster, besides its name, keys and endpoints.
#[derive(Args, Clone, Debug)]
pub(super) struct Listing {
    /// Where the exit is, for people [default: as before].
    #[arg(long, value_name = "TEXT")]
    region: Option<String>,
    /// The exit's share of clients, compared with the weights of other exits [default: as before, or 1].
    #[arg(long, value_name = "NUMBER")]
    weight: Option<u32>,
    /// Let clients use it only if no other exit answers. Without this option, they use it like any other.
    #[arg(long)]
    draining: bool,
}

impl Listing {
    /// The exit's entry in the roster. Region and weight stay as in its earlier entry unless the command names others.
    pub(super) fn of(
        &self,
        name: &ExitId,
        (public_keys, endpoints): (Vec<PublicKey>, Vec<RosterEndpoint>),
        before: Option<&RosterExit>,
    ) -> RosterExit {
        let region = self.region.clone().or(before.map(|exit| exit.region.clone()));
        let weight = self.weight.or(before.map(|exit| exit.weight));
        RosterExit {
            name: name.to_string(),
            public_keys,
            endpoints,
            region: region.unwrap_or_default(),
            weight: weight.unwrap_or(1),
            state: if self.draining { ExitState::Draining } else { ExitState::Serving },
        }
    }
}

/// `warren fleet rotate-key`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RotateKeyArguments {
    /// The file of the fleet key that is in use.
    #[arg(long, value_name = "FILE")]
    fleet_key: PathBuf,
    /// The file for the new fleet key. It is made, unless an earlier attempt has made it.
    #[arg(long, value_name = "FILE")]
    new_key: PathBuf,
}

/// The newest roster, and the revision of the latest change of the store's roster.
pub(super) struct Stored {
    pub(super) roster: Option<SignedRoster>,
    modified: i64,
    /// Whether the store has this roster.
    pub(super) is_stored: bool,
}

/// Signs a roster that contains the exit.
///
/// # Errors
/// If the exit is not known, has another key, or the roster cannot be signed or stored.
pub(crate) async fn admit(directories: Directories<'_>, arguments: &AdmitArguments) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let id = ExitId::try_from(arguments.exit.clone())?;
    let answer = in_words(fleet.client.get(fleet.keys.name(&Key::Member(id.clone())), None).await)?;
    let member = pairs_of(&answer).into_iter().next().and_then(|pair| pair.parse::<Member>("exit"));
    let member =
        member.with_context(|| format!("the fleet has no exit {id}; `warren fleet status` lists all"))?;
    let key = member.key.with_context(|| {
        format!("the exit {id} has not been linked yet, so its key is not known; start warren-fleet there")
    })?;
    let stored = read_newest(&mut fleet, directories.state, None).await?;
    let before = stored.roster.as_ref().and_then(|roster| roster.content().exit(id.as_str()));
    let known = before.map(|exit| exit.public_keys.as_slice()).unwrap_or_default();
    check_keys(&id, key, known, &arguments.public_key)?;
    let endpoints = member.endpoints.iter().map(|endpoint| endpoint.parse::<RosterEndpoint>());
    let endpoints = endpoints.collect::<Result<_, _>>()?;
    let exit = arguments.listing.of(&id, (arguments.public_key.clone(), endpoints), before);
    let now = SystemTime::now();
    let (signed, note) = match &stored.roster {
        Some(old) => {
            let key = read_key(&arguments.fleet_key)?;
            check_no_exits(&mut fleet, &key, &arguments.fleet_key).await?;
            (change(old, RosterChange::Admit(exit), &key, now)?, String::new())
        }
        None => {
            let (key, note) = read_or_make_key(&arguments.fleet_key)?;
            check_no_exits(&mut fleet, &key, &arguments.fleet_key).await?;
            (begin(fleet.config.fleet.parse()?, vec![exit], &key, now)?, note)
        }
    };
    store(&mut fleet, &stored, &signed).await?;
    print(&format!("{note}{id} is in the roster. {}", summary(&signed)))
}

/// Checks the keys that an operator has given. They must contain the exit's key in the store, and otherwise only keys that the
/// roster lists for the exit.
fn check_keys(
    exit: &ExitId,
    stored: PublicKey,
    in_roster: &[PublicKey],
    given: &[PublicKey],
) -> anyhow::Result<()> {
    // The command never signs the store's key without asking, because any exit of the fleet can write it.
    if given.is_empty() {
        let old: String = in_roster
            .iter()
            .filter(|key| **key != stored)
            .map(|key| format!("\nIf you also add --public-key {key}, clients that know this old key stay at the exit until it is retired"))
            .collect();
        bail!(
            "the store has the key {stored} for {exit}. Compare it with `warren status exit` there; if it is the same, run this again with \
             --public-key {stored}{old}"
        );
    }
    if let Some(key) = given.iter().find(|key| **key != stored && !in_roster.contains(key)) {
        bail!(
            "for {exit}, the store has the key {stored}, and neither the store nor the roster has {key}: somebody may have put a wrong \
             key into the store; nothing was signed"
        );
    }
    if !given.contains(&stored) {
        bail!(
            "{exit} uses the key {stored}, and clients could not connect to it without that key; add --public-key {stored}"
        );
    }
    Ok(())
}

/// What the roster says about an exit that is being removed.
pub(super) enum InRoster {
    No,
    /// The exit is in the roster, and there is no fleet key to sign a new roster.
    Yes,
    /// The store's roster is damaged, and there is no fleet key to sign a new roster.
    Unreadable(anyhow::Error),
    /// The next roster, without the exit.
    Without(Box<(Stored, SignedRoster)>),
}

/// Signs a roster without the exit, if the exit is in the current roster and there is a fleet key. Stores nothing.
///
/// # Errors
/// If the store does not answer, or there is a fleet key and the roster cannot be read or signed.
pub(super) async fn sign_without(
    fleet: &mut Connected,
    state: &Path,
    exit: &ExitId,
    key: Option<&FleetKey>,
) -> anyhow::Result<InRoster> {
    let read = match key {
        Some(_) => read_newest(fleet, state, Some(exit)).await,
        None => read(fleet, state).await,
    };
    let stored = match read {
        // This removal does not change the roster, so a damaged one is no obstacle.
        Err(error) if key.is_none() && error.is::<RosterError>() => return Ok(InRoster::Unreadable(error)),
        read => read?,
    };
    let Some(old) = stored.roster.as_ref().filter(|old| old.content().exit(exit.as_str()).is_some()) else {
        return Ok(InRoster::No);
    };
    let Some(key) = key else { return Ok(InRoster::Yes) };
    let removal = RosterChange::Remove { name: exit.to_string() };
    let signed = change(old, removal, key, SystemTime::now())?;
    Ok(InRoster::Without(Box::new((stored, signed))))
}

/// Hands the fleet over to a new fleet key.
///
/// # Errors
/// If there is no roster yet, or it cannot be signed or stored.
pub(crate) async fn rotate_key(
    directories: Directories<'_>,
    arguments: &RotateKeyArguments,
) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let stored = read_newest(&mut fleet, directories.state, None).await?;
    let old =
        stored.roster.as_ref().context("there is no roster yet; `warren fleet admit` signs the first one")?;
    let signer = old.content().signer;
    let (new_file, old_file) = (arguments.new_key.display(), arguments.fleet_key.display());
    let (old_key, new_key) = (read_key(&arguments.fleet_key)?, earlier_key(&arguments.new_key)?);
    // An earlier command has changed the key, but was killed or got no answer.
    if new_key.as_ref().is_some_and(|new| new.public() == signer && new.public() != old_key.public()) {
        if !stored.is_stored {
            store(&mut fleet, &stored, old).await?;
        }
        return print(&format!("The fleet key is already {signer}, in {new_file}. {}", summary(old)));
    }
    if old_key.public() != signer {
        bail!("{old_file} does not contain the key that signed the roster, {signer}; name that key's file");
    }
    // The new key is written to disk before a roster names it. Otherwise a crash could lose the only copy.
    let new_key = match new_key {
        Some(same) if same.public() == signer => {
            bail!("{new_file} contains the fleet key that is in use; name another file for the new one")
        }
        Some(made) => made,
        None => make_key(&arguments.new_key)?,
    };
    check_no_exits(&mut fleet, &new_key, &arguments.new_key).await?;
    reached("key made");
    let signed = rotate(old, &old_key, &new_key, SystemTime::now())?;
    store(&mut fleet, &stored, &signed).await.with_context(|| {
        format!("it is not known whether the fleet key has changed; run this again, which uses the key in {new_file}")
    })?;
    reached("key changed");
    print(&format!("The fleet key is now {}, in {new_file}. {}", new_key.public(), summary(&signed)))
}

pub(super) fn summary(signed: &SignedRoster) -> String {
    format!("{}; clients learn it from the exits.\n", listed(signed))
}

/// Says which exits a roster has.
pub(super) fn listed(signed: &SignedRoster) -> String {
    let roster = signed.content();
    let names: Vec<&str> = roster.exits.iter().map(|exit| exit.name.as_str()).collect();
    format!(
        "Roster {} has {}",
        roster.serial,
        if names.is_empty() { "no exit".to_owned() } else { names.join(", ") }
    )
}

/// Reads the newest roster: the store's, or that of this host's exit. A restored store may have an older roster than clients and
/// exits have.
pub(super) async fn read(fleet: &mut Connected, state: &Path) -> anyhow::Result<Stored> {
    let answer = in_words(fleet.client.get(fleet.keys.name(&Key::Roster), None).await)?;
    let pair = pairs_of(&answer).into_iter().next();
    let modified = pair.as_ref().map_or(0, |pair| pair.modified);
    let own: Vec<_> = of_exit(state).into_iter().collect();
    let in_store = match pair.map(|pair| SignedRoster::decode(&pair.value.unwrap_or_default())) {
        // The exit's own roster replaces it.
        Some(Err(_)) if newer_roster(&fleet.keys, None, &own).is_some() => None,
        decoded => decoded.transpose().with_context(|| {
            format!("the roster in the store is damaged; run `{PUT_BACK}` at an exit, which puts that exit's roster in its place")
        })?,
    };
    // Clients may already have this exit's roster, so the next roster must have a higher serial than this exit's.
    let newer = newer_roster(&fleet.keys, in_store.clone(), &own);
    let is_stored = newer.is_none();
    if let Some(newer) = &newer {
        tracing::warn!(
            "the store has {}, but this exit has roster {}, which is newer and is used; if it belongs to an earlier fleet, delete {}",
            in_store
                .as_ref()
                .map_or_else(|| "no roster".to_owned(), |old| format!("roster {}", old.content().serial)),
            newer.content().serial,
            state.join("exit/roster").display()
        );
    }
    Ok(Stored { roster: newer.or(in_store), modified, is_stored })
}

/// The command that puts an exit's roster into the store.
const PUT_BACK: &str = "warren fleet publish /var/lib/warren/exit/roster";

/// As [`read`], for a command that signs the next roster. `without`: the exit that this roster leaves out.
///
/// # Errors
/// As [`read`], and if an exit has a newer roster.
async fn read_newest(
    fleet: &mut Connected,
    state: &Path,
    without: Option<&ExitId>,
) -> anyhow::Result<Stored> {
    let reported = newest_of_exits(fleet, |exit| Some(exit) == without).await?;
    let stored = read(fleet, state).await?;
    let serial = stored.roster.as_ref().map_or(0, |roster| roster.content().serial);
    check_reported(&fleet.keys, reported, serial)?;
    Ok(stored)
}

/// The exit whose heartbeat reports the roster with the highest serial, and that serial. An exit does not prove the serial. So exits that
/// are not in the fleet, or that the next roster leaves out, do not count: with a false serial, they could block every new roster.
///
/// # Errors
/// If the store does not answer.
pub(super) async fn newest_of_exits(
    fleet: &mut Connected,
    is_left_out: impl Fn(&ExitId) -> bool,
) -> anyhow::Result<Option<(ExitId, u64)>> {
    let (_, Contents { members, .. }) = fleet.read_below(fleet.keys.members()).await?;
    let (_, Contents { heartbeats, .. }) = fleet.read_below(fleet.keys.heartbeats()).await?;
    let counts = |exit: &ExitId| members.contains_key(exit) && !is_left_out(exit);
    let reported = heartbeats.into_iter().filter(|(exit, _)| counts(exit));
    let reported = reported.map(|(exit, heartbeat)| (exit, heartbeat.roster));
    Ok(reported.max_by_key(|(_, serial)| *serial))
}

/// Checks that no exit has a roster with a higher serial than this one, because exits and clients would then refuse this roster.
///
/// # Errors
/// If an exit has such a roster.
pub(super) fn check_reported(
    keys: &Keys,
    reported: Option<(ExitId, u64)>,
    serial: u64,
) -> anyhow::Result<()> {
    match reported {
        Some((exit, newer)) if newer > serial => bail!(
            "the exit {exit} has roster {newer}, which the store has lost, so exits and clients would refuse this one; nothing was stored. \
             First run `{PUT_BACK}` at {exit}. If its roster belongs to an earlier fleet, delete that file there and restart the exit instead. \
             If {exit} has no such roster, its claim in the store is false: delete it with `etcdctl del {}`, or remove {exit} from the fleet",
            keys.name(&Key::Heartbeat(exit.clone()))
        ),
        Some(_) | None => Ok(()),
    }
}

/// Maximum size of a roster's file.
const MOST_BYTES: u64 = 1024 * 1024;

/// The file with the roster of this host's exit.
pub(super) fn file_of_exit(state: &Path) -> PathBuf {
    state.join("exit").join("roster")
}

/// The roster that this host's exit has, if there is one.
pub(super) fn of_exit(state: &Path) -> Option<Vec<u8>> {
    let bytes = read_plain(&file_of_exit(state), MOST_BYTES).ok()?;
    Some(SignedRoster::from_text(std::str::from_utf8(&bytes).ok()?.trim()).ok()?.as_bytes().to_vec())
}

pub(super) async fn store(
    fleet: &mut Connected,
    stored: &Stored,
    signed: &SignedRoster,
) -> anyhow::Result<()> {
    let key = fleet.keys.name(&Key::Roster);
    // Two operators may sign at the same time. Their rosters have the same serial, so only one may be stored.
    let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, stored.modified);
    let put = TxnOp::put(key, signed.as_bytes(), None);
    let answer = in_words(fleet.client.txn(Txn::new().when([unchanged]).and_then([put])).await)?;
    if !answer.succeeded() {
        bail!("somebody else has just signed a roster, and this one is not stored; run this again");
    }
    Ok(())
}

/// Reads a fleet key.
///
/// # Errors
/// If there is no key, or other users may use the file.
pub(super) fn read_key(path: &Path) -> anyhow::Result<FleetKey> {
    let text = read_text(path)?;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        bail!("{0} may be used by other users (mode {mode:04o}); run `chmod 600 {0}`", path.display());
    }
    FleetKey::from_file_text(&text).with_context(|| format!("{} has no fleet key", path.display()))
}

/// Reads the fleet key, or makes the first one. The text tells the operator about a new key, and is empty otherwise.
pub(super) fn read_or_make_key(path: &Path) -> anyhow::Result<(FleetKey, String)> {
    if path.exists() {
        return Ok((read_key(path)?, String::new()));
    }
    let note =
        format!("Made the fleet key {}. Keep it away from every exit, and keep a copy.\n", path.display());
    Ok((make_key(path)?, note))
}

/// Checks that a fleet key is not the key of an exit. Exits' keys are in files of the same form.
///
/// # Errors
/// If it is the key of an exit, or the store does not answer.
async fn check_no_exits(fleet: &mut Connected, key: &FleetKey, path: &Path) -> anyhow::Result<()> {
    let (_, Contents { members, .. }) = fleet.read_below(fleet.keys.members()).await?;
    for (exit, member) in members {
        if member.and_then(|member| member.key).is_some_and(|it| it.0 == *key.public().as_bytes()) {
            bail!("{} has the key of the exit {exit}, not a fleet key; name another file", path.display());
        }
    }
    Ok(())
}

/// The key that an earlier attempt has made.
fn earlier_key(path: &Path) -> anyhow::Result<Option<FleetKey>> {
    if path.exists() { read_key(path).map(Some) } else { Ok(None) }
}

fn make_key(path: &Path) -> anyhow::Result<FleetKey> {
    let key = FleetKey::generate()?;
    // A killed command may have left part of an unused key.
    remove_abandoned(directory_of(path));
    create_new(path, key.to_line().as_bytes(), 0o600)
        .with_context(|| format!("{} cannot be made", path.display()))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_has_both_keys_and_no_unknown_key_is_signed() {
        let [new, old, other] = [1, 2, 3].map(|byte| PublicKey([byte; 32]));
        let exit = ExitId::try_from("ams1".to_owned()).unwrap();
        let checked =
            |given: &[PublicKey]| check_keys(&exit, new, &[old], given).map_err(|error| error.to_string());
        assert_eq!(checked(&[new]), Ok(()));
        assert_eq!(checked(&[new, old]), Ok(()));
        let old_text = old.to_string();
        let cases: [(&[PublicKey], &str); 5] = [
            (&[], "Compare it"),
            (&[], &old_text),
            (&[other], "nothing was signed"),
            (&[new, other], "nothing was signed"),
            (&[old], "could not connect"),
        ];
        for (given, part) in cases {
            let error = checked(given).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
