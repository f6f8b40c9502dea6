//! This host's own addresses and devices.

use std::net::IpAddr;

/// A device other than the loopback device and Warren's tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideLink {
    /// The device.
    pub name: String,
    /// Whether the device is up and has a carrier, for example a connected cable or Wi-Fi network.
    pub has_carrier: bool,
    /// The host's addresses, without the link-local ones.
    pub addresses: Vec<IpAddr>,
}

/// Addresses of this host and its gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// Addresses of devices other than Warren's tunnels.
    pub outside: Vec<IpAddr>,
    /// Addresses of Warren's tunnels.
    pub of_tunnels: Vec<IpAddr>,
    /// Gateways of routes.
    pub gateways: Vec<IpAddr>,
}
