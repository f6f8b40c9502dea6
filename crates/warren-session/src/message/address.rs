//! Conversions between the addresses of messages, 4 or 16 bytes, and Rust's types.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Network;

/// The address's bytes in network order.
pub(crate) fn ip_to_wire(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address of 4 or 16 bytes; `None` for any other length.
pub(crate) fn ip_from_wire(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// Whether an address can be a host's address: a unicast address that is neither reserved nor special (RFC 6890).
pub(crate) fn is_unicast(address: &IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(address) => address.octets()[0] == 0 || address.is_broadcast() || address.is_link_local(),
        // An IPv4-mapped address stands for an IPv4 address, so it is not an IPv6 address of a host.
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    !(special || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

impl From<IpNet> for Network {
    fn from(network: IpNet) -> Self {
        Self { address: ip_to_wire(network.addr()), prefix_length: network.prefix_len().into() }
    }
}

impl Network {
    /// The address and prefix length as sent. `None` if they are not valid for IPv4 or IPv6.
    pub(crate) fn interface(&self) -> Option<IpNet> {
        IpNet::new(ip_from_wire(&self.address)?, u8::try_from(self.prefix_length).ok()?).ok()
    }

    /// The network. `None` if it is invalid or has host bits set.
    pub(crate) fn network(&self) -> Option<IpNet> {
        self.interface().filter(|network| network.trunc() == *network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_survives_the_wire() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3/32", "fd00::/8", "::/0", "fd00::1/128"] {
            let network: IpNet = text.parse().unwrap();
            assert_eq!(Network::from(network).network(), Some(network), "{text}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        let refused = [
            (vec![10, 0, 0], 8),
            (vec![10, 0, 0, 0], 33),
            (vec![0; 16], 129),
            (vec![], 0),
            (vec![0; 4], 256),
        ];
        for (address, prefix_length) in refused {
            let network = Network { address, prefix_length };
            assert_eq!(network.interface(), None, "{network:?}");
        }
        let host_bits = Network { address: vec![10, 0, 0, 1], prefix_length: 8 };
        assert_eq!((host_bits.network(), host_bits.interface().is_some()), (None, true));
    }
}
