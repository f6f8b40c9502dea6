//! Why a change to the registry is refused.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::PeerKey;

/// Why a change to the registry is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// The name has characters or a length that names may not have.
    #[error(
        "{name:?} cannot be a client's name: use 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit"
    )]
    BadName {
        /// The refused name.
        name: String,
    },
    /// Another client has the name.
    #[error("there is a client {name:?} already: choose another name, or remove that one first")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Another client has the key.
    #[error(
        "client {name:?} cannot have the key {key}: it is the key of {holder:?}; make another with `warren keygen`"
    )]
    KeyTaken {
        /// The client that was to be added.
        name: String,
        /// The key of both.
        key: PeerKey,
        /// The client that has it.
        holder: String,
    },
    /// Another client has the static address.
    #[error("client {name:?} cannot have the address {address}: it is that of {holder:?}; choose another")]
    AddressTaken {
        /// The client that was to be added.
        name: String,
        /// The address of both.
        address: IpAddr,
        /// The client that has it.
        holder: String,
    },
    /// A prefix has bits set behind its length.
    #[error("client {name:?}: the prefix {prefix} is no network address: write {}", prefix.trunc())]
    BadPrefix {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
    },
    /// A prefix is everything.
    #[error(
        "client {name:?}: the prefix {prefix} leads everything to this client, and a client cannot be an exit; write the networks behind it"
    )]
    WholeInternet {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
    },
    /// Two prefixes overlap, so that it is not clear to whom packets go.
    #[error(
        "client {name:?} cannot have the prefix {prefix}: it overlaps {other} of {holder:?}; choose another"
    )]
    PrefixTaken {
        /// The client that was to be added.
        name: String,
        /// Its prefix.
        prefix: IpNet,
        /// The prefix that overlaps.
        other: IpNet,
        /// The client that has that one; may be the same.
        holder: String,
    },
    /// More prefixes than one client may have.
    #[error("client {name:?} has {count} prefixes: at most {} are possible", crate::MAX_PREFIXES)]
    TooManyPrefixes {
        /// The client that was to be added.
        name: String,
        /// How many it has.
        count: usize,
    },
    /// No client has the name.
    #[error("there is no client {name:?}: `warren exit client list` shows those there are")]
    NoSuchClient {
        /// The name asked for.
        name: String,
    },
}
