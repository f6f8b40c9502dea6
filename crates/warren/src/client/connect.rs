//! Finding the exit: its addresses by name, kept when a look-up fails later, and a marked socket for each connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use warren_host::CARRIER_MARK;
use warren_quic::socket::{self, SocketConfig};

use crate::config::Endpoint;

/// A resolver that takes longer is treated as one that failed.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The exit's last good addresses and which one the next connection tries.
pub(crate) struct Resolver {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    next: usize,
}

impl Resolver {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, addresses: Vec::new(), next: 0 }
    }

    /// The address in use, once known.
    pub(crate) fn current(&self) -> Option<SocketAddr> {
        self.addresses.get(self.next).copied()
    }

    /// Takes the answer of [`lookup`]; an answer without addresses leaves the last good ones.
    ///
    /// # Errors
    /// A sentence, when there is no address from before either.
    pub(crate) fn learn(&mut self, answer: Result<Vec<SocketAddr>, String>) -> Result<(), String> {
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                let current = self.current();
                self.next = addresses.iter().position(|address| Some(*address) == current).unwrap_or(0);
                self.addresses = addresses;
                Ok(())
            }
            Ok(_) if self.addresses.is_empty() => Err(format!("{} has no address", self.endpoint.host())),
            Err(error) if self.addresses.is_empty() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Moves on to the next address after a connection failed on this one.
    pub(crate) fn failed(&mut self, address: SocketAddr) {
        if self.current() == Some(address) && !self.addresses.is_empty() {
            self.next = (self.next + 1) % self.addresses.len();
        }
    }
}

/// Looks an endpoint's name up with the system's resolver; an address needs no look-up.
pub(crate) async fn lookup(endpoint: Endpoint) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = (endpoint.host().to_owned(), endpoint.port());
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    match tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host.as_str(), port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(format!("cannot resolve {host}: {error}; check the name and this host's DNS")),
        Err(_) => Err(format!("cannot resolve {host}: no answer within 3 s; check this host's DNS")),
    }
}

/// A carrier socket of the exit address's family, marked before its first packet.
///
/// # Errors
/// As the kernel gives them; EPERM means that the mark needs CAP_NET_ADMIN.
pub(crate) fn bind(remote: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = match remote {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    socket::bind(SocketConfig { mark: Some(CARRIER_MARK), ..SocketConfig::new(any) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver() -> Resolver {
        Resolver::new("exit.example.net:443".parse().unwrap())
    }

    fn addresses() -> Vec<SocketAddr> {
        vec!["192.0.2.1:443".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()]
    }

    #[test]
    fn last_good_addresses_survive_a_failing_look_up() {
        let mut resolver = resolver();
        assert!(resolver.learn(Err("no resolver".to_owned())).is_err());
        assert!(resolver.learn(Ok(addresses())).is_ok());
        assert!(resolver.learn(Err("no resolver".to_owned())).is_ok());
        assert!(resolver.learn(Ok(Vec::new())).is_ok());
        assert_eq!(resolver.current(), addresses().first().copied());
    }

    #[test]
    fn failure_moves_to_the_next_address_once_for_all_connections() {
        let mut resolver = resolver();
        resolver.learn(Ok(addresses())).unwrap();
        let first = resolver.current().unwrap();
        resolver.failed(first);
        resolver.failed(first);
        assert_eq!(resolver.current(), addresses().get(1).copied());
    }

    #[test]
    fn new_answer_keeps_the_address_in_use() {
        let mut resolver = resolver();
        resolver.learn(Ok(addresses())).unwrap();
        resolver.failed(resolver.current().unwrap());
        let mut reversed = addresses();
        reversed.reverse();
        resolver.learn(Ok(reversed)).unwrap();
        assert_eq!(resolver.current(), addresses().get(1).copied());
    }

    #[tokio::test]
    async fn address_needs_no_look_up() {
        let found = lookup("192.0.2.7:4433".parse().unwrap()).await.unwrap();
        assert_eq!(found, vec!["192.0.2.7:4433".parse().unwrap()]);
    }
}
