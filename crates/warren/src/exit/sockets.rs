//! The exit's UDP sockets and the lock that comes before them.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use warren_quic::socket::{self, SocketConfig};

/// Binds every listen address, IPv6 ones as IPv6 only so that `0.0.0.0` and `[::]` stand beside each other.
///
/// # Errors
/// A sentence with the address and what to do. None stays bound.
pub(crate) fn bind(listen: &[SocketAddr]) -> anyhow::Result<Vec<UdpSocket>> {
    listen.iter().map(|address| bind_one(*address)).collect()
}

fn bind_one(address: SocketAddr) -> anyhow::Result<UdpSocket> {
    socket::bind(SocketConfig::new(address)).map_err(|error| {
        let kind = error.kind();
        let advice = if kind == ErrorKind::AddrInUse {
            "another program uses this port; stop it or change `listen` in exit.toml"
        } else if kind == ErrorKind::PermissionDenied {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE"
        } else if kind == ErrorKind::AddrNotAvailable {
            "this host has no such address; change `listen` in exit.toml"
        } else {
            "check `listen` in exit.toml"
        };
        anyhow::anyhow!("cannot listen on UDP {address}: {error}; {advice}")
    })
}
