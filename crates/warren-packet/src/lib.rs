//! Packets as bytes: header views, 5-tuples, segmentation and coalescing, datagram framing, reassembly and validation.
//!
//! Nothing here does I/O, waits or reads a clock: bytes and an `Instant` go in, packets come out. Functions that read foreign
//! bytes accept any input without a panic. Only this crate indexes into packets, behind types ([`ip::IpPacket`],
//! [`datagram::Datagram`]) that exist only if their lengths are valid.
#![forbid(unsafe_code)]
#![allow(clippy::indexing_slicing)] // bounds are proven once, by the type that owns the slice

#[cfg(test)]
extern crate self as warren_packet; // the fuzz targets name the crate

pub mod checksum;
pub mod coalesce;
pub mod datagram;
pub mod ecn;
pub mod flow_step;
pub mod ip;
pub mod mss;
pub mod order;
pub mod queue;
pub mod rate_limit;
pub mod reason;
pub mod reassembly;
pub mod receive;
pub mod resequence;
pub mod segment;
pub mod too_big;
pub mod tuple;
pub mod virtio;

mod extension;
mod planted;
mod rewrite;
#[cfg(test)]
mod tests;
mod transport;
mod wire;

pub use ip::Malformed;
pub use reason::DropReason;
