//! The control plane's commands to the workers, and the workers' reports. Commands are grouped by addressee.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use warren_quic::driver::{CloseReason, ConnectionId};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::socket::ThreadCache;
use warren_session::Goodbye;
use warren_session::clients::WireGuardClient;
use warren_session::exit::SessionId;
use warren_tun::Queue;

use super::forward::{Forwarding, SessionRoute};
use super::moving::Moving;
use super::snapshots::WorkerSnapshot;

/// A command to one worker. Each worker carries out its commands in the order in which they were sent.
pub(crate) enum Command {
    ForConnection(ConnectionCommand),
    ForAll(SharedCommand),
    /// Starts to read and write a TUN queue under the given rules.
    OpenDevice {
        queue: Queue,
        forwarding: Forwarding,
    },
    /// Asks for every counter.
    Snapshot(oneshot::Sender<WorkerSnapshot>),
    /// Asks for the memory that the allocator keeps for the worker's thread.
    ThreadCache(oneshot::Sender<ThreadCache>),
    /// Panics.
    #[cfg(debug_assertions)]
    Panic,
}

/// A command for the worker that has, or gets, a connection.
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum ConnectionCommand {
    /// Opens a connection to an exit. [`Report::Connecting`] or [`Report::ConnectFailed`] answers.
    Connect {
        index: u32,
        socket: UdpSocket,
        remote: SocketAddr,
        exit_keys: Vec<PublicKey>,
        server_name: Option<String>,
    },
    /// Sends bytes on a connection's control stream.
    SendControl { connection: ConnectionId, data: Vec<u8> },
    /// Closes a connection with an application code, once the control stream is empty.
    Close { connection: ConnectionId, code: u32, reason: String },
    /// Marks the peer as an enrolled client, so that an overloaded exit keeps queue space for it. Attached connections need no
    /// such command.
    KnowAsClient { connection: ConnectionId },
    /// Gives a connection another socket, because the path from the old socket's port seems broken.
    Rebind { connection: ConnectionId, socket: UdpSocket },
}

/// A command for every worker.
#[derive(Clone)]
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum SharedCommand {
    /// Makes a session's addresses reachable. No packet moves before a connection is attached. An exit names the client to which
    /// the session belongs.
    OpenSession { session: SessionId, client: Option<PublicKey>, route: SessionRoute },
    /// Lets packets of a session use a connection of any worker.
    Attach { session: SessionId, connection: ConnectionId, index: u32 },
    /// Stops packets of a session on a connection. Packets that still wait for it are counted as lost with the connection.
    Detach { connection: ConnectionId },
    /// Records whether another worker's connection is unanswered.
    SetSilent { connection: ConnectionId, silent: bool },
    /// Ends a session. Its addresses are unreachable from here on.
    EndSession { session: SessionId },
    /// On a client: applies the rules of a move to choose between its two sessions, or ends the move.
    Move { moving: Option<Arc<Moving>> },
    /// Changes the rules of the TUN queues.
    SetForwarding { forwarding: Forwarding },
    /// Gives up the queue of the TUN device with this interface index, because another worker's queue has failed.
    CloseDevice { device: u32 },
    /// Replaces an exit's keys. Attached connections stay. If a reason is given, all other connections and handshakes are closed,
    /// because they may have begun with a removed key.
    SetIdentities { identities: Vec<PrivateKey>, close_others: Option<Goodbye> },
    /// On an exit: admits a key to WireGuard, or refuses it from now on.
    SetWireGuard { key: PublicKey, client: Option<WireGuardClient> },
    /// Pings every peer, because this host's addresses or routes have changed, the host has slept, or a connection has become
    /// silent.
    Rouse,
    /// Closes every connection and ends the worker.
    Stop { code: u32, reason: String },
}

/// News from a worker.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant's comment covers its fields")]
pub enum Report {
    /// The connection for this index was started.
    Connecting { index: u32, connection: ConnectionId },
    /// The connection for this index could not be started.
    ConnectFailed { index: u32, error: String },
    /// The handshake is complete and the peer, at this address, proved this key. At an exit, `proven` is the one of the exit's
    /// keys that the exit has proven to the peer.
    Connected { connection: ConnectionId, peer: PublicKey, remote: SocketAddr, proven: Option<PublicKey> },
    /// A WireGuard peer with this key has come up. The peer asks for a session. It keeps this connection until the connection is
    /// closed.
    WireGuardUp { connection: ConnectionId, peer: PublicKey, remote: SocketAddr },
    /// Bytes of a connection's control stream, in order.
    Control { connection: ConnectionId, data: Bytes },
    /// The exit has stopped answering the connection, or answers it again.
    Answers { connection: ConnectionId, answers: bool },
    /// The connection is gone.
    Closed { connection: ConnectionId, reason: CloseReason },
    /// The TUN device failed for good: it was deleted, or its descriptor is broken.
    DeviceFailed {
        /// The device's interface index.
        device: u32,
        error: String,
    },
}
