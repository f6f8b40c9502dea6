//! The messages of both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use warren_session::clients::{RowChange, is_valid_name};
use warren_session::{PublicKey, stored_key};

/// Version of these messages. Each side refuses any other version, because both sides must be of one release.
pub const LINK_VERSION: u32 = 5;

/// Maximum number of rows of one message.
pub const MAX_ROWS: usize = 1000;

/// Maximum number of exits of a fleet.
pub const MAX_EXITS: usize = 1000;

/// Maximum number of the store's members, and of the addresses of all members together.
pub const MAX_ADDRESSES: usize = 100;

/// Maximum size in bytes of a row, a session or an exit in the store. [`MAX_ROWS`] of them fit into a frame.
pub const MAX_VALUE: usize = 16_000;

/// The name of an exit in its fleet, such as `ams2`: letters, digits, `.`, `_` and `-`, as in a client's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExitId(String);

/// The error for a name that no exit can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name for an exit; use up to 63 lower-case letters, digits, `-`, `_` and `.`")]
pub struct InvalidExitId(String);

impl ExitId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ExitId {
    type Error = InvalidExitId;

    fn try_from(name: String) -> Result<Self, InvalidExitId> {
        if is_valid_name(&name) { Ok(Self(name)) } else { Err(InvalidExitId(name)) }
    }
}

impl From<ExitId> for String {
    fn from(id: ExitId) -> Self {
        id.0
    }
}

impl std::fmt::Display for ExitId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address pools of an exit. All exits of a fleet have the same pools, because clients keep their addresses at each exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// Inner IPv4 addresses of clients.
    pub ipv4: Option<Ipv4Net>,
    /// Inner IPv6 addresses of clients.
    pub ipv6: Option<Ipv6Net>,
}

/// The load of an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Number of client sessions.
    pub sessions: u32,
    /// Maximum number of sessions of the exit.
    pub max_sessions: u32,
    /// Bits per second through the tunnel, both directions together.
    pub bits_per_second: u64,
    /// CPU use of the exit's process in cores, from 0 to the number of cores.
    #[serde(deserialize_with = "finite")]
    pub cores: f32,
    /// How busy the exit's cores were in the last half minute, in thousandths of the cores that the exit can use. 0 if the exit
    /// does not report it.
    #[serde(default)]
    pub busy_permille: u32,
}

/// JSON has no infinity, so nobody could read a message that contains one.
fn finite<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let number = f32::deserialize(deserializer)?;
    if number.is_finite() { Ok(number) } else { Err(serde::de::Error::custom("the number is too large")) }
}

/// Which roster an exit has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownRoster {
    /// The name of the roster's fleet.
    pub fleet: String,
    /// The roster's serial.
    pub serial: u64,
}

/// Whether an exit accepts clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitState {
    /// The exit accepts clients.
    #[default]
    Serving,
    /// The exit sends its clients to other exits, and takes no new ones.
    Draining,
}

/// A message of the exit to `warren-fleet`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExitMessage {
    /// The first message.
    Hello {
        /// [`LINK_VERSION`].
        version: u32,
        /// The version of Warren, for `warren fleet status`.
        release: String,
        /// The exit's name in the fleet.
        exit: ExitId,
        /// The exit's newest public key.
        key: PublicKey,
        /// Where clients reach the exit.
        endpoints: Vec<String>,
        /// The exit's address pools.
        pools: Pools,
        /// How many seconds the exit serves its clients without the store. `None`: without limit.
        max_staleness: Option<u64>,
    },
    /// Make these changes in one transaction: all of them or none. The answers ([`FleetMessage::Answer`]) come in the order of the
    /// requests.
    Request {
        /// The request's number. Later requests have higher numbers.
        id: u64,
        /// The changed rows, each once, with their new values.
        rows: Vec<RowChange>,
    },
    /// A client has opened a session here, or keeps the one that it has here. The exit does not wait for the store: the newest
    /// session wins.
    Opened {
        /// The client's key, which may be one of WireGuard's.
        #[serde(deserialize_with = "stored_key")]
        key: PublicKey,
        /// The client process's nonce. Two sessions with the same nonce belong to one client process, which is moving.
        nonce: Vec<u8>,
        /// The session's number among the sessions of the client process. Of two sessions with one nonce, the one with the higher
        /// number counts.
        claim: u64,
    },
    /// A client's session here is over.
    Closed {
        /// The client's key, which may be one of WireGuard's.
        #[serde(deserialize_with = "stored_key")]
        key: PublicKey,
        /// The nonce of the session that is over.
        nonce: Vec<u8>,
    },
    /// The exit's load, state and roster. Sent every two seconds, and at once when the state changes.
    Load {
        /// The exit's load.
        load: Load,
        /// Whether the exit accepts clients.
        state: ExitState,
        /// The newest roster that the exit has accepted.
        roster: Option<KnownRoster>,
    },
    /// Says that the exit has applied all changes up to this revision of the store.
    Applied {
        /// The revision.
        revision: i64,
    },
}

