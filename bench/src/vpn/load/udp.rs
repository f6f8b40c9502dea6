//! UDP from the client to the exit. One thread sends packets with one system call each, and another thread counts the packets
//! that arrive.
//!
//! Neither thread uses segmentation offload, so each packet stays separate on the whole way.

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
/// Size in bytes of the receive buffer, which must be large enough that the receiver's kernel drops no packets.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Time for packets in flight to arrive after the sender has ended.
const DRAIN: Duration = Duration::from_millis(300);
/// The time that a sender with a rate sleeps between bursts.
const TURN: Duration = Duration::from_micros(200);
/// The first bytes of each packet of the test. Packets without these bytes are ignored.
const MAGIC: [u8; 4] = *b"wbvp";

/// UDP payload sizes in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// Packets of 64, 576 and 1280 bytes, including IP headers, in the ratio 7 : 4 : 1.
    Imix,
}

/// The rate of sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    PacketsPerSecond(f64),
    /// One thread sends as fast as it can.
    Saturation,
}

/// The sizes, the rate and the duration of the traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stream {
    pub(crate) sizes: Sizes,
    pub(crate) rate: Rate,
    pub(crate) seconds: u32,
}

/// The packets that were sent and received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Bytes of UDP payload.
    pub(crate) received_bytes: u64,
    /// Packets received before the sender stopped. Rates are computed from this count.
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
    // The kernel chooses the sender's port, so the sender's thread tells the address to the receiver's thread.
    let (tell, told) = mpsc::channel::<SocketAddr>();
    let (client, exit) = (client.to_owned(), exit.to_owned());
    let sender = {
        let phase = phase.clone();
        topology.client.enter(move || {
            let socket = UdpSocket::bind((client.as_str(), 0)).context("cannot bind the sender")?;
            tell.send(socket.local_addr()?)?;
            // The receiver sends the first packet, so that stateful firewalls on the way have an entry for the flow.
            socket.set_read_timeout(Some(Duration::from_secs(3)))?;
            let (_, receiver) = socket.recv_from(&mut [0; 16]).context("no packet came from the receiver")?;
            socket.connect(receiver).context("cannot connect the sender")?;
            send(&socket, stream, &phase)
        })?
    };
    let receiver = {
        let phase = phase.clone();
        topology.exit.enter(move || {
            let socket = UdpSocket::bind((exit.as_str(), 0)).context("cannot bind the receiver")?;
            // SO_RCVBUFFORCE can exceed `net.core.rmem_max`, and needs root (socket(7)).
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
                .context("cannot size the receive buffer")?;
            // With this timeout, the receiver notices the end of the phase even if no packets arrive.
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            let sender = told.recv().context("the sender did not start")?;
            receive(&socket, sender, &phase)
        })?
    };
    let start = Instant::now();
    let time = Duration::from_secs(stream.seconds.into());
    // If the sender ends early, it has failed, and `join` below returns its error.
    while start.elapsed() < time && !interrupt.is_set() && !sender.is_finished() {
        interrupt.wait(Some(Duration::from_millis(20).min(time.saturating_sub(start.elapsed()))));
    }
    phase.set(Phase::DRAINING);
    let sent = join(sender);
    interrupt.wait(Some(DRAIN));
    phase.set(Phase::OVER);
    let counted = join(receiver);
    // Both threads have ended, so errors can be returned.
    let ((sent, took), counted) = (sent?, counted?);
    interrupt.check()?;
    if counted.received == 0 {
        bail!("none of {sent} UDP packets arrived");
    }
    Ok(Delivered { sent, seconds: took.as_secs_f64(), ..counted })
}

/// Sends until the phase changes. Returns the number of packets that the kernel accepted, and the time taken.
fn send(socket: &UdpSocket, stream: Stream, phase: &Phase) -> anyhow::Result<(u64, Duration)> {
    /// The payload sizes of seven small, four medium and one large packet. The IP and UDP headers add 28 bytes to each.
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
        // A sender that is late catches up in bursts of at most `BATCH` packets, because applications do not send longer bursts.
        for _ in 0..BATCH {
            if f64::from(sent) >= due {
                break;
            }
            let size = next.next().copied().unwrap_or(0);
            match socket.send(packet.get(..size).unwrap_or_default()) {
                Ok(_) => taken += 1,
                // ENOBUFS means that a queue of the sender's kernel is full. The packet does not count as sent.
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

/// Sends a hello packet until a packet of the test arrives, then counts the packets.
fn receive(socket: &UdpSocket, sender: SocketAddr, phase: &Phase) -> anyhow::Result<Delivered> {
    let mut storage = vec![[0_u8; LARGEST]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut counted =
        Delivered { sent: 0, received: 0, received_bytes: 0, in_time: 0, in_time_bytes: 0, seconds: 0.0 };
    while !phase.is(Phase::OVER) {
        // The hello packet may be lost, so it is repeated until a packet of the test arrives.
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
