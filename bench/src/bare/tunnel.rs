//! The loop of a side. It reads the socket and the TUN device until they have no more packets, sends, and sleeps in poll(2).

use std::{
    io::{ErrorKind, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use bytes::{BufMut as _, Bytes, BytesMut};
use noq_proto::{Connection, ConnectionHandle, DatagramEvent, Endpoint, Event, FourTuple};
use noq_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read, writev},
};
use warren_packet::{
    coalesce::{Coalescer, MAX_PARTS, Outcome},
    datagram::Flags,
    segment::segment,
    virtio::{self, VirtioNetHeader},
};
use warren_quic::socket::{self, SocketConfig};
use warren_tun::READ_BUFFER_BYTES;

use super::quic;
use crate::{interrupt::Interrupt, tun_device::TunDevice};

/// The exit's UDP port.
const PORT: u16 = 4433;
/// The maximum number of GSO segments in one send. 44 packets of 1,420 bytes are less than 64 KiB.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(44).unwrap();
/// The TUN device is not read while at least this many bytes wait in the connection's send buffer.
const QUEUE: usize = 256 * 1024;
/// The number of buffers of one `recvmmsg` call, and the size of each buffer.
const RECEIVES: usize = 8;
const RECEIVE_BYTES: usize = 65_535;
/// How often an idle side checks whether to stop.
const LOOK: Duration = Duration::from_millis(200);

/// A datagram: one byte of flags, then the packet.
struct Packet(Bytes);

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        self.0.get(1..).unwrap_or_default()
    }
}

pub(super) struct Tunnel {
    device: TunDevice,
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    coalescer: Coalescer<Packet>,
    read_buffer: Vec<u8>,
    receive_buffers: Vec<Vec<u8>>,
    transmit_buffer: Vec<u8>,
}

impl Tunnel {
    /// Makes the client's side, which connects to the exit at `remote`. Without `remote`, makes the exit's side.
    pub(super) fn new(device: TunDevice, remote: Option<IpAddr>) -> anyhow::Result<Self> {
        let (address, endpoint, connection) = match remote {
            None => (PORT, quic::exit()?, None),
            Some(remote) => {
                let (endpoint, handle, connection) = quic::client((remote, PORT).into())?;
                (0, endpoint, Some((handle, connection)))
            }
        };
        let address: SocketAddr = (Ipv4Addr::UNSPECIFIED, address).into();
        let socket = socket::bind(SocketConfig::new(address)).context("cannot bind a UDP socket")?;
        let state = UdpSocketState::new((&socket).into()).context("cannot set the UDP socket up")?;
        Ok(Self {
            coalescer: Coalescer::new(device.takes),
            device,
            socket,
            state,
            endpoint,
            connection,
            read_buffer: vec![0; READ_BUFFER_BYTES],
            receive_buffers: vec![vec![0; RECEIVE_BYTES]; RECEIVES],
            transmit_buffer: Vec::with_capacity(RECEIVE_BYTES),
        })
    }

    /// Carries packets until interrupted.
    pub(super) fn run(&mut self, stop: &Interrupt) -> anyhow::Result<()> {
        while !stop.is_set() {
            let now = Instant::now();
            self.receive(now)?;
            self.read()?;
            self.transmit(Instant::now())?;
            self.wait()?;
        }
        Ok(())
    }

