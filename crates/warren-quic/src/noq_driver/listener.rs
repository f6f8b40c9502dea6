//! Connection attempts at an exit, bounded: past a threshold, addresses must be proven; past the bound, none is taken.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use noq::{Connecting, Endpoint, Incoming};

/// Handshakes under way from which on a client must first prove its address (RFC 9000 section 8.1), so that forged
/// addresses cannot take the rest of the room.
const RETRY_FROM: usize = 128;

/// Most handshakes under way at an endpoint.
const MAX_HANDSHAKES: usize = 256;

/// Attempts looked at in one poll.
const BATCH: usize = 32;

type Accept = Pin<Box<dyn Future<Output = Option<Incoming>> + Send>>;

/// One listening socket.
pub(super) struct Listener {
    endpoint: Endpoint,
    waker: Waker,
    accept: Option<Accept>,
}

impl Listener {
    pub(super) fn new(endpoint: Endpoint, waker: Waker) -> Self {
        let accept = Some(accept(&endpoint));
        Self { endpoint, waker, accept }
    }

    /// Takes the attempts that wait, given how many handshakes are under way.
    pub(super) fn poll(&mut self, mut handshakes: usize) -> Vec<Connecting> {
        let mut taken = Vec::new();
        for _ in 0..BATCH {
            let Some(future) = &mut self.accept else { return taken };
            match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                Poll::Pending => return taken,
                Poll::Ready(None) => {
                    tracing::error!(
                        "a listening socket's task ended; no more connections are accepted on it"
                    );
                    self.accept = None;
                }
                Poll::Ready(Some(incoming)) => {
                    self.accept = Some(accept(&self.endpoint));
                    if let Some(connecting) = admit(incoming, handshakes) {
                        handshakes += 1;
                        taken.push(connecting);
                    }
                }
            }
        }
        self.waker.wake_by_ref();
        taken
    }

    pub(super) fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }
}

fn accept(endpoint: &Endpoint) -> Accept {
    let endpoint = endpoint.clone();
    Box::pin(async move { endpoint.accept().await })
}

fn admit(incoming: Incoming, handshakes: usize) -> Option<Connecting> {
    let remote = incoming.remote_address();
    if handshakes >= RETRY_FROM && !incoming.remote_address_validated() {
        if incoming.retry().is_err() {
            tracing::debug!(%remote, "cannot ask for a proof of the address");
        }
        return None;
    }
    if handshakes >= MAX_HANDSHAKES {
        tracing::debug!(%remote, "too many handshakes are under way");
        incoming.refuse();
        return None;
    }
    match incoming.accept() {
        Ok(connecting) => Some(connecting),
        Err(error) => {
            tracing::debug!(%remote, %error, "cannot accept");
            None
        }
    }
}
