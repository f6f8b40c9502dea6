//! Ending connections whose own address goes away. Over IPv6, retransmissions would leave by any route with the old
//! source address.

use std::{io, net::IpAddr};

use rustix::net::{AddressFamily, netlink};

use crate::netlink_request::{self, Asked, NLM_F_ACK, NLM_F_DUMP};

/// Ends every TCP connection and connected UDP socket of this host that uses one of these addresses as its own.
/// Programs see `ECONNABORTED`. Returns how many it ended: none on a kernel that cannot do that.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn end(addresses: &[IpAddr]) -> io::Result<usize> {
    let mut ended = 0;
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for protocol in [TCP, UDP] {
            for found in connections(family, protocol)? {
                // A socket of IPv6 may carry IPv4: it has a mapped address then.
                if addresses.contains(&found.source().to_canonical()) && found.end(family, protocol)? {
                    ended += 1;
                }
            }
        }
    }
    Ok(ended)
}

/// `struct inet_diag_sockid` of linux/inet_diag.h, which identifies a socket to the kernel.
struct DiagSocket {
    id: [u8; ID],
    is_ipv4: bool,
}

impl DiagSocket {
    /// Reads `struct inet_diag_msg`.
    fn parse(message: &[u8], family: AddressFamily) -> Option<Self> {
        let id = message.get(4..4 + ID)?.try_into().ok()?;
        Some(Self { id, is_ipv4: family == AddressFamily::INET })
    }

    fn source(&self) -> IpAddr {
        let mut address = [0; 16];
        address.copy_from_slice(&self.id[SOURCE..SOURCE + 16]);
        match (self.is_ipv4, address) {
            (true, [a, b, c, d, ..]) => IpAddr::from([a, b, c, d]),
            (false, address) => IpAddr::from(address),
        }
    }

    /// Returns whether the kernel ended it; the socket may be gone by now.
    fn end(&self, family: AddressFamily, protocol: u8) -> io::Result<bool> {
        // The identity includes the kernel's cookie, so a later socket with the same addresses and ports stays.
        ask(SOCK_DESTROY, NLM_F_ACK, family, protocol, &self.id)?.is_done()
    }
}

fn connections(family: AddressFamily, protocol: u8) -> io::Result<Vec<DiagSocket>> {
    // A port of zero stands for any.
    ask(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, protocol, &[0; ID])?
        .all(|kind, message| (kind == SOCK_DIAG_BY_FAMILY).then(|| DiagSocket::parse(message, family))?)
}

/// Sends `struct inet_diag_req_v2`.
fn ask(kind: u16, flags: u16, family: AddressFamily, protocol: u8, id: &[u8; ID]) -> io::Result<Asked> {
    let family = u8::try_from(family.as_raw()).map_err(io::Error::other)?;
    // No extensions, and a byte of padding.
    let mut request = vec![family, protocol, 0, 0];
    request.extend(CONNECTED.to_ne_bytes());
    request.extend(id);
    netlink_request::ask(netlink::SOCK_DIAG, kind, flags, &request)
}

/// IPPROTO_* of linux/in.h.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Constants of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// Bytes of `struct inet_diag_sockid`, and the offset of the own address in it.
const ID: usize = 48;
const SOURCE: usize = 4;
/// All states of net/tcp_states.h except TIME_WAIT, CLOSE and LISTEN, in which the kernel retransmits nothing.
const CONNECTED: u32 = 0xfff & !(1 << 6 | 1 << 7 | 1 << 10) & !1;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

    use rustix::net::SocketType;

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
