//! The control stream of a connection. The client opens it, and the exit accepts the first stream.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use noq::{ConnectionError, RecvStream, SendStream, Side};

use crate::boundary::MAX_CONTROL_BACKLOG;

/// Maximum number of control bytes that one poll reads.
const READ_PER_POLL: usize = 16 * 1024;

/// Maximum number of control bytes read when the connection ends. It exceeds the receive window, so no byte is left unread.
const READ_AT_END: usize = 256 * 1024;

type Opening = Pin<Box<dyn Future<Output = Result<(SendStream, RecvStream), ConnectionError>> + Send>>;
type Delivered = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The error if more than [`MAX_CONTROL_BACKLOG`] bytes would wait for the peer.
#[derive(Debug)]
pub(super) struct Overflow;

/// Both directions of the stream, and the bytes that wait to be written.
pub(super) struct Control {
    opening: Option<Opening>,
    send: Option<SendStream>,
    receive: Option<RecvStream>,
    outgoing: BytesMut,
    /// Whether anything was ever queued.
    used: bool,
    /// Resolves once the stream is finished and the peer has acknowledged all of its bytes.
    delivered: Option<Delivered>,
}

impl Control {
    pub(super) fn new(connection: &noq::Connection) -> Self {
        let peer = connection.clone();
        let opening: Opening = match connection.side() {
            Side::Client => Box::pin(async move { peer.open_bi().await }),
            Side::Server => Box::pin(async move { peer.accept_bi().await }),
        };
        Self {
            opening: Some(opening),
            send: None,
            receive: None,
            outgoing: BytesMut::new(),
            used: false,
            delivered: None,
        }
    }

    /// Queues bytes and writes as many as the peer accepts now.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Result<(), Overflow> {
        self.used |= !data.is_empty();
        self.outgoing.extend_from_slice(data);
        self.write(cx);
        if self.outgoing.len() > MAX_CONTROL_BACKLOG { Err(Overflow) } else { Ok(()) }
    }

    /// Number of bytes that the peer has not accepted yet.
    pub(super) fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Opens the stream if necessary, writes waiting bytes and returns received ones.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        self.open(cx);
        self.write(cx);
        let data = self.read(cx, READ_PER_POLL);
        // More bytes may have arrived already, and noq wakes this task only for bytes that arrive later.
        if data.len() >= READ_PER_POLL {
            cx.waker().wake_by_ref();
        }
        (!data.is_empty()).then_some(data)
    }

    /// Returns the unread bytes of a connection that has ended.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        self.open(cx);
        let data = self.read(cx, READ_AT_END);
        (!data.is_empty()).then_some(data)
    }

    /// Ends this side of the stream and waits until the peer has acknowledged all of its bytes.
    pub(super) fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.used {
            return Poll::Ready(());
        }
        if self.delivered.is_none() {
            if !self.outgoing.is_empty() {
                // `write` registered the waker with the stream.
                return Poll::Pending;
            }
            let Some(send) = &mut self.send else { return Poll::Ready(()) };
            if send.finish().is_err() {
                return Poll::Ready(());
            }
            let stopped = send.stopped();
            self.delivered = Some(Box::pin(async move { drop(stopped.await) }));
        }
        self.delivered.as_mut().map_or(Poll::Ready(()), |delivered| delivered.as_mut().poll(cx))
    }

    fn open(&mut self, cx: &mut Context<'_>) {
        let Some(opening) = &mut self.opening else { return };
        if let Poll::Ready(result) = opening.as_mut().poll(cx) {
            self.opening = None;
            // An error means that the connection has ended, which `Open::poll` reports.
            (self.send, self.receive) = result.ok().unzip();
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        while let Some(send) = &mut self.send
            && !self.outgoing.is_empty()
        {
            match Pin::new(send).poll_write(cx, &self.outgoing) {
                Poll::Pending => return,
                Poll::Ready(Ok(written)) => drop(self.outgoing.split_to(written)),
                // The peer stopped reading or the connection ended. `Open::poll` reports the end.
                Poll::Ready(Err(_)) => {
                    self.send = None;
                    self.outgoing.clear();
                }
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, limit: usize) -> Bytes {
        let mut data = BytesMut::new();
        let mut buffer = [0; 4096];
        while let Some(receive) = &mut self.receive
            && data.len() < limit
        {
            match receive.poll_read(cx, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(Ok(read)) if read > 0 => {
                    data.extend_from_slice(buffer.get(..read).unwrap_or_default())
                }
                // The peer finished the stream, which it does before it closes the connection.
                Poll::Ready(_) => self.receive = None,
            }
        }
        data.freeze()
    }
}
