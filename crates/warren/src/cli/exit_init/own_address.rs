//! Where clients reach this host, if its own address says so.

use std::net::{IpAddr, UdpSocket};

use super::resolvers::is_public;
use warren_config::Endpoint;

/// Somewhere on the internet, in each version of IP.
const SOMEWHERE: [(&str, &str); 2] = [("0.0.0.0:0", "9.9.9.9:53"), ("[::]:0", "[2620:fe::fe]:53")];

/// The address from which this host sends to the internet; nothing if that is one of a private network.
pub(super) fn endpoint() -> Option<Endpoint> {
    let address = SOMEWHERE.into_iter().filter_map(|(any, to)| source(any, to).ok()).find(is_public)?;
    let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    host.parse().ok()
}

/// Nothing is sent: the kernel chooses a way and its address.
fn source(any: &str, to: &str) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}
