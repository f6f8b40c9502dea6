//! The exit's UDP sockets.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use anyhow::Context as _;
use warren_quic::socket::{self, SocketConfig};

/// Binds every listen address once for each worker, and returns each worker's sockets.
///
/// IPv6 sockets take IPv6 alone, so that `0.0.0.0` and `[::]` can both be bound. The caller must hold the daemon's lock: otherwise
/// another exit of this user could join a shared port unnoticed.
///
/// # Errors
/// A message with the address and what to do. No socket stays bound.
pub(crate) fn bind(listen: &[SocketAddr], workers: u8) -> anyhow::Result<Vec<Vec<UdpSocket>>> {
    let mut sockets: Vec<Vec<UdpSocket>> = (0..workers).map(|_| Vec::new()).collect();
    for address in listen {
        for (own, socket) in sockets.iter_mut().zip(bind_shared(*address, workers)?) {
            own.push(socket);
        }
    }
    Ok(sockets)
}

/// Binds an address for each worker, in the workers' order. The kernel numbers the sockets in the order in which they are bound,
/// and steering relies on these numbers. So none of the sockets may be closed without the others.
fn bind_shared(address: SocketAddr, workers: u8) -> anyhow::Result<Vec<UdpSocket>> {
    // Binding a socket that does not share the port fails if another program has the port.
    let alone = bind_one(SocketConfig::new(address))?;
    if workers == 1 {
        return Ok(vec![alone]);
    }
    // The socket that does not share the port must be closed. A port can be shared only if all of its sockets ask for that
    // (`SO_REUSEPORT`).
    drop(alone);
    let config = SocketConfig { reuse_port: true, ..SocketConfig::new(address) };
    let first = bind_one(config.clone())?;
    // The steering program applies to all sockets of the port. It must be in place before a second socket exists, which could
    // receive packets of the first socket's connections.
    socket::steer(&first, workers).with_context(|| {
        format!("cannot steer UDP {address} to workers; write workers = 1 in [transport] of exit.toml")
    })?;
    let mut sockets = vec![first];
    for _ in 1..workers {
        sockets.push(bind_one(config.clone())?);
    }
    Ok(sockets)
}

fn bind_one(config: SocketConfig) -> anyhow::Result<UdpSocket> {
    let address = config.address;
    socket::bind(config).map_err(|error| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_socket_for_every_address() {
        let free = socket::bind(SocketConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        for workers in [1, 3] {
            let sockets =
                bind(&[address, SocketAddr::new("::1".parse().unwrap(), address.port())], workers).unwrap();
            assert_eq!(sockets.len(), usize::from(workers));
            assert!(sockets.iter().all(|own| own.len() == 2));
            assert!(sockets.iter().all(|own| own[0].local_addr().unwrap() == address));
        }
    }

    #[test]
    fn a_port_that_another_shares_is_taken_all_the_same() {
        let shared = SocketConfig { reuse_port: true, ..SocketConfig::new("127.0.0.1:0".parse().unwrap()) };
        let other = socket::bind(shared).unwrap();
        let error = bind(&[other.local_addr().unwrap()], 2).unwrap_err().to_string();
        assert!(error.contains("another program uses this port"), "{error}");
    }
}
