//! Sends numbered UDP packets from the client to the exit at a rate, and counts them at the receiver.

use std::{
    collections::HashSet,
    io::{ErrorKind, IoSliceMut},
    net::UdpSocket,
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, MultiHeaders, recvmmsg, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
};

use super::{
    super::{account::Account, request::Handle},
    bed::{Bed, CLIENT, EXIT},
};
use crate::{interrupt::Interrupt, namespace::join};

const PORT: u16 = 9_000;
/// Packets of one `recvmmsg`.
const BATCH: usize = 64;
/// Size in bytes of the receive buffer, which must be large enough that the receiver's kernel drops no packets.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Maximum number of packets that a late sender sends at once.
const BURST: u32 = 1_000;
/// The time that a sender sleeps between bursts.
const TURN: Duration = Duration::from_micros(200);
/// How often the receiver checks whether to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Time for packets in flight to arrive after the sender has ended.
const DRAIN: Duration = Duration::from_millis(400);
/// Bytes of a packet's number and the time at which it was sent.
const MARK: usize = 4 + 8;

/// The packets to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Bytes of UDP payload.
    pub(super) payload: usize,
    pub(super) packets: u32,
    pub(super) per_second: f64,
    /// Whether the sender waits for the wire and the receiver if they fall behind. If so, packets are lost only because of the
    /// wire's settings.
    pub(super) waits: bool,
}

impl Stream {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count below a few million"
    )]
    pub(super) fn lasting(seconds: f64, per_second: f64, payload: usize) -> Self {
        Self { payload, packets: (seconds * per_second) as u32, per_second, waits: false }
    }
}

/// The packets that arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) numbers: HashSet<u32>,
    /// Bytes of payload, without the first batch, because the time that the first batch took is not known.
    bytes: f64,
    packets: f64,
    /// Time from the first batch to the last one.
    seconds: f64,
}

impl Heard {
    /// Returns the received rate in Mbit/s, including `headers` bytes for each packet.
    pub(super) fn mbit_per_s(&self, headers: u32) -> f64 {
        (self.bytes + self.packets * f64::from(headers)) * 8e-6 / self.seconds.max(1e-9)
    }

    pub(super) fn count(&self) -> f64 {
        f64::from(u32::try_from(self.numbers.len()).unwrap_or(u32::MAX))
    }
}

/// Sends a stream and returns the packets that arrived.
pub(super) fn carry(bed: &Bed, stream: Stream, interrupt: &Interrupt) -> anyhow::Result<Heard> {
    let stop = Interrupt::default();
    let count = Arc::new(AtomicU64::new(0));
    let receiver: JoinHandle<anyhow::Result<Heard>> = {
        let (stop, count) = (stop.clone(), count.clone());
        let socket = receiver(bed)?;
        bed.exit.enter(move || hear(&socket, stream.payload, &count, &stop))?
    };
    let sender = {
        let (interrupt, handle) = (interrupt.clone(), bed.wire.handle.clone());
        bed.client.enter(move || {
            let socket = sender()?;
            send(&socket, stream, &Window::new(handle, count)?, &interrupt)
        })?
    };
    let sent = join(sender);
    interrupt.wait(Some(DRAIN));
    stop.set();
    let heard = join(receiver);
    sent?;
    interrupt.check()?;
    heard
}

/// Sends packets at an interval and returns their delays in milliseconds, by the kernel's time stamps of receipt. Fails if a
/// packet is lost.
pub(super) fn delays(
    bed: &Bed,
    packets: u32,
    interval: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<f64>> {
    let socket = receiver(bed)?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("cannot ask for time stamps")?;
    let receiver = bed.exit.enter(move || {
        let mut delays = Vec::new();
        let mut silence = 0;
        // The receiver gives up after 100 times LOOK, or two seconds, without a packet.
        while delays.len() < usize::try_from(packets)? && silence < 100 {
            match receive_stamped(&socket)? {
                Some(delay) => {
                    delays.push(delay);
                    silence = 0;
                }
                None => silence += 1,
            }
        }
        anyhow::Ok(delays)
    })?;
    let sender = {
        let interrupt = interrupt.clone();
        bed.client.enter(move || {
            let socket = sender()?;
            let mut packet = [0; MARK];
            for number in 0..packets {
                interrupt.check()?;
                let (front, back) = packet.split_at_mut(4);
                front.copy_from_slice(&number.to_be_bytes());
                back.copy_from_slice(&u64::try_from(now().as_nanos())?.to_be_bytes());
                socket.send(&packet).context("cannot send")?;
                std::thread::sleep(interval);
            }
            Ok(())
        })?
    };
    let sent = join(sender);
    let delays = join(receiver)?;
    sent?;
    anyhow::ensure!(
        delays.len() == usize::try_from(packets)?,
        "{} of {packets} packets arrived, although the wire should not lose any",
        delays.len()
    );
    Ok(delays)
}

fn receive_stamped(socket: &UdpSocket) -> anyhow::Result<Option<f64>> {
    let (mut packet, mut space) = ([0; MARK], cmsg_space!(TimeSpec));
    let mut slices = [IoSliceMut::new(&mut packet)];
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::empty()) {
        Ok(message) => message,
        // EAGAIN means that the read timeout of the socket has expired.
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error).context("cannot receive"),
    };
    let stamp = message.cmsgs().context("cannot read a time stamp")?.find_map(|message| {
        if let ControlMessageOwned::ScmTimestampns(stamp) = message { Some(stamp) } else { None }
    });
    let stamp = stamp.context("the kernel gave no time stamp")?;
    let sent = packet.get(4..).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let sent = Duration::from_nanos(sent.context("a packet is too short")?);
    Ok(Some(Duration::from(stamp).saturating_sub(sent).as_secs_f64() * 1e3))
}

