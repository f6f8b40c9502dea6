//! The worker: one thread that owns a TUN queue, its UDP sockets, a QUIC endpoint and every connection on it.
//!
//! A turn takes what the carrier brought, what the TUN has, and fills the connections again. Nothing here is shared
//! with another thread: the control plane speaks to a worker by [`Command`] and hears from it by [`Report`].

mod client_limit;
mod counters;
mod forward;
mod message;
mod pump;
mod run;
mod thread;
mod traffic;

pub(crate) use client_limit::ClientLimit;
pub(crate) use counters::{ConnectionSnapshot, Histogram, QuicSums, Snapshot};
pub(crate) use forward::{Forwarding, SessionRoute};
pub(crate) use message::{Command, Report};
pub(crate) use thread::{Carrier, WorkerHandle, spawn};
pub(crate) use traffic::Traffic;
