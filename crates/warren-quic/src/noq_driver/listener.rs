//! Connection attempts at an exit: taken, put off or refused.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use noq::{Connecting, Endpoint, Incoming};

use crate::strangers::{Admission, Seat, Strangers, Turned};

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

    /// Takes the attempts that wait, as far as there is room for them.
    pub(super) fn poll(&mut self, strangers: &Strangers) -> Vec<(Connecting, Seat)> {
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
                    if let Some(admitted) = admit(incoming, strangers) {
                        taken.push(admitted);
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

fn admit(incoming: Incoming, strangers: &Strangers) -> Option<(Connecting, Seat)> {
    let remote = incoming.remote_address();
    match strangers.crowd().admit(remote, incoming.remote_address_validated()) {
        Admission::Take(seat) => match incoming.accept() {
            Ok(connecting) => return Some((connecting, seat)),
            Err(error) => tracing::debug!(%remote, %error, "cannot accept"),
        },
        Admission::Prove => {
            strangers.count(Turned::AddressUnproven);
            if incoming.retry().is_err() {
                tracing::debug!(%remote, "cannot ask for a proof of the address");
            }
        }
        Admission::Wait => {
            strangers.count(Turned::NetworkFull);
            tracing::debug!(%remote, "too many handshakes of its network are under way");
            incoming.ignore();
        }
        Admission::Refuse => {
            strangers.count(Turned::ExitFull);
            tracing::debug!(%remote, "too many handshakes are under way");
            incoming.refuse();
        }
    }
    None
}
