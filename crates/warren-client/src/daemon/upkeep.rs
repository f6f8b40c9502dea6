//! Keeping the host as the plan wants it while others work on it too.

use std::time::{Duration, Instant};

use warren_host::facts;
use warren_session::client::ClientState;

use super::{Daemon, HostTrouble};
use crate::device::Restored;
use warren_control::status::State;
use warren_daemon::notify;
use warren_tunnel::Forwarding;

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
        if let Err(error) = self.give_up_taken_lease().await {
            trouble.push(format!("{error:#}"));
        }
        if trouble.is_empty()
            && self.session_is_over()
            && self.unapplied.as_ref().is_some_and(|unapplied| unapplied.since.elapsed() >= APPLY_EVERY)
        {
            // Whether it can be applied now, its Welcome shows.
            self.begin_session(Instant::now());
        }
        trouble.extend(self.unapplied.iter().map(|unapplied| unapplied.sentence.clone()));
        self.note((!trouble.is_empty()).then(|| trouble.join("; ")));
    }

    /// What a Welcome asks for cannot be made of this host. To end here would open it, at a moment that the exit has chosen: it is
    /// closed, and asks for another session with the next look at it.
    pub(super) async fn goes_without(&mut self, error: &anyhow::Error) {
        let sentence = format!("{error:#}");
        if let Err(error) = self.give_session_up(&sentence).await {
            tracing::debug!("the host is closed with the next look: {error:#}");
        }
        self.unapplied = Some(HostTrouble { sentence: sentence.clone(), since: Instant::now() });
        self.note(Some(sentence));
    }

    /// What a Welcome asks for is what the host is.
    pub(super) async fn is_applied(&mut self) {
        match facts::networks().await {
            Ok(networks) => self.networks_at_welcome = networks,
            Err(error) => tracing::debug!("cannot look at this host's networks: {error}"),
        }
        if self.unapplied.take().is_some() {
            self.note(None);
        }
    }

    fn session_is_over(&self) -> bool {
        matches!(self.session.state(), ClientState::Stopped(_))
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

/// How often at most it is tried to make the host as a Welcome asks, if that fails. Each try is a session at the exit.
const APPLY_EVERY: Duration = Duration::from_secs(5);
