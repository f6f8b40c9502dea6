//! The traffic that a tunnel carries, described by networks and addresses.

use std::net::IpAddr;

use ipnet::IpNet;

/// The traffic that belongs into a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Networks that go through the tunnel.
    pub include: Vec<IpNet>,
    /// Networks that stay outside although `include` covers them.
    pub exclude: Vec<IpNet>,
    /// The tunnel's inner addresses, as far as they are known.
    pub inner: Vec<IpAddr>,
}
