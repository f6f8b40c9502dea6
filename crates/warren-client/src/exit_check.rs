//! Checks that an exit answers, by a handshake in which both sides prove their keys. No session is opened.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use warren_quic::driver::{ConnectionId, Endpoint as QuicEndpoint, Event, Inbox};
use warren_quic::key::PrivateKey;
use warren_quic::settings::TransportSettings;

use super::exits;
use super::lookup::{NameServers, lookup};
use warren_config::RemoteExit;

/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait for path MTU discovery, which takes less on a path with a usual round-trip time.
const DISCOVERY: Duration = Duration::from_millis(1_500);

/// An exit's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitAnswer {
    /// The address that answered.
    pub remote: SocketAddr,
    /// The round-trip time of the path.
    pub round_trip: Duration,
    /// The largest UDP payload that the path was found to carry.
    pub mtu: u16,
}

/// Connects to each address of an exit in turn until one answers, with a client's key. The client's session, if there is one, is not
/// affected.
///
/// # Errors
/// A message that says why no address has answered.
pub async fn check_exit(exit: &RemoteExit, identity: &PrivateKey) -> Result<ExitAnswer, String> {
    let addresses = lookup(&exit.endpoint, &NameServers::find(None).await).await?;
    let mut last = format!("{} has no address", exit.endpoint.host());
    for remote in addresses {
        match check_address(remote, exit, identity).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn check_address(
    remote: SocketAddr,
    exit: &RemoteExit,
    identity: &PrivateKey,
) -> Result<ExitAnswer, String> {
    let socket = exits::bind(remote).map_err(|error| format!("cannot make a marked socket: {error}"))?;
    let mut endpoint = QuicEndpoint::client(TransportSettings::default(), identity.clone())
        .map_err(|error| error.to_string())?;
    let name = exit.server_name.as_deref();
    endpoint.connect_by_name(socket, remote, &exit.public_keys, name).map_err(|error| error.to_string())?;
    let answer = converse(&mut endpoint, remote).await;
    // Tells the exit at once that the connection is closed, so that it need not wait for the idle timeout.
    endpoint.shutdown().await;
    answer
}

async fn converse(endpoint: &mut QuicEndpoint, remote: SocketAddr) -> Result<ExitAnswer, String> {
    let mut connected: Option<ConnectionId> = None;
    let mut deadline = Instant::now() + PATIENCE;
    let mut inbox = Inbox::new();
    // Continues after the handshake, because MTU discovery takes longer.
    while timeout_at(deadline, poll_fn(|context| endpoint.poll(context, &mut inbox))).await.is_ok() {
        // No session is opened, so datagrams mean nothing here.
        inbox.datagrams.clear();
        for event in inbox.events.drain(..) {
            match event {
                Event::Connected { connection, .. } => {
                    connected = Some(connection);
                    deadline = Instant::now() + DISCOVERY;
                }
                Event::Closed { reason, .. } => return Err(format!("{remote}: {reason}")),
                Event::Control { .. } | Event::Writable { .. } | Event::Answers { .. } => {}
            }
        }
    }
    let stats = connected.and_then(|connection| endpoint.stats(connection));
    let stats = stats.ok_or_else(|| format!("no answer from {remote}"))?;
    Ok(ExitAnswer { remote, round_trip: stats.rtt, mtu: stats.mtu })
}