/// Binds the receiver's socket in the exit's namespace. This must be done before the first packet is sent.
fn receiver(bed: &Bed) -> anyhow::Result<UdpSocket> {
    join(bed.exit.enter(|| {
        let socket = UdpSocket::bind((EXIT, PORT)).context("cannot bind the receiver")?;
        // SO_RCVBUFFORCE can exceed `net.core.rmem_max`, and needs root (socket(7)).
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .context("cannot size the receive buffer")?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(socket)
    })?)
}

fn sender() -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((CLIENT, 0)).context("cannot bind the sender")?;
    socket.connect((EXIT, PORT)).context("cannot connect the sender")?;
    Ok(socket)
}

/// Limits the number of packets by which a sender can be ahead of the wire and the receiver.
#[derive(Debug)]
struct Window {
    wire: Handle,
    /// Number of packets that the receiver has read.
    heard: Arc<AtomicU64>,
    before: Account,
}

impl Window {
    /// Maximum number of packets that the wire has not read. It is smaller than the kernel's queue for the wire.
    const TO_WIRE: u64 = 4_000;
    /// Maximum number of packets that the receiver has not read. It is smaller than the capacity of the receive buffer.
    const TO_RECEIVER: u64 = 20_000;

    fn new(wire: Handle, heard: Arc<AtomicU64>) -> anyhow::Result<Self> {
        let before = wire.state()?.up.account;
        Ok(Self { wire, heard, before })
    }

    /// Returns whether the sender may send more.
    fn is_open(&self, sent: u32) -> anyhow::Result<bool> {
        let now = self.wire.state()?.up.account;
        let at_wire = now.received - self.before.received;
        let delivered = now.delivered - self.before.delivered;
        Ok(u64::from(sent).saturating_sub(at_wire) < Self::TO_WIRE
            && delivered.saturating_sub(self.heard.load(Relaxed)) < Self::TO_RECEIVER)
    }
}

fn send(socket: &UdpSocket, stream: Stream, window: &Window, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut packet = vec![0; stream.payload];
    let start = Instant::now();
    let mut sent = 0;
    while sent < stream.packets && !interrupt.is_set() {
        // The check needs an answer from the wire's thread, so it is done only once for each burst.
        if stream.waits && !window.is_open(sent)? {
            std::thread::sleep(TURN);
            continue;
        }
        let due = start.elapsed().as_secs_f64() * stream.per_second;
        let end = sent.saturating_add(BURST);
        while sent < stream.packets.min(end) && f64::from(sent) < due {
            packet.splice(..4, sent.to_be_bytes());
            match socket.send(&packet) {
                Ok(_) => sent += 1,
                // ENOBUFS means that the device's queue is full. The same packet is sent again later.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        std::thread::sleep(TURN);
    }
    Ok(())
}

fn hear(socket: &UdpSocket, payload: usize, count: &AtomicU64, stop: &Interrupt) -> anyhow::Result<Heard> {
    let mut storage = vec![vec![0_u8; payload]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut heard = Heard::default();
    let mut first = None;
    while !stop.is_set() {
        let mut slices: Vec<_> = storage.iter_mut().map(|packet| [IoSliceMut::new(packet)]).collect();
        let messages =
            match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, MsgFlags::MSG_WAITFORONE, None) {
                Ok(messages) => messages,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => return Err(error).context("cannot receive"),
            };
        let (mut bytes, mut packets) = (0.0, 0.0);
        for message in messages {
            let number = message.iovs().next().and_then(|packet| packet.get(..4)?.try_into().ok());
            // `numbers` is a set, so a duplicate packet does not count.
            heard.numbers.extend(number.map(u32::from_be_bytes));
            count.fetch_add(1, Relaxed);
            bytes += f64::from(u32::try_from(message.bytes)?);
            packets += 1.0;
        }
        let now = Instant::now();
        match first {
            // The time that the first batch took is not known, so its bytes do not count.
            None => first = Some(now),
            Some(first) => {
                heard.bytes += bytes;
                heard.packets += packets;
                heard.seconds = now.duration_since(first).as_secs_f64();
            }
        }
    }
    Ok(heard)
}

/// Returns the time since the epoch by CLOCK_REALTIME, which the kernel's receive time stamps also use.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
