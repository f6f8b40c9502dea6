//! Addresses that a client refuses as inner addresses, because they are in use on its side.
//!
//! An exit is trusted with the tunnel's traffic, not with the host's own network. If the LAN gateway's address were the lease, the
//! host would no longer reach its gateway. Only equal addresses clash. An inner network may overlap the LAN, because the host
//! configures only the lease itself. An address that appears later, such as the gateway of another LAN, is compared with the
//! current lease.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{AddressOwner, SessionGrant, WelcomeError};

/// The addresses in use on the client's side, each with its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenAddresses(BTreeMap<IpAddr, AddressOwner>);

impl FromIterator<(IpAddr, AddressOwner)> for TakenAddresses {
    fn from_iter<I: IntoIterator<Item = (IpAddr, AddressOwner)>>(all: I) -> Self {
        // An IPv4-mapped IPv6 address stands for its IPv4 address.
        Self(all.into_iter().map(|(address, owner)| (address.to_canonical(), owner)).collect())
    }
}

impl TakenAddresses {
    /// Refuses a grant with an inner address that is in use on the client's side.
    ///
    /// # Errors
    /// [`WelcomeError::Taken`] with the address and its owner.
    pub fn check(&self, welcome: &SessionGrant) -> Result<(), WelcomeError> {
        let any = |_: AddressOwner| true;
        let own = (any as fn(AddressOwner) -> bool, "this client's inner address");
        let exits =
            (AddressOwner::is_beside_the_exit as fn(AddressOwner) -> bool, "the exit's inner address");
        let inner = [
            (welcome.ipv4.map(|(address, _)| IpAddr::V4(address)), own),
            (welcome.ipv6.map(|(address, _)| IpAddr::V6(address)), own),
            (welcome.gateway_ipv4.map(IpAddr::V4), exits),
            (welcome.gateway_ipv6.map(IpAddr::V6), exits),
        ];
        for (address, (counts, role)) in inner {
            let Some(address) = address else { continue };
            if let Some(owner) = self.0.get(&address).copied().filter(|owner| counts(*owner)) {
                return Err(WelcomeError::Taken { address, role, owner });
            }
        }
        Ok(())
    }
}
