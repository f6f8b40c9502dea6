//! Knocking at an exit: a handshake with all proofs, and no session.

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

/// How long an address may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// What discovery takes to find out what a path of a usual length carries.
const DISCOVERY: Duration = Duration::from_millis(1_500);

/// An exit that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The address that answered.
    pub remote: SocketAddr,
    /// From the first packet to the answer.
    pub round_trip: Duration,
    /// The largest UDP payload that the path was found to carry.
    pub mtu: u16,
}

/// Knocks at each address of an exit until one answers, with a client's key; its session, if it has one, is left alone.
///
/// # Errors
/// Why none did, as a sentence.
pub async fn knock(exit: &RemoteExit, identity: &PrivateKey) -> Result<Answer, String> {
    let addresses = lookup(&exit.endpoint, &NameServers::find(None).await).await?;
    let mut last = format!("{} has no address", exit.endpoint.host());
    for remote in addresses {
        match knock_at(remote, exit, identity).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn knock_at(remote: SocketAddr, exit: &RemoteExit, identity: &PrivateKey) -> Result<Answer, String> {
    let socket = exits::bind(remote).map_err(|error| format!("cannot make a marked socket: {error}"))?;
    let mut endpoint = QuicEndpoint::client(TransportSettings::default(), identity.clone())
        .map_err(|error| error.to_string())?;
    let name = exit.server_name.as_deref();
    endpoint.connect_by_name(socket, remote, &exit.public_keys, name).map_err(|error| error.to_string())?;
    let answer = converse(&mut endpoint, remote).await;
    endpoint.shutdown().await;
    answer
}

async fn converse(endpoint: &mut QuicEndpoint, remote: SocketAddr) -> Result<Answer, String> {
    let mut connected: Option<ConnectionId> = None;
    let mut deadline = Instant::now() + PATIENCE;
    let mut inbox = Inbox::new();
    while timeout_at(deadline, poll_fn(|context| endpoint.poll(context, &mut inbox))).await.is_ok() {
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
    let stats = stats.ok_or_else(|| format!("{remote} does not answer"))?;
    Ok(Answer { remote, round_trip: stats.rtt, mtu: stats.mtu })
}
