//! Why a change to the registry is refused.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::KeyMaker;
use super::forward::{MAX_FORWARDS, MAX_MOVED_PORTS, PortRange};
use crate::PublicKey;

/// Why a change to the registry is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// The name has a forbidden character or an invalid length.
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
        "client {name:?} cannot have the key {key}: it belongs to {holder:?}; make another with `{maker}`"
    )]
    KeyTaken {
        /// The client that was to be added.
        name: String,
        /// The key that both clients would have.
        key: PublicKey,
        /// The client that has the key.
        holder: String,
        /// The command that makes a key of this kind.
        maker: KeyMaker,
    },
    /// The key was taken from a client.
    #[error(
        "client {name:?} cannot have the key {key}: it was taken from {holder:?} for good; make another with `{maker}`, or allow this one with --allow-removed"
    )]
    KeyRemoved {
        /// The client that was to be added.
        name: String,
        /// The key.
        key: PublicKey,
        /// The client that had the key.
        holder: String,
        /// The command that makes a key of this kind.
        maker: KeyMaker,
    },
    /// An edited registry contains an open invitation that the exit does not know.
    #[error(
        "the invitation {name:?} is not open at this exit, and an import cannot open it again; delete its table, and make a new invitation with `warren exit invite`"
    )]
    UnknownInvitation {
        /// The name that the client would have.
        name: String,
    },
    /// Another client has the static address.
    #[error("client {name:?} cannot have the address {address}: it belongs to {holder:?}; choose another")]
    AddressTaken {
        /// The client that was to be added.
        name: String,
        /// The address that both clients would have.
        address: IpAddr,
        /// The client that has the address.
        holder: String,
    },
    /// A prefix has host bits set.
    #[error("client {name:?}: the prefix {prefix} is not a network address: write {}", prefix.trunc())]
    BadPrefix {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
    },
    /// A prefix is the default route.
    #[error(
        "client {name:?}: the prefix {prefix} routes all traffic to this client, and a client cannot be an exit; write the networks behind it"
    )]
    WholeInternet {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
    },
    /// Prefixes of two clients overlap, so a packet's recipient would be ambiguous.
    #[error(
        "client {name:?} cannot have the prefix {prefix}: it overlaps {other} of {holder:?}; choose another"
    )]
    PrefixTaken {
        /// The client that was to be added.
        name: String,
        /// The prefix of the client that was to be added.
        prefix: IpNet,
        /// The prefix that overlaps.
        other: IpNet,
        /// The client that has the other prefix.
        holder: String,
    },
    /// A prefix overlaps a special-purpose network, which cannot be behind a client.
    #[error(
        "client {name:?} cannot have the prefix {prefix}: it overlaps {reserved}, {what} addresses, which cannot be behind a client; write the networks that are behind it"
    )]
    ReservedPrefix {
        /// The client that was to be added.
        name: String,
        /// The refused prefix.
        prefix: IpNet,
        /// The special-purpose network that the prefix overlaps.
        reserved: IpNet,
        /// The kind of that network's addresses.
        what: &'static str,
    },
    /// Two prefixes of one client overlap.
    #[error("client {name:?}: its prefixes {other} and {prefix} overlap; write one of the two")]
    PrefixTwice {
        /// The client that was to be added.
        name: String,
        /// The later prefix.
        prefix: IpNet,
        /// The earlier prefix.
        other: IpNet,
    },
    /// More prefixes than one client may have.
    #[error("client {name:?} has {count} prefixes: at most {} are possible", crate::MAX_PREFIXES)]
    TooManyPrefixes {
        /// The client that was to be added.
        name: String,
        /// How many prefixes the client has.
        count: usize,
    },
    /// Another client has a forward of one of the ports.
    #[error(
        "client {name:?} cannot have {ports}: {other} leads to {holder:?}; choose other ports of the exit"
    )]
    PortsTaken {
        /// The client that was to have the ports.
        name: String,
        /// The ports that were to be forwarded.
        ports: PortRange,
        /// The ports of the existing forward.
        other: PortRange,
        /// The client that has the existing forward.
        holder: String,
    },
    /// Two forwards of one client have a port in common.
    #[error("client {name:?} has {other} already, which overlaps {ports}; remove that forward first")]
    PortsTwice {
        /// The client.
        name: String,
        /// The later ports.
        ports: PortRange,
        /// The earlier ports.
        other: PortRange,
    },
    /// More forwards than one client may have.
    #[error(
        "client {name:?} would have {count} forwards: at most {MAX_FORWARDS} are possible; use ranges of ports"
    )]
    TooManyForwards {
        /// The client.
        name: String,
        /// How many forwards the client would have.
        count: usize,
    },
    /// More forwarded ports with a different target port than the firewall's rules may name.
    #[error(
        "client {name:?}: the exit's forwards to other port numbers would have {count} ports: at most {MAX_MOVED_PORTS} are possible; forward to the same numbers"
    )]
    TooManyMovedPorts {
        /// The client.
        name: String,
        /// How many ports would be forwarded to a different port number.
        count: usize,
    },
    /// The client has no forward of these ports.
    #[error(
        "client {name:?} has no forward of exactly {ports}: `warren exit client forward list {name}` lists its forwards"
    )]
    NoSuchForward {
        /// The client.
        name: String,
        /// The ports asked for.
        ports: PortRange,
    },
    /// The exit already has the maximum number of clients.
    #[error(
        "the exit already has {} clients, the most that are possible; remove unused ones, or set up another exit",
        super::client::MAX_CLIENTS
    )]
    Full,
    /// No client has the name.
    #[error("there is no client {name:?}: `warren exit client list` lists all clients")]
    NoSuchClient {
        /// The name asked for.
        name: String,
    },
}
