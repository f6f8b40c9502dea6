//! `warren fleet sign` and `warren fleet publish`: a roster that is signed on a machine without a network, and put into the store
//! from another machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args};
use warren_config::storage::LockFile;
use warren_fleet_link::ExitId;
use warren_host::directory_of;
use warren_host::durable_file::{Owner, Unfinished, replace};
use warren_session::PublicKey;
use warren_session::roster::{
    FollowedFleet, RosterChange, RosterEndpoint, RosterExit, RosterNews, SignedRoster, begin, change,
};

use super::roster::{
    Listing, check_reported, listed, newest_of_exits, read, read_key, read_or_make_key, store, summary,
};
use super::{connect, print};
use crate::config::read_text;
use crate::run::Directories;

/// `warren fleet sign`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["admit", "remove"]).required(true))]
pub(crate) struct SignArguments {
    /// The roster's file, such as a copy of /var/lib/warren/exit/roster. It is replaced, or made if it does not exist.
    file: PathBuf,
    /// The file of the fleet key. It is made with the first roster if it does not exist.
    #[arg(long, value_name = "FILE")]
    fleet_key: PathBuf,
    /// Put this exit into the roster, or replace the one of this name.
    #[arg(long, value_name = "NAME", requires = "public_key", requires = "endpoint")]
    admit: Option<String>,
    /// The exit's public key, as `warren status exit` shows it there. May be given twice while it is being rotated.
    #[arg(long, value_name = "KEY")]
    public_key: Vec<PublicKey>,
    /// Where clients reach the exit. May be given more than once.
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Vec<String>,
    #[command(flatten)]
    listing: Listing,
    /// Take this exit out of the roster.
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
    /// The fleet's name, for its first roster.
    #[arg(long, value_name = "NAME", default_value = "fleet")]
    fleet: String,
}

/// `warren fleet publish`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PublishArguments {
    /// The roster's file, as `warren fleet sign` has written it.
    file: PathBuf,
}

/// Signs the next roster in a file. Needs no store.
///
/// # Errors
/// If the roster cannot be read, signed or written.
pub(crate) fn sign(arguments: &SignArguments) -> anyhow::Result<()> {
    let _lock = lock(&arguments.file)?;
    let old = match arguments.file.exists() {
        true => Some(load(&arguments.file)?),
        false => None,
    };
    let now = SystemTime::now();
    let (signed, note) = match (&old, &arguments.remove) {
        (Some(old), Some(name)) => {
            let removal = RosterChange::Remove { name: name.clone() };
            (change(old, removal, &read_key(&arguments.fleet_key)?, now)?, String::new())
        }
        (None, Some(_)) => {
            bail!("{} does not exist; copy the fleet's roster there first", arguments.file.display())
        }
        (Some(old), None) => {
            let admission = RosterChange::Admit(admitted(arguments, Some(old))?);
            (change(old, admission, &read_key(&arguments.fleet_key)?, now)?, String::new())
        }
        (None, None) => {
            let exit = admitted(arguments, None)?;
            let fleet = arguments.fleet.parse()?;
            let (key, note) = read_or_make_key(&arguments.fleet_key)?;
            (begin(fleet, vec![exit], &key, now)?, note)
        }
    };
    let path = &arguments.file;
    // The file is replaced as a whole. Every later roster builds on this one, so a killed command must not destroy it.
    replace(path, Unfinished::Random, signed.to_line().as_bytes(), 0o644, Some(Owner::own()))
        .with_context(|| format!("{} cannot be written", path.display()))?;
    print(&format!(
        "{note}{}.\nNext: copy {} to an exit, and run `warren fleet publish {}` there.\n",
        listed(&signed),
        path.display(),
        path.file_name().unwrap_or(path.as_os_str()).display()
    ))
}

/// Takes the lock of the roster's directory, which is held until the roster is written. Otherwise, if two commands ran at the same time,
/// the second would overwrite what the first has signed.
fn lock(roster: &Path) -> anyhow::Result<LockFile> {
    /// Signing takes milliseconds.
    const WAIT: Duration = Duration::from_secs(5);
    let directory = directory_of(roster);
    let lock = LockFile::of_directory(directory, WAIT)
        .with_context(|| format!("the directory {} cannot be locked", directory.display()))?;
    lock.with_context(|| {
        format!(
            "another command has locked the directory {}; run this again when it has ended",
            directory.display()
        )
    })
}

fn admitted(arguments: &SignArguments, old: Option<&SignedRoster>) -> anyhow::Result<RosterExit> {
    let name = arguments.admit.clone().context("name an exit with --admit or --remove")?;
    let name = ExitId::try_from(name)?;
    let endpoints = arguments.endpoint.iter().map(|endpoint| endpoint.parse::<RosterEndpoint>());
    let before = old.and_then(|old| old.content().exit(name.as_str()));
    Ok(arguments.listing.of(
        &name,
        (arguments.public_key.clone(), endpoints.collect::<Result<_, _>>()?),
        before,
    ))
}

