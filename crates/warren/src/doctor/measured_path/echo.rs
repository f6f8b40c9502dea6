//! Sends ICMP echo requests to the exit's inner address at a given rate, and receives the replies.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::time::sleep_until;
use warren_packet::checksum::Sum;

/// The length of the shortest ICMP message: the header, and the time of sending in nanoseconds.
pub(super) const LEAST: usize = 8 + 8;
/// The number of echo identifiers in use. The tunnel treats each as a separate flow, and spreads flows over its connections.
pub(super) const FLOWS: u16 = 5;
/// If sending is late by more than this, overdue requests are skipped, so that they are not sent in a burst.
const MOST_BEHIND: Duration = Duration::from_millis(20);
/// The socket's receive buffer, in bytes, for replies that wait to be read.
const BUFFER: usize = 4 << 20;

// ICMP types of RFC 792 and RFC 4443.
const REQUEST_V4: u8 = 8;
const REPLY_V4: u8 = 0;
const REQUEST_V6: u8 = 128;
const REPLY_V6: u8 = 129;

/// A series of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Series {
    /// The first flow and the number of flows. Requests use the flows in turn.
    pub(super) flows: (u16, u16),
    /// The length of an ICMP message in bytes.
    pub(super) length: usize,
    pub(super) interval: Duration,
}

/// The number of requests and replies so far. Bytes include the IP headers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    pub(super) answered: u64,
    pub(super) answered_bytes: u64,
}

/// A socket for echoes.
#[derive(Debug)]
pub(super) struct Echoes {
    socket: UdpSocket,
    to: IpAddr,
    identifier: u16,
    start: Instant,
    turn: u16,
    pub(super) tally: Tally,
    /// For each reply in the first flow: when the request left, and the round-trip time.
    round_trips: Vec<(Instant, Duration)>,
}

impl Echoes {
    /// Opens a socket for echoes through a device.
    ///
    /// # Errors
    /// When the kernel refuses the socket.
    pub(super) fn new(device: &str, from: IpAddr, to: IpAddr) -> io::Result<Self> {
        let mut random = [0; 2];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        // tokio has no type for raw sockets. A connected raw socket sends and receives like a connected UDP socket.
        let socket = UdpSocket::from_std(StdSocket::from(socket(device, from, to)?))?;
        Ok(Self {
            socket,
            to,
            identifier: u16::from_be_bytes(random),
            start: Instant::now(),
            turn: 0,
            tally: Tally::default(),
            round_trips: Vec::new(),
        })
    }

    /// Sends these series and receives replies for some time.
    pub(super) async fn exchange(&mut self, series: &[Series], time: Duration) {
        let start = Instant::now();
        let end = start + time;
        let mut due: Vec<Instant> = series.iter().map(|_| start).collect();
        loop {
            let now = Instant::now();
            if now >= end {
                return;
            }
            for (series, due) in series.iter().zip(&mut due) {
                *due = (*due).max(now.checked_sub(MOST_BEHIND).unwrap_or(now));
                while *due <= now {
                    self.send(series);
                    *due += series.interval;
                }
            }
            let wake = due.iter().copied().min().unwrap_or(end).min(end);
            tokio::select! {
                readable = self.socket.readable() => if readable.is_ok() { self.receive() },
                () = sleep_until(wake.into()) => {}
            }
        }
    }

    /// Returns the sorted round-trip times of the first flow's requests that were sent at `since` or later.
    pub(super) fn round_trips_since(&self, since: Instant) -> Vec<Duration> {
        let late = self.round_trips.iter().filter(|(sent, _)| *sent >= since);
        let mut times: Vec<Duration> = late.map(|(_, time)| *time).collect();
        times.sort_unstable();
        times
    }

