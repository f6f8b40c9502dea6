//! The adapter from a counted socket to noq's socket traits.

use std::{
    fmt, io,
    io::IoSliceMut,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use noq::{AsyncUdpSocket, UdpSender};
use noq_udp::{RecvMeta, Transmit};

use super::{CountedSocket, Resume, SocketUse};
use crate::{stats::SocketCounters, strangers::Gate};

/// Maximum number of bytes that one receive can merge (GRO): the largest IP packet.
const MAX_GRO_BYTES: usize = 65_535;

/// A socket in the form that noq takes.
#[derive(Debug)]
pub(crate) struct QuicSocket {
    /// The filter in front of an exit's endpoint.
    gate: Option<Gate>,
    shared: Arc<CountedSocket>,
    receive_segments: NonZeroUsize,
}

impl QuicSocket {
    /// Registers the socket with tokio, so it must be called inside a tokio runtime.
    pub(crate) fn new(
        socket: UdpSocket,
        using: SocketUse,
        counters: Arc<SocketCounters>,
        gate: Option<Gate>,
    ) -> io::Result<Self> {
        // For each receive, noq reserves memory for this many datagrams of the largest payload. The kernel merges at most 64 KiB of
        // any size.
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
        // After this many receives without a datagram, other sockets get their turn.
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
            // Kept across polls: dropping the future would end its registration with the waker.
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
