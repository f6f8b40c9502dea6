//! Checks that traffic flows, by ICMP echo requests to the exit's inner address.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
    sendmsg, setsockopt,
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use warren_packet::checksum::Sum;
use warren_session::client::SessionGrant;

/// How long to wait for the reply to the first echo request. The wait doubles with each further request.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

// ICMP types of RFC 792 and RFC 4443.
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Number of sockets of each address family. Two sessions are probed at once during a move, and a probe that was aborted returns
/// its socket a moment later.
const SOCKETS: usize = 4;
/// A classic BPF program that accepts no packet (BPF_RET | BPF_K, linux/filter.h). Without this filter, an idle raw socket would
/// queue all ICMP packets that the host receives.
const DEAF: &[SockFilter] = &[SockFilter::new(0x06, 0, 0, 0)];

/// Raw sockets for echo requests. They are made before the sandbox, which forbids new ones. Each request names its device and
/// source address, so any socket can send any request of its address family. The sockets are never bound or connected, because
/// they are reused for different devices and addresses: binding to another device needs privileges that the sandbox has dropped,
/// and a socket connected again would receive nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct EchoSockets(Arc<Mutex<Vec<EchoSocket>>>);

#[derive(Debug)]
struct EchoSocket {
    domain: Domain,
    /// The socket. `None` while it is lent.
    socket: Option<Socket>,
}

impl EchoSockets {
    /// Makes the sockets, or none if this process may not.
    pub(crate) fn make() -> Self {
        let mut sockets = Vec::new();
        for (domain, protocol) in [(Domain::IPV4, Protocol::ICMPV4), (Domain::IPV6, Protocol::ICMPV6)] {
            for _ in 0..SOCKETS {
                let socket = raw_socket(domain, protocol);
                match socket.and_then(|socket| socket.attach_filter(DEAF).map(|()| socket)) {
                    Ok(socket) => sockets.push(EchoSocket { domain, socket: Some(socket) }),
                    Err(error) => tracing::debug!("no socket for echo requests: {error}"),
                }
            }
        }
        Self(Arc::new(Mutex::new(sockets)))
    }

    /// Lends a socket of an address family.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if this process may not have any, [`io::ErrorKind::ResourceBusy`] if all are on loan.
    /// Otherwise the kernel's error.
    fn lend(&self, domain: Domain) -> io::Result<Lent> {
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut error = io::ErrorKind::PermissionDenied;
        for (place, own) in sockets.iter_mut().enumerate().filter(|(_, own)| own.domain == domain) {
            error = io::ErrorKind::ResourceBusy;
            if let Some(socket) = own.socket.take() {
                drop(sockets);
                let lent = Lent { socket: Some(socket), place, owner: self.clone() };
                lent.socket()?.detach_filter()?;
                return Ok(lent);
            }
        }
        Err(error.into())
    }
}

/// A lent socket. Dropping this returns the socket to its owner.
struct Lent {
    /// The socket. `None` only after it was returned.
    socket: Option<Socket>,
    place: usize,
    owner: EchoSockets,
}

impl Lent {
    fn socket(&self) -> io::Result<&Socket> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let socket = self.socket.take();
        // If the filter cannot be attached, the only harm is that the socket queues packets until it is lent again.
        drop(socket.as_ref().map(|socket| socket.attach_filter(DEAF)));
        let mut sockets = self.owner.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = sockets.get_mut(self.place) {
            own.socket = socket;
        }
    }
}

fn raw_socket(domain: Domain, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    // With this option, the kernel reports for each message the device through which it came.
    if domain == Domain::IPV4 {
        setsockopt(&socket, Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
    }
    Ok(socket)
}

/// The identifier of echo requests, in network order.
pub(crate) type Identifier = [u8; 2];

/// The inner addresses between which an echo travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    pub source: IpAddr,
    pub gateway: IpAddr,
}

impl Probe {
    /// Returns the probe for a Welcome, over IPv4 if possible. `None` if the Welcome has no pair of addresses for one.
    pub(crate) fn of(welcome: &SessionGrant) -> Option<Self> {
        let ipv4 = welcome
            .ipv4
            .zip(welcome.gateway_ipv4)
            .map(|((source, _), gateway)| (source.into(), gateway.into()));
        let ipv6 = welcome
            .ipv6
            .zip(welcome.gateway_ipv6)
            .map(|((source, _), gateway)| (source.into(), gateway.into()));
        ipv4.or(ipv6).map(|(source, gateway)| Self { source, gateway })
    }

