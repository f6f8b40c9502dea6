//! An exit's side of WireGuard, without I/O: datagrams and time go in; answers, packets and events come out.
//!
//! The protocol itself is boringtun's. This crate adds what a server needs around it: which peers there are, which of them a
//! datagram is from, how many handshakes strangers may cause, and when a peer counts as up and as gone.
//!
//! A stranger costs no state: a peer gets some with a handshake message that only the owner of an enrolled key can make. It is up once it
//! has proven that it is there now, with a first data message.
#![forbid(unsafe_code)]

mod budget;
mod key;
mod peer;
mod server;
#[cfg(test)]
mod tests;

pub use key::{KeyError, PrivateKey, parse_public_key};
pub use peer::Path;
pub use server::{Event, OVERHEAD, Refusal, Server, Taken};
