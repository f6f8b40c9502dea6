//! A UDP socket for a protocol other than QUIC. It has the same counters and offloads as QUIC's sockets, but the IP layer fragments
//! datagrams that are too long for the path.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    task::{Context, Poll},
};

use noq_udp::{RecvMeta, Transmit};

use super::{CountedSocket, Resume, set_option};
use crate::{
    quic_config::socket_use,
    settings::{Lacking, TransportSettings},
    stats::{SocketCounters, SocketStats},
};

/// The number of buffers of one receive. Each holds a batch of datagrams that the kernel merged.
const BUFFERS: usize = 8;
/// The largest batch.
const BUFFER_BYTES: usize = 65_536;
/// Maximum number of bytes that wait while the kernel's buffer is full. A longer queue would only add delay.
const MOST_WAITING: usize = 512 * 1024;

/// A UDP socket, and the sends that wait until its buffer has room.
#[derive(Debug)]
pub struct PlainSocket {
    socket: CountedSocket,
    counters: Arc<SocketCounters>,
    buffers: Vec<u8>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
}

/// A send that found the socket full.
#[derive(Debug)]
struct Waiting {
    to: SocketAddr,
    from: Option<IpAddr>,
    contents: Vec<u8>,
    size: usize,
    resume: Resume,
}

impl PlainSocket {
    /// Registers a bound socket with tokio, so it must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the kernel refuses an option, or the runtime refuses the socket.
    pub fn new(socket: UdpSocket, settings: &TransportSettings) -> io::Result<Self> {
        let counters = Arc::new(SocketCounters::new());
        // A batch that is refused here says nothing about QUIC's batches, whose datagrams are never longer than the path's MTU.
        let using = super::SocketUse { lacking: Lacking::default(), ..socket_use(settings, true) };
        let fragmenting = socket.try_clone()?;
        let socket = CountedSocket::new(socket, using, counters.clone())?;
        // `CountedSocket` has forbidden fragmentation.
        if fragmenting.local_addr()?.is_ipv4() {
            set_option(&fragmenting, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
        } else {
            let dont = libc::IPV6_PMTUDISC_DONT;
            set_option(&fragmenting, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, dont)?;
            set_option(&fragmenting, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0)?;
        }
        let buffers = vec![0; BUFFERS * BUFFER_BYTES];
        Ok(Self { socket, counters, buffers, waiting: VecDeque::new(), waiting_bytes: 0 })
    }

    /// Passes every datagram of one receive to `take`, with its source and destination addresses. If there is no datagram, `cx`
    /// is woken once one arrives.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(SocketAddr, Option<IpAddr>, &[u8]),
    ) -> Poll<()> {
        // After this many receives without a datagram, other sockets get their turn.
        const ATTEMPTS: usize = 8;
        let mut meta = [RecvMeta::default(); BUFFERS];
        for _ in 0..ATTEMPTS {
            match self.socket.poll_readable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            }
            let mut chunks = self.buffers.chunks_mut(BUFFER_BYTES);
            let mut buffers: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or(&mut [])));
            let Some(received @ 1..) = self.socket.receive(&mut buffers, &mut meta) else { continue };
            for (meta, buffer) in meta.iter().zip(buffers.iter()).take(received) {
                let batch = buffer.get(..meta.len).unwrap_or_default();
                for datagram in batch.chunks(meta.stride.max(1)) {
                    take(meta.addr, meta.dst_ip, datagram);
                }
            }
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends datagrams of `size` bytes, the last of which may be shorter. Returns false if the datagrams are dropped because too
    /// many bytes wait already.
    pub fn send(&mut self, to: SocketAddr, from: Option<IpAddr>, contents: &[u8], size: usize) -> bool {
        let mut resume = Resume::default();
        if self.waiting.is_empty()
            && self.socket.send(&transmit(to, from, contents, size), &mut resume).is_ok()
        {
            return true;
        }
        if self.waiting_bytes + contents.len() > MOST_WAITING {
            return false;
        }
        self.waiting_bytes += contents.len();
        self.waiting.push_back(Waiting { to, from, contents: contents.to_vec(), size, resume });
        true
    }

    /// Sends as much of the waiting data as there is room for. `cx` is woken once there is more room.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) {
        while let Some(next) = self.waiting.front_mut() {
            if self.socket.poll_writable(cx).is_pending() {
                return;
            }
            let sent = transmit(next.to, next.from, &next.contents, next.size);
            if self.socket.send(&sent, &mut next.resume).is_err() {
                continue;
            }
            self.waiting_bytes = self.waiting_bytes.saturating_sub(next.contents.len());
            self.waiting.pop_front();
            if self.waiting.is_empty() {
                // If the waker stayed registered, each datagram that leaves would wake the worker.
                self.socket.forget_room();
            }
        }
    }

    /// Returns the socket's counters.
    pub fn stats(&self) -> SocketStats {
        self.counters.snapshot()
    }
}

fn transmit(to: SocketAddr, from: Option<IpAddr>, contents: &[u8], size: usize) -> Transmit<'_> {
    let segment_size = (size < contents.len()).then_some(size);
    Transmit { destination: to, ecn: None, contents, segment_size, src_ip: from }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::task::Waker;

    use super::*;
    use crate::socket::{SocketConfig, bind};

    #[tokio::test]
    async fn batches_arrive_as_the_datagrams_that_they_were_made_of() {
        let settings = TransportSettings::default();
        let local = SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into());
        let mut receiver = PlainSocket::new(bind(local.clone()).unwrap(), &settings).unwrap();
        let mut sender = PlainSocket::new(bind(local).unwrap(), &settings).unwrap();
        let to = receiver.socket.local_addr().unwrap();
        assert!(sender.send(to, None, &[7; 2_500], 1_000));
        let mut sizes = Vec::new();
        while sizes.len() < 3 {
            tokio::task::yield_now().await;
            let mut cx = Context::from_waker(Waker::noop());
            let _ = receiver.poll_receive(&mut cx, |_, at, datagram| {
                assert_eq!(at, Some(Ipv4Addr::LOCALHOST.into()));
                sizes.push(datagram.len());
            });
        }
        assert_eq!(sizes, [1_000, 1_000, 500]);
        assert_eq!(sender.stats().datagrams_sent(), 3);
    }
}
