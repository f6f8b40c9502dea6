//! The content of a roster, and its encoding.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;

use super::endpoint::RosterEndpoint;
use super::error::RosterError;
use super::handover::{self, Handover};
use super::key::FleetPublicKey;
use super::name::FleetName;
use super::{MAX_REGION_LENGTH, MAX_ROSTER_ENDPOINTS, MAX_ROSTER_EXITS, MAX_WEIGHT, wire};
use crate::clients::is_valid_name;
use crate::{MAX_EXIT_KEYS, PublicKey};

/// 9999-12-31T23:59:59Z, the last second that RFC 3339 can express.
const LAST_SECOND: u64 = 253_402_300_799;

/// The content of a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The fleet.
    pub fleet: FleetName,
    /// At least 1, and higher than in each earlier roster of the fleet.
    pub serial: u64,
    /// When the roster was signed, in whole seconds. Nothing depends on this time, because clocks can be wrong.
    pub issued_at: SystemTime,
    /// The fleet key that has signed the roster.
    pub signer: FleetPublicKey,
    /// The exits, in the order of their names.
    pub exits: Vec<RosterExit>,
    /// How the fleet key has changed, the earliest change first.
    pub handovers: Vec<Handover>,
}

/// An exit of a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterExit {
    /// The exit's name in the fleet, of the same characters as a client's name.
    pub name: String,
    /// The keys that clients accept for the exit: two while its key is being rotated.
    pub public_keys: Vec<PublicKey>,
    /// Where the exit listens, in the order in which clients should try these endpoints.
    pub endpoints: Vec<RosterEndpoint>,
    /// Where the exit is, for people. May be empty.
    pub region: String,
    /// The exit's share of clients compared with the weights of others, from 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Whether the exit accepts clients.
    pub state: ExitState,
}

/// Whether an exit of a roster accepts clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExitState {
    /// The exit accepts clients.
    #[default]
    Serving,
    /// Clients use the exit only if no other exit answers.
    Draining,
}

impl Roster {
    /// The exit with this name.
    pub fn exit(&self, name: &str) -> Option<&RosterExit> {
        self.exits.iter().find(|exit| exit.name == name)
    }

    /// Encodes the roster. The same roster always gives the same bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let since_epoch = self.issued_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let roster = wire::Roster {
            fleet: self.fleet.to_string(),
            serial: self.serial,
            issued_at: since_epoch.as_secs().min(LAST_SECOND),
            signer: self.signer.as_bytes().to_vec(),
            exits: self.exits.iter().map(RosterExit::to_wire).collect(),
            handovers: self.handovers.iter().map(Handover::to_wire).collect(),
        };
        roster.encode_to_vec()
    }

    /// Decodes the bytes that [`Self::encode`] writes, and refuses any other encoding.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RosterError> {
        let message = wire::Roster::decode(bytes).map_err(|_| RosterError::Malformed)?;
        let fleet = FleetName::try_from(message.fleet)?;
        if message.serial == 0 {
            return Err(RosterError::OutOfRange { what: "the serial" });
        }
        let issued_at = Some(message.issued_at).filter(|seconds| *seconds <= LAST_SECOND);
        let issued_at = issued_at.ok_or(RosterError::OutOfRange { what: "the date" })?;
        let signer = FleetPublicKey::from_wire(&message.signer).ok_or(RosterError::Signer)?;
        let count = message.exits.len();
        if count > MAX_ROSTER_EXITS {
            return Err(RosterError::TooManyExits { count });
        }
        let exits = message.exits.into_iter().map(RosterExit::from_wire).collect::<Result<Vec<_>, _>>()?;
        check_unique(&exits)?;
        let handovers = handover::read_chain(&fleet, &message.handovers, signer)?;
        let issued_at = UNIX_EPOCH + Duration::from_secs(issued_at);
        let roster = Self { fleet, serial: message.serial, issued_at, signer, exits, handovers };
        // Only one encoding is accepted. Otherwise two encodings of one roster would be two rosters with one serial. An unknown
        // field may change the meaning of others, so this version refuses it. A later version that adds a field must also raise the
        // version number.
        if roster.encode() == bytes { Ok(roster) } else { Err(RosterError::NotCanonical) }
    }
}

impl RosterExit {
    fn to_wire(&self) -> wire::Exit {
        wire::Exit {
            name: self.name.clone(),
            public_keys: self.public_keys.iter().map(|key| key.0.to_vec()).collect(),
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            region: self.region.clone(),
            weight: self.weight,
            state: match self.state {
                ExitState::Serving => 0,
                ExitState::Draining => 1,
            },
        }
    }

    fn from_wire(exit: wire::Exit) -> Result<Self, RosterError> {
        let wire::Exit { name, public_keys, endpoints, region, weight, state } = exit;
        if !is_valid_name(&name) {
            return Err(RosterError::Name { name });
        }
        if !(1..=MAX_EXIT_KEYS).contains(&public_keys.len()) {
            return Err(RosterError::Keys { exit: name });
        }
        let keys: Option<Vec<_>> = public_keys.iter().map(|key| PublicKey::from_wire(key)).collect();
        let Some(public_keys) = keys else { return Err(RosterError::Keys { exit: name }) };
        let count = endpoints.len();
        if !(1..=MAX_ROSTER_ENDPOINTS).contains(&count) {
            return Err(RosterError::Endpoints { exit: name, count });
        }
        let endpoints = endpoints.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
        let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if region.len() > MAX_REGION_LENGTH || !region.bytes().all(is_printable) {
            return Err(RosterError::Region { exit: name });
        }
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(RosterError::Weight { exit: name, weight });
        }
        let state = match state {
            0 => ExitState::Serving,
            1 => ExitState::Draining,
            _ => return Err(RosterError::OutOfRange { what: "the state of an exit" }),
        };
        Ok(Self { name, public_keys, endpoints, region, weight, state })
    }
}

/// Checks that the exits are in the order of their names, and that no name, key or endpoint occurs twice.
fn check_unique(exits: &[RosterExit]) -> Result<(), RosterError> {
    if !exits.is_sorted_by(|one, next| one.name <= next.name) {
        return Err(RosterError::NotCanonical);
    }
    let names = exits.iter().map(|exit| exit.name.clone());
    let keys = exits.iter().flat_map(|exit| &exit.public_keys).map(ToString::to_string);
    let endpoints = exits.iter().flat_map(|exit| &exit.endpoints).map(ToString::to_string);
    check_once("the name", names)?;
    check_once("the key", keys)?;
    check_once("the endpoint", endpoints)
}

fn check_once(what: &'static str, mut values: impl Iterator<Item = String>) -> Result<(), RosterError> {
    let mut seen = BTreeSet::new();
    let twice = values.find(|value| !seen.insert(value.clone()));
    twice.map_or(Ok(()), |value| Err(RosterError::Twice { what, value }))
}
