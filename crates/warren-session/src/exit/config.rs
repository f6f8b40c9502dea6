//! The configuration of an exit's sessions, and the address pool made from it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use super::fleet_news::FleetNews;
use crate::clients::{Client, ClientRegistry, RegistryError};
use crate::message::is_unicast;
use crate::pool::{AddressPool, Lease, PoolError};
use crate::{MAX_CONNECTIONS, MAX_DNS_SERVERS, MAX_ROUTES, MIN_MTU, PublicKey};

/// Configuration of an exit's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Inner IPv4 network, the source of client addresses.
    pub ipv4: Option<Ipv4Net>,
    /// Inner IPv6 network, the source of client addresses.
    pub ipv6: Option<Ipv6Net>,
    /// Inner MTU in bytes, at least [`MIN_MTU`].
    pub mtu: u16,
    /// DNS servers for clients, at most [`MAX_DNS_SERVERS`].
    pub dns: Vec<IpAddr>,
    /// Networks that the exit carries traffic to, at most [`MAX_ROUTES`].
    pub routes: Vec<IpNet>,
    /// Maximum number of connections of a session, 1 to [`MAX_CONNECTIONS`].
    pub max_connections: u32,
    /// Keep-alive interval for clients, 100 ms to 10 min.
    pub keep_alive: Duration,
    /// Bit set of the exit's optional features.
    pub features: u64,
    /// The exit's public keys, the newest first, at most [`MAX_EXIT_KEYS`](crate::MAX_EXIT_KEYS). Clients that accept updates
    /// learn these keys.
    pub exit_keys: Vec<PublicKey>,
    /// The exit's fleet. Clients that follow rosters get this fleet's roster.
    pub fleet: FleetNews,
}

/// Bounds of the keep-alive interval. Shorter intervals would be a flood. With longer ones, NATs would drop their
/// mappings (RFC 4787 section 4.3 recommends 5 min).
pub(crate) const KEEP_ALIVE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

impl Default for SessionConfig {
    /// No network, MTU 1380, 32 connections, keep-alives every 15 s.
    fn default() -> Self {
        Self {
            ipv4: None,
            ipv6: None,
            mtu: 1_380,
            dns: Vec::new(),
            routes: Vec::new(),
            max_connections: 32,
            keep_alive: Duration::from_secs(15),
            features: 0,
            exit_keys: Vec::new(),
            fleet: FleetNews::default(),
        }
    }
}

/// Why an exit cannot start with its configuration and clients.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionConfigError {
    /// The networks cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A client cannot have its static address.
    #[error("client {name:?}: {source}")]
    StaticAddress {
        /// The client.
        name: String,
        /// The reason.
        source: PoolError,
    },
    /// An edited registry brings back a removed key or a withdrawn invitation.
    #[error(transparent)]
    BroughtBack(RegistryError),
    /// A client's prefix overlaps the exit's own networks.
    #[error(
        "client {name:?}: the prefix {prefix} overlaps the exit's inner network {network}; choose another"
    )]
    PrefixInPool {
        /// The client.
        name: String,
        /// The client's prefix.
        prefix: IpNet,
        /// The network.
        network: IpNet,
    },
    /// A route has host bits set.
    #[error("the route {route} is not a network address: write {}", route.trunc())]
    BadRoute {
        /// The route.
        route: IpNet,
    },
    /// Clients cannot reach a DNS server's address.
    #[error("{address} cannot be the DNS server of clients: it is a local or reserved address")]
    BadDnsServer {
        /// The address.
        address: IpAddr,
    },
    /// A number or a list is out of its bounds.
    #[error("{what} is {value}: it must be {bounds}")]
    OutOfBounds {
        /// The setting.
        what: &'static str,
        /// The setting's value.
        value: String,
        /// The setting's bounds.
        bounds: String,
    },
}

