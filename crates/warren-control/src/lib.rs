//! The control socket: how commands talk to a running daemon.
//!
//! A connection carries one line of JSON in each direction. The socket has mode 0600 in the daemon's own directory, and the
//! peer's user is checked too: it must be root or the daemon's own user.
//!
//! The modules:
//! - `protocol`: the requests and answers. `change`, `clients`, `page` and `serializable_key` are parts of requests,
//!   `reloaded` and `cut_off` are parts of answers
//! - [`exec_socket`]: the socket of users who may only put programs inside or outside
//! - `ask`: the command line's side. `operator` finds the person who runs a command
//! - `server`, [`private_socket`]: the daemon's side. `places` limits the connections of each user
//! - [`status`]: what `warren status` shows
#![forbid(unsafe_code)]

mod ask;
mod change;
mod clients;
mod cut_off;
pub mod exec_socket;
mod operator;
mod page;
mod places;
pub mod private_socket;
mod protocol;
mod reloaded;
mod serializable_key;
mod server;
pub mod status;

pub use ask::{AskError, ask, ask_as, ask_status, ask_text};
pub use change::{Change, UncheckedChange};
pub use clients::{
    AddressChoice, ClientChange, ClientSettings, ClientView, Forward, ForwardNotInForce, ImportSummary,
    InvitationView, LiveView, Named, NewClient, PortRange, RateChoice, RemovedView, timestamp,
};
pub use cut_off::CutOff;
pub use operator::{Users, login};
pub use page::{Page, PageQuery};
#[cfg(debug_assertions)]
pub use protocol::Part;
pub use protocol::{Answer, Request, RequestRefused};
pub use reloaded::Reloaded;
pub use serializable_key::SerializableKey;
pub use server::{ControlSocket, Peer, PendingRequest};

/// The socket's name in a daemon's runtime directory.
pub const SOCKET_NAME: &str = "control.sock";
