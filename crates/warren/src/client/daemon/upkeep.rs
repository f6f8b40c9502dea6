//! Keeping the host as the plan wants it while others work on it too.

use std::time::Instant;

use warren_host::facts;

use super::{Daemon, HostTrouble};
use crate::client::device::Restored;
use crate::notify;
use crate::status::State;
use crate::worker::Forwarding;

impl Daemon {
    /// Something on the host has changed: what somebody has undone is made again, at the latest with the next look.
    pub(super) async fn look_after_host(&mut self) {
        let mut trouble = Vec::new();
        let closed = self.lockdown.repair().await;
        let device = self.host.restore_device();
        for looked in [closed, self.host.repair().await] {
            match looked {
                Ok(repaired) => repaired.iter().for_each(|what| tracing::warn!("{what}; made again")),
                Err(error) => trouble.push(format!("{error:#}")),
            }
        }
        match device {
            Ok(Some(Restored { queues, stood_in })) => {
                self.worker.open_device(queues, &Forwarding::Client).await;
                // No route leads there any more.
                drop(stood_in);
            }
            Ok(None) => {}
            Err(error) => trouble.push(format!("{error:#}")),
        }
        if let Err(error) = self.close_if_refused().await {
            trouble.push(format!("{error:#}"));
        }
        if let Err(error) = self.follow_network().await {
            trouble.push(format!("{error:#}"));
        }
        self.note((!trouble.is_empty()).then(|| trouble.join("; ")));
    }

    /// Notes what is wrong on the host, and says so if that is news.
    fn note(&mut self, trouble: Option<String>) {
        let known = self.host_trouble.as_ref().map(|known| &known.sentence);
        if known != trouble.as_ref() {
            match &trouble {
                Some(sentence) => {
                    tracing::error!("{sentence}");
                    notify::status(sentence);
                }
                None => {
                    tracing::info!("the host is as it should be again");
                    // What is shown again from now on.
                    self.since = Instant::now();
                    notify::status(self.state.name());
                }
            }
        }
        let since = self.host_trouble.as_ref().map_or_else(Instant::now, |known| known.since);
        self.host_trouble = trouble.map(|sentence| HostTrouble { sentence, since });
        if self.host_trouble.is_some() && self.state != State::Stopping {
            self.watch.look_again();
        }
    }

    /// The kill switch lets out what goes to the resolvers and the LAN of the network that this host is on now, and to its
    /// containers.
    async fn follow_network(&mut self) -> anyhow::Result<()> {
        self.lockdown.allow_resolvers(&self.start.listed_resolvers().await).await?;
        let (guests, on_link) = (facts::guest_networks().await?, facts::networks().await?);
        self.lockdown.allow_networks(self.host.lan().await?, guests, on_link).await
    }
}
