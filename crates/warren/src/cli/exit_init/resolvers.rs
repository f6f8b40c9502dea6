//! Finds resolvers for an exit's clients: the resolvers of this host, if they answer and clients can reach them.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use warren_host::dns::nameservers;

/// Files that list a host's resolvers. If the first one lists only systemd-resolved itself, the second one lists the resolvers
/// that systemd-resolved asks.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
/// A public resolver (Quad9) that does not log its clients' addresses. It is used if clients can reach none of this host's
/// resolvers.
const PUBLIC: [&str; 2] = ["9.9.9.9", "149.112.112.112"];
/// Maximum number of resolvers, which is also the C library's limit for resolv.conf(5).
const MOST: usize = 3;
const PATIENCE: Duration = Duration::from_secs(1);
const PORT: u16 = 53;
/// A query for the root's name servers, which every resolver knows (RFC 1035 section 4.1).
const QUERY: [u8; 17] = [0x57, 0x61, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// Returns this host's resolvers that clients can reach and that answer.
pub(super) fn reachable() -> Vec<IpAddr> {
    let texts = FILES.map(|file| fs::read_to_string(file).unwrap_or_default());
    let own = answering(&candidates(&texts.concat()));
    if !own.is_empty() {
        return own;
    }
    answering(&PUBLIC.iter().filter_map(|address| address.parse().ok()).collect::<Vec<_>>())
}

/// The resolvers in a file's text that clients can reach through an exit: those on the internet.
fn candidates(text: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for address in nameservers(text) {
        if is_public(&address) && !found.contains(&address) {
            found.push(address);
        }
    }
    found.truncate(MOST);
    found
}

pub(super) fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // 100.64.0.0/10 is the shared address space for carrier-grade NAT (RFC 6598).
            let is_shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            !(address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || is_shared)
        }
        IpAddr::V6(address) => {
            !(address.is_unique_local()
                || address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast())
        }
    }
}

/// The resolvers that answer in time, in the given order.
fn answering(candidates: &[IpAddr]) -> Vec<IpAddr> {
    // All resolvers are asked before the first answer is awaited, so that several silent ones together delay the result by only
    // one second.
    let deadline = Instant::now() + PATIENCE;
    let sockets: Vec<(IpAddr, UdpSocket)> =
        candidates.iter().filter_map(|address| Some((*address, ask(*address).ok()?))).collect();
    sockets.iter().filter(|(_, socket)| has_answered(socket, deadline)).map(|(address, _)| *address).collect()
}

fn ask(resolver: IpAddr) -> std::io::Result<UdpSocket> {
    let any = match resolver {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(SocketAddr::new(resolver, PORT))?;
    socket.send(&QUERY)?;
    Ok(socket)
}

fn has_answered(socket: &UdpSocket, deadline: Instant) -> bool {
    // The time is at least a millisecond, because a socket does not accept a timeout of zero. This is enough to read an answer
    // that has already arrived.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut answer = [0; 512];
    let length = socket.set_read_timeout(Some(left)).and_then(|()| socket.recv(&mut answer));
    // An answer has the query's ID, and the response bit set.
    length.is_ok_and(|length| length >= QUERY.len()) && answer[..2] == QUERY[..2] && answer[2] & 0x80 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resolvers_of_the_internet_are_candidates_each_once() {
        let text = "nameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver 169.254.169.254\nnameserver 100.100.100.100\n\
                    search lan\nnameserver 198.51.100.53\nnameserver fe80::1%eth0\nnameserver fd00::1\n\
                    nameserver 2001:db8::53\nnameserver 198.51.100.53\n";
        let expected: Vec<IpAddr> = vec!["198.51.100.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        assert_eq!(candidates(text), expected);
    }

    #[test]
    fn resolver_that_is_silent_is_not_taken() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(silent.local_addr().unwrap()).unwrap();
        assert!(!has_answered(&socket, Instant::now() + Duration::from_millis(20)));

        silent.connect(socket.local_addr().unwrap()).unwrap();
        let mut answer = QUERY;
        answer[2] |= 0x80;
        silent.send(&answer).unwrap();
        assert!(has_answered(&socket, Instant::now() + Duration::from_secs(5)));
    }
}
