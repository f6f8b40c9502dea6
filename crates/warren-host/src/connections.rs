//! Ends connections whose local address is removed. Otherwise the kernel would send their IPv6 retransmissions by any other
//! route, with the old source address.

use std::{io, net::IpAddr};

use crate::sock_diag::{DiagSocket, FAMILIES, TCP, UDP, sockets};

/// Ends every TCP connection and connected UDP socket of this host whose local address is one of these. Programs see
/// `ECONNABORTED`. Returns the number of ended sockets, which is 0 on a kernel that cannot end sockets.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn end(addresses: &[IpAddr]) -> io::Result<usize> {
    // An IPv6 socket that carries IPv4 has an IPv4-mapped address, which is converted for the comparison.
    end_where(|found| addresses.contains(&found.address().to_canonical()))
}

/// Ends every TCP connection and connected UDP socket of this host that was made in one of these cgroups, even if its program has
/// ended. Returns the number of ended sockets, which is 0 on a kernel that does not report a socket's cgroup (before Linux 5.8).
///
/// # Errors
/// If the kernel cannot be asked.
pub(crate) fn end_in_groups(groups: &[u64]) -> io::Result<usize> {
    end_where(|found| found.cgroup.is_some_and(|group| groups.contains(&group)))
}

fn end_where(is_its: impl Fn(&DiagSocket) -> bool) -> io::Result<usize> {
    let mut ended = 0;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            for found in sockets(family, protocol, CONNECTED)?.unwrap_or_default() {
                if is_its(&found) && found.end(protocol)? {
                    ended += 1;
                }
            }
        }
    }
    Ok(ended)
}

/// All states of net/tcp_states.h except TIME_WAIT, CLOSE and LISTEN. In those three states, the kernel retransmits nothing. A
/// connected UDP socket has the state ESTABLISHED.
const CONNECTED: u32 = 0xfff & !(1 << 6 | 1 << 7 | 1 << 10) & !1;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn only_connections_from_the_address_end() {
        let own = Ipv4Addr::new(127, 66, 0, 2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = |from: Ipv4Addr| {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &std::net::SocketAddr::from((from, 0))).unwrap();
            rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
            TcpStream::from(socket)
        };
        let (ours, other) = (socket(own), socket(Ipv4Addr::LOCALHOST));
        let datagrams = UdpSocket::bind((own, 0)).unwrap();
        datagrams.connect("127.0.0.1:9").unwrap();
        if !rustix::process::geteuid().is_root() {
            return;
        }

        assert_eq!(end(&[own.into()]).unwrap(), 2);

        let is_alive =
            |stream: &TcpStream| stream.take_error().unwrap().is_none() && stream.peer_addr().is_ok();
        assert!(!is_alive(&ours) && is_alive(&other));
        assert_eq!(end(&[own.into()]).unwrap(), 0);
    }
}
