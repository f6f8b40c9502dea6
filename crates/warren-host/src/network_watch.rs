//! Notifications of changes to this host's links, addresses and routes, whoever makes them.

use std::{io, time::Duration};

use futures_util::StreamExt;
use rtnetlink::{
    MulticastGroup, new_multicast_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{RouteNetlinkMessage, route::RouteProtocol},
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use crate::PROTOCOL;

/// Changes come in bursts. A burst is over after a pause of this length.
const QUIET: Duration = Duration::from_millis(30);

/// During a longer burst, changes are reported at this interval.
const LONGEST_BURST: Duration = Duration::from_millis(200);

/// A subscription to the kernel's notifications in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct NetworkWatch {
    changes: mpsc::Receiver<()>,
    tasks: [JoinHandle<()>; 2],
}

impl NetworkWatch {
    /// Subscribes. Call this within a tokio runtime.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start() -> io::Result<Self> {
        let (connection, _handle, mut messages) = new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ])?;
        // A channel of length 1 is enough, because one pending notification stands for any number of changes.
        let (sender, changes) = mpsc::channel(1);
        let read = tokio::spawn(async move {
            while let Some((message, _)) = messages.next().await {
                if !is_news(&message) {
                    continue;
                }
                let burst = async { while let Ok(Some(_)) = timeout(QUIET, messages.next()).await {} };
                // If the burst is longer, its further changes are reported as another change.
                let _ = timeout(LONGEST_BURST, burst).await;
                // If the channel is full, a notification is already waiting, and it stands for this change too.
                let _ = sender.try_send(());
            }
        });
        Ok(Self { changes, tasks: [tokio::spawn(connection), read] })
    }

    /// Waits for the next change and the end of its burst. Cancelling the wait loses nothing.
    pub async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

impl Drop for NetworkWatch {
    fn drop(&mut self) {
        // The task must be aborted, because dropping a JoinHandle does not end its task.
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Whether a message may mean that the route to the exit has changed. Messages about Warren's own routes cannot. A message
/// without content counts, because it means that other messages were lost.
fn is_news(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(change) = &message.payload else { return true };
    let (RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) = change else {
        return true;
    };
    route.header.protocol != RouteProtocol::from(PROTOCOL)
}
