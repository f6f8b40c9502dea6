//! UDP from the client to the exit. One thread sends packet by packet, as a program does, and another counts the
//! packets that arrive.
//!
//! It uses no segmentation offload, so each packet stays one packet all the way.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt};

use super::super::topology::Topology;
use crate::{interrupt::Interrupt, namespace::join};

/// Packets of one `recvmmsg`.
const BATCH: usize = 64;
const LARGEST: usize = 2_048;
/// Large enough for the receiver not to drop packets.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Time for packets in flight to arrive after the sender has ended.
const DRAIN: Duration = Duration::from_millis(300);
/// How often a paced sender wakes up.
const TURN: Duration = Duration::from_micros(200);
/// The start of each payload. It distinguishes the test's packets from others.
const MAGIC: [u8; 4] = *b"wbvp";

/// UDP payload sizes in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// Packets of 64, 576 and 1280 bytes, including IP headers, in the ratio 7 : 4 : 1.
    Imix,
}

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    PacketsPerSecond(f64),
    /// As fast as one thread can send.
    Saturation,
}

/// What to send, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stream {
    pub(crate) sizes: Sizes,
    pub(crate) rate: Rate,
    pub(crate) seconds: u32,
}

/// Counts of what was sent and received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Bytes of UDP payload.
    pub(crate) received_bytes: u64,
    /// Packets received before the sender ended. Rates are computed from them.
    pub(crate) in_time: u64,
    pub(crate) in_time_bytes: u64,
    pub(crate) seconds: f64,
}

/// The phase of a run, shared by both threads.
#[derive(Clone, Debug, Default)]
struct Phase(Arc<AtomicU8>);

impl Phase {
    const SENDING: u8 = 0;
    const DRAINING: u8 = 1;
    const OVER: u8 = 2;

    fn set(&self, phase: u8) {
        self.0.store(phase, Relaxed);
    }

    fn is(&self, phase: u8) -> bool {
        self.0.load(Relaxed) == phase
    }
}

/// Sends packets from the client to the exit.
pub(crate) fn carry(
    topology: &Topology,
    client: &str,
    exit: &str,
    stream: Stream,
    interrupt: &Interrupt,
) -> anyhow::Result<Delivered> {
    let phase = Phase::default();
    // The kernel chooses the sender's port, and the receiver must learn it.
    let (tell, told) = mpsc::channel::<SocketAddr>();
    let (client, exit) = (client.to_owned(), exit.to_owned());
    let sender = {
        let phase = phase.clone();
        topology.client.enter(move || {
            let socket = UdpSocket::bind((client.as_str(), 0)).context("cannot bind the sender")?;
            tell.send(socket.local_addr()?)?;
            // The receiver sends first, so that firewalls on the way know the flow.
            socket.set_read_timeout(Some(Duration::from_secs(3)))?;
            let (_, receiver) = socket.recv_from(&mut [0; 16]).context("the receiver did not get through")?;
            socket.connect(receiver).context("cannot connect the sender")?;
            send(&socket, stream, &phase)
        })?
    };
    let receiver = {
        let phase = phase.clone();
        topology.exit.enter(move || {
            let socket = UdpSocket::bind((exit.as_str(), 0)).context("cannot bind the receiver")?;
            // SO_RCVBUFFORCE exceeds `net.core.rmem_max`, and needs root (socket(7)).
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
                .context("cannot size the receive buffer")?;
            // A receiver without packets must notice that the phase is over.
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            let sender = told.recv().context("the sender did not start")?;
            receive(&socket, sender, &phase)
        })?
    };
    let start = Instant::now();
    let time = Duration::from_secs(stream.seconds.into());
    // A sender that ends early has failed. `join` returns its error.
    while start.elapsed() < time && !interrupt.is_set() && !sender.is_finished() {
        interrupt.wait(Some(Duration::from_millis(20).min(time.saturating_sub(start.elapsed()))));
    }
    phase.set(Phase::DRAINING);
    let sent = join(sender);
    interrupt.wait(Some(DRAIN));
    phase.set(Phase::OVER);
    let counted = join(receiver);
    // Both threads have ended by now, so errors may be returned.
    let ((sent, took), counted) = (sent?, counted?);
    interrupt.check()?;
    if counted.received == 0 {
        bail!("none of {sent} UDP packets arrived");
    }
    Ok(Delivered { sent, seconds: took.as_secs_f64(), ..counted })
}

/// Sends until the phase changes. Returns the number of packets that the kernel accepted, and the time.
fn send(socket: &UdpSocket, stream: Stream, phase: &Phase) -> anyhow::Result<(u64, Duration)> {
    /// Payloads of seven small, four medium and one large packet, mixed. With headers, each packet is 28 bytes longer.
    const IMIX: [usize; 12] = [36, 548, 36, 36, 548, 36, 1_252, 36, 548, 36, 548, 36];
    let Stream { sizes, rate, .. } = stream;
    let fixed;
    let pattern: &[usize] = match sizes {
        Sizes::Fixed(size) => {
            fixed = [size];
            &fixed
        }
        Sizes::Imix => &IMIX,
    };
    let mut packet = vec![0xa5; LARGEST];
    packet.splice(..MAGIC.len(), MAGIC);
    let start = Instant::now();
    let (mut sent, mut taken) = (0_u32, 0_u64);
    let mut next = pattern.iter().cycle();
    while phase.is(Phase::SENDING) {
        let due = match rate {
            Rate::Saturation => f64::INFINITY,
            Rate::PacketsPerSecond(rate) => start.elapsed().as_secs_f64() * rate,
        };
        // A late sender catches up in bursts of `BATCH` packets. Applications do not send longer ones.
        for _ in 0..BATCH {
            if f64::from(sent) >= due {
                break;
            }
            let size = next.next().copied().unwrap_or(0);
            match socket.send(packet.get(..size).unwrap_or_default()) {
                Ok(_) => taken += 1,
                // A queue is full. The packet does not count as sent.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {}
                Err(error) => return Err(error).context("cannot send UDP into the tunnel"),
            }
            sent = sent.saturating_add(1);
        }
        if rate != Rate::Saturation {
            std::thread::sleep(TURN);
        }
    }
    Ok((taken, start.elapsed()))
}

/// Sends hello until a packet arrives, then counts.
fn receive(socket: &UdpSocket, sender: SocketAddr, phase: &Phase) -> anyhow::Result<Delivered> {
    let mut storage = vec![[0_u8; LARGEST]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut counted =
        Delivered { sent: 0, received: 0, received_bytes: 0, in_time: 0, in_time_bytes: 0, seconds: 0.0 };
    while !phase.is(Phase::OVER) {
        // UDP may lose the hello, so it is repeated until a packet arrives.
        if counted.received == 0 {
            socket.send_to(b"hello", sender).context("cannot send UDP through the tunnel")?;
        }
        let mut slices: Vec<_> = storage.iter_mut().map(|packet| [IoSliceMut::new(packet)]).collect();
        let received =
            recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, MsgFlags::MSG_WAITFORONE, None);
        let in_time = phase.is(Phase::SENDING);
        match received {
            Ok(messages) => {
                for message in messages {
                    let ours = message.iovs().next().is_some_and(|bytes| bytes.starts_with(&MAGIC));
                    if ours {
                        let bytes = message.bytes as u64;
                        counted.received += 1;
                        counted.received_bytes += bytes;
                        counted.in_time += u64::from(in_time);
                        counted.in_time_bytes += if in_time { bytes } else { 0 };
                    }
                }
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error)).context("cannot receive UDP from the tunnel"),
        }
    }
    Ok(counted)
}
