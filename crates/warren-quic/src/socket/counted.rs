//! A UDP socket that is registered with tokio and counts every send and receive. After the first refusal of segmentation, no socket
//! uses segmentation any more.

use std::{
    io,
    io::IoSliceMut,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use noq_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};

use super::{SocketUse, set_option};
use crate::{
    settings::Lacking,
    stats::{MAX_SEGMENTS, SocketCounters},
};

/// A socket for a driver. Constructing it forbids fragmentation (`IP_PMTUDISC_PROBE`, `IPV6_DONTFRAG`).
#[derive(Debug)]
pub(crate) struct CountedSocket {
    /// The socket, registered for reading only. If it were registered for writing too, each sent packet would wake the worker.
    io: AsyncFd<Arc<UdpSocket>>,
    /// A second descriptor of the socket, registered for writing. It exists from the time at which the socket was
    /// found full until [`Self::forget_room`].
    room: OnceLock<AsyncFd<OwnedFd>>,
    state: UdpSocketState,
    counters: Arc<SocketCounters>,
    keeps_source: bool,
    /// Whether to use segmentation, unless [`Self::lacking`] says that it is unavailable.
    gso: bool,
    lacking: Lacking,
}

impl CountedSocket {
    /// Registers the socket with tokio, so it must be called inside a tokio runtime.
    pub(crate) fn new(
        socket: UdpSocket,
        using: SocketUse,
        counters: Arc<SocketCounters>,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let SocketUse { gso, gro, lacking, keeps_source, .. } = using;
        if state.gro_segments() == NonZeroUsize::MIN {
            if gro && lacking.found_no_gro() {
                tracing::warn!(
                    "this kernel has no UDP receive offload (UDP_GRO, Linux 5.0); each receive brings one datagram"
                );
            }
        } else if !gro {
            // noq-udp has turned GRO on.
            set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 0)?;
        }
        if state.max_gso_segments() == NonZeroUsize::MIN && gso && lacking.found_no_gso() {
            tracing::warn!(
                "this kernel has no UDP segmentation (UDP_SEGMENT, Linux 4.18); datagrams are sent one by one"
            );
        }
        let socket = Arc::new(socket);
        counters.overflow.watch(&socket);
        let io = watch(socket, Interest::READABLE)?;
        Ok(Self { io, room: OnceLock::new(), state, counters, keeps_source, gso, lacking })
    }

    fn segments(&self) -> bool {
        self.gso && !self.lacking.gso()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    /// Whether the IP layer may fragment sent datagrams.
    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Returns the maximum number of datagrams that one send may hold at present.
    pub(crate) fn max_segments(&self) -> NonZeroUsize {
        const MAX: NonZeroUsize = NonZeroUsize::new(MAX_SEGMENTS).expect("it is not 0");
        if self.segments() { MAX } else { NonZeroUsize::MIN }
    }

    /// Ready if there may be something to receive. Otherwise `cx` is woken once there is.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx).map_ok(drop)
    }

    /// Ready if there may be room to send. Otherwise `cx` is woken once there is.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.room()?.poll_write_ready(cx).map_ok(drop)
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.room()?.writable().await.map(drop)
    }

    /// Stops watching for room to send, because nothing waits for room.
    pub(crate) fn forget_room(&mut self) {
        self.room.take();
    }

    fn room(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        if let Some(room) = self.room.get() {
            return Ok(room);
        }
        let room = watch(self.io.get_ref().as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
        Ok(self.room.get_or_init(|| room))
    }

    /// Receives one batch into each buffer and returns the number of filled buffers. Returns `None` without a system call while the
    /// socket is known to be empty. Errors are counted and treated as nothing received, because they must not end the endpoint.
    pub(crate) fn receive(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> Option<usize> {
        let wanted = buffers.len();
        let mut received = None;
        // `try_io` calls the closure only if tokio believes that the socket is readable.
        let mut asked = false;
        let attempt = self.io.try_io(Interest::READABLE, |io| {
            asked = true;
            let count = self.state.recv(io.into(), buffers, meta)?;
            received = Some(count);
            // A short recvmmsg means that the socket is empty. Later datagrams trigger epoll again.
            if count < wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        let Some(received) = received else {
            if let Err(error) = attempt
                && error.kind() != io::ErrorKind::WouldBlock
            {
                self.counters.receive_errors.fetch_add(1, Relaxed);
                tracing::debug!(%error, "cannot receive");
            }
            return asked.then_some(0);
        };
        let batches = || meta.iter().take(received);
        let datagrams = batches().map(|batch| batch.len.div_ceil(batch.stride.max(1)).max(1)).sum();
        self.counters.received(datagrams, batches().map(|batch| batch.len).sum());
        Some(received)
    }

    /// Sends a transmit, or the rest of one that `resume` describes. Fails only if the socket's buffer is full. Any other error is
    /// counted, and the transmit is lost as if the path had lost it.
    pub(crate) fn send(&self, transmit: &Transmit<'_>, resume: &mut Resume) -> io::Result<()> {
        let length = transmit.contents.len();
        let size = transmit.segment_size.unwrap_or(length).clamp(1, length.max(1));
        let batch = size < length;
        if !resume.single && (!batch || self.segments()) {
            match self.send_once(transmit) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The datagrams are sent one by one below, which also shows whether segmentation is the
                // cause.
                Err(error) if batch && is_refusal(&error) => resume.refused = Some(error),
                Err(_) => return Ok(()),
            }
        }
        if !resume.single {
            resume.single = true;
            self.counters.unsegmented.fetch_add(1, Relaxed);
        }
        while let Some(contents) = transmit.contents.get(resume.offset..).filter(|rest| !rest.is_empty()) {
            let contents = contents.get(..size).unwrap_or(contents);
            match self.send_once(&Transmit { contents, segment_size: None, ..transmit.clone() }) {
                Ok(()) if contents.len() == size => self.segmentation_is_to_blame(resume.refused.take()),
                // Success of a shorter last datagram proves nothing: the others may exceed the interface's MTU.
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {}
            }
            resume.offset += contents.len();
        }
        *resume = Resume::default();
        Ok(())
    }

    /// Sends once. Counts the send unless the socket's buffer was full.
    fn send_once(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let length = transmit.contents.len();
        let segments = transmit.segment_size.map_or(1, |size| length.div_ceil(size.max(1)));
        let transmit = Transmit { src_ip: transmit.src_ip.filter(|_| self.keeps_source), ..transmit.clone() };
        let send = || self.state.try_send(self.io.get_ref().into(), &transmit);
        let result = match self.room.get() {
            // If the socket is full, this clears the readiness, so that `poll_writable` waits for new room.
            Some(room) => room.try_io(Interest::WRITABLE, |_| send()),
            None => send(),
        };
        match &result {
            Ok(()) => self.counters.sent(segments, length),
            Err(error) => self.count(error, segments > 1),
        }
        result
    }

    fn count(&self, error: &io::Error, batch: bool) {
        let counters = &self.counters;
        let counter = match Errno::from_io_error(error) {
            _ if error.kind() == io::ErrorKind::WouldBlock => &counters.would_block,
            Some(Errno::MSGSIZE) if batch => &counters.batch_too_long,
            Some(Errno::MSGSIZE) => &counters.datagram_too_long,
            Some(Errno::IO) => &counters.io,
            Some(Errno::INVAL) => &counters.invalid,
            Some(Errno::NOBUFS) => &counters.no_buffers,
            Some(Errno::PERM | Errno::ACCESS) => &counters.refused,
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::CONNREFUSED) => {
                &counters.unreachable
            }
            _ => &counters.other,
        };
        counter.fetch_add(1, Relaxed);
        if error.kind() != io::ErrorKind::WouldBlock {
            tracing::debug!(%error, batch, "cannot send");
        }
    }

    /// Turns segmentation off after a batch was refused but one of its full-size datagrams could be sent alone. If single
    /// datagrams fail too, segmentation is not the cause: Linux before 6.14 also returns EINVAL when an interface's MTU has
    /// shrunk.
    fn segmentation_is_to_blame(&self, refused: Option<io::Error>) {
        if let Some(error) = refused
            && self.lacking.found_no_gso()
        {
            tracing::warn!(%error, "sending several datagrams at once (UDP_SEGMENT) was refused; they are sent one by one from now on");
        }
    }
}

impl Drop for CountedSocket {
    fn drop(&mut self) {
        self.counters.overflow.forget(self.io.get_ref());
    }
}

fn watch<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the watched object owns its descriptor. The AsyncFd owns the object, lends only shared references to it and is never
    // taken apart. So the descriptor stays open and unchanged until it is deregistered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// Whether the error means that a device or socket cannot segment. Linux says EIO if the device computes no checksums
/// (`udp_send_skb`).
fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::INVAL))
}

