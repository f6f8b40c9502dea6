//! One connection from its first packet to its end: the handshake and the close. [`Open`] is the phase in between.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use noq::{Connecting, ConnectionError};
use tokio::time::{Sleep, sleep};

use super::{listener::Admitted, open::Open, outbox::Outbox};
use crate::{
    boundary::{CloseReason, ConnectionId, ConnectionStats, Event, LossCounts, SendError},
    key::PublicKey,
    outcome::{close_reason, peer_key},
    strangers::Seat,
    tls::PresentedKey,
};

/// Maximum number of events that one poll of a connection adds: `Connected`, `Control`, `Writable`, `Control` for the bytes that
/// remain, and `Closed`.
pub(super) const MAX_EVENTS: usize = 5;

/// How long a handshake may take at an exit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether to poll a connection again.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Life {
    /// The connection has not ended.
    Goes,
    /// The connection has ended. Only its counters are left.
    Over,
}

/// A connection from its first packet on.
pub(super) struct NoqConnection {
    id: ConnectionId,
    waker: Waker,
    state: State,
    /// Only at a client: the connection's own endpoint, and where the verifier stores a refused key.
    client: Option<(noq::Endpoint, PresentedKey)>,
}

enum State {
    Handshake {
        connecting: Connecting,
        timeout: Option<Pin<Box<Sleep>>>,
        /// At an exit, the handshake's seat.
        seat: Option<Seat>,
        /// At an exit, the key that the exit proves.
        proven: Option<PublicKey>,
    },
    /// Aborted by this side before it was open.
    Abandoned(CloseReason),
    Open(Box<Open>),
    Over(Option<Box<ConnectionStats>>),
}

impl NoqConnection {
    pub(super) fn outgoing(
        id: ConnectionId,
        waker: Waker,
        connecting: Connecting,
        endpoint: noq::Endpoint,
        presented: PresentedKey,
    ) -> Self {
        Self {
            id,
            waker,
            state: State::Handshake { connecting, timeout: None, seat: None, proven: None },
            client: Some((endpoint, presented)),
        }
    }

    pub(super) fn incoming(id: ConnectionId, waker: Waker, admitted: Admitted) -> Self {
        let Admitted { connecting, seat, proven } = admitted;
        let timeout = Some(Box::pin(sleep(HANDSHAKE_TIMEOUT)));
        let state = State::Handshake { connecting, timeout, seat: Some(seat), proven };
        Self { id, waker, state, client: None }
    }

    /// Returns the endpoint that serves this connection alone.
    pub(super) fn own_endpoint(&self) -> Option<noq::Endpoint> {
        self.client.as_ref().map(|(endpoint, _)| endpoint.clone())
    }

    /// Makes all possible progress. Adds at most [`MAX_EVENTS`] events, and only as many datagrams as fit into `outbox`.
    pub(super) fn poll(&mut self, outbox: &Arc<Outbox>, events: &mut Vec<Event>) -> Life {
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        if let State::Handshake { connecting, timeout, seat, proven } = &mut self.state {
            let (remote, proven) = (connecting.remote_address(), *proven);
            match Pin::new(connecting).poll(&mut cx) {
                // Continues below, where the same poll handles the new state.
                Poll::Ready(Ok(connection)) => self.opened(connection, (remote, proven), outbox, events),
                Poll::Ready(Err(error)) => {
                    let reason = self.close_reason(error);
                    self.state = State::Abandoned(reason);
                }
                Poll::Pending => {
                    let expired = timeout.as_mut().map(|timeout| timeout.as_mut().poll(&mut cx));
                    if expired != Some(Poll::Ready(())) {
                        return Life::Goes;
                    }
                    if let Some(seat) = seat.take() {
                        seat.time_out();
                    }
                    self.state = State::Abandoned(CloseReason::TimedOut);
                }
            }
        }
        let (reason, stats) = match &mut self.state {
            State::Handshake { .. } => return Life::Goes,
            State::Over(_) => return Life::Over,
            State::Abandoned(reason) => {
                let reason = reason.clone();
                self.state = State::Over(None);
                // An exit reports a connection only after the handshake, so it does not report a failed handshake.
                if self.client.is_none() {
                    tracing::debug!(connection = %self.id, %reason, "a handshake failed");
                    return Life::Over;
                }
                (reason, None)
            }
            State::Open(open) => {
                let Poll::Ready(error) = open.poll(&mut cx, self.id, outbox, events) else {
                    return Life::Goes;
                };
                let (reason, stats) = (open.reason.take(), Some(Box::new(open.stats(true))));
                (reason.unwrap_or_else(|| self.close_reason(error)), stats)
            }
        };
        self.state = State::Over(stats);
        events.push(Event::Closed { connection: self.id, reason });
        Life::Over
    }