fn load(path: &Path) -> anyhow::Result<SignedRoster> {
    let text = read_text(path)?;
    SignedRoster::from_text(text.trim()).with_context(|| format!("{} has no signed roster", path.display()))
}

/// Puts a signed roster into the store, if clients would follow it.
///
/// # Errors
/// If clients would not follow the roster, or the store cannot be written.
pub(crate) async fn publish(
    directories: Directories<'_>,
    arguments: &PublishArguments,
) -> anyhow::Result<()> {
    let signed = load(&arguments.file)?;
    let mut fleet = connect(&directories).await?;
    let stored = read(&mut fleet, directories.state).await?;
    let has = |roster: &SignedRoster, exit: &ExitId| roster.content().exit(exit.as_str()).is_some();
    let is_left_out =
        |exit: &ExitId| !has(&signed, exit) && stored.roster.as_ref().is_some_and(|known| has(known, exit));
    let reported = newest_of_exits(&mut fleet, is_left_out).await?;
    check_reported(&fleet.keys, reported, signed.content().serial)?;
    match &stored.roster {
        Some(known) => {
            // This is the check that clients make, so clients accept every roster that is published.
            let taken = FollowedFleet::begin(known.clone()).take(signed.as_bytes());
            let taken = taken.with_context(|| {
                format!(
                    "clients would refuse this roster; copy the newest one ({}) to where the fleet key is, and sign again",
                    directories.state.join("exit/roster").display()
                )
            })?;
            if taken == RosterNews::Known && stored.is_stored {
                return print("The store has this roster already.\n");
            }
        }
        None if signed.content().fleet.as_str() != fleet.config.fleet => bail!(
            "the roster belongs to fleet {:?}, but the store to {:?}; sign it with --fleet {}",
            signed.content().fleet.as_str(),
            fleet.config.fleet,
            fleet.config.fleet
        ),
        None => {}
    }
    store(&mut fleet, &stored, &signed).await?;
    print(&summary(&signed))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use warren_session::roster::FleetKey;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SignArguments,
    }

    const KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    #[test]
    fn a_roster_is_signed_again_and_again_without_a_store_and_keeps_what_is_not_said_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let signed = |more: &[&str]| {
            let (roster, key) = (path("roster"), path("fleet.key"));
            let line = ["sign", &roster, "--fleet-key", &key];
            let line = Line::try_parse_from(line.iter().chain(more)).map_err(|error| error.to_string())?;
            sign(&line.arguments).map_err(|error| format!("{error:#}"))
        };
        let admit = ["--admit", "ams1", "--public-key", KEY, "--endpoint", "a.example.net:443"];
        assert!(signed(&["--remove", "ams1"]).unwrap_err().contains("does not exist"));
        signed(&[&admit[..], &["--region", "Amsterdam", "--weight", "3"]].concat()).unwrap();
        signed(&[&admit[..], &["--draining"]].concat()).unwrap();

        let roster = load(&directory.path().join("roster")).unwrap();
        let exit = roster.content().exit("ams1").unwrap();
        assert_eq!((roster.content().serial, exit.weight, exit.region.as_str()), (2, 3, "Amsterdam"));
        signed(&["--remove", "ams1"]).unwrap();
        assert!(load(&directory.path().join("roster")).unwrap().content().exits.is_empty());

        assert!(signed(&[]).is_err() && signed(&["--admit", "ams1"]).is_err());
        std::fs::write(path("roster"), "nothing").unwrap();
        assert!(signed(&admit).unwrap_err().contains("has no signed roster"));
    }

    #[test]
    fn of_several_commands_for_one_roster_at_once_none_is_lost() {
        const COUNT: usize = 12;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let (roster, key) = (path("roster"), path("fleet.key"));
        let admit = |number: usize| {
            let (name, endpoint) = (format!("exit{number}"), format!("{number}.example.net:443"));
            let public_key = FleetKey::generate().unwrap().public().to_string();
            let line = ["sign", &roster, "--fleet-key", &key, "--admit", &name, "--public-key", &public_key];
            let line = line.into_iter().chain(["--endpoint", &endpoint]);
            sign(&Line::try_parse_from(line).map_err(anyhow::Error::from)?.arguments)
        };
        let start = std::sync::Barrier::new(COUNT);
        std::thread::scope(|scope| {
            for number in 0..COUNT {
                let (admit, start) = (&admit, &start);
                scope.spawn(move || {
                    start.wait();
                    admit(number).unwrap();
                });
            }
        });
        let signed = load(&directory.path().join("roster")).unwrap();
        assert_eq!((signed.content().exits.len(), signed.content().serial), (COUNT, COUNT as u64));
    }
}
