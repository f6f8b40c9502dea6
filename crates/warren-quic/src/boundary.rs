//! The vocabulary of the boundary between the packet path and QUIC: what every driver reports, refuses and promises.
//!
//! Both drivers and their users speak it. It knows no driver.

mod error;
mod event;

use std::time::Duration;

pub use self::{
    error::{ConnectError, EndpointError, SendError},
    event::{CloseReason, ConnectionId, Event, Inbox},
};
pub use crate::stats::{ConnectionStats, SendErrors, SocketStats};

/// Most datagrams that one poll of an endpoint adds to its inbox.
pub const MAX_DATAGRAMS_PER_POLL: usize = 256;

/// Most events that one poll of an endpoint adds to its inbox.
pub const MAX_EVENTS_PER_POLL: usize = 64;

/// Most control bytes of a connection that wait to be sent. One more closes the connection.
pub const MAX_CONTROL_BACKLOG: usize = 64 * 1024;

/// How long a shutdown waits until the peers know. A peer that has not answered 300 ms after its last close was sent counts as
/// out of reach.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
