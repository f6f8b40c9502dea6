//! Why a change to the registry is refused.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::PublicKey;

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
        key: PublicKey,
        /// The client that has it.
        holder: String,
    },
    /// The key was taken from a client.
    #[error(
        "client {name:?} cannot have the key {key}: it was taken from {holder:?} for good; make another with `warren keygen`, or allow this one with --allow-removed"
    )]
    KeyRemoved {
        /// The client that was to be added.
        name: String,
        /// The key.
        key: PublicKey,
        /// The client that had it.
        holder: String,
    },
    /// An edit of the registry has an open invitation that the exit does not have.
    #[error(
        "the invitation {name:?} is none that is open here: withdrawn ones do not come back; take its table out, and make another with `warren exit invite`"
    )]
    UnknownInvitation {
        /// The name that the client would have.
        name: String,
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
        /// The client that has that one.
        holder: String,
    },
    /// A prefix has addresses that no network behind a client has.
    #[error(
        "client {name:?} cannot have the prefix {prefix}: it overlaps {reserved}, {what} addresses, which no client has behind it; write the networks that it has"
    )]
    ReservedPrefix {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
        /// The part of it, or what it is part of.
        reserved: IpNet,
        /// What that is for.
        what: &'static str,
    },
    /// Two prefixes of one client overlap.
    #[error("client {name:?}: its prefixes {other} and {prefix} overlap; write one of the two")]
    PrefixTwice {
        /// The client that was to be added.
        name: String,
        /// The later one.
        prefix: IpNet,
        /// The one before it.
        other: IpNet,
    },
    /// More prefixes than one client may have.
    #[error("client {name:?} has {count} prefixes: at most {} are possible", crate::MAX_PREFIXES)]
    TooManyPrefixes {
        /// The client that was to be added.
        name: String,
        /// How many it has.
        count: usize,
    },
    /// There are as many clients as an exit has at most.
    #[error(
        "there are {} clients already, and an exit has no more; remove those that are gone, or set up another exit",
        super::MAX_CLIENTS
    )]
    Full,
    /// No client has the name.
    #[error("there is no client {name:?}: `warren exit client list` shows those there are")]
    NoSuchClient {
        /// The name asked for.
        name: String,
    },
}