    /// Draws a random identifier for echo requests, because other programs may ping the exit's inner address too.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub(crate) fn identifier() -> io::Result<Identifier> {
        let mut identifier = [0; 2];
        getrandom::fill(&mut identifier).map_err(io::Error::other)?;
        Ok(identifier)
    }

    /// Sends echo requests with a given identifier through a device, with one of the sockets, until one is answered through the
    /// same device.
    ///
    /// # Errors
    /// When there is no socket for the requests, or reading from it fails. Such an error is not a failure of the tunnel.
    pub(crate) async fn answered_as(
        self,
        sockets: EchoSockets,
        device: String,
        identifier: Identifier,
    ) -> io::Result<()> {
        let lent = sockets.lend(self.domain())?;
        let socket = lent.socket()?.try_clone()?;
        let device = rustix::net::netdevice::name_to_index(&socket, &device)?;
        // tokio has no type for raw sockets. They send and receive like UDP sockets.
        let socket = UdpSocket::from_std(StdSocket::from(socket))?;
        let mut wait = FIRST_WAIT;
        loop {
            if let Err(error) = self.send(&socket, device, identifier) {
                // If a request cannot be sent now, it counts as unanswered.
                tracing::trace!("cannot send an echo request: {error}");
            }
            if let Ok(answered) = tokio::time::timeout(wait, self.reply(&socket, device, identifier)).await {
                return answered;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn domain(self) -> Domain {
        Domain::for_address(SocketAddr::new(self.gateway, 0))
    }

    /// Sends an echo request through a given device. The probe must test the tunnel, no matter where the routes lead (ip(7),
    /// ipv6(7): IP_PKTINFO, IPV6_PKTINFO).
    fn send(self, socket: &UdpSocket, device: u32, identifier: Identifier) -> io::Result<usize> {
        let (echo, socket) = (self.echo(identifier), socket.as_raw_fd());
        let (echo, flags) = ([IoSlice::new(&echo)], MsgFlags::MSG_DONTWAIT);
        let sent = match (self.source, self.gateway) {
            (IpAddr::V4(source), IpAddr::V4(gateway)) => {
                let none = libc::in_addr { s_addr: 0 };
                let source = libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
                let device = i32::try_from(device).map_err(io::Error::other)?;
                let way = libc::in_pktinfo { ipi_ifindex: device, ipi_spec_dst: source, ipi_addr: none };
                let to = SockaddrIn::from(SocketAddrV4::new(gateway, 0));
                sendmsg(socket, &echo, &[ControlMessage::Ipv4PacketInfo(&way)], flags, Some(&to))
            }
            (IpAddr::V6(source), IpAddr::V6(gateway)) => {
                let source = libc::in6_addr { s6_addr: source.octets() };
                let way = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: device };
                let to = SockaddrIn6::from(SocketAddrV6::new(gateway, 0, 0, 0));
                sendmsg(socket, &echo, &[ControlMessage::Ipv6PacketInfo(&way)], flags, Some(&to))
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        sent.map_err(io::Error::from)
    }

    /// An echo request without data. The kernel fills in the checksum of ICMPv6.
    fn echo(self, [high, low]: Identifier) -> [u8; 8] {
        if self.gateway.is_ipv6() {
            return [ECHO_REQUEST_V6, 0, 0, 0, high, low, 0, 0];
        }
        let [c0, c1] = Sum::of(&[ECHO_REQUEST_V4, 0, 0, 0, high, low, 0, 0]).checksum().to_be_bytes();
        [ECHO_REQUEST_V4, 0, c0, c1, high, low, 0, 0]
    }

    async fn reply(self, socket: &UdpSocket, device: u32, identifier: Identifier) -> io::Result<()> {
        let mut buffer = [0; 1500];
        loop {
            let received =
                socket.async_io(Interest::READABLE, || receive(socket.as_raw_fd(), &mut buffer)).await?;
            let message = buffer.get(..received.length).unwrap_or_default();
            if received.from != Some(self.gateway) || !self.is_reply(message, identifier) {
                continue;
            }
            if received.device == Some(device) {
                return Ok(());
            }
            // A host on the LAN could send the same message, so this reply does not prove that the tunnel
            // works.
            tracing::debug!(
                "ignored an echo reply from {} that did not come through the tunnel",
                self.gateway
            );
        }
    }

    /// Whether a message is the reply to this probe. Raw IPv4 sockets receive the IP header as well, raw IPv6 sockets do not.
    fn is_reply(self, message: &[u8], identifier: Identifier) -> bool {
        // The low four bits of an IPv4 packet's first byte count the header's length in words of four bytes (RFC 791 section 3.1).
        let header = match self.gateway {
            IpAddr::V4(_) => message.first().map_or(0, |first| usize::from(first & 0x0f) * 4),
            IpAddr::V6(_) => 0,
        };
        let wanted = if self.gateway.is_ipv4() { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
        matches!(message.get(header..), Some([kind, _, _, _, high, low, ..]) if *kind == wanted && [*high, *low] == identifier)
    }
}

/// A message that a raw socket has received.
struct Received {
    length: usize,
    from: Option<IpAddr>,
    /// The index of the device through which the message came.
    device: Option<u32>,
}

fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<Received> {
    // The buffer has room for the larger of the two kinds. `in_pktinfo` is smaller.
    let mut ancillary = nix::cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket,
        &mut parts,
        Some(ancillary.as_mut_slice()),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let ipv4 = |from: &SockaddrStorage| from.as_sockaddr_in().map(|from| IpAddr::V4(from.ip()));
    let ipv6 = |from: &SockaddrStorage| from.as_sockaddr_in6().map(|from| IpAddr::V6(from.ip()));
    Ok(Received {
        length: message.bytes,
        from: message.address.as_ref().and_then(|from| ipv4(from).or_else(|| ipv6(from))),
        device: message.cmsgs()?.find_map(|way| device_of(&way)),
    })
}

fn device_of(message: &ControlMessageOwned) -> Option<u32> {
    if let ControlMessageOwned::Ipv4PacketInfo(way) = message {
        return u32::try_from(way.ipi_ifindex).ok();
    }
    if let ControlMessageOwned::Ipv6PacketInfo(way) = message { Some(way.ipi6_ifindex) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(source: &str, gateway: &str) -> Probe {
        Probe { source: source.parse().unwrap(), gateway: gateway.parse().unwrap() }
    }

    #[test]
    fn echo_has_a_right_checksum() {
        let echo = probe("10.66.0.2", "10.66.0.1").echo([0x12, 0x34]);
        assert_eq!(Sum::of(&echo).checksum(), 0);
    }

    #[test]
    fn only_the_reply_to_this_probe_counts() {
        let probe = probe("10.66.0.2", "10.66.0.1");
        let mut message = vec![0x45; 20];
        message.extend([ECHO_REPLY_V4, 0, 0, 0, 7, 8, 0, 0]);
        assert!(probe.is_reply(&message, [7, 8]));
        assert!(!probe.is_reply(&message, [7, 9]));
        message[20] = ECHO_REQUEST_V4;
        assert!(!probe.is_reply(&message, [7, 8]));
        assert!(!probe.is_reply(&[], [7, 8]));
        assert!(!probe.is_reply(&[0x4f], [7, 8]));
    }

    /// The kernel answers through the loopback device, as an exit answers through the tunnel's device.
    #[tokio::test]
    async fn only_a_reply_through_the_probes_own_device_counts() {
        let sockets = EchoSockets::make();
        if !rustix::process::geteuid().is_root() {
            println!("skipped: raw sockets need root");
            return;
        }
        for address in ["127.0.0.1", "::1"] {
            let probe = probe(address, address);
            let lent = sockets.lend(probe.domain()).unwrap();
            let socket = lent.socket().unwrap().try_clone().unwrap();
            let device = rustix::net::netdevice::name_to_index(&socket, "lo").unwrap();
            let socket = UdpSocket::from_std(StdSocket::from(socket)).unwrap();
            probe.send(&socket, device, [1, 2]).unwrap();
            let other = probe.reply(&socket, device + 1, [1, 2]);
            let other = tokio::time::timeout(Duration::from_millis(300), other).await;
            assert!(other.is_err(), "{address}: {other:?}");
            // As a control, the same reply counts if it is expected through the loopback device.
            probe.send(&socket, device, [1, 2]).unwrap();
            let own =
                tokio::time::timeout(Duration::from_secs(5), probe.reply(&socket, device, [1, 2])).await;
            own.unwrap().unwrap();
        }
    }

    #[test]
    fn ipv6_reply_has_no_ip_header() {
        let probe = probe("fd00::2", "fd00::1");
        assert!(probe.is_reply(&[ECHO_REPLY_V6, 0, 0, 0, 7, 8, 0, 0], [7, 8]));
    }
}
