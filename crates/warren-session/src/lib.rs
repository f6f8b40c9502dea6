//! Sessions as state machines: control messages, leases, the client registry, and both sides of the handshake.
//!
//! Nothing here does I/O or reads a clock. Bytes, events and time go in, actions come out. [`exit::ExitSessions`] is the exit's
//! side, [`client::ClientSession`] the client's. `docs/warren-v1.proto` is the schema of their messages.
#![forbid(unsafe_code)]

pub mod client;
pub mod clients;
mod compact;
pub mod exit;
pub mod goodbye;
pub mod invite;
mod key;
pub mod message;
mod planted;
mod planted_moves;
pub mod pool;
pub mod roster;
#[cfg(any(test, feature = "simulation"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test, even where a fuzz target drives it")]
mod tests {
    pub mod simulation;
    #[cfg(test)]
    mod two_exits;
}
mod token;

pub use goodbye::Goodbye;
pub use key::{PublicKey, PublicKeyError, optional_stored_key, stored_key};
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub use tests::simulation;
pub use token::AttachToken;

/// Version of the control protocol that this build speaks, sent in every `Hello`.
pub const PROTOCOL_VERSION: u32 = 1;

/// Feature bit of `Hello` and `Welcome`: the sender puts numbered datagrams in order, and may send such datagrams.
pub const NUMBERED: u64 = 1;

/// Feature bit of `Hello` and `Welcome`: the client accepts `Update`. Bit 1 is reserved.
pub const UPDATES: u64 = 4;

/// Feature bit of `Hello` and `Welcome`: the client follows the roster of a fleet, and accepts `Roster`.
pub const ROSTER: u64 = 8;

/// Time for a connection to finish its handshake, on either side. A connection that has not finished by then is closed.
pub const HANDSHAKE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Time that an exit waits for a client's first message. It is shorter than [`HANDSHAKE_TIMEOUT`], because closing many silent
/// connections at once takes a while.
// With 5 s, 500 silent connections were closed 5.2 to 5.3 s after their handshake. With 4.5 s, they were closed after 4.7 s. Row
// B6 of the reliability scorecard (docs/torture.md) asks for 5 s.
pub(crate) const FIRST_WORD_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(4_500);

/// Maximum number of connections of one session, regardless of configuration.
pub const MAX_CONNECTIONS: u32 = 256;

/// Maximum number of prefixes (networks behind one client) that one `Hello` may ask for.
pub const MAX_PREFIXES: usize = 64;

/// Maximum number of routes in one `Welcome`: about 24 bytes each, well below a message's 65,535.
pub const MAX_ROUTES: usize = 1_024;

/// Maximum number of DNS servers in one `Welcome`.
pub const MAX_DNS_SERVERS: usize = 16;

/// Maximum number of keys that an exit serves at once.
// The current key, and the old one while clients learn the current one.
pub const MAX_EXIT_KEYS: usize = 2;

/// Smallest inner MTU in bytes: IPv6 needs 1,280 (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1_280;

/// Source of random bytes, which fills the given slice. Must be cryptographic outside tests.
pub type Entropy = Box<dyn FnMut(&mut [u8]) + Send>;
