//! Sends numbered UDP packets between the hosts, and records when each was sent and received. Both times are from the same clock.

mod heard;

use std::{
    io::{ErrorKind, IoSliceMut},
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
};

pub(super) use self::heard::Quality;
use self::heard::{Heard, MAGIC, MARK};
use super::flows::Route;
use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    way::Way,
};

/// Size in bytes of the receive buffer, which must be large enough that the receiver's kernel drops no packets.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The time that a sender sleeps between its bursts, and the maximum number of packets in a burst.
const TURN: Duration = Duration::from_micros(200);
const BURST: u32 = 32;
/// How often a receiver checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Time after the end of sending in which packets in flight, in queues and in retransmission can still arrive.
const DRAIN: Duration = Duration::from_millis(1_200);
/// Longest time until the first packet arrives.
const OPEN: Duration = Duration::from_secs(5);

/// The traffic to send: `streams` streams, each from its own port. The sender sends one packet of each stream in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) streams: u32,
    /// Bytes of UDP payload.
    pub(super) payload: usize,
    /// Packets per second of all streams together.
    pub(super) per_second: f64,
}

/// Running streams. Dropping this value ends the streams.
#[derive(Debug)]
pub(super) struct Streams {
    stop_sending: Interrupt,
    stop_hearing: Interrupt,
    /// The number of the next packet. All streams use the same numbers.
    next: Arc<AtomicU32>,
    sender: Option<JoinHandle<anyhow::Result<Sent>>>,
    receivers: Vec<JoinHandle<anyhow::Result<Vec<Heard>>>>,
}

/// For each stream, the numbers of the packets that the sender's kernel refused.
type Sent = Vec<Vec<u32>>;

impl Streams {
    /// Opens the streams and starts to send.
    pub(super) fn start(
        route: &Route<'_>,
        shape: Shape,
        way: Way,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut senders = Vec::new();
        // `this` is made before the threads start, so that an early return drops it, which stops the threads.
        let mut this = Self {
            stop_sending: Interrupt::default(),
            stop_hearing: Interrupt::default(),
            next: Arc::default(),
            sender: None,
            receivers: Vec::new(),
        };
        for _ in 0..shape.streams {
            let (at_client, at_exit) = open(route, interrupt)?;
            let (from, to) = if way == Way::Down { (at_exit, at_client) } else { (at_client, at_exit) };
            senders.push(from);
            let stop = this.stop_hearing.clone();
            this.receivers.push(std::thread::spawn(move || hear(&to, shape.payload, &stop)));
        }
        let (stop, next) = (this.stop_sending.clone(), this.next.clone());
        this.sender = Some(std::thread::spawn(move || send(&senders, shape, &next, &stop)));
        Ok(this)
    }

    /// Returns the number of the next packet. Packets sent before this call have smaller numbers, and later packets do not.
    pub(super) fn mark(&self) -> u32 {
        self.next.load(Relaxed)
    }

    /// Ends the streams, and returns the quality of the packets whose numbers are at least `from` and below `to`.
    pub(super) fn finish(mut self, from: u32, to: u32, interrupt: &Interrupt) -> anyhow::Result<Quality> {
        self.stop_sending.set();
        let refused = join(self.sender.take().context("the streams ended before")?)?;
        interrupt.wait(Some(DRAIN));
        self.stop_hearing.set();
        // All receivers are joined before an error is returned.
        let heard = self.receivers.drain(..).map(join).collect::<Vec<_>>();
        let heard = heard.into_iter().collect::<Result<Vec<_>, _>>()?;
        Quality::of(&heard, &refused, from..to).context("no UDP packet arrived")
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.stop_sending.set();
        self.stop_hearing.set();
        let _ = self.sender.take().map(join);
        for receiver in self.receivers.drain(..) {
            let _ = join(receiver);
        }
    }
}

