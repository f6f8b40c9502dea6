//! The control stream of a connection. The client opens it, and the exit accepts the first stream.

use bytes::{Bytes, BytesMut};
use noq_proto::{Connection, Dir, ReadError, Side, StreamEvent, StreamId, WriteError};

use crate::boundary::MAX_CONTROL_BACKLOG;

/// Maximum number of control bytes delivered at once.
const READ_AT_ONCE: usize = 16 * 1024;

/// Maximum number of control bytes read when the connection ends. It exceeds the receive window, so no byte is left unread.
const READ_AT_END: usize = 256 * 1024;

/// The error if more than [`MAX_CONTROL_BACKLOG`] bytes would wait for the peer.
#[derive(Debug)]
pub(super) struct Overflow;

/// Both directions of the stream, and the bytes that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Control {
    stream: Option<StreamId>,
    outgoing: BytesMut,
    /// Whether anything was ever queued.
    used: bool,
    /// Whether this side has finished the stream.
    finished: bool,
    /// Whether the peer accepts no more bytes, because it has received all of them or has stopped reading.
    sending_is_over: bool,
    readable: bool,
    receiving_is_over: bool,
}

impl Control {
    /// Handles a stream event, and opens or accepts the control stream when possible.
    pub(super) fn handle(&mut self, quic: &mut Connection, event: &StreamEvent) {
        match event {
            StreamEvent::Opened { .. } | StreamEvent::Available { .. } => self.open(quic),
            StreamEvent::Readable { id } if Some(*id) == self.stream => self.readable = true,
            StreamEvent::Writable { id } if Some(*id) == self.stream => self.write(quic),
            StreamEvent::Finished { id } | StreamEvent::Stopped { id, .. } if Some(*id) == self.stream => {
                self.stop_sending();
            }
            StreamEvent::Readable { .. }
            | StreamEvent::Writable { .. }
            | StreamEvent::Finished { .. }
            | StreamEvent::Stopped { .. } => {}
        }
    }

    /// Opens the stream at a client, or accepts the first one at an exit, if that is possible now.
    pub(super) fn open(&mut self, quic: &mut Connection) {
        if self.stream.is_some() {
            return;
        }
        self.stream = match quic.side() {
            Side::Client => quic.streams().open(Dir::Bi),
            Side::Server => quic.streams().accept(Dir::Bi),
        };
        // Checks for bytes now, because QUIC reports no event for bytes that arrived with the stream.
        self.readable = self.stream.is_some();
        self.write(quic);
    }

    /// Queues bytes and writes as many as the peer accepts now.
    pub(super) fn send(&mut self, quic: &mut Connection, data: &[u8]) -> Result<(), Overflow> {
        self.used |= !data.is_empty();
        // Once sending is over, the peer accepts no more bytes, so queued bytes would wait for ever.
        if !self.sending_is_over {
            self.outgoing.extend_from_slice(data);
        }
        self.write(quic);
        if self.outgoing.len() > MAX_CONTROL_BACKLOG { Err(Overflow) } else { Ok(()) }
    }

    /// Number of bytes that the peer has not accepted yet.
    pub(super) fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether there may be something to read.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Reads received bytes, up to a bound.
    pub(super) fn read(&mut self, quic: &mut Connection) -> Option<Bytes> {
        self.read_up_to(quic, READ_AT_ONCE)
    }

    /// Reads all unread bytes of a connection that has ended.
    pub(super) fn rest(&mut self, quic: &mut Connection) -> Option<Bytes> {
        // Bytes may have arrived since the last read.
        self.readable = self.stream.is_some();
        self.read_up_to(quic, READ_AT_END)
    }

    /// Finishes this side of the stream. Returns whether the peer has acknowledged all of its bytes.
    pub(super) fn is_delivered(&mut self, quic: &mut Connection) -> bool {
        if !self.used || self.sending_is_over {
            return true;
        }
        if !self.outgoing.is_empty() {
            return false;
        }
        let Some(stream) = self.stream else { return true };
        if !self.finished {
            self.finished = true;
            // An error means that the peer has stopped reading.
            self.sending_is_over = quic.send_stream(stream).finish().is_err();
        }
        self.sending_is_over
    }

    fn write(&mut self, quic: &mut Connection) {
        let Some(stream) = self.stream else { return };
        while !self.outgoing.is_empty() {
            match quic.send_stream(stream).write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.split_to(written)),
                Err(WriteError::Blocked) => return,
                // The peer stopped reading or the connection ended. The connection reports its end.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => self.stop_sending(),
            }
        }
    }

    fn stop_sending(&mut self) {
        self.sending_is_over = true;
        self.outgoing.clear();
    }

    fn read_up_to(&mut self, quic: &mut Connection, limit: usize) -> Option<Bytes> {
        let stream = self.stream.filter(|_| self.readable && !self.receiving_is_over)?;
        let mut data = BytesMut::new();
        // Copied, so that a few bytes of control data do not pin a receive buffer.
        let mut receiving = quic.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else {
            self.end_receiving();
            return None;
        };
        while data.len() < limit {
            match chunks.next(limit - data.len()) {
                Ok(Some(chunk)) => data.extend_from_slice(&chunk.bytes),
                Err(ReadError::Blocked) => {
                    self.readable = false;
                    break;
                }
                // The peer finished the stream, which it does before it closes the connection.
                Ok(None) | Err(ReadError::Reset(_)) => {
                    self.readable = false;
                    self.receiving_is_over = true;
                    break;
                }
            }
        }
        // The next transmit carries the flow control credit.
        let _credit = chunks.finalize();
        (!data.is_empty()).then(|| data.freeze())
    }

    fn end_receiving(&mut self) {
        self.readable = false;
        self.receiving_is_over = true;
    }
}