    fn send(&mut self, series: &Series) {
        let (first, count) = series.flows;
        self.turn = self.turn.wrapping_add(1);
        let flow = first + self.turn % count.max(1);
        let left = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let message = request(self.to, self.identifier.wrapping_add(flow), left, series.length);
        // A request that cannot be sent, for instance because the socket's buffer is full, does not count as sent.
        if self.socket.try_send(&message).is_ok() {
            self.tally.sent += 1;
            self.tally.sent_bytes += self.packet_length(message.len());
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; 2048];
        while let Ok(read) = self.socket.try_recv(&mut buffer) {
            let Some(reply) = buffer.get(..read).and_then(|message| Reply::parse(self.to, message)) else {
                continue;
            };
            // For a reply to another program's request, this number is not below `FLOWS`, unless the random identifiers collide.
            let flow = reply.identifier.wrapping_sub(self.identifier);
            let now = self.start.elapsed();
            let left = Duration::from_nanos(reply.left);
            // The time in a reply is not trustworthy, because the peer may send any value, even one in the future.
            if flow >= FLOWS || left > now {
                continue;
            }
            self.tally.answered += 1;
            self.tally.answered_bytes += self.packet_length(reply.length);
            if flow == 0 {
                self.round_trips.push((self.start + left, now - left));
            }
        }
    }

    fn packet_length(&self, message: usize) -> u64 {
        (message + header_length(self.to)) as u64
    }
}

/// The length of an echo's IP header in bytes.
pub(super) fn header_length(to: IpAddr) -> usize {
    if to.is_ipv4() { 20 } else { 40 }
}

fn socket(device: &str, from: IpAddr, to: IpAddr) -> io::Result<Socket> {
    let protocol = if to.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
    let socket = Socket::new(Domain::for_address(SocketAddr::new(to, 0)), Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(BUFFER)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    // A connected raw socket receives only packets from its peer (raw(7)).
    socket.connect(&SocketAddr::new(to, 0).into())?;
    Ok(socket)
}

/// An echo request of `length` bytes, at least [`LEAST`]. The kernel fills in the checksum of ICMPv6.
fn request(to: IpAddr, identifier: u16, left: u64, length: usize) -> Vec<u8> {
    let kind = if to.is_ipv4() { REQUEST_V4 } else { REQUEST_V6 };
    // The code is 0. The checksum is filled in later.
    let mut message = vec![kind, 0, 0, 0];
    message.extend(identifier.to_be_bytes());
    // The sequence number is 0, because the time in a reply identifies the request.
    message.extend([0, 0]);
    message.extend(left.to_be_bytes());
    message.resize(length.max(LEAST), 0);
    if to.is_ipv4() {
        let checksum = Sum::of(&message).checksum().to_be_bytes();
        if let Some(field) = message.get_mut(2..4) {
            field.copy_from_slice(&checksum);
        }
    }
    message
}

/// A reply to one of these requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    identifier: u16,
    left: u64,
    /// The length of the ICMP message in bytes.
    length: usize,
}

impl Reply {
    /// Reads a packet from a raw socket. An IPv4 socket delivers the IP header as well, an IPv6 socket does not.
    fn parse(to: IpAddr, bytes: &[u8]) -> Option<Self> {
        // The lower half of the first byte is the length of the IPv4 header in words of four bytes (RFC 791 section 3.1).
        let (header, kind) = match to {
            IpAddr::V4(_) => (usize::from(bytes.first()? & 0x0f) * 4, REPLY_V4),
            IpAddr::V6(_) => (0, REPLY_V6),
        };
        let message = bytes.get(header..)?;
        let [found, 0, _, _, high, low, _, _, left @ ..] = message else { return None };
        let left = u64::from_be_bytes(*left.first_chunk()?);
        let identifier = u16::from_be_bytes([*high, *low]);
        (*found == kind).then_some(Self { identifier, left, length: message.len() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 66, 0, 1));
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn reply_tells_when_its_request_left() {
        for (to, header, kind) in [(V4, [&[0x45][..], &[0; 19]].concat(), 0), (V6, Vec::new(), 129)] {
            let mut reply = request(to, 0x1234, 77, 100);
            assert_eq!(reply.len(), 100);
            let received = [header.clone(), reply.clone()].concat();
            assert_eq!(Reply::parse(to, &received), None, "a request is no reply");
            reply[0] = kind;
            let received = [header, reply].concat();
            let expected = Reply { identifier: 0x1234, left: 77, length: 100 };
            assert_eq!(Reply::parse(to, &received), Some(expected));
        }
    }

    #[test]
    fn request_has_a_right_checksum_and_room_for_its_time() {
        assert_eq!(Sum::of(&request(V4, 7, 1_000, 65)).checksum(), 0);
        assert_eq!(request(V4, 7, 1_000, 0).len(), LEAST);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for to in [V4, V6] {
                if let Some(reply) = Reply::parse(to, &bytes) {
                    prop_assert!(reply.length <= bytes.len());
                }
            }
        }
    }
}
