//! Finds this host's own address, if clients can reach the host at it.

use std::net::{IpAddr, UdpSocket};

use super::resolvers::is_public;
use warren_config::Endpoint;

/// For each IP version, the address to bind to and an address on the internet, to which nothing is sent.
const SOMEWHERE: [(&str, &str); 2] = [("0.0.0.0:0", "9.9.9.9:53"), ("[::]:0", "[2620:fe::fe]:53")];

/// Returns an endpoint with the address from which this host sends to the internet. `None` if the address is private.
pub(super) fn endpoint() -> Option<Endpoint> {
    let address = SOMEWHERE.into_iter().filter_map(|(any, to)| source(any, to).ok()).find(is_public)?;
    let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    host.parse().ok()
}

/// The source address of packets to `to`. Connecting a UDP socket sends nothing, but makes the kernel choose a route and a source
/// address.
fn source(any: &str, to: &str) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}
