//! Makes the next roster from the previous one. An operator does this on a machine that has the fleet key.

use std::time::SystemTime;

use super::MAX_HANDOVERS;
use super::content::{ExitState, Roster, RosterExit};
use super::error::ChangeError;
use super::handover::{self, Handover};
use super::key::FleetKey;
use super::name::FleetName;
use super::signed::SignedRoster;

/// A change of a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterChange {
    /// Admits an exit, or replaces the one of the same name.
    Admit(RosterExit),
    /// Removes an exit. Clients no longer accept its key.
    Remove {
        /// The exit's name.
        name: String,
    },
    /// Sets whether an exit accepts clients.
    State {
        /// The exit's name.
        name: String,
        /// The state.
        state: ExitState,
    },
    /// Sets an exit's share of clients.
    Weight {
        /// The exit's name.
        name: String,
        /// The weight.
        weight: u32,
    },
}

/// Signs a fleet's first roster.
///
/// # Errors
///
/// If the exits cannot be in a roster, or the key is one of theirs.
pub fn begin(
    fleet: FleetName,
    exits: Vec<RosterExit>,
    key: &FleetKey,
    now: SystemTime,
) -> Result<SignedRoster, ChangeError> {
    let signer = key.public();
    sign(Roster { fleet, serial: 1, issued_at: now, signer, exits, handovers: Vec::new() }, key)
}

/// Signs the next roster of a fleet, which is the old roster with a change.
///
/// # Errors
///
/// If the key is not the old roster's signer or is an exit's, or the change is not possible.
///
/// ```
/// use std::time::SystemTime;
/// use warren_session::roster::{ExitState, FleetKey, RosterChange, RosterExit, begin, change};
///
/// let key = FleetKey::generate()?;
/// let first = begin("acme".parse()?, Vec::new(), &key, SystemTime::now())?;
/// let admit = RosterChange::Admit(RosterExit {
///     name: "ams2".to_owned(),
///     public_keys: vec!["11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".parse()?],
///     endpoints: vec!["ams2.example.net:443".parse()?],
///     region: "Amsterdam".to_owned(),
///     weight: 1,
///     state: ExitState::Serving,
/// });
/// let second = change(&first, admit, &key, SystemTime::now())?;
/// assert_eq!((second.content().serial, second.content().exits.len()), (2, 1));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn change(
    old: &SignedRoster,
    change: RosterChange,
    key: &FleetKey,
    now: SystemTime,
) -> Result<SignedRoster, ChangeError> {
    let mut roster = next(old, key, now)?;
    let exits = &mut roster.exits;
    match change {
        RosterChange::Admit(exit) => {
            exits.retain(|other| other.name != exit.name);
            exits.push(exit);
        }
        RosterChange::Remove { name } => {
            find(exits, &name)?;
            exits.retain(|exit| exit.name != name);
        }
        RosterChange::State { name, state } => find(exits, &name)?.state = state,
        RosterChange::Weight { name, weight } => find(exits, &name)?.weight = weight,
    }
    sign(roster, key)
}

/// Signs the next roster of a fleet with a new fleet key, to which the old one hands over. Clients that know the old key
/// then accept the new one instead.
///
/// # Errors
///
/// If the old key is not the old roster's signer, or the new one was used before or is an exit's.
pub fn rotate(
    old: &SignedRoster,
    old_key: &FleetKey,
    new_key: &FleetKey,
    now: SystemTime,
) -> Result<SignedRoster, ChangeError> {
    let mut roster = next(old, old_key, now)?;
    let signer = new_key.public();
    if signer == roster.signer || handover::keys(&roster.handovers).contains(&signer) {
        return Err(ChangeError::UsedKey);
    }
    roster.handovers.push(Handover::sign(&roster.fleet, old_key, signer));
    // Clients that have missed more changes must learn the fleet again from an exit that they pin.
    let too_many = roster.handovers.len().saturating_sub(MAX_HANDOVERS);
    roster.handovers.drain(..too_many);
    roster.signer = signer;
    sign(roster, new_key)
}

fn next(old: &SignedRoster, key: &FleetKey, now: SystemTime) -> Result<Roster, ChangeError> {
    let (signer, key) = (old.content().signer, key.public());
    if signer != key {
        return Err(ChangeError::OtherKey { signer, key });
    }
    let roster = old.content().clone();
    Ok(Roster { serial: roster.serial.saturating_add(1), issued_at: now, ..roster })
}

fn find<'a>(exits: &'a mut [RosterExit], name: &str) -> Result<&'a mut RosterExit, ChangeError> {
    let found = exits.iter_mut().find(|exit| exit.name == name);
    found.ok_or_else(|| ChangeError::NoExit { name: name.to_owned() })
}

fn sign(mut roster: Roster, key: &FleetKey) -> Result<SignedRoster, ChangeError> {
    let is_signer = |exit: &&RosterExit| exit.public_keys.iter().any(|it| it.0 == *roster.signer.as_bytes());
    if let Some(exit) = roster.exits.iter().find(is_signer) {
        return Err(ChangeError::ExitKey { exit: exit.name.clone() });
    }
    roster.exits.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(SignedRoster::sign(&roster, key)?)
}
