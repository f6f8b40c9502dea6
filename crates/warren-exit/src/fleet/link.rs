//! The connection of `warren-fleet`. There is one at a time, and a newer connection replaces the older one. Nothing that
//! `warren-fleet` does stalls the daemon.

use std::time::Duration;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use warren_fleet_link::{ExitMessage, FleetMessage, read_frame, write_frame};
use warren_session::clients::MAX_CLIENTS;

use super::socket::FleetSocket;

/// `warren-fleet` sends a message every second. A connection without a message for this long counts as hung.
const SILENCE: Duration = Duration::from_secs(10);

/// If writing a message takes longer than this, `warren-fleet` counts as hung.
const WRITING: Duration = Duration::from_secs(5);

/// The wait after a connection could not be accepted.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Maximum number of messages that wait for the daemon. It is low, because each message may be large and `warren-fleet` can wait.
const WAITING: usize = 4;

/// Maximum number of messages that may wait for `warren-fleet`. If more wait, `warren-fleet` counts as hung. On a new link, the
/// messages about all sessions wait at once, so the number includes `MAX_CLIENTS`.
const UNWRITTEN: usize = MAX_CLIENTS + 4_096;

/// An event on the link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// `warren-fleet` has connected. Messages go to it through this channel, and dropping the channel ends the connection.
    Connected(mpsc::Sender<ExitMessage>),
    /// `warren-fleet` has sent a message.
    Message(Box<FleetMessage>),
    /// The connection has ended, for this reason.
    Lost(String),
}

/// Events of the link, each with the number of its connection. Later connections have higher numbers.
#[derive(Debug)]
pub(crate) struct LinkEvents {
    events: mpsc::Receiver<(u64, LinkEvent)>,
    accepting: JoinHandle<()>,
    /// Owns the socket's file, which is removed when this is dropped.
    _socket: FleetSocket,
}

impl LinkEvents {
    /// Accepts connections on the socket from now on.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn accept(socket: FleetSocket) -> std::io::Result<Self> {
        let (sender, events) = mpsc::channel(WAITING);
        let accepting = tokio::spawn(accept(socket.listener()?, socket.users().to_vec(), sender));
        Ok(Self { events, accepting, _socket: socket })
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> (u64, LinkEvent) {
        match self.events.recv().await {
            Some(event) => event,
            // The task that accepts never ends by itself.
            None => std::future::pending().await,
        }
    }
}

impl Drop for LinkEvents {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, users: Vec<u32>, events: mpsc::Sender<(u64, LinkEvent)>) {
    let mut current: Option<AbortHandle> = None;
    for number in 1.. {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) if is_allowed(&stream, &users) => break stream,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!("cannot accept on the fleet's socket: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        };
        current.take().into_iter().for_each(|older| older.abort());
        let (messages, unwritten) = mpsc::channel(UNWRITTEN);
        if events.send((number, LinkEvent::Connected(messages))).await.is_err() {
            return;
        }
        let events = events.clone();
        let serving = tokio::spawn(async move {
            let (reading, writing) = stream.into_split();
            // When either direction ends, the connection ends.
            let why = tokio::select! {
                why = read(reading, number, &events) => why,
                why = write(writing, unwritten) => why,
            };
            drop(events.send((number, LinkEvent::Lost(why))).await);
        });
        current = Some(serving.abort_handle());
    }
}

/// Whether the peer's user may connect for the fleet. The file's mode already keeps other users out. This check also holds if
/// somebody changes the mode.
fn is_allowed(stream: &UnixStream, users: &[u32]) -> bool {
    match stream.peer_cred() {
        Ok(peer) if users.contains(&peer.uid()) => true,
        Ok(peer) => {
            tracing::warn!("user {} tried to connect to the fleet's socket and was refused", peer.uid());
            false
        }
        Err(error) => {
            tracing::warn!("cannot tell who connects to the fleet's socket: {error}");
            false
        }
    }
}

async fn read(mut from: OwnedReadHalf, number: u64, events: &mpsc::Sender<(u64, LinkEvent)>) -> String {
    loop {
        match timeout(SILENCE, read_frame::<FleetMessage>(&mut from)).await {
            Ok(Ok(Some(FleetMessage::Refused { reason }))) => return reason,
            Ok(Ok(Some(message))) => {
                // The daemon may be busy. In that case `warren-fleet` waits in its own writes.
                if events.send((number, LinkEvent::Message(Box::new(message)))).await.is_err() {
                    return "the exit ends".to_owned();
                }
            }
            Ok(Ok(None)) => {
                return "warren-fleet has ended, or has closed the connection; its log says why".to_owned();
            }
            Ok(Err(error)) => return format!("warren-fleet: {error}"),
            Err(_) => return format!("warren-fleet has said nothing for {} s", SILENCE.as_secs()),
        }
    }
}

async fn write(mut to: OwnedWriteHalf, mut unwritten: mpsc::Receiver<ExitMessage>) -> String {
    while let Some(message) = unwritten.recv().await {
        match timeout(WRITING, write_frame(&mut to, &message)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("warren-fleet cannot be written to: {error}"),
            Err(_) => return format!("warren-fleet has read nothing for {} s", WRITING.as_secs()),
        }
    }
    "the exit has closed the link".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_link_is_explained_as_warren_fleet_explains_it() {
        for (message, why) in [
            (Some("the exit has another name"), "the exit has another name"),
            (None, "warren-fleet has ended, or has closed the connection"),
        ] {
            let (mut link, exit) = UnixStream::pair().unwrap();
            if let Some(reason) = message {
                let refused = FleetMessage::Refused { reason: reason.to_owned() };
                write_frame(&mut link, &refused).await.unwrap();
            }
            drop(link);
            let (events, _) = mpsc::channel(1);
            let said = read(exit.into_split().0, 1, &events).await;
            assert!(said.contains(why), "{said}");
        }
    }
}
