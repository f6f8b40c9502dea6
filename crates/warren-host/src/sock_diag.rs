//! Sockets of this host as the kernel's socket diagnosis lists them (sock_diag(7)).

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::net::{AddressFamily, netlink};

use crate::netlink_request::{self, Asked, NLM_F_ACK, NLM_F_DUMP};

/// The address families. The kernel lists the sockets of each family separately.
pub(crate) const FAMILIES: [AddressFamily; 2] = [AddressFamily::INET, AddressFamily::INET6];
/// IPPROTO_* of linux/in.h.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// A socket of TCP or UDP.
pub(crate) struct DiagSocket {
    family: AddressFamily,
    /// `struct inet_diag_sockid` of linux/inet_diag.h, which identifies a socket to the kernel.
    id: [u8; ID],
    /// The user ID of the socket's owner.
    pub(crate) user: u32,
    /// The ID of the cgroup in which the socket was created, if the kernel reports it (since Linux 5.8).
    pub(crate) cgroup: Option<u64>,
}

/// Lists the sockets in some states, which are a bit mask of net/tcp_states.h. `None` if this kernel does not support it.
///
/// The kernel skips tables that cannot contain these states. So the time to list the listeners does not depend on
/// the number of connections.
///
/// # Errors
/// If the kernel cannot be asked.
pub(crate) fn sockets(
    family: AddressFamily,
    protocol: u8,
    states: u32,
) -> io::Result<Option<Vec<DiagSocket>>> {
    ask(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, (family, protocol), states, &[0; ID])?
        .all(|kind, message| (kind == SOCK_DIAG_BY_FAMILY).then(|| DiagSocket::parse(message, family))?)
}

/// Returns the user ID of the owner of this host's TCP socket with these addresses. `None` if there is no such socket, or this
/// kernel does not support the request.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn owner(own: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut id = [0; ID];
    id[0..2].copy_from_slice(&own.port().to_be_bytes());
    id[2..4].copy_from_slice(&peer.port().to_be_bytes());
    id[ADDRESS_AT..ADDRESS_AT + 16].copy_from_slice(&sixteen(own.ip()));
    id[ADDRESS_AT + 16..ADDRESS_AT + 32].copy_from_slice(&sixteen(peer.ip()));
    // No interface and no cookie (INET_DIAG_NOCOOKIE), so any socket with these addresses matches.
    id[COOKIE_AT..].fill(0xff);
    // Asks for an acknowledgement, because a single message would otherwise have no end mark.
    let asked = ask(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, (family, TCP), u32::MAX, &id)?;
    asked
        .first(|kind, message| (kind == SOCK_DIAG_BY_FAMILY).then(|| DiagSocket::parse(message, family))?)
        .map(|socket| socket.map(|socket| socket.user))
}

/// Encodes an address for the kernel, which stores IPv4 in the first four of sixteen bytes.
fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

impl DiagSocket {
    /// Reads `struct inet_diag_msg`.
    fn parse(message: &[u8], family: AddressFamily) -> Option<Self> {
        let id = message.get(ID_AT..ID_AT + ID)?.try_into().ok()?;
        let user = u32::from_ne_bytes(message.get(USER_AT..USER_AT + 4)?.try_into().ok()?);
        Some(Self { family, id, user, cgroup: cgroup(message.get(ATTRIBUTES_AT..)?) })
    }

    /// The socket's own address.
    pub(crate) fn address(&self) -> IpAddr {
        let mut address = [0; 16];
        address.copy_from_slice(&self.id[ADDRESS_AT..ADDRESS_AT + 16]);
        match (self.family == AddressFamily::INET, address) {
            // IPv4 uses the first four of sixteen bytes.
            (true, [a, b, c, d, ..]) => IpAddr::from([a, b, c, d]),
            (false, address) => IpAddr::from(address),
        }
    }

    /// The socket's own port.
    pub(crate) fn port(&self) -> u16 {
        // The port is the first field, in network byte order.
        u16::from_be_bytes([self.id[0], self.id[1]])
    }

    /// Ends the socket. Returns false if the kernel has not ended it, for example because the socket no longer exists.
    pub(crate) fn end(&self, protocol: u8) -> io::Result<bool> {
        // The id contains the kernel's cookie of this socket, so a later socket with the same addresses is not
        // ended.
        ask(SOCK_DESTROY, NLM_F_ACK, (self.family, protocol), u32::MAX, &self.id)?.is_done()
    }
}

/// Finds the cgroup's ID among the attributes after `struct inet_diag_msg` (netlink(7)).
fn cgroup(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let half = |at: usize| Some(u16::from_ne_bytes(attributes.get(at..at + 2)?.try_into().ok()?));
        let (length, kind) = (usize::from(half(0)?), half(2)?);
        let content = attributes.get(ATTRIBUTE_HEADER..length)?;
        if kind == CGROUP_ID {
            return Some(u64::from_ne_bytes(content.try_into().ok()?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Sends `struct inet_diag_req_v2`.
fn ask(
    kind: u16,
    flags: u16,
    (family, protocol): (AddressFamily, u8),
    states: u32,
    id: &[u8; ID],
) -> io::Result<Asked> {
    let family = u8::try_from(family.as_raw()).map_err(io::Error::other)?;
    let mut request = vec![family, protocol, 0, 0];
    request.extend(states.to_ne_bytes());
    request.extend(id);
    netlink_request::ask(netlink::SOCK_DIAG, kind, flags, &request)
}

/// Constants of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// The size of `struct inet_diag_sockid`, and the offsets of it and of the user ID in `struct inet_diag_msg`.
const ID: usize = 48;
const ID_AT: usize = 4;
const USER_AT: usize = 64;
/// Size of `struct inet_diag_msg`, which the attributes follow, and of an attribute's header, in bytes.
const ATTRIBUTES_AT: usize = 72;
const ATTRIBUTE_HEADER: usize = 4;
/// INET_DIAG_CGROUP_ID of linux/inet_diag.h.
const CGROUP_ID: u16 = 21;
/// The offset of the socket's own address in `struct inet_diag_sockid`, after both ports.
const ADDRESS_AT: usize = 4;
/// The offset of the kernel's cookie at the end of `struct inet_diag_sockid`.
const COOKIE_AT: usize = 40;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_the_user_that_made_it() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A container may lack IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            assert_eq!(owner(own, peer).unwrap(), Some(rustix::process::geteuid().as_raw()));
            let mut other = own;
            other.set_port(1);
            assert_eq!(owner(other, peer).unwrap(), None, "no such socket");
        }
    }
}
