//! Why the pool cannot do what was asked.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::PublicKey;

/// Why the pool refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// Neither network is set.
    #[error("an exit needs an inner network: set ipv4, ipv6 or both under [addresses] in exit.toml")]
    NoNetwork,
    /// The network has no room for the gateway and one client.
    #[error("the network {network} has no room for clients: choose a shorter prefix, at most /{longest}")]
    TooSmall {
        /// The network.
        network: IpNet,
        /// Longest prefix that works.
        longest: u8,
    },
    /// The network's address has host bits set.
    #[error("{network} is not a network address: write {}", network.trunc())]
    HostBits {
        /// The refused network.
        network: IpNet,
    },
    /// The network holds special-purpose addresses.
    #[error(
        "{network} holds reserved addresses: choose a private network such as 10.66.0.0/16 or fd66:6666::/64"
    )]
    NotUnicast {
        /// The network.
        network: IpNet,
    },
    /// The address is outside the pool's networks.
    #[error(
        "the address {address} is outside the exit's inner networks: choose one from [addresses] in exit.toml"
    )]
    NotInPool {
        /// The address.
        address: IpAddr,
    },
    /// The address is the gateway's, the network's or the broadcast address.
    #[error("the address {address} is the exit's own or reserved by its network: choose another")]
    Reserved {
        /// The address.
        address: IpAddr,
    },
    /// Another key holds the address as a static lease or while online.
    #[error("the address {address} is in use by another client: choose another, or remove that client")]
    InUse {
        /// The address.
        address: IpAddr,
        /// The key of the client that holds the address.
        holder: PublicKey,
    },
    /// Every address is a static lease or held by an online client.
    #[error("all addresses of {network} are in use")]
    Exhausted {
        /// The network that is full.
        network: IpNet,
    },
}