/// How the store has answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// All changes are stored.
    Stored {
        /// The store's revision after the changes.
        revision: i64,
    },
    /// Somebody else has the name, key, address or token, or has changed a row since. Nothing is stored.
    Conflict,
    /// The store cannot be reached, or did not answer in time. If it did not answer, it may have stored the changes nevertheless.
    /// In that case they come back as [`FleetMessage::Changes`].
    Unavailable,
}

/// Whether the store can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum StoreLink {
    /// The store answers.
    Reachable,
    /// The store does not answer, or does not answer in time.
    Away {
        /// Time since the store's latest answer.
        silent: Duration,
        /// Why the store does not answer, as a sentence for an operator.
        reason: String,
    },
    /// The store answers but must not be used: it was restored from an old backup, belongs to another fleet, or refuses this exit.
    Refused {
        /// Why the store must not be used, and what to do.
        reason: String,
        /// Whether the store says that this exit was removed from the fleet. The exit must then stop serving the fleet's clients,
        /// until the store can be used again.
        is_removed: bool,
    },
}

/// An exit that was removed from the fleet, and has not confirmed that it no longer serves the fleet's clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedExit {
    /// The exit's name.
    pub exit: ExitId,
    /// When the exit stops by itself, in seconds since 1970. `None`: never.
    pub until: Option<i64>,
}

/// One exit of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetExit {
    /// The exit's name.
    pub exit: ExitId,
    /// The exit's public key.
    pub key: PublicKey,
    /// Where clients reach the exit.
    pub endpoints: Vec<String>,
    /// The exit's load.
    pub load: Load,
    /// Whether the exit accepts clients.
    pub state: ExitState,
    /// The revision up to which the exit has applied all changes.
    pub applied: i64,
    /// Whether the exit's lease in the store is alive. An exit without a lease stays in the list until an operator removes it.
    pub is_alive: bool,
    /// The exit's clock minus the clock of this exit, in milliseconds.
    pub clock_offset_ms: i64,
}

/// A certificate of the store or its users: the authority's (`ca`), this exit's (`client`), or a member's (`server HOST:PORT`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCertificate {
    /// The certificate's name: `ca`, `client`, or `server HOST:PORT`.
    pub name: String,
    /// When the certificate expires, in seconds since 1970.
    pub expires: i64,
}

/// The store's members by their endpoints in `fleet.toml`, each with its known addresses. A member without an address has a
/// name that could not be looked up yet.
pub type StoreMembers = BTreeMap<String, BTreeSet<IpAddr>>;

