//! One enrolled client.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::KeyMaker;
use super::WireGuardClient;
use super::timestamp;
use super::{Forward, RateLimit};
use crate::PublicKey;
use crate::key::{optional_stored_key, stored_key};
use crate::pool::Lease;

/// Longest name of a client in characters, as a DNS label (RFC 1035 section 2.3.4).
pub const MAX_NAME_LENGTH: usize = 63;

/// Maximum number of clients of one exit. Each takes about 1 KiB of memory.
pub const MAX_CLIENTS: usize = 131_072;

/// A client that the exit's operator enrolled: one `[[client]]` table of `clients.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Unique name, `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// Unique key. The TLS handshake must prove it. A WireGuard client has its WireGuard public key here.
    #[serde(deserialize_with = "stored_key")]
    pub public_key: PublicKey,
    /// Set for a client that connects with WireGuard, until it has a next key and connects with that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<WireGuardClient>,
    /// The key that replaces `public_key` as soon as a connection proves it. The client keeps everything else.
    #[serde(default, deserialize_with = "optional_stored_key", skip_serializing_if = "Option::is_none")]
    pub next_public_key: Option<PublicKey>,
    /// Static IPv4 address, set by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// Static IPv6 address, set by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Sticky IPv4 address from the pool, written by the exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_ipv4: Option<Ipv4Addr>,
    /// Sticky IPv6 address from the pool, written by the exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_ipv6: Option<Ipv6Addr>,
    /// Networks behind the client. The client may ask the exit to route them to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<IpNet>,
    /// Maximum bits per second that the client may send, and the same for receiving. Unlimited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Ports of the exit that are forwarded to the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// Whether the exit refuses the client even though it is enrolled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// The exit's newest key, if the client has connected to that key while the exit also had an older key.
    #[serde(default, deserialize_with = "optional_stored_key", skip_serializing_if = "Option::is_none")]
    pub exit_key: Option<PublicKey>,
    /// When the client was enrolled.
    #[serde(with = "timestamp")]
    pub created: SystemTime,
    /// When the client was last online. While it is online, the exit updates this every ten minutes.
    #[serde(default, with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<SystemTime>,
}

impl Client {
    /// A client with a name and a key, and defaults for everything else.
    pub fn new(name: impl Into<String>, public_key: PublicKey, created: SystemTime) -> Self {
        Self {
            name: name.into(),
            public_key,
            wireguard: None,
            next_public_key: None,
            ipv4: None,
            ipv6: None,
            leased_ipv4: None,
            leased_ipv6: None,
            prefixes: Vec::new(),
            rate_limit: None,
            forwards: Vec::new(),
            disabled: false,
            exit_key: None,
            created,
            last_seen: None,
        }
    }

    /// The current key and, if set, the next one.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> {
        [Some(self.public_key), self.next_public_key].into_iter().flatten()
    }

    /// The program that makes keys of the same kind as one of the client's keys. A next key is always a Warren
    /// key.
    pub(crate) fn key_maker(&self, key: PublicKey) -> KeyMaker {
        match self.wireguard {
            Some(_) if key == self.public_key => KeyMaker::WireGuard,
            _ => KeyMaker::Warren,
        }
    }

    /// What WireGuard needs to admit the client. `None` if the client may not connect with WireGuard.
    pub fn by_wireguard(&self) -> Option<&WireGuardClient> {
        self.wireguard.as_ref().filter(|_| !self.disabled)
    }

    /// Whether the static addresses, the prefixes or the WireGuard settings differ from those of `before`.
    pub(crate) fn is_chosen_anew(&self, before: &Self) -> bool {
        let is_same = before.static_lease() == self.static_lease() && before.prefixes == self.prefixes;
        !is_same || before.wireguard != self.wireguard
    }

    /// Returns the client's addresses: for each family the static one if set, else the sticky one, else none.
    pub fn lease(&self) -> Lease {
        Lease { ipv4: self.ipv4.or(self.leased_ipv4), ipv6: self.ipv6.or(self.leased_ipv6) }
    }

    /// The addresses that the operator set.
    pub fn static_lease(&self) -> Lease {
        Lease { ipv4: self.ipv4, ipv6: self.ipv6 }
    }

    /// The addresses that the pool gave.
    pub fn sticky_lease(&self) -> Lease {
        Lease { ipv4: self.leased_ipv4, ipv6: self.leased_ipv6 }
    }
}

/// Whether a text is a valid client name: `[a-z0-9][a-z0-9._-]{0,62}`.
pub fn is_valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    starts_well && name.len() <= MAX_NAME_LENGTH && name.bytes().all(allowed)
}
