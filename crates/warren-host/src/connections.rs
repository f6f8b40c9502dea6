//! Ending connections from an address that goes away: what IPv6 sends again leaves by any route with its old source.

use std::{io, net::IpAddr};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netlink::{self, SocketAddrNetlink},
        recv, sendto, socket_with,
    },
};

/// Ends every TCP connection and connected UDP socket of this host that has one of these addresses as its own; programs
/// see `ECONNABORTED`. Returns how many. A kernel that cannot do that ends none.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn end(addresses: &[IpAddr]) -> io::Result<usize> {
    let mut ended = 0;
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for protocol in [TCP, UDP] {
            for found in connections(family, protocol)? {
                if addresses.contains(&found.source().to_canonical()) && found.end(family, protocol)? {
                    ended += 1;
                }
            }
        }
    }
    Ok(ended)
}

/// `struct inet_diag_sockid` of linux/inet_diag.h, by which the kernel knows one socket.
struct Connection {
    id: [u8; ID],
    is_ipv4: bool,
}

impl Connection {
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

    /// Returns whether the kernel has done so; the socket may be gone by now.
    fn end(&self, family: AddressFamily, protocol: u8) -> io::Result<bool> {
        let asked = ask(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, family, protocol, &self.id)?;
        let mut buffer = [0; 4096];
        let length = recv(&asked, &mut buffer[..], RecvFlags::empty())?.0;
        let answer = Messages(buffer.get(..length).unwrap_or_default()).next();
        Ok(matches!(answer, Some((NLMSG_ERROR, [0, 0, 0, 0, ..]))))
    }
}

fn connections(family: AddressFamily, protocol: u8) -> io::Result<Vec<Connection>> {
    let asked = ask(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family, protocol, &[0; ID])?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let length = recv(&asked, &mut buffer[..], RecvFlags::empty())?.0;
        for (kind, message) in Messages(buffer.get(..length).unwrap_or_default()) {
            match kind {
                SOCK_DIAG_BY_FAMILY => found.extend(Connection::parse(message, family)),
                NLMSG_ERROR => {
                    let code = message.first_chunk().map(|code| i32::from_ne_bytes(*code));
                    // A kernel without it, or without IPv6, has nothing to end.
                    return match code.map(|code| Errno::from_raw_os_error(-code)) {
                        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => Ok(Vec::new()),
                        Some(error) => Err(error.into()),
                        None => Err(io::ErrorKind::InvalidData.into()),
                    };
                }
                NLMSG_DONE => return Ok(found),
                _ => {}
            }
        }
        if length == 0 {
            return Ok(found);
        }
    }
}

/// Sends `struct inet_diag_req_v2`.
fn ask(
    kind: u16,
    flags: u16,
    family: AddressFamily,
    protocol: u8,
    id: &[u8; ID],
) -> io::Result<rustix::fd::OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let family = u8::try_from(family.as_raw()).map_err(io::Error::other)?;
    let mut request = Vec::with_capacity(HEADER + 8 + ID);
    request.extend(72_u32.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, protocol, 0, 0]);
    request.extend(CONNECTED.to_ne_bytes());
    request.extend(id);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// The messages of one datagram: their types and what follows their headers.
pub(crate) struct Messages<'m>(pub(crate) &'m [u8]);

impl<'m> Iterator for Messages<'m> {
    type Item = (u16, &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::try_from(u32::from_ne_bytes(*self.0.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(self.0.get(4..6)?.try_into().ok()?);
        let message = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    }
}

/// IPPROTO_* of linux/in.h.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// `struct nlmsghdr`, and what linux/netlink.h and linux/sock_diag.h number.
pub(crate) const HEADER: usize = 16;
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// Bytes of `struct inet_diag_sockid`, and where in it the own address begins.
const ID: usize = 48;
const SOURCE: usize = 4;
/// All states of net/tcp_states.h but those in which nothing is sent by itself: TIME_WAIT, CLOSE and LISTEN.
const CONNECTED: u32 = 0xfff & !(1 << 6 | 1 << 7 | 1 << 10) & !1;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

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
