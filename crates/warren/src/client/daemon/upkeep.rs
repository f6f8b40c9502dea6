//! Keeping the host as the plan wants it while others work on it too.

use super::Daemon;
use crate::notify;

impl Daemon {
    /// Something on the host has changed: what somebody has undone is made again, at the latest with the next look.
    pub(super) async fn look_after_host(&mut self) {
        let mut trouble = Vec::new();
        for looked in [self.lockdown.repair().await, self.host.repair().await] {
            match looked {
                Ok(repaired) => repaired.iter().for_each(|what| tracing::warn!("{what}; made again")),
                Err(error) => trouble.push(format!("{error:#}")),
            }
        }
        if let Err(error) = self.follow_network().await {
            trouble.push(format!("{error:#}"));
        }
        let trouble = (!trouble.is_empty()).then(|| trouble.join("; "));
        if let Some(sentence) = &trouble {
            self.watch.look_again();
            if self.host_trouble != trouble {
                tracing::error!("{sentence}");
                notify::status(sentence);
            }
        }
        self.host_trouble = trouble;
    }

    /// The kill switch lets out what goes to the resolvers and the LAN of the network that this host is on now.
    async fn follow_network(&mut self) -> anyhow::Result<()> {
        self.lockdown.allow_resolvers().await?;
        self.lockdown.allow_lan(self.host.lan().await?).await
    }
}
