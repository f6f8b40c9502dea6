//! The worker: one thread that owns a TUN queue, its UDP sockets, a QUIC endpoint and every connection on it.
//!
//! A turn takes the carrier's datagrams, then the TUN's packets, and then refills the connections. Other threads
//! share only limits and settings with it, which are atomics. The control plane sends commands ([`WorkerHandle`])
//! and gets a [`Report`] back. A worker that reads a packet for another worker's connection hands the packet over
//! ([`hand_over`]).
#![forbid(unsafe_code)]

mod arena;
mod client_limit;
mod counters;
mod forward;
mod hand_over;
mod handle;
mod message;
mod moving;
mod pump;
mod repair;
mod rings;
mod run;
mod snapshots;
mod thread;
mod traffic;
pub mod tuning;
mod upkeep;
mod wireguard;

pub use client_limit::ClientLimit;
pub use counters::{
    ConnectionSnapshot, Histogram, QuicSums, RepairSnapshot, RepairSums, Snapshot, WorkerShare,
};
pub use forward::{Forwarding, SessionRoute};
pub use handle::{Reports, WorkerHandle};
pub use message::{ConnectionCommand, Report, SharedCommand};
pub use moving::{Echo, Moving};
pub use rings::Rings;
pub use thread::{Carrier, spawn};
pub use traffic::Traffic;
pub use wireguard::WireGuardCarrier;
