//! QUIC connections for the tunnel: identity, transport settings, sockets, and the driver that the packet path uses.
//!
//! The packet path uses only [`driver`] and nothing of the QUIC library behind it, so that the driver can be replaced.

#![deny(unsafe_code)]

mod attempt;
mod boundary;
mod ciphers;
pub mod driver;
mod identities;
pub mod key;
mod noq_driver;
mod outcome;
mod planted;
mod quic_config;
pub mod settings;
pub mod socket;
pub mod stats;
pub mod strangers;
#[cfg(test)]
mod tests;
pub mod tls;
mod warren_driver;
