//! The keys of a fleet in etcd: `/warren/FLEET/KIND/NAME`.
//!
//! Public keys and hashes are in base64 for URLs without padding, because standard base64 has slashes.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use warren_fleet_link::ExitId;
use warren_session::PublicKey;
use warren_session::clients::{RowId, is_valid_name};
use warren_session::invite::TokenDigest;

/// A key in the store whose changes a link watches. The claims on names, addresses and next keys are not among these, because
/// they can be derived from the clients.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A row of the registry: a client `cl/KEY`, an invitation `in/SHA256`, a removed key `rv/KEY`.
    Row(RowId),
    /// `px`: changes whenever a client gets other prefixes.
    Prefixes,
    /// `fw`: changes whenever a client gets other forwards.
    Forwards,
    /// `se/KEY`: the exit that has a client's session.
    Session(PublicKey),
    /// `ex/ID`: an exit's heartbeat, which expires with its lease.
    Heartbeat(ExitId),
    /// `mb/ID`: an exit that belongs to the fleet.
    Member(ExitId),
    /// `xr/ID`: an exit that was removed from the fleet, or has left it. A new ticket removes this key.
    RemovedExit(ExitId),
    /// `dr/ID`: an operator drains an exit.
    Drain(ExitId),
    /// `wr/ID`: the latest transaction of an exit's link.
    Written(ExitId),
    /// `po/ID`: written by an exit's link with each heartbeat and with sessions' records. This key has no lease.
    Position(ExitId),
    /// `ro`: the signed roster.
    Roster,
    /// `meta`: see [`crate::meta`].
    Meta,
}

/// Makes and reads the keys of one fleet.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(fleet: &str) -> Self {
        Self { prefix: format!("/warren/{fleet}/") }
    }

    /// The prefix of all keys of the fleet.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The fleet's name.
    pub(crate) fn name_of_fleet(&self) -> &str {
        self.prefix.trim_start_matches("/warren/").trim_end_matches('/')
    }

    pub(crate) fn name(&self, key: &Key) -> String {
        let (kind, name) = match key {
            Key::Row(RowId::Client(key)) => ("cl", url_safe(&key.to_string())),
            Key::Row(RowId::Invitation(token)) => ("in", url_safe(&token_text(*token))),
            Key::Row(RowId::Removed(key)) => ("rv", url_safe(&key.to_string())),
            Key::Session(key) => ("se", url_safe(&key.to_string())),
            Key::Heartbeat(exit) => ("ex", exit.to_string()),
            Key::Member(exit) => ("mb", exit.to_string()),
            Key::RemovedExit(exit) => ("xr", exit.to_string()),
            Key::Drain(exit) => ("dr", exit.to_string()),
            Key::Written(exit) => ("wr", exit.to_string()),
            Key::Position(exit) => ("po", exit.to_string()),
            Key::Prefixes => return format!("{}px", self.prefix),
            Key::Forwards => return format!("{}fw", self.prefix),
            Key::Roster => return format!("{}ro", self.prefix),
            Key::Meta => return format!("{}meta", self.prefix),
        };
        format!("{}{kind}/{name}", self.prefix)
    }

    /// All keys of an exit.
    pub(crate) fn of_exit(&self, exit: &ExitId) -> [String; 5] {
        // `RemovedExit` is not one of these, because it must outlast the exit.
        let kinds: [fn(ExitId) -> Key; 5] =
            [Key::Member, Key::Heartbeat, Key::Drain, Key::Written, Key::Position];
        kinds.map(|kind| self.name(&kind(exit.clone())))
    }

    /// The key of the claim on a client's name.
    pub(crate) fn client_name(&self, name: &str) -> String {
        // A client's name contains no slash, so it needs no encoding.
        format!("{}na/{name}", self.prefix)
    }

    /// The key of the claim on an address.
    pub(crate) fn address(&self, address: IpAddr) -> String {
        format!("{}ad/{address}", self.prefix)
    }

    /// The key of the claim on a next key.
    pub(crate) fn next_key(&self, key: PublicKey) -> String {
        format!("{}nk/{}", self.prefix, url_safe(&key.to_string()))
    }

    /// The key of an unused ticket.
    pub(crate) fn ticket(&self, digest: &str) -> String {
        format!("{}tk/{digest}", self.prefix)
    }

    /// The prefix of the keys of all unused tickets.
    pub(crate) fn tickets(&self) -> String {
        self.ticket("")
    }

    /// The prefix of the keys of all clients' sessions.
    pub(crate) fn sessions(&self) -> String {
        format!("{}se/", self.prefix)
    }

    /// The key of an exit's grant, which records how the exit got its user. See [`crate::users`].
    pub(crate) fn grant(&self, exit: &ExitId) -> String {
        format!("{}{exit}", self.grants())
    }

    /// The prefix of the keys of all grants.
    pub(crate) fn grants(&self) -> String {
        format!("{}us/", self.prefix)
    }

    /// The prefix of the keys of all exits in the fleet.
    pub(crate) fn members(&self) -> String {
        format!("{}mb/", self.prefix)
    }

    /// The prefix of the heartbeats of all exits.
    pub(crate) fn heartbeats(&self) -> String {
        format!("{}ex/", self.prefix)
    }

    /// The prefix of the keys of all exits that were removed.
    pub(crate) fn removed_exits(&self) -> String {
        format!("{}xr/", self.prefix)
    }

    /// The prefix of the keys of all exits' positions.
    pub(crate) fn positions(&self) -> String {
        format!("{}po/", self.prefix)
    }

    /// The key that says which copies have come back since a recovery, see [`crate::returned`].
    pub(crate) fn returned(&self) -> String {
        format!("{}rt", self.prefix)
    }

    /// The key that exists while `warren fleet init` is under way.
    pub(crate) fn beginning(&self) -> String {
        format!("{}beginning", self.prefix)
    }

    /// The key that exists while `warren fleet recover` is under way.
    pub(crate) fn recovering(&self) -> String {
        format!("{}recovering", self.prefix)
    }

    /// The prefixes of the keys of clients, invitations, removed keys and claims.
    pub(crate) fn of_registry(&self) -> [String; 8] {
        ["cl/", "in/", "rv/", "na/", "ad/", "nk/", "px", "fw"].map(|kind| format!("{}{kind}", self.prefix))
    }

    /// Reads a key. `None` for a key that links do not watch.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let Some((kind, name)) = rest.split_once('/') else {
            return match rest {
                "px" => Some(Key::Prefixes),
                "fw" => Some(Key::Forwards),
                "ro" => Some(Key::Roster),
                "meta" => Some(Key::Meta),
                _ => None,
            };
        };
        // Any exit of the fleet can write such keys, so names are checked and not trusted.
        let exit = || ExitId::try_from(name.to_owned()).ok();
        Some(match kind {
            "cl" => Key::Row(RowId::Client(public_key(name)?)),
            "in" => Key::Row(RowId::Invitation(token(name)?)),
            "rv" => Key::Row(RowId::Removed(public_key(name)?)),
            "se" => Key::Session(public_key(name)?),
            "ex" => Key::Heartbeat(exit()?),
            "mb" => Key::Member(exit()?),
            "xr" => Key::RemovedExit(exit()?),
            "dr" => Key::Drain(exit()?),
            "wr" => Key::Written(exit()?),
            "po" => Key::Position(exit()?),
            _ => return None,
        })
    }
}

