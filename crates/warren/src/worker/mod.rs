//! The worker: one thread that owns a TUN queue, its UDP sockets, a QUIC endpoint and every connection on it.
//!
//! A turn takes what the carrier brought, what the TUN has, and fills the connections again. Nothing here is shared
//! with another thread but limits and settings, which are atomics: the control plane speaks to workers by [`Command`] and hears
//! from them by [`Report`], and workers give each other what they read for another's connection ([`hand_over`]).

mod arena;
mod client_limit;
mod counters;
mod forward;
mod hand_over;
mod handle;
mod message;
mod pump;
mod run;
mod thread;
mod traffic;

pub(crate) use client_limit::ClientLimit;
pub(crate) use counters::{ConnectionSnapshot, Histogram, QuicSums, Snapshot, WorkerShare};
pub(crate) use forward::{Forwarding, SessionRoute};
pub(crate) use handle::{Reports, WorkerHandle};
pub(crate) use message::{Command, Report};
pub(crate) use thread::{Carrier, spawn};
pub(crate) use traffic::Traffic;