/// Opens a socket at each end, and waits until a packet from the exit has reached the client. After that packet, stateful
/// firewalls on the way have an entry for the flow.
fn open(route: &Route<'_>, interrupt: &Interrupt) -> anyhow::Result<(UdpSocket, UdpSocket)> {
    let bind = |(host, address): (&Namespace, Ipv4Addr)| {
        join(host.enter(move || {
            let socket = UdpSocket::bind((address, 0)).context("cannot bind a UDP socket")?;
            // SO_RCVBUFFORCE can exceed `net.core.rmem_max`, and needs root (socket(7)).
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
                .context("cannot size a receive buffer")?;
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true)
                .context("cannot ask for times of receipt")?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok(socket)
        })?)
    };
    let (client, exit) = (bind(route.client)?, bind(route.exit)?);
    client.connect(exit.local_addr()?).context("cannot connect a UDP socket")?;
    exit.connect(client.local_addr()?).context("cannot connect a UDP socket")?;
    let start = Instant::now();
    loop {
        interrupt.check()?;
        // Errors are ignored, because the loop sends the packet again.
        let _ = exit.send(b"hello");
        match client.recv(&mut [0; 16]) {
            Ok(_) => return Ok((client, exit)),
            Err(_) => anyhow::ensure!(start.elapsed() < OPEN, "UDP does not get through"),
        }
    }
}

fn send(sockets: &[UdpSocket], shape: Shape, next: &AtomicU32, stop: &Interrupt) -> anyhow::Result<Sent> {
    let mut refused: Sent = vec![Vec::new(); sockets.len()];
    // A packet starts with MAGIC, its number and the time at which it was sent. `Heard::parse` reads these fields.
    let mut packet = vec![0xa5; shape.payload.max(MARK)];
    packet.splice(..MAGIC.len(), MAGIC);
    let (start, mut sent) = (Instant::now(), 0_u32);
    let mut turn = refused.iter_mut().zip(sockets).enumerate().collect::<Vec<_>>();
    let streams = turn.len();
    while !stop.is_set() {
        let due = start.elapsed().as_secs_f64() * shape.per_second;
        let end = sent.saturating_add(BURST);
        while f64::from(sent) < due && sent < end {
            let place = usize::try_from(sent)? % streams.max(1);
            let Some((_, (refused, socket))) = turn.get_mut(place) else { break };
            let number = next.load(Relaxed);
            packet.splice(4..8, number.to_be_bytes());
            // The time is taken before the send call, so the delay includes the call.
            packet.splice(8..MARK, u64::try_from(now().as_nanos())?.to_be_bytes());
            match socket.send(&packet) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // ENOBUFS means that a queue of the sender's kernel is full. The packet does not count as sent.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => refused.push(number),
                Err(error) => return Err(error).context("cannot send UDP"),
            }
            sent += 1;
            // This was the last stream, so all streams have sent the current number.
            if place + 1 == streams {
                next.fetch_add(1, Relaxed);
            }
        }
        std::thread::sleep(TURN);
    }
    Ok(refused)
}

fn hear(socket: &UdpSocket, payload: usize, stop: &Interrupt) -> anyhow::Result<Vec<Heard>> {
    let (mut packet, mut space) = (vec![0; payload.max(MARK)], cmsg_space!(TimeSpec));
    let mut heard = Vec::new();
    while !stop.is_set() {
        let (length, came) = {
            let mut slices = [IoSliceMut::new(&mut packet)];
            let flags = MsgFlags::empty();
            let message = match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
                Ok(message) => message,
                // ECONNREFUSED and EHOSTUNREACH report an ICMP error for an earlier packet, which counts as lost in any case.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED | Errno::EHOSTUNREACH) => continue,
                Err(error) => return Err(error).context("cannot receive UDP"),
            };
            let came = message.cmsgs().context("cannot read a time of receipt")?.find_map(|message| {
                if let ControlMessageOwned::ScmTimestampns(time) = message { Some(time) } else { None }
            });
            (message.bytes, came.context("the kernel gave no time of receipt")?)
        };
        heard.extend(Heard::parse(packet.get(..length).unwrap_or_default(), Duration::from(came)));
    }
    Ok(heard)
}

/// Returns the time by CLOCK_REALTIME, which the kernel's receive time stamps also use.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
