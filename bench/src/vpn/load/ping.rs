//! Measures round-trip times with ICMP echo requests. The exit's kernel answers them, and the client's kernel takes the time of
//! receipt, so scheduling delays of other programs are not measured.
//!
//! ping(8) is not used, because it spins between the answer and its next request. The shorter the round trip of a tunnel, the
//! more CPU time ping(8) would take from that tunnel.

use std::{
    io::IoSliceMut,
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recvmsg,
        sendto, setsockopt, socket, sockopt,
    },
    sys::time::TimeSpec,
};
use rustix::event::{PollFd, PollFlags, poll};
use warren_packet::checksum::Sum;

use super::super::topology::Topology;
use crate::{interrupt::Interrupt, namespace::join};

const INTERVAL: Duration = Duration::from_millis(1_000 / Ping::PER_SECOND as u64);
/// Time to wait for answers after the last request.
const DRAIN: Duration = Duration::from_millis(500);
/// Bytes of an echo request: the ICMP header, and a payload of the same length as that of ping(8).
const REQUEST: usize = 8 + 56;
/// Types of ICMP messages (RFC 792).
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Echo requests from the client's host, sent in the background.
#[derive(Debug)]
pub(crate) struct Ping {
    thread: Option<JoinHandle<anyhow::Result<Vec<f64>>>>,
    stop: Interrupt,
}

impl Ping {
    /// Echo requests per second.
    pub(crate) const PER_SECOND: u32 = 100;

    /// Starts to ping for a number of seconds, which is limited because the sequence number of a request has only two bytes.
    pub(crate) fn start(topology: &Topology, address: &str, seconds: u32) -> anyhow::Result<Self> {
        let address: Ipv4Addr = address.parse().context("an inner address is not IPv4")?;
        let stop = Interrupt::default();
        let asked = stop.clone();
        let requests = seconds.saturating_mul(Self::PER_SECOND);
        anyhow::ensure!(requests <= u16::MAX.into(), "cannot ping for {seconds} s; the maximum is 655 s");
        let thread = topology.client.enter(move || {
            let mut echo = Echo::new(address)?;
            let start = Instant::now();
            for number in 0..requests {
                if asked.is_set() {
                    break;
                }
                echo.ask()?;
                // The end of the wait is computed from the start of the ping, so that a late request does not delay the later
                // ones.
                echo.wait(start + INTERVAL * (number + 1))?;
            }
            let end = Instant::now() + DRAIN;
            while echo.awaits_answers() && Instant::now() < end && !asked.is_set() {
                echo.wait((Instant::now() + INTERVAL).min(end))?;
            }
            Ok(echo.times)
        })?;
        Ok(Self { thread: Some(thread), stop })
    }

    /// Waits for the thread to end, and returns the round-trip times in milliseconds, in the order of the answers. Fails if no
    /// answer came.
    pub(crate) fn finish(mut self, interrupt: &Interrupt) -> anyhow::Result<Vec<f64>> {
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        while !thread.is_finished() {
            interrupt.wait(Some(Duration::from_millis(2)));
            if interrupt.is_set() {
                self.stop.set();
            }
        }
        let times = join(thread)?;
        interrupt.check()?;
        anyhow::ensure!(!times.is_empty(), "no echo reply came back");
        Ok(times)
    }
}

impl Drop for Ping {
    /// Stops the thread, so that it does not disturb the next measurement.
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = join(thread);
        }
    }
}

/// Pings until the first reply. Fails if no reply comes within `limit`.
pub(crate) fn first_reply(
    topology: &Topology,
    address: &str,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let to: Ipv4Addr = address.parse().context("an inner address is not IPv4")?;
    let stop = interrupt.clone();
    let answered = join(topology.client.enter(move || {
        let mut echo = Echo::new(to)?;
        let start = Instant::now();
        while echo.times.is_empty() && start.elapsed() < limit && !stop.is_set() {
            echo.ask()?;
            let next = Instant::now() + INTERVAL;
            while echo.times.is_empty() && Instant::now() < next {
                // `wait` would return only at the end of the interval, and the remaining interval would count as setup time.
                echo.wait_for_one(next)?;
            }
        }
        Ok(!echo.times.is_empty())
    })?)?;
    interrupt.check()?;
    anyhow::ensure!(answered, "no reply from {address} within {} s", limit.as_secs());
    Ok(())
}

/// Sends echo requests to one address, and records the round-trip times.
struct Echo {
    socket: OwnedFd,
    address: SockaddrIn,
    identifier: u16,
    /// The time at which each request was sent, indexed by its number. None after the request was answered.
    sent: Vec<Option<Duration>>,
    /// Round-trip times in milliseconds.
    times: Vec<f64>,
}

