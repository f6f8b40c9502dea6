//! Checks that traffic flows, by ICMP echo requests to the exit's inner address.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::UdpSocket;
use warren_packet::checksum::Sum;
use warren_session::client::SessionGrant;

/// How long the first echo request waits for its reply. The wait doubles with each further request.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

// ICMP types of RFC 792 and RFC 4443.
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Number of sockets of each address family. A socket serves one pair of addresses and one device for good, because only the
/// first binding to a device needs no rights. A move needs another socket only if these have changed.
const SOCKETS: usize = 12;
/// Number of sockets of each family that are kept for moves.
pub(crate) const KEPT_FOR_MOVES: usize = 8;
/// A classic BPF program that accepts no packet (BPF_RET | BPF_K, linux/filter.h). Without it, an idle raw socket would queue all
/// of the host's ICMP packets.
const DEAF: &[SockFilter] = &[SockFilter::new(0x06, 0, 0, 0)];

/// Raw sockets for echo requests. They are made before the sandbox, which forbids new ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct EchoSockets(Arc<Mutex<Vec<EchoSocket>>>);

#[derive(Debug)]
struct EchoSocket {
    domain: Domain,
    socket: Socket,
    /// The probe that it was first used for, and the index of its device.
    aim: Option<(Probe, u32)>,
}

impl EchoSockets {
    /// Makes the sockets, or none if this process may not.
    pub(crate) fn make() -> Self {
        let mut sockets = Vec::new();
        for (domain, protocol) in [(Domain::IPV4, Protocol::ICMPV4), (Domain::IPV6, Protocol::ICMPV6)] {
            for _ in 0..SOCKETS {
                let socket = raw_socket(domain, protocol);
                match socket.and_then(|socket| socket.attach_filter(DEAF).map(|()| socket)) {
                    Ok(socket) => sockets.push(EchoSocket { domain, socket, aim: None }),
                    Err(error) => tracing::debug!("no socket for echo requests: {error}"),
                }
            }
        }
        Self(Arc::new(Mutex::new(sockets)))
    }

    /// Lends a socket that sends this probe through a device.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if this process may not have any, [`io::ErrorKind::ResourceBusy`] if all but those that are kept
    /// serve other addresses or devices. Otherwise the kernel's error.
    fn lend(&self, probe: Probe, device: &str, kept: usize) -> io::Result<Lent> {
        let domain = probe.domain();
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let any =
            sockets.iter().find(|socket| socket.domain == domain).ok_or(io::ErrorKind::PermissionDenied)?;
        let aim = (probe, rustix::net::netdevice::name_to_index(&any.socket, device)?);
        let place = |wanted| sockets.iter().position(|of| of.domain == domain && of.aim == wanted);
        let unused = sockets.iter().filter(|of| of.domain == domain && of.aim.is_none()).count();
        let unused = || place(None).filter(|_| unused > kept);
        let place = place(Some(aim)).or_else(unused).ok_or(io::ErrorKind::ResourceBusy)?;
        if let Some(free) = sockets.get_mut(place).filter(|socket| socket.aim.is_none()) {
            probe.bind(&free.socket, device)?;
            free.aim = Some(aim);
        }
        let own = sockets.swap_remove(place);
        drop(sockets);
        let lent = Lent { socket: Some(own), owner: self.clone() };
        if let Some(own) = &lent.socket {
            probe.connect(&own.socket)?;
            own.socket.detach_filter()?;
        }
        Ok(lent)
    }
}

/// A socket on loan. Dropping it returns the socket to its owner.
struct Lent {
    /// `None` only once it was given back.
    socket: Option<EchoSocket>,
    owner: EchoSockets,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let socket = self.socket.take().filter(|socket| socket.socket.attach_filter(DEAF).is_ok());
        self.owner.0.lock().unwrap_or_else(PoisonError::into_inner).extend(socket);
    }
}

fn raw_socket(domain: Domain, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
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

    /// Draws an identifier for echo requests. Other programs may ping the exit's inner address too.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub(crate) fn identifier() -> io::Result<Identifier> {
        let mut identifier = [0; 2];
        getrandom::fill(&mut identifier).map_err(io::Error::other)?;
        Ok(identifier)
    }

    /// Sends echo requests with a given identifier through a device, with one of the sockets, until one is answered. `kept` is the number of
    /// unused sockets that must be left for others.
    ///
    /// # Errors
    /// When there is no socket for the requests, or reading from it fails. That says nothing about the tunnel.
    pub(crate) async fn answered_as(
        self,
        sockets: EchoSockets,
        kept: usize,
        device: String,
        identifier: Identifier,
    ) -> io::Result<()> {
        let lent = sockets.lend(self, &device, kept)?;
        let Some(own) = &lent.socket else { return Err(io::ErrorKind::PermissionDenied.into()) };
        self.answered_through(own.socket.try_clone()?, identifier).await
    }

    async fn answered_through(self, socket: Socket, identifier: Identifier) -> io::Result<()> {
        // tokio has no type for raw sockets. A connected raw socket sends and receives like a connected UDP socket.
        let socket = UdpSocket::from_std(StdSocket::from(socket))?;
        let mut wait = FIRST_WAIT;
        loop {
            // A request that cannot be sent now counts as not answered.
            drop(socket.send(&self.echo(identifier)).await);
            if let Ok(answered) = tokio::time::timeout(wait, self.reply(&socket, identifier)).await {
                return answered;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn domain(self) -> Domain {
        Domain::for_address(SocketAddr::new(self.gateway, 0))
    }

    /// Makes a socket send from the inner address, through a device.
    fn bind(self, socket: &Socket, device: &str) -> io::Result<()> {
        // First, because it fails if the device does not have the address yet, and can be tried again.
        socket.bind(&SocketAddr::new(self.source, 0).into())?;
        // The probe is to show that the tunnel carries packets, wherever the routes lead.
        socket.bind_device(Some(device.as_bytes()))
    }

    /// Makes a socket send to the exit's inner address.
    fn connect(self, socket: &Socket) -> io::Result<()> {
        socket.connect(&SocketAddr::new(self.gateway, 0).into())
    }

    /// An echo request without data. The kernel fills in the checksum of ICMPv6.
    fn echo(self, [high, low]: Identifier) -> [u8; 8] {
        if self.gateway.is_ipv6() {
            return [ECHO_REQUEST_V6, 0, 0, 0, high, low, 0, 0];
        }
        let [c0, c1] = Sum::of(&[ECHO_REQUEST_V4, 0, 0, 0, high, low, 0, 0]).checksum().to_be_bytes();
        [ECHO_REQUEST_V4, 0, c0, c1, high, low, 0, 0]
    }

    async fn reply(self, socket: &UdpSocket, identifier: Identifier) -> io::Result<()> {
        let mut buffer = [0; 1500];
        loop {
            let read = socket.recv(&mut buffer).await?;
            let message = buffer.get(..read).unwrap_or_default();
            if self.is_reply(message, identifier) {
                return Ok(());
            }
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

    #[test]
    fn ipv6_reply_has_no_ip_header() {
        let probe = probe("fd00::2", "fd00::1");
        assert!(probe.is_reply(&[ECHO_REPLY_V6, 0, 0, 0, 7, 8, 0, 0], [7, 8]));
    }
}