/// The value of a claim, which is the key of the client that holds the claim.
pub(crate) fn holder_text(key: PublicKey) -> Vec<u8> {
    url_safe(&key.to_string()).into_bytes()
}

/// Whether a text can be the name of a fleet.
pub(crate) fn is_fleet_name(name: &str) -> bool {
    is_valid_name(name)
}

fn url_safe(standard: &str) -> String {
    standard.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned()
}

fn public_key(name: &str) -> Option<PublicKey> {
    let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
    Some(PublicKey(bytes.try_into().ok()?))
}

/// A digest as standard base64, which is its serde form.
fn token_text(token: TokenDigest) -> String {
    serde_json::to_value(token).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn token(name: &str) -> Option<TokenDigest> {
    let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
    TokenDigest::deserialize(serde_json::Value::String(STANDARD.encode(bytes))).ok()
}

/// A session's record, `se/KEY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    /// The exit that has the session.
    pub(crate) exit: ExitId,
    /// The client process's nonce, as base64.
    pub(crate) nonce: String,
    /// The session's number among the sessions of its client process.
    #[serde(default)]
    pub(crate) claim: u64,
}

impl SessionRecord {
    pub(crate) fn new(exit: &ExitId, nonce: &[u8], claim: u64) -> Self {
        Self { exit: exit.clone(), nonce: STANDARD.encode(nonce), claim }
    }

    /// The nonce's bytes. Empty if the record is damaged.
    pub(crate) fn nonce(&self) -> Vec<u8> {
        STANDARD.decode(&self.nonce).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_come_back(bytes: [u8; 32], exit in "[a-z0-9]{1,8}") {
            let keys = Keys::new("home");
            let token: TokenDigest = serde_json::from_value(STANDARD.encode(bytes).into()).unwrap();
            let key = PublicKey(bytes);
            let exit = ExitId::try_from(exit).unwrap();
            for key in [
                Key::Row(RowId::Client(key)),
                Key::Row(RowId::Removed(key)),
                Key::Row(RowId::Invitation(token)),
                Key::Session(key),
                Key::Heartbeat(exit.clone()),
                Key::Member(exit.clone()),
                Key::RemovedExit(exit.clone()),
                Key::Drain(exit.clone()),
                Key::Written(exit.clone()),
                Key::Position(exit),
                Key::Prefixes,
                Key::Forwards,
                Key::Roster,
                Key::Meta,
            ] {
                let name = keys.name(&key);
                prop_assert!(name.starts_with(keys.prefix()));
                prop_assert_eq!(keys.parse(name.as_bytes()), Some(key));
            }
        }

        #[test]
        fn any_key_is_read_without_a_panic(bytes: Vec<u8>) {
            let keys = Keys::new("home");
            let _ = keys.parse(&bytes);
            let _ = keys.parse(&[keys.prefix().as_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn claims_and_keys_of_another_fleet_are_not_followed() {
        let keys = Keys::new("home");
        let key = PublicKey([7; 32]);
        for name in [keys.client_name("anna"), keys.address("10.0.0.1".parse().unwrap()), keys.next_key(key)]
        {
            assert_eq!(keys.parse(name.as_bytes()), None, "{name}");
        }
        let other = Keys::new("home2").name(&Key::Meta);
        assert_eq!(keys.parse(other.as_bytes()), None);
    }
}