impl Echo {
    fn new(address: Ipv4Addr) -> anyhow::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Icmp)
            .context("cannot open a socket for ICMP; this needs root")?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("cannot ask for times of receipt")?;
        let [a, b, c, d] = address.octets();
        // A raw socket receives the answers to every ping in its namespace. This identifier distinguishes the answers to this
        // ping.
        let [.., high, low] = since_epoch().subsec_nanos().to_be_bytes();
        let identifier = u16::from_be_bytes([high, low]);
        Ok(Self {
            socket,
            address: SockaddrIn::new(a, b, c, d, 0),
            identifier,
            sent: Vec::new(),
            times: Vec::new(),
        })
    }

    /// Sends a request. A request that the kernel refuses, for example without a route, counts as lost.
    fn ask(&mut self) -> anyhow::Result<()> {
        let number = u16::try_from(self.sent.len()).context("too many echo requests")?;
        let request = request(self.identifier, number);
        let now = since_epoch();
        let taken = sendto(self.socket.as_raw_fd(), &request, &self.address, MsgFlags::empty()).is_ok();
        self.sent.push(taken.then_some(now));
        Ok(())
    }

    fn awaits_answers(&self) -> bool {
        self.sent.iter().any(Option::is_some)
    }

    /// Receives answers until the time `until`.
    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            self.wait_for_one(until)?;
        }
        Ok(())
    }

    /// Waits for an answer until the time `until`, and receives all answers that have arrived.
    fn wait_for_one(&mut self, until: Instant) -> anyhow::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.try_into().context("a wait is too long")?;
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&left)).context("cannot wait for an answer")? == 0 {
            return Ok(());
        }
        while let Some((number, came)) = self.receive()? {
            // `take` removes the request, so a duplicate answer is ignored.
            if let Some(sent) = self.sent.get_mut(usize::from(number)).and_then(Option::take) {
                self.times.push(came.saturating_sub(sent).as_secs_f64() * 1e3);
            }
        }
        Ok(())
    }

    /// Receives an answer without blocking, and returns its number and its time of receipt.
    fn receive(&self) -> anyhow::Result<Option<(u16, Duration)>> {
        loop {
            // The buffer has space for the IPv4 header and an answer of `REQUEST` bytes. Other messages may be truncated.
            let mut packet = [0; 256];
            let mut control = nix::cmsg_space!(TimeSpec);
            let (bytes, came) = {
                let mut parts = [IoSliceMut::new(&mut packet)];
                let fd = self.socket.as_raw_fd();
                let message = match recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty()) {
                    Ok(message) => message,
                    Err(Errno::EAGAIN) => return Ok(None),
                    Err(error) => return Err(error).context("cannot receive an answer"),
                };
                let came = message.cmsgs()?.find_map(|message| {
                    let ControlMessageOwned::ScmTimestampns(time) = message else { return None };
                    Some(Duration::from(time))
                });
                (message.bytes, came)
            };
            let number = reply(packet.get(..bytes).unwrap_or_default(), self.identifier);
            if let (Some(number), Some(came)) = (number, came) {
                return Ok(Some((number, came)));
            }
        }
    }
}

/// Returns the time by CLOCK_REALTIME, which the kernel's receive time stamps also use.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Makes an echo request (RFC 792).
fn request(identifier: u16, number: u16) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[0] = ECHO_REQUEST;
    request[4..6].copy_from_slice(&identifier.to_be_bytes());
    request[6..8].copy_from_slice(&number.to_be_bytes());
    let checksum = Sum::of(&request).checksum();
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    request
}

/// Parses an IPv4 packet as an answer, and returns the number of the request. None if the packet is not an answer to this ping.
fn reply(packet: &[u8], identifier: u16) -> Option<u16> {
    // A raw socket also returns the IPv4 header (raw(7)). The header's length field is in words of four bytes.
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let message: &[u8; 8] = packet.get(header..)?.first_chunk()?;
    let [kind, _, _, _, a, b, c, d] = *message;
    (kind == ECHO_REPLY && u16::from_be_bytes([a, b]) == identifier).then(|| u16::from_be_bytes([c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a packet with an IPv4 header without options and the answer to a request.
    fn answer(mut message: [u8; REQUEST]) -> Vec<u8> {
        message[0] = ECHO_REPLY;
        let mut packet = vec![0x45; 20];
        packet.extend(message);
        packet
    }

    #[test]
    fn answers_to_other_requests_and_other_messages_are_not_ours() {
        assert_eq!(reply(&answer(request(7, 300)), 7), Some(300));
        assert_eq!(reply(&answer(request(8, 300)), 7), None);
        let mut own = answer(request(7, 300));
        own[20] = ECHO_REQUEST;
        assert_eq!(reply(&own, 7), None);
        for length in 0..28 {
            assert_eq!(reply(&answer(request(7, 300))[..length], 7), None);
        }
    }

    #[test]
    fn a_request_sums_up_to_nothing() {
        for (identifier, number) in [(0, 0), (7, 300), (0xffff, 0xffff), (0xf7ff, 0)] {
            let words: u32 = request(identifier, number)
                .chunks(2)
                .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
                .sum();
            assert_eq!((words & 0xffff) + (words >> 16), 0xffff);
        }
    }
}