    /// Reads the socket until it is empty, and writes the packets to the device.
    fn receive(&mut self, now: Instant) -> anyhow::Result<()> {
        let mut meta = [RecvMeta::default(); RECEIVES];
        loop {
            // `IoSliceMut` is not `Copy`, so the array of them is made from options.
            let mut slices = [const { None }; RECEIVES];
            for (slice, buffer) in slices.iter_mut().zip(&mut self.receive_buffers) {
                *slice = Some(IoSliceMut::new(buffer));
            }
            let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let received = match self.state.recv((&self.socket).into(), &mut slices, &mut meta) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot receive"),
            };
            for index in 0..received {
                let (Some(meta), Some(buffer)) = (meta.get(index), self.receive_buffers.get(index)) else {
                    break;
                };
                let batch = BytesMut::from(buffer.get(..meta.len).unwrap_or_default());
                self.take(now, *meta, batch)?;
            }
            self.write();
        }
    }

    /// Handles the UDP datagrams of one receive buffer.
    fn take(&mut self, now: Instant, meta: RecvMeta, mut batch: BytesMut) -> anyhow::Result<()> {
        let path = FourTuple::new(meta.addr, None);
        while !batch.is_empty() {
            // With GRO, one buffer holds several datagrams of `stride` bytes, and the last one may be shorter. A stride of 0
            // would make this loop endless.
            let mut datagram = batch.split_to(meta.stride.clamp(1, batch.len()));
            // Fast path: the connection handles a QUIC packet that carries only a DATAGRAM frame at once. It returns any other
            // packet, and the endpoint handles that one.
            if let Some((_, connection)) = &mut self.connection
                && let Some(route) = self.endpoint.route_short(&datagram)
            {
                let Some(rest) =
                    connection.handle_plain_datagram(now, path, meta.ecn.map(ecn), route, datagram)
                else {
                    continue;
                };
                datagram = rest;
            }
            let mut answer = Vec::new();
            match self.endpoint.handle(now, path, meta.ecn.map(ecn), datagram, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some((_, connection)) = &mut self.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    // The benchmark has only one client, so this does not replace another connection.
                    let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                    self.connection = Some(accepted.ok().context("cannot take the client's connection")?);
                }
                // A response answers an invalid packet of a stranger. Only the other side sends to this port.
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Writes the received packets to the device.
    fn write(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        while let Some(datagram) = connection.datagrams().recv() {
            let flags = if datagram.first() == Some(&1) { Flags::PARTIAL_CHECKSUM } else { Flags::NONE };
            // The other end sends only valid packets, so the coalescer's errors can be ignored.
            let _ = self.coalescer.push(flags, Packet(datagram));
        }
        let file = &self.device.file;
        self.coalescer.flush(|write| {
            let header = write.header.to_bytes();
            let mut slices = [IoSlice::new(&[]); 1 + MAX_PARTS];
            let all = std::iter::once(&header[..]).chain(write.parts.iter().copied());
            for (slice, part) in slices.iter_mut().zip(all) {
                *slice = IoSlice::new(part);
            }
            // The kernel returns EINVAL for a kind of super-packet that it does not support.
            match writev(file, slices.get(..=write.parts.len()).unwrap_or_default()) {
                Ok(_) => Outcome::Written,
                Err(Errno::INVAL) => Outcome::Refused,
                Err(_) => Outcome::Lost,
            }
        });
    }

    /// Moves packets from the device to the connection until the device is empty or the send buffer has `QUEUE` bytes.
    fn read(&mut self) -> anyhow::Result<()> {
        let Some((_, connection)) = &mut self.connection else { return Ok(()) };
        while has_room(connection) {
            let length = match read(&self.device.file, &mut self.read_buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error).context("cannot read from the TUN device"),
            };
            let whole = self.read_buffer.get(..length).unwrap_or_default();
            let Some((header, packet)) = whole.split_at_checked(virtio::LEN) else { continue };
            let Ok(header) = VirtioNetHeader::parse(header) else { continue };
            // The capacity includes the headers and the byte of flags of each segment. The buffer grows if segments are very
            // small.
            let mut arena = BytesMut::with_capacity(length + length / 8 + 256);
            let mut datagrams = connection.datagrams();
            // The kernel's packets are well-formed, so `segment` does not fail. A packet that the connection refuses is lost.
            let _ = segment(header, packet, &mut |segment| {
                arena.put_u8(u8::from(segment.partial_checksum));
                for part in segment.parts() {
                    arena.put_slice(part);
                }
                let _ = datagrams.send(arena.split().freeze(), false);
            });
        }
        Ok(())
    }

    /// Sends all QUIC packets that the connection has ready, and passes events between endpoint and connection.
    fn transmit(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some((handle, connection)) = &mut self.connection else { return Ok(()) };
        // This does nothing unless a timer is due.
        connection.handle_timeout(now);
        loop {
            self.transmit_buffer.clear();
            let Some(transmit) = connection.poll_transmit(now, SEGMENTS, &mut self.transmit_buffer) else {
                break;
            };
            let transmit = Transmit {
                destination: transmit.destination,
                ecn: None,
                contents: self.transmit_buffer.get(..transmit.size).unwrap_or_default(),
                segment_size: transmit.segment_size,
                src_ip: None,
            };
            loop {
                match self.state.try_send((&self.socket).into(), &transmit) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        let mut descriptors = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
                        // A signal interrupts poll(2). In that case, the loop tries to send again.
                        let _ = poll(&mut descriptors, None);
                    }
                    // Any other result ends the attempts. On an error, the packet is lost, and QUIC treats it like a loss on the
                    // path.
                    _ => break,
                }
            }
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            if let Event::ConnectionLost { reason } = event {
                bail!("the connection is lost: {reason}");
            }
        }
        Ok(())
    }

    /// Waits for a packet, a UDP datagram or the connection's next timer.
    fn wait(&mut self) -> anyhow::Result<()> {
        let connection = self.connection.as_mut().map(|(_, connection)| connection);
        let takes = connection.is_some_and(has_room);
        let connection = self.connection.as_ref().map(|(_, connection)| connection);
        let due = connection.and_then(Connection::poll_timeout);
        // The wait is at most LOOK, because a signal that another thread handles does not interrupt this poll(2).
        let time = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
        let time = Timespec::try_from(time).context("the wait is too long")?;
        let socket = PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN);
        let device = PollFd::from_borrowed_fd(self.device.file.as_fd(), PollFlags::IN);
        let mut descriptors = [socket, device];
        // While the send buffer is full, the device is not polled. Otherwise, a readable device would make this loop spin.
        let count = if takes { 2 } else { 1 };
        match poll(descriptors.get_mut(..count).unwrap_or_default(), Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }
}

fn has_room(connection: &mut Connection) -> bool {
    quic::BUFFER - connection.datagrams().send_buffer_space() < QUEUE
}

fn ecn(codepoint: noq_udp::EcnCodepoint) -> noq_proto::EcnCodepoint {
    match codepoint {
        noq_udp::EcnCodepoint::Ect0 => noq_proto::EcnCodepoint::Ect0,
        noq_udp::EcnCodepoint::Ect1 => noq_proto::EcnCodepoint::Ect1,
        noq_udp::EcnCodepoint::Ce => noq_proto::EcnCodepoint::Ce,
    }
}
