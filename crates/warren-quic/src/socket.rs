//! UDP sockets. Mark, buffers and don't-fragment are set before anything is sent. Every send and every failed send is counted.

#![allow(unsafe_code)]

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::AsRawFd,
};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use self::{
    counted::{CountedSocket, Resume},
    overflow::Overflow,
    quic_socket::QuicSocket,
    slab::Slabs,
};
use crate::settings::Lacking;

mod counted;
mod overflow;
mod plain;
#[cfg(test)]
mod planted;
mod quic_socket;
mod slab;
mod spare_memory;
mod steering;

pub use self::{
    plain::PlainSocket,
    spare_memory::{ThreadCache, release_spare_memory},
    steering::steer,
};

/// Requested size in bytes of each socket buffer: about 5 ms at 10 Gbit/s, by the kernel's accounting.
pub const DEFAULT_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// The configuration of a UDP socket.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The local address. Port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// The firewall mark of the socket's packets (`SO_MARK`, needs CAP_NET_ADMIN).
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
        // An IPv6-only socket leaves the IPv4 port to another socket.
        socket.set_only_v6(config.v6only)?;
    }
    if config.reuse_port {
        // The option has an effect only if it is set before the socket is bound (socket(7)).
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
    // until the call returns. The kernel writes nothing to it.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
