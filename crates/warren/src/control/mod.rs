//! The control socket: how the command line speaks to a running daemon.
//!
//! One line of JSON each way per connection. The socket is 0600 in a directory of the daemon's own, and the peer's
//! user is checked as well: root or the daemon's own.

mod ask;
mod change;
mod clients;
mod protocol;
mod secret;
mod server;

pub(crate) use ask::{AskError, ask};
pub(crate) use change::{Change, Words};
pub(crate) use clients::{
    AddressChoice, ClientChange, ClientSettings, ClientView, InvitationView, LiveView, NewClient, RateChoice,
    RemovedView, timestamp,
};
#[cfg(debug_assertions)]
pub(crate) use protocol::Part;
pub(crate) use protocol::{Refusal, Request};
pub(crate) use secret::Secret;
pub(crate) use server::{Asked, ControlSocket};

/// The socket's name inside a daemon's runtime directory.
pub(crate) const SOCKET_NAME: &str = "control.sock";
