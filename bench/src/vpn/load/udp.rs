//! UDP from client to exit: one thread sends packet by packet as a program would, one counts what arrives.
//!
//! No segmentation offload is asked for, so that each packet is one packet on its whole way.

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
/// The receiver is not to be what drops.
const RECEIVE_BUFFER: usize = 8 << 20;
/// What is still on its way when the sender ends.
const DRAIN: Duration = Duration::from_millis(300);
/// How often a paced sender wakes up.
const TURN: Duration = Duration::from_micros(200);
/// In front of each packet: what belongs to the test and what is a stray.
const MAGIC: [u8; 4] = *b"wbvp";

/// UDP payload sizes in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// 7 : 4 : 1 packets of 64, 576 and 1280 bytes with their IP headers.
    Imix,
}

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    PacketsPerSecond(f64),
    /// As fast as one thread can.
    Saturation,
}

/// What came through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Of UDP payload.
    pub(crate) received_bytes: u64,
    /// Received until the sender ended, which rates are made of.
    pub(crate) in_time: u64,
    pub(crate) in_time_bytes: u64,
    pub(crate) seconds: f64,
}

/// Where a run stands; read by both threads.
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

/// Carries packets from the client to the exit for a time.
///
/// # Errors
/// A sentence when a socket cannot be had or the two ends do not find each other.
pub(crate) fn carry(
    topology: &Topology,
    client: &str,
    exit: &str,
    sizes: Sizes,
    rate: Rate,
    seconds: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Delivered> {
    let phase = Phase::default();
    let (tell, told) = mpsc::channel::<SocketAddr>();
    let (client, exit) = (client.to_owned(), exit.to_owned());
    let sender = {
        let phase = phase.clone();
        topology.client.enter(move || {
            let socket = UdpSocket::bind((client.as_str(), 0)).context("cannot bind the sender")?;
            tell.send(socket.local_addr()?)?;
            // The receiver speaks first, so that firewalls on the way know the flow.
            socket.set_read_timeout(Some(Duration::from_secs(3)))?;
            let (_, receiver) = socket.recv_from(&mut [0; 16]).context("the receiver did not get through")?;
            socket.connect(receiver).context("cannot connect the sender")?;
            send(&socket, sizes, rate, &phase)
        })?
    };
    let receiver = {
        let phase = phase.clone();
        topology.exit.enter(move || {
            let socket = UdpSocket::bind((exit.as_str(), 0)).context("cannot bind the receiver")?;
            // As root, beyond the system's limit.
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
                .context("cannot size the receive buffer")?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            let sender = told.recv().context("the sender did not start")?;
            receive(&socket, sender, &phase)
        })?
    };
    let start = Instant::now();
    let time = Duration::from_secs(seconds.into());
    while start.elapsed() < time && !interrupt.is_set() && !sender.is_finished() {
        interrupt.wait(Some(Duration::from_millis(20).min(time.saturating_sub(start.elapsed()))));
    }
    phase.set(Phase::DRAINING);
    let sent = join(sender);
    interrupt.wait(Some(DRAIN));
    phase.set(Phase::OVER);
    let counted = join(receiver);
    let ((sent, took), counted) = (sent?, counted?);
    interrupt.check()?;
    if counted.received == 0 {
        bail!("none of {sent} UDP packets arrived");
    }
    Ok(Delivered { sent, seconds: took.as_secs_f64(), ..counted })
}

/// Sends until told to stop and returns how many packets the kernel took, and in what time.
fn send(socket: &UdpSocket, sizes: Sizes, rate: Rate, phase: &Phase) -> anyhow::Result<(u64, Duration)> {
    /// Seven small, four medium, one large, mixed.
    const IMIX: [usize; 12] = [36, 548, 36, 36, 548, 36, 1_252, 36, 548, 36, 548, 36];
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
        // More at once is a burst that no application makes.
        for _ in 0..BATCH {
            if f64::from(sent) >= due {
                break;
            }
            let size = next.next().copied().unwrap_or(0);
            match socket.send(packet.get(..size).unwrap_or_default()) {
                Ok(_) => taken += 1,
                // A full queue on the way; the packet counts as offered by nobody.
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

/// Says hello until something comes back, then counts.
fn receive(socket: &UdpSocket, sender: SocketAddr, phase: &Phase) -> anyhow::Result<Delivered> {
    let mut storage = vec![[0_u8; LARGEST]; BATCH];
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut counted =
        Delivered { sent: 0, received: 0, received_bytes: 0, in_time: 0, in_time_bytes: 0, seconds: 0.0 };
    while !phase.is(Phase::OVER) {
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
