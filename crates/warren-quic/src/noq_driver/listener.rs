//! Accepts or defers connection attempts at an exit.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use noq::{Connecting, Endpoint, Incoming};

use crate::{
    boundary::EndpointError,
    identities::Identities,
    key::{PrivateKey, PublicKey},
    strangers::{Admission, Displaced, Gate, Seat, Strangers, Turned},
};

/// Maximum number of attempts handled in one poll.
const BATCH: usize = 32;

type Accept = Pin<Box<dyn Future<Output = Option<Incoming>> + Send>>;

/// An accepted connection attempt.
pub(super) struct Admitted {
    pub(super) connecting: Connecting,
    pub(super) seat: Seat,
    /// The key that the exit proves.
    pub(super) proven: Option<PublicKey>,
}

/// One listening socket.
pub(super) struct Listener {
    endpoint: Endpoint,
    gate: Gate,
    identities: Identities,
    waker: Waker,
    accept: Option<Accept>,
}

impl Listener {
    pub(super) fn new(endpoint: Endpoint, gate: Gate, identities: Identities, waker: Waker) -> Self {
        let accept = Some(accept(&endpoint));
        Self { endpoint, gate, identities, waker, accept }
    }

    /// Accepts connections with these keys from now on.
    pub(super) fn set_identities(&mut self, keys: &[PrivateKey]) -> Result<(), EndpointError> {
        self.identities.set(keys)?;
        self.gate.set_keys(&keys.iter().map(PrivateKey::public).collect::<Vec<_>>());
        // The endpoint must not keep a key that the exit no longer has.
        self.endpoint.set_server_config(self.identities.first().map(|config| (*config).clone()));
        Ok(())
    }

    /// Accepts waiting attempts as far as there is room.
    pub(super) fn poll(&mut self, strangers: &Strangers, displaced: &Displaced) -> Vec<Admitted> {
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
                    if let Some(admitted) = self.admit(incoming, strangers, displaced) {
                        taken.push(admitted);
                    }
                }
            }
        }
        // More attempts may wait than one batch holds.
        self.waker.wake_by_ref();
        taken
    }

    fn admit(&self, incoming: Incoming, strangers: &Strangers, displaced: &Displaced) -> Option<Admitted> {
        let remote = incoming.remote_address();
        let proven = incoming.remote_address_validated();
        match strangers.crowd().admit(remote, proven, displaced, Instant::now()) {
            Admission::Take { seat, displaced } => {
                if displaced {
                    strangers.count(Turned::Displaced);
                }
                let pinned = self.gate.pinned_by(remote, &incoming.orig_dst_cid());
                let proven = self.identities.key_at(pinned);
                let accepted = match self.identities.at(pinned) {
                    Some(config) => incoming.accept_with(config),
                    None => incoming.accept(),
                };
                match accepted {
                    Ok(connecting) => return Some(Admitted { connecting, seat, proven }),
                    // Dropping the seat makes it free again.
                    Err(error) => tracing::debug!(%remote, %error, "cannot accept"),
                }
            }
            Admission::Prove => {
                strangers.count(Turned::AddressUnproven);
                if incoming.retry().is_err() {
                    tracing::debug!(%remote, "cannot ask for a proof of the address");
                }
            }
        }
        None
    }

    pub(super) fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }
}

fn accept(endpoint: &Endpoint) -> Accept {
    let endpoint = endpoint.clone();
    Box::pin(async move { endpoint.accept().await })
}
