//! The types at the boundary between the packet path and QUIC: the events, errors and limits of both drivers.
//!
//! Both drivers and their users share these types, which depend on no driver.

mod error;
mod event;

use std::time::Duration;

pub use self::{
    error::{ConnectError, EndpointError, SendError},
    event::{CloseReason, ConnectionId, Event, Inbox, LostDatagram},
};
pub use crate::stats::{ConnectionStats, ControllerState, Datagrams, LossCounts, SendErrors, SocketStats};

/// Maximum number of datagrams that one poll of an endpoint adds to its inbox.
pub const MAX_DATAGRAMS_PER_POLL: usize = 256;

/// Maximum number of lost datagrams that one poll of an endpoint adds to its inbox.
pub const MAX_LOST_PER_POLL: usize = 256;

/// Maximum number of events that one poll of an endpoint adds to its inbox.
pub const MAX_EVENTS_PER_POLL: usize = 64;

/// Maximum number of control bytes that may wait to be sent on a connection. One more byte closes the connection.
pub const MAX_CONTROL_BACKLOG: usize = 64 * 1024;

/// How long a shutdown waits for the peers. A peer that has not answered 300 ms after the last close counts as unreachable.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
