//! The addresses that no exit may give to this host. They are its own addresses, and those of hosts that it reaches
//! outside the tunnel.
//!
//! An address may become taken while a session has it, for instance when this host joins another network.

use std::net::IpAddr;

use ipnet::IpNet;
use warren_host::facts::{self, OwnAddresses};
use warren_session::client::{AddressOwner, SessionGrant, TakenAddresses};

use super::HostUpkeep;
use crate::daemon::connections::Connections;
use crate::daemon::session::leased;

impl HostUpkeep {
    /// Collects the taken addresses. `leased` are the tunnel's current addresses, which do not count as taken although they are
    /// on this host: an exit may grant them again.
    pub(in crate::daemon) async fn taken_addresses(
        &self,
        leased: &[IpAddr],
        connections: &Connections,
    ) -> TakenAddresses {
        let own = facts::own_addresses().await.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot list this host's addresses, so the exit's addresses are not compared with them: {error}"
            );
            OwnAddresses::default()
        });
        let resolvers = self.listed_resolvers().await;
        let known_exits = connections.exits.known().map(owned_by(AddressOwner::KnownExit));
        let exits_in_use = connections.remotes().map(owned_by(AddressOwner::Exit));
        // If an address has several owners, messages name the last owner in this list.
        known_exits
            .chain(resolvers.into_iter().map(owned_by(AddressOwner::Resolver)))
            .chain(exits_in_use)
            .chain(own_addresses(own, leased))
            .collect()
    }

    /// Returns why the lease can no longer be used, for example because another host outside the tunnel now has one of its
    /// addresses. `None` if the lease can still be used.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub(in crate::daemon) async fn clash(
        &self,
        welcome: &SessionGrant,
        connections: &Connections,
    ) -> anyhow::Result<Option<String>> {
        let leased = leased(welcome);
        if let Err(clash) = self.taken_addresses(&leased, connections).await.check(welcome) {
            return Ok(Some(clash.to_string()));
        }
        let networks = facts::networks().await?;
        let entered = entered_network(&leased, &self.networks_at_welcome, networks);
        Ok(entered.map(|(network, address)| {
            format!(
                "this host has joined the network {network}, where another host may have this client's inner address {address}"
            )
        }))
    }
}

fn owned_by(owner: AddressOwner) -> impl Fn(IpAddr) -> (IpAddr, AddressOwner) {
    move |address| (address, owner)
}

/// Returns the addresses of this host and of its gateways. They include the leases of other profiles' tunnels.
fn own_addresses(own: OwnAddresses, leased: &[IpAddr]) -> impl Iterator<Item = (IpAddr, AddressOwner)> {
    let of_other_tunnels = own.of_tunnels.into_iter().filter(|address| !leased.contains(address));
    let of_host = own.outside.into_iter().chain(of_other_tunnels).map(owned_by(AddressOwner::Host));
    own.gateways.into_iter().map(owned_by(AddressOwner::Gateway)).chain(of_host)
}

/// Finds a network that this host has joined since the exit granted the lease, and that contains one of the leased addresses.
///
/// The address may be that of the network's gateway. The kernel then refuses the route to the gateway, or the route leads into
/// the tunnel. Networks that the host was in before cannot have this problem, because the Welcome was compared with their
/// gateways.
fn entered_network(leased: &[IpAddr], before: &[IpNet], now: Vec<IpNet>) -> Option<(IpNet, IpAddr)> {
    now.into_iter().filter(|network| !before.contains(network)).find_map(|network| {
        let address = leased.iter().find(|address| network.contains(*address))?;
        Some((network, *address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_of_this_tunnel_is_free_and_that_of_another_is_taken() {
        let [own, other, gateway] = ["10.66.0.2", "10.77.0.2", "192.168.1.1"].map(address);
        let found =
            OwnAddresses { of_tunnels: vec![own, other], gateways: vec![gateway], ..Default::default() };

        let taken: Vec<_> = own_addresses(found, &[own]).collect();

        assert_eq!(taken, [(gateway, AddressOwner::Gateway), (other, AddressOwner::Host)]);
    }

    #[test]
    fn only_a_network_that_the_host_has_entered_since_can_clash_with_the_lease() {
        let leased = [address("10.66.0.2"), address("fd00::2")];
        let [home, cafe]: [IpNet; 2] = ["10.0.0.0/8", "10.66.0.0/24"].map(|network| network.parse().unwrap());

        assert_eq!(entered_network(&leased, &[home], vec![home]), None);
        assert_eq!(entered_network(&leased, &[home], vec![home, cafe]), Some((cafe, leased[0])));
        assert_eq!(entered_network(&leased[1..], &[], vec![home, cafe]), None);
    }

    fn address(address: &str) -> IpAddr {
        address.parse().unwrap()
    }
}