/// A message of `warren-fleet` to the exit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FleetMessage {
    /// A part of all rows in the store. A row that is in no part does not exist.
    Whole {
        /// The store's revision.
        revision: i64,
        /// Up to [`MAX_ROWS`] rows.
        rows: Vec<RowChange>,
        /// Whether this is the last part.
        is_last: bool,
    },
    /// The changes that others have made, in the order of revisions. Changes of one transaction are in one message.
    Changes {
        /// The store's revision after the changes.
        revision: i64,
        /// The changed rows.
        rows: Vec<RowChange>,
    },
    /// The answer to a request.
    Answer {
        /// The request's number.
        id: u64,
        /// The outcome of the request.
        // Not flattened, because serde would not know the fields then and would refuse each answer.
        outcome: Outcome,
    },
    /// A client has a newer session at another exit. If the nonces match, the client is moving, and the session here continues for
    /// a while. Otherwise another host has replaced the client, and the session here ends.
    Elsewhere {
        /// The client's key, which may be one of WireGuard's.
        #[serde(deserialize_with = "stored_key")]
        key: PublicKey,
        /// The newer session's nonce.
        nonce: Vec<u8>,
        /// The newer session's number among the sessions of its client process.
        claim: u64,
        /// The exit of the newer session.
        exit: ExitId,
    },
    /// Whether the store can be reached. Sent at the start, at each change, and every second. For the first two seconds after a member
    /// has failed, the store counts as reachable, because another member may answer.
    Store(StoreLink),
    /// How long ago the store last answered `warren-fleet`. Sent every second after the first answer, even while the store does not
    /// answer. The exit's `max_staleness` counts from that answer.
    Answered {
        /// The time since the answer.
        ago: Duration,
    },
    /// All exits of the fleet. Sent at each change of any of them.
    Exits {
        /// This exit's clock minus the median of all exits' clocks, in milliseconds. Above a minute, no invitation may be redeemed here.
        own_clock_offset_ms: i64,
        /// The revision of the latest change of a row. An exit that has applied only earlier revisions is behind. Later revisions
        /// belong to heartbeats and sessions.
        changed: i64,
        /// The exits, sorted by name.
        exits: Vec<FleetExit>,
        /// The removed exits that may still serve, sorted by name.
        removed: Vec<RemovedExit>,
    },
    /// All members of the store with their addresses. Sent at the start, before any name is looked up, and at each change. No
    /// network behind a client may contain one of these addresses, because the exit's host must reach them.
    StoreAddresses {
        /// Up to [`MAX_ADDRESSES`] members. A member without an address keeps the addresses that the exit knows.
        members: StoreMembers,
    },
    /// All certificates of the store and its users. Sent from time to time.
    Certificates {
        /// The certificates, by name.
        certificates: Vec<StoreCertificate>,
    },
    /// The signed roster. Sent when it has changed.
    Roster {
        /// The roster and its signature, as clients get it.
        bytes: Vec<u8>,
    },
    /// `warren-fleet` does not serve this exit, and ends the connection.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// Whether an operator at another exit drains this exit. Sent when this changes.
    Drain {
        /// Whether this exit should send its clients to other exits.
        on: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_json_cannot_pass_on_is_refused() {
        let load =
            |cores| format!(r#"{{"sessions":0,"max_sessions":0,"bits_per_second":0,"cores":{cores}}}"#);
        assert_eq!(serde_json::from_str::<Load>(&load("1.5")).unwrap().busy_permille, 0, "it does not say");
        assert!(serde_json::from_str::<Load>(&load("1e300")).is_err());
    }

    #[test]
    fn every_message_of_warren_fleet_is_read_as_it_was_written() {
        let key = PublicKey([7; 32]);
        let exit = ExitId::try_from("ams1".to_owned()).unwrap();
        let known = FleetExit {
            exit: exit.clone(),
            key: "NV2TmnaK6t1tqYl2T1SdENPnRoD/ur4vllISdqgnxRg=".parse().unwrap(),
            endpoints: vec!["a.example.net:443".to_owned()],
            load: Load::default(),
            state: ExitState::Draining,
            applied: 3,
            is_alive: true,
            clock_offset_ms: -5,
        };
        let rows = vec![RowChange::Client { key, client: None }];
        let away = StoreLink::Away { silent: Duration::from_millis(1_500), reason: "no route".to_owned() };
        let mut messages = vec![
            FleetMessage::Whole { revision: 1, rows: rows.clone(), is_last: true },
            FleetMessage::Changes { revision: 2, rows },
            FleetMessage::Elsewhere { key: known.key, nonce: vec![1; 16], claim: 2, exit: exit.clone() },
            FleetMessage::Answered { ago: Duration::from_millis(1_200) },
            FleetMessage::Exits {
                own_clock_offset_ms: 9,
                changed: 3,
                exits: vec![known],
                removed: vec![RemovedExit { exit, until: Some(7) }],
            },
            FleetMessage::StoreAddresses {
                members: [
                    ("https://a.example.net:2379".to_owned(), ["::1".parse().unwrap()].into()),
                    ("https://nobody.invalid:2379".to_owned(), BTreeSet::new()),
                ]
                .into(),
            },
            FleetMessage::Certificates {
                certificates: vec![StoreCertificate { name: "ca".to_owned(), expires: 9 }],
            },
            FleetMessage::Roster { bytes: vec![1, 2] },
            FleetMessage::Refused { reason: "another name".to_owned() },
            FleetMessage::Drain { on: true },
        ];
        let links =
            [StoreLink::Reachable, away, StoreLink::Refused { reason: "old".to_owned(), is_removed: true }];
        messages.extend(links.map(FleetMessage::Store));
        let outcomes = [Outcome::Stored { revision: 4 }, Outcome::Conflict, Outcome::Unavailable];
        messages.extend(outcomes.map(|outcome| FleetMessage::Answer { id: 8, outcome }));
        for message in messages {
            let json = serde_json::to_string(&message).unwrap();
            let read = serde_json::from_str::<FleetMessage>(&json);
            assert_eq!(read.ok(), Some(message), "{json}");
        }
    }
}
