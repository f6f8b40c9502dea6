//! Addresses that no exit can give a client, because somebody on the client's side has them.
//!
//! An exit is trusted with the tunnel's traffic and not with the host's own network: with the LAN gateway's address as lease the host
//! would no longer reach its gateway. Only equal addresses clash. An inner network may overlap the LAN, because nothing but the
//! lease itself is put on the host. Who comes late, as the gateway of another LAN, is compared with the lease that stands.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::{SessionGrant, WelcomeError};

/// Who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    /// This host, on another device than the tunnel's.
    Host,
    /// A gateway of this host's routes.
    Gateway,
    /// The exit, outside the tunnel.
    Exit,
    /// An exit that the client may go to next. Its own network may have that address for something else.
    KnownExit,
    /// A resolver that this host asks outside the tunnel. One of another tunnel may have an exit's usual inner address.
    Resolver,
}

impl AddressOwner {
    /// Whether the exit itself cannot have the address inside the tunnel either.
    fn is_beside_the_exit(self) -> bool {
        matches!(self, Self::Host | Self::Gateway | Self::Exit)
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "an address of this host already",
            Self::Gateway => "the address of this host's gateway",
            Self::Exit => "the exit's address outside the tunnel",
            Self::KnownExit => "the address of an exit of the profile",
            Self::Resolver => "the address of this host's resolver",
        })
    }
}

/// The addresses that have an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenAddresses(BTreeMap<IpAddr, AddressOwner>);

impl FromIterator<(IpAddr, AddressOwner)> for TakenAddresses {
    fn from_iter<I: IntoIterator<Item = (IpAddr, AddressOwner)>>(all: I) -> Self {
        Self(all.into_iter().map(|(address, owner)| (address.to_canonical(), owner)).collect())
    }
}

impl TakenAddresses {
    /// Refuses a grant with an inner address that is not the exit's to give.
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