/// Progress of a transmit that is sent one datagram at a time. A full socket buffer may interrupt it anywhere.
#[derive(Debug, Default)]
pub(crate) struct Resume {
    single: bool,
    offset: usize,
    refused: Option<io::Error>,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::socket::{SocketConfig, bind};

    #[tokio::test]
    async fn datagrams_that_are_too_long_alone_too_do_not_cost_the_host_its_segmentation() {
        const TOO_LONG: usize = 65_508;
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let destination = receiver.local_addr().unwrap();
        // The second case is the control.
        for (size, too_long, is_blamed) in [(TOO_LONG, 1, false), (1_200, 0, true)] {
            let (lacking, counters) = (Lacking::default(), Arc::new(SocketCounters::new()));
            let using = SocketUse {
                gso: true,
                gro: true,
                lacking: lacking.clone(),
                max_payload: 1_472,
                keeps_source: true,
            };
            let socket = bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
            let socket = CountedSocket::new(socket, using, counters.clone()).unwrap();
            let contents = &vec![7; size + 100];
            let transmit =
                Transmit { destination, ecn: None, contents, segment_size: Some(size), src_ip: None };

            let mut refused = Resume { single: true, offset: 0, refused: Some(Errno::INVAL.into()) };
            socket.send(&transmit, &mut refused).unwrap();

            let stats = counters.snapshot();
            assert_eq!((stats.send_errors.datagram_too_long, stats.sends), (too_long, 2 - too_long));
            assert_eq!(lacking.gso(), is_blamed, "{size}");
        }
    }
}