impl SessionConfig {
    /// Checks all settings that do not depend on clients.
    pub(super) fn check(&self) -> Result<(), SessionConfigError> {
        if let Some(&route) = self.routes.iter().find(|route| route.trunc() != **route) {
            return Err(SessionConfigError::BadRoute { route });
        }
        if let Some(&address) = self.dns.iter().find(|address| !is_unicast(address)) {
            return Err(SessionConfigError::BadDnsServer { address });
        }
        let bounded = |what, fits, value: String, bounds: String| {
            if fits { Ok(()) } else { Err(SessionConfigError::OutOfBounds { what, value, bounds }) }
        };
        bounded("the MTU", self.mtu >= MIN_MTU, self.mtu.to_string(), format!("at least {MIN_MTU}"))?;
        let (dns, routes, connections) = (self.dns.len(), self.routes.len(), self.max_connections);
        let at_most = |most: usize| format!("at most {most}");
        bounded(
            "the number of DNS servers",
            dns <= MAX_DNS_SERVERS,
            dns.to_string(),
            at_most(MAX_DNS_SERVERS),
        )?;
        bounded("the number of routes", routes <= MAX_ROUTES, routes.to_string(), at_most(MAX_ROUTES))?;
        bounded(
            "the number of connections",
            (1..=MAX_CONNECTIONS).contains(&connections),
            connections.to_string(),
            format!("1 to {MAX_CONNECTIONS}"),
        )?;
        let keep_alive = self.keep_alive;
        bounded(
            "the keep-alive interval",
            KEEP_ALIVE.contains(&keep_alive),
            format!("{keep_alive:?}"),
            format!("{:?} to {:?}", KEEP_ALIVE.start(), KEEP_ALIVE.end()),
        )
    }

    /// Makes the pool with the leases of the registry's clients. Removes sticky leases that no longer fit from `registry`. Also
    /// returns the keys of the clients whose leases were removed.
    pub(super) fn fill_pool(
        &self,
        registry: &mut ClientRegistry,
    ) -> Result<(AddressPool, Vec<PublicKey>), SessionConfigError> {
        // Static addresses come first, because they win over sticky ones.
        let mut pool = pool_with(self.ipv4, self.ipv6, registry)?;
        let held: Vec<(_, Lease)> = registry
            .iter()
            .map(|client| {
                (client.public_key, pool.restore(client.public_key, client.sticky_lease(), seen(client)))
            })
            .collect();
        let lost = held.into_iter().filter(|(key, lease)| registry.record_lease(*key, *lease));
        let lost = lost.map(|(key, _)| key).collect();
        Ok((pool, lost))
    }
}

/// Checks that an exit with these inner networks can start with the clients of a registry.
///
/// # Errors
///
/// The first client that does not fit, and the reason.
pub fn check_clients(
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
    registry: &ClientRegistry,
) -> Result<(), SessionConfigError> {
    pool_with(ipv4, ipv6, registry).map(drop)
}

/// A pool with the static addresses of every client.
fn pool_with(
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
    registry: &ClientRegistry,
) -> Result<AddressPool, SessionConfigError> {
    let mut pool = AddressPool::new(ipv4, ipv6)?;
    for client in registry.iter() {
        check_prefixes(&pool, client)?;
        reserve(&mut pool, client, seen(client))?;
    }
    Ok(pool)
}

/// Returns when a client was last online. If it never was, returns when it was enrolled.
pub(super) fn seen(client: &Client) -> SystemTime {
    client.last_seen.unwrap_or(client.created)
}

/// Reserves a client's static addresses. Returns the keys that lost a sticky lease to them.
pub(super) fn reserve(
    pool: &mut AddressPool,
    client: &Client,
    seen: SystemTime,
) -> Result<Vec<PublicKey>, SessionConfigError> {
    pool.reserve(client.public_key, client.static_lease(), seen)
        .map_err(|source| SessionConfigError::StaticAddress { name: client.name.clone(), source })
}

/// Checks that a client fits this exit's networks, no matter who has its addresses.
pub(super) fn check_fits(pool: &AddressPool, client: &Client) -> Result<(), SessionConfigError> {
    check_prefixes(pool, client)?;
    client.static_lease().addresses().try_for_each(|address| {
        let checked = pool.check_address(address);
        checked.map_err(|source| SessionConfigError::StaticAddress { name: client.name.clone(), source })
    })
}

/// Checks that no prefix of the client overlaps the exit's inner networks, whose traffic belongs to other clients.
pub(super) fn check_prefixes(pool: &AddressPool, client: &Client) -> Result<(), SessionConfigError> {
    for &prefix in &client.prefixes {
        let overlaps = |network: &IpNet| network.contains(&prefix) || prefix.contains(network);
        if let Some(network) = pool.networks().find(overlaps) {
            return Err(SessionConfigError::PrefixInPool { name: client.name.clone(), prefix, network });
        }
    }
    Ok(())
}
