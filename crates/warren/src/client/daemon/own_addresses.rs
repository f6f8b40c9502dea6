//! Which addresses no exit may give this host: those that it has, and those by which it reaches others.

use std::net::IpAddr;

use warren_host::facts;
use warren_session::client::{AddressOwner, TakenAddresses};

use super::Daemon;

impl Daemon {
    /// Tells the session before it reads the answer to its Hello.
    pub(super) async fn tell_taken_addresses(&mut self) {
        let own = facts::own_addresses().await.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot look at this host's addresses, so what the exit gives is not compared: {error}"
            );
            facts::OwnAddresses::default()
        });
        // The tunnel of before still has its lease. Those of other profiles are theirs.
        let leased = self.welcome.iter().flat_map(|welcome| {
            let ipv4 = welcome.ipv4.map(|(address, _)| IpAddr::V4(address));
            [ipv4, welcome.ipv6.map(|(address, _)| IpAddr::V6(address))].into_iter().flatten()
        });
        let leased: Vec<IpAddr> = leased.collect();
        let of_tunnels = own.of_tunnels.into_iter().filter(|address| !leased.contains(address));
        let owned = |owner| move |address: IpAddr| (address, owner);
        let exits = self.remotes.values().map(|remote| remote.ip());
        let taken: TakenAddresses = exits
            .map(owned(AddressOwner::Exit))
            .chain(own.gateways.into_iter().map(owned(AddressOwner::Gateway)))
            .chain(own.outside.into_iter().chain(of_tunnels).map(owned(AddressOwner::Host)))
            .collect();
        self.session.set_taken(taken);
    }
}