    fn opened(
        &mut self,
        connection: noq::Connection,
        (remote, proven): (SocketAddr, Option<PublicKey>),
        outbox: &Arc<Outbox>,
        events: &mut Vec<Event>,
    ) {
        let Some(peer) = peer_key(connection.peer_identity()) else {
            self.state =
                State::Abandoned(CloseReason::Transport("the peer proved no Ed25519 key".to_owned()));
            return;
        };
        events.push(Event::Connected { connection: self.id, peer, remote, proven });
        self.state = State::Open(Box::new(Open::new(self.id, connection, remote, outbox.clone())));
    }

    pub(super) fn send_datagram(&mut self, datagram: Bytes) -> Result<(), SendError> {
        match &mut self.state {
            State::Open(open) => open.send_datagram(&self.waker, datagram),
            State::Handshake { .. } | State::Abandoned(_) | State::Over(_) => {
                Err(SendError::Closed(datagram))
            }
        }
    }

    pub(super) fn max_datagram_size(&self) -> Option<usize> {
        match &self.state {
            State::Open(open) => open.max_datagram_size(),
            State::Handshake { .. } | State::Abandoned(_) | State::Over(_) => None,
        }
    }

    pub(super) fn send_control(&mut self, data: &[u8]) -> Result<(), SendError> {
        match &mut self.state {
            State::Open(open) => open.send_control(&self.waker, data),
            State::Handshake { .. } | State::Abandoned(_) | State::Over(_) => {
                Err(SendError::Closed(Bytes::copy_from_slice(data)))
            }
        }
    }

    pub(super) fn control_backlog(&self) -> Option<usize> {
        match &self.state {
            State::Open(open) => open.control_backlog(),
            State::Handshake { .. } | State::Abandoned(_) | State::Over(_) => None,
        }
    }

    pub(super) fn close(&mut self, code: u32, words: &str, reason: CloseReason) {
        match &mut self.state {
            // Dropping the future ends the handshake.
            State::Handshake { .. } => self.state = State::Abandoned(reason),
            State::Open(open) => open.close(code, words, reason),
            State::Abandoned(_) | State::Over(_) => return,
        }
        // The next poll reports the end or continues the close.
        self.waker.wake_by_ref();
    }

    /// Ends a handshake in progress.
    pub(super) fn give_way(&mut self) {
        // A handshake that is complete has left its seat, so its connection stays.
        if matches!(self.state, State::Handshake { .. }) {
            self.close(0, "", CloseReason::Local);
        }
    }

    pub(super) fn stats(&self) -> Option<ConnectionStats> {
        match &self.state {
            State::Open(open) => Some(open.stats(false)),
            State::Over(stats) => stats.as_deref().cloned(),
            State::Handshake { .. } | State::Abandoned(_) => None,
        }
    }

    pub(super) fn loss_counts(&self) -> Option<LossCounts> {
        match &self.state {
            State::Open(open) => Some(open.loss_counts()),
            State::Handshake { .. } | State::Abandoned(_) | State::Over(_) => None,
        }
    }

    fn close_reason(&self, error: ConnectionError) -> CloseReason {
        close_reason(error, self.client.as_ref().map(|(_, presented)| presented))
    }
}
