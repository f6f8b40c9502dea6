//! An exit's side of WireGuard, without I/O: datagrams and time go in, and answers, packets and events come out.
//!
//! boringtun does the protocol itself. This crate adds what a server needs in addition: it knows the peers, finds the peer of a
//! datagram, limits the handshakes of strangers, and decides when a peer counts as up or gone.
//!
//! A stranger costs no memory. A peer gets its state with a handshake message that only the owner of an enrolled key can make.
//! Somebody else may repeat an old message of this kind. So the peer counts as up only after its first data message.
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
