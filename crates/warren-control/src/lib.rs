//! The control socket: how the command line speaks to a running daemon.
//!
//! One line of JSON each way per connection. The socket is 0600 in a directory of the daemon's own, and the peer's
//! user is checked as well: root or the daemon's own.
#![forbid(unsafe_code)]

mod ask;
mod change;
mod clients;
pub mod private_socket;
mod protocol;
mod secret;
mod server;
pub mod status;

pub use ask::{AskError, ask};
pub use change::{Change, Words};
pub use clients::{
    AddressChoice, ClientChange, ClientSettings, ClientView, InvitationView, LiveView, NewClient, RateChoice,
    RemovedView, timestamp,
};
#[cfg(debug_assertions)]
pub use protocol::Part;
pub use protocol::{Refusal, Request};
pub use secret::Secret;
pub use server::{Asked, ControlSocket};

/// The socket's name inside a daemon's runtime directory.
pub const SOCKET_NAME: &str = "control.sock";
