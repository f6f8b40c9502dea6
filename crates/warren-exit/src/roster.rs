//! The roster of the exit's fleet, in a file of the exit's state directory.
//!
//! An operator puts the file there by hand. The exit replaces it with each newer roster that it accepts, so that it knows the
//! fleet's key after a restart.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use warren_host::read_plain;
use warren_session::roster::{FollowedFleet, MAX_ROSTER_LENGTH, RosterNews, SignedRoster};

use crate::clients::Clients;
use warren_config::storage::write_atomic;

/// The file's name.
const FILE: &str = "roster";

/// Maximum size of the file in bytes: base64 takes four bytes for three.
const LONGEST: u64 = 2 * MAX_ROSTER_LENGTH as u64;

/// Reads the roster when the exit starts. If the file cannot be used, the exit logs that and serves its clients without a roster.
pub(crate) fn load(state_dir: &Path) -> Option<FollowedFleet> {
    match read(state_dir) {
        Ok(roster) => roster.map(FollowedFleet::begin),
        Err(error) => {
            tracing::warn!("{error:#}; clients get no roster");
            None
        }
    }
}

/// The roster that an operator has put into the file, if it differs from the one that is known.
///
/// # Errors
/// What is wrong with the file, or why the roster cannot be accepted.
pub(crate) fn news_in_file(
    known: Option<&FollowedFleet>,
    state_dir: &Path,
) -> anyhow::Result<Option<SignedRoster>> {
    let Some(roster) = read(state_dir)? else { return Ok(None) };
    let Some(mut fleet) = known.cloned() else { return Ok(Some(roster)) };
    let news = fleet.take(roster.as_bytes());
    let news = news.with_context(|| format!("{}: the roster is refused", path(state_dir).display()))?;
    Ok(Some(roster).filter(|_| news != RosterNews::Known))
}

/// Accepts a signed roster, sends it to clients, and saves it. Returns whether the roster is new.
///
/// # Errors
/// Why it is not accepted.
pub(crate) fn take(clients: &mut Clients, state_dir: &Path, signed: &[u8]) -> anyhow::Result<bool> {
    let news = clients.set_roster(signed)?;
    let Some(fleet) = clients.fleet().filter(|_| news != RosterNews::Known) else { return Ok(false) };
    let roster = fleet.roster();
    tracing::info!("roster {} of the fleet {} is in force", roster.serial, roster.fleet);
    if news == RosterNews::NewKey {
        tracing::info!("the key of the fleet {} is {} now", roster.fleet, roster.signer);
    }
    // The roster is in force even if it cannot be saved. In that case the exit needs to get it again after a restart.
    if let Err(error) = write_atomic(&path(state_dir), fleet.signed().to_line().as_bytes(), 0o644) {
        tracing::warn!("cannot save the roster in {}: {error}", path(state_dir).display());
    }
    Ok(true)
}

fn read(state_dir: &Path) -> anyhow::Result<Option<SignedRoster>> {
    let path = path(state_dir);
    let text = match read_plain(&path, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let roster = SignedRoster::from_text(&String::from_utf8_lossy(&text));
    roster.map(Some).with_context(|| format!("{} is not a signed roster", path.display()))
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use warren_session::roster::{FleetKey, begin, rotate};

    #[test]
    fn roster_in_the_file_is_followed_and_a_damaged_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path()), None);
        let key = FleetKey::generate().unwrap();
        let roster = begin("acme".parse().unwrap(), Vec::new(), &key, UNIX_EPOCH).unwrap();
        let line = roster.to_line();
        std::fs::write(path(directory.path()), &line).unwrap();
        assert_eq!(load(directory.path()), Some(FollowedFleet::begin(roster)));
        std::fs::write(path(directory.path()), line.get(4..).unwrap()).unwrap();
        assert_eq!(load(directory.path()), None);
        let error = news_in_file(None, directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("is not a signed roster"), "{error}");
    }

    #[test]
    fn older_roster_in_the_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let key = FleetKey::generate().unwrap();
        let first = begin("acme".parse().unwrap(), Vec::new(), &key, UNIX_EPOCH).unwrap();
        let other = FleetKey::generate().unwrap();
        let second = rotate(&first, &key, &other, UNIX_EPOCH).unwrap();
        let in_file = |roster: &SignedRoster, known: &SignedRoster| {
            std::fs::write(path(directory.path()), roster.to_line()).unwrap();
            news_in_file(Some(&FollowedFleet::begin(known.clone())), directory.path())
        };
        assert!(in_file(&first, &second).is_err());
        assert_eq!(in_file(&second, &second).unwrap(), None);
        assert_eq!(in_file(&second, &first).unwrap(), Some(second.clone()));
    }
}
