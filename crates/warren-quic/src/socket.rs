//! UDP sockets. Mark, buffers and don't-fragment are set before anything is sent. Every send and every failed send is counted.

#![allow(unsafe_code)]

use std::{
    fmt, io,
    io::IoSliceMut,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::AsRawFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use noq::{AsyncUdpSocket, UdpSender};
use noq_udp::{RecvMeta, Transmit};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use self::{
    counted::{CountedSocket, Resume},
    overflow::Overflow,
    slab::Slabs,
};
use crate::{settings::Lacking, stats::SocketCounters, strangers::Gate};

mod counted;
mod overflow;
#[cfg(test)]
mod planted;
mod slab;
mod spare_memory;
mod steering;

pub use self::{
    spare_memory::{ThreadCache, release_spare_memory},
    steering::steer,
};

/// Requested size in bytes of each socket buffer: about 5 ms at 10 Gbit/s, by the kernel's accounting.
pub const DEFAULT_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// Most bytes that one receive can merge (GRO): the largest IP packet.
const MAX_GRO_BYTES: usize = 65_535;

/// The configuration of a UDP socket.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The local address. Port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// The firewall mark of its packets (`SO_MARK`, needs CAP_NET_ADMIN).
    pub mark: Option<u32>,
    /// Requested size in bytes of the send and the receive buffer.
    pub buffer_bytes: usize,
    /// Whether an IPv6 socket is IPv6-only.
    pub v6only: bool,
    /// Whether several sockets may share the address (`SO_REUSEPORT`).
    pub reuse_port: bool,
}

impl SocketConfig {
    /// Describes a socket at `address` without mark, with default buffers, IPv6-only if IPv6, not shared.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, mark: None, buffer_bytes: DEFAULT_BUFFER_BYTES, v6only: true, reuse_port: false }
    }
}

/// Makes a non-blocking UDP socket and binds it.
///
/// # Errors
/// If the operating system refuses the address, or the mark (without CAP_NET_ADMIN).
pub fn bind(config: SocketConfig) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(config.address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(mark) = config.mark {
        socket.set_mark(mark)?;
    }
    if config.address.is_ipv6() {
        socket.set_only_v6(config.v6only)?;
    }
    if config.reuse_port {
        socket.set_reuse_port(true)?;
    }
    // SO_RCVBUFFORCE and SO_SNDBUFFORCE need CAP_NET_ADMIN. The plain options are silently limited to net.core.[rw]mem_max.
    sockopt::set_socket_recv_buffer_size_force(&socket, config.buffer_bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, config.buffer_bytes))?;
    sockopt::set_socket_send_buffer_size_force(&socket, config.buffer_bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, config.buffer_bytes))?;
    socket.bind(&config.address.into())?;
    Ok(socket.into())
}

/// The UDP offloads of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOffload {
    /// One send can carry many payloads (`UDP_SEGMENT`).
    pub gso: bool,
    /// One receive can return many payloads (`UDP_GRO`).
    pub gro: bool,
}

/// Detects the UDP offloads that the kernel supports.
///
/// # Errors
/// If no socket can be made.
pub fn udp_offload() -> io::Result<UdpOffload> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let state = noq_udp::UdpSocketState::new((&socket).into())?;
    let is_many = |segments: NonZeroUsize| segments > NonZeroUsize::MIN;
    Ok(UdpOffload { gso: is_many(state.max_gso_segments()), gro: is_many(state.gro_segments()) })
}

/// How an endpoint uses its sockets.
#[derive(Clone, Debug)]
pub(crate) struct SocketUse {
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    /// Offloads that the sockets no longer try.
    pub(crate) lacking: Lacking,
    /// The largest UDP payload received.
    pub(crate) max_payload: u16,
    /// Whether packets are sent from the address that the peer's packets arrived at. An exit with several addresses needs this. A
    /// client leaves the source to the kernel, which follows changes of the host's address.
    pub(crate) keeps_source: bool,
}

/// A socket in the form that noq takes.
#[derive(Debug)]
pub(crate) struct QuicSocket {
    /// The filter in front of an exit's endpoint.
    gate: Option<Gate>,
    shared: Arc<CountedSocket>,
    receive_segments: NonZeroUsize,
}

impl QuicSocket {
    /// Takes over the socket. Must be called inside a tokio runtime.
    pub(crate) fn new(
        socket: UdpSocket,
        using: SocketUse,
        counters: Arc<SocketCounters>,
        gate: Option<Gate>,
    ) -> io::Result<Self> {
        // noq reserves this many of the largest payload per receive. The kernel merges at most 64 KiB of any size.
        let receive_segments = match using.gro {
            true => MAX_GRO_BYTES.div_ceil(usize::from(using.max_payload)),
            false => 1,
        };
        Ok(Self {
            gate,
            shared: Arc::new(CountedSocket::new(socket, using, counters)?),
            receive_segments: NonZeroUsize::new(receive_segments).unwrap_or(NonZeroUsize::MIN),
        })
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender { shared: self.shared.clone(), writable: None, resume: Resume::default() })
    }

    /// Never fails while the runtime lives. A receive error must not end the endpoint, so it is counted and the receive retried.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        const ATTEMPTS: usize = 8;
        for _ in 0..ATTEMPTS {
            ready!(self.shared.poll_readable(cx))?;
            if let Some(received @ 1..) = self.shared.receive(buffers, meta) {
                if let Some(gate) = &self.gate {
                    buffers
                        .iter_mut()
                        .zip(meta.iter())
                        .take(received)
                        .for_each(|batch| hide_strangers(gate, batch));
                }
                return Poll::Ready(Ok(received));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.receive_segments
    }

    fn may_fragment(&self) -> bool {
        self.shared.may_fragment()
    }
}

/// Clears the first byte of datagrams that must not be answered. Without the fixed bit they are not QUIC packets (RFC 9000
/// section 17), and noq drops them silently.
fn hide_strangers(gate: &Gate, (batch, meta): (&mut IoSliceMut<'_>, &RecvMeta)) {
    let received = batch.get_mut(..meta.len).unwrap_or_default();
    for datagram in received.chunks_mut(meta.stride.max(1)) {
        if !gate.lets_in(meta.addr, datagram)
            && let Some(first) = datagram.first_mut()
        {
            *first = 0;
        }
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// One task's handle for sending on a socket, with its own waker.
struct Sender {
    shared: Arc<CountedSocket>,
    writable: Option<Writable>,
    resume: Resume,
}

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { shared, writable, resume } = self.get_mut();
        while shared.send(transmit, resume).is_err() {
            let waiting = writable.get_or_insert_with(|| {
                let shared = shared.clone();
                Box::pin(async move { shared.writable().await })
            });
            let result = ready!(waiting.as_mut().poll(cx));
            *writable = None;
            result?;
        }
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.shared.max_segments()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("resume", &self.resume).finish_non_exhaustive()
    }
}

fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_option_of(socket, level, name, &value)
}

/// Sets an option whose value the kernel reads as a `T`, including pointers in it.
fn set_option_of<T>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open while `socket` is borrowed. The kernel reads `length` bytes at `value`, a T that is borrowed
    // until the call returns. It writes nothing.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
