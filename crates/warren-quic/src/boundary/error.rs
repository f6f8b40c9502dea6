//! The errors of an endpoint.

use std::{io, net::SocketAddr};

use bytes::Bytes;

/// Why a datagram or control bytes were not accepted. Each variant returns the bytes.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The connection's buffer is full. [`Event::Writable`](super::Event::Writable) follows.
    #[error("the connection's send buffer is full")]
    Blocked(Bytes),
    /// The datagram is larger than the path's current MTU.
    #[error("the datagram is larger than the path carries")]
    TooLarge(Bytes),
    /// The connection does not exist, or is not open.
    #[error("the connection is not open")]
    Closed(Bytes),
}

/// Why no connection could be started.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No exit key was given, so no exit could be trusted.
    #[error("no exit key is given; name the key that `warren exit init` printed")]
    NoExitKey,
    /// The endpoint belongs to an exit.
    #[error("an exit's endpoint does not connect")]
    NotAClient,
    /// The address cannot be connected to.
    #[error("cannot connect to {remote}: {reason}")]
    Address {
        /// The address.
        remote: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The socket could not be used.
    #[error("cannot use the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// The TLS library refused the keys.
    #[error("cannot use the keys: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why no endpoint could be made.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The exit was given no private key.
    #[error("the exit has no private key")]
    NoIdentity,
    /// The exit was given no socket.
    #[error("the exit has no address to listen on")]
    NoSocket,
    /// The reset key does not have 32 to 64 bytes.
    #[error("a reset key has 32 to 64 bytes, but this one has {0}")]
    ResetKey(usize),
    /// A setting is out of its bounds.
    #[error("{0}")]
    Setting(String),
    /// A socket could not be used.
    #[error("cannot use the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// The TLS library refused the key.
    #[error("cannot use the private key: {0}")]
    Tls(#[from] rustls::Error),
}
