//! An open connection: counted datagrams in both directions, and a close that delivers control bytes first.

use std::{
    future::Future,
    mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use noq::{ConnectionError, PathId, SendDatagramError};
use tokio::time::{Sleep, sleep};

use super::{
    control::Control,
    outbox::{BATCH, Outbox},
};
use crate::{
    boundary::{CloseReason, ConnectionId, ConnectionStats, ControllerState, Event, LossCounts, SendError},
    outcome::{Tally, connection_stats, loss_counts},
    quic_config::state_of,
};

/// How long a close waits for the peer to acknowledge control bytes.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

type Receive = Pin<Box<dyn Future<Output = ConnectionError> + Send>>;
type Parked = Pin<Box<dyn Future<Output = Result<(), SendDatagramError>> + Send>>;

/// A connection after its handshake.
pub(super) struct Open {
    connection: noq::Connection,
    remote: SocketAddr,
    /// Moves datagrams to the outbox. Ends with the connection, after the last datagram.
    receive: Receive,
    control: Control,
    /// A datagram that was accepted although noq's buffer was full. Later datagrams are refused until this one is sent.
    parked: Option<Parked>,
    /// Whether a datagram was refused while another one was parked.
    refused: bool,
    closing: Option<Closing>,
    /// Why this side closed the connection.
    pub(super) reason: Option<CloseReason>,
    tally: Tally,
}

/// A close that waits for the control stream to be delivered.
struct Closing {
    code: u32,
    words: String,
    /// `None` once the close was sent.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Open {
    pub(super) fn new(
        id: ConnectionId,
        connection: noq::Connection,
        remote: SocketAddr,
        outbox: Arc<Outbox>,
    ) -> Self {
        Self {
            remote,
            receive: Box::pin(receive(connection.clone(), id, outbox)),
            control: Control::new(&connection),
            connection,
            parked: None,
            refused: false,
            closing: None,
            reason: None,
            tally: Tally::default(),
        }
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        id: ConnectionId,
        outbox: &Arc<Outbox>,
        events: &mut Vec<Event>,
    ) -> Poll<ConnectionError> {
        if let Some(data) = self.control.poll(cx) {
            events.push(Event::Control { connection: id, data });
        }
        if self.poll_parked(cx) && mem::take(&mut self.refused) {
            events.push(Event::Writable { connection: id });
        }
        self.poll_closing(cx);
        let before = outbox.len();
        let ended = self.receive.as_mut().poll(cx);
        self.tally.delivered += (outbox.len() - before) as u64;
        if ended.is_pending() {
            if !outbox.has_room() {
                // `receive` may have stopped because the outbox was full, and nothing else wakes it.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        if let Some(data) = self.control.rest(cx) {
            events.push(Event::Control { connection: id, data });
        }
        ended
    }

    /// Returns true if the parked datagram has just been sent or dropped.
    fn poll_parked(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(parked) = &mut self.parked else { return false };
        let Poll::Ready(result) = parked.as_mut().poll(cx) else { return false };
        self.parked = None;
        if result == Err(SendDatagramError::TooLarge) {
            self.tally.too_large += 1;
        }
        true
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) {
        let Some(closing) = &mut self.closing else { return };
        let Some(deadline) = &mut closing.deadline else { return };
        // Both are polled, so that each can wake the task.
        let expired = deadline.as_mut().poll(cx).is_ready();
        if self.control.poll_delivered(cx).is_ready() || expired {
            closing.deadline = None;
            self.connection.close(closing.code.into(), closing.words.as_bytes());
        }
    }

    pub(super) fn send_datagram(&mut self, waker: &Waker, datagram: Bytes) -> Result<(), SendError> {
        if self.closing.is_some() {
            return Err(SendError::Closed(datagram));
        }
        if self.parked.is_some() {
            self.refused = true;
            return Err(SendError::Blocked(datagram));
        }
        // Keeps a reference, so that the datagram can be returned.
        let kept = datagram.clone();
        // This future is not awaited. If there is no room, the code below parks another one.
        let attempt =
            pin!(self.connection.send_datagram_wait(datagram)).poll(&mut Context::from_waker(Waker::noop()));
        match attempt {
            Poll::Ready(Ok(())) => {
                self.tally.accepted += 1;
                Ok(())
            }
            Poll::Ready(Err(SendDatagramError::TooLarge)) => Err(SendError::TooLarge(kept)),
            // The connection has ended, or one side does not support datagrams. Neither can change later.
            Poll::Ready(Err(_)) => Err(SendError::Closed(kept)),
            Poll::Pending => {
                let connection = self.connection.clone();
                self.parked = Some(Box::pin(async move { connection.send_datagram_wait(kept).await }));
                self.tally.accepted += 1;
                // The new future has not been polled yet, so nothing else would wake it.
                waker.wake_by_ref();
                Ok(())
            }
        }
    }

    pub(super) fn max_datagram_size(&self) -> Option<usize> {
        if self.closing.is_some() { None } else { self.connection.max_datagram_size() }
    }

    pub(super) fn send_control(&mut self, waker: &Waker, data: &[u8]) -> Result<(), SendError> {
        let refused = || Err(SendError::Closed(Bytes::copy_from_slice(data)));
        if self.closing.is_some() {
            return refused();
        }
        if self.control.send(&mut Context::from_waker(waker), data).is_err() {
            let why = "the peer accepts no control messages";
            self.reason = Some(CloseReason::Transport(why.to_owned()));
            self.connection.close(0_u32.into(), why.as_bytes());
            return refused();
        }
        Ok(())
    }

    pub(super) fn control_backlog(&self) -> Option<usize> {
        if self.closing.is_some() { None } else { Some(self.control.backlog()) }
    }

    /// Starts to close the connection. Further calls have no effect.
    pub(super) fn close(&mut self, code: u32, words: &str, reason: CloseReason) {
        if self.closing.is_none() {
            let deadline = Some(Box::pin(sleep(FLUSH_TIMEOUT)));
            self.closing = Some(Closing { code, words: words.to_owned(), deadline });
            self.reason = self.reason.take().or(Some(reason));
        }
    }

    /// Returns the counters. If `last` is true, the connection has ended, so datagrams that were never sent or delivered count as
    /// dropped.
    pub(super) fn stats(&self, last: bool) -> ConnectionStats {
        let stats = self.connection.stats();
        // Without multipath, path 0 is the only one.
        let path = self.connection.path_stats(PathId::ZERO).unwrap_or_default();
        let remote = self.connection.path(PathId::ZERO).and_then(|path| path.remote_address().ok());
        connection_stats(
            remote.unwrap_or(self.remote),
            &stats,
            &path,
            self.controller_state(),
            self.tally,
            last,
        )
    }

    pub(super) fn loss_counts(&self) -> LossCounts {
        let path = self.connection.path_stats(PathId::ZERO).unwrap_or_default();
        loss_counts(&self.connection.stats(), &path, self.controller_state())
    }

    fn controller_state(&self) -> Option<ControllerState> {
        self.connection.read_congestion_state(PathId::ZERO, state_of).flatten()
    }
}

/// Moves received datagrams to the outbox while a whole batch fits. Ends with the connection's error.
async fn receive(connection: noq::Connection, id: ConnectionId, outbox: Arc<Outbox>) -> ConnectionError {
    let mut batch = [const { Bytes::new() }; BATCH];
    loop {
        // Registers no waker: `Open::poll` wakes the task if the outbox is full.
        std::future::poll_fn(|_| if outbox.has_room() { Poll::Ready(()) } else { Poll::Pending }).await;
        match connection.read_many_datagrams(&mut batch).await {
            Ok(count) => outbox.extend(id, batch.iter_mut().take(count).map(mem::take)),
            Err(error) => return error,
        }
    }
}
