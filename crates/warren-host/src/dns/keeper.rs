//! Sets a host's resolvers, and keeps them that way by a background task.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    DnsError, DnsPlan, RESOLV_CONF, held::Held, method::Method, record::Record, split::entries_beside,
    watch::Watch,
};

/// The host's resolvers, set as planned and kept that way. Call [`Dns::undo`] at the end. If this is dropped instead, the
/// resolvers stay set until [`super::recover`] restores them.
#[derive(Debug)]
#[must_use = "the resolvers stay set until Dns::undo"]
pub struct Dns {
    plan: DnsPlan,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Held>,
}

impl Dns {
    /// Sets the host's resolvers, and sets them again whenever another program changes them. Call this within a
    /// tokio runtime.
    ///
    /// # Errors
    /// If they cannot be set. In that case nothing has changed.
    pub async fn apply(plan: DnsPlan) -> Result<Self, DnsError> {
        let held = Held::take(&plan).await?;
        Ok(Self::keep(plan, held))
    }

    /// Switches to another plan of the same profile. Does nothing if the plan is the same.
    ///
    /// # Errors
    /// If the resolvers cannot be set. In that case the host's own resolvers are restored, unless the error says otherwise.
    pub async fn change(self, plan: DnsPlan) -> Result<Self, DnsError> {
        if plan == self.plan { Ok(self) } else { self.renew(plan).await }
    }

    /// Carries out a plan even if it is already in force. This is needed for a recreated device, because systemd-resolved forgets
    /// the resolvers of a deleted one.
    ///
    /// # Errors
    /// As for [`Self::change`].
    pub async fn renew(self, plan: DnsPlan) -> Result<Self, DnsError> {
        let mut held = self.stop().await?;
        held.change(&plan).await?;
        Ok(Self::keep(plan, held))
    }

    /// Puts back the earlier resolvers, or those that another program has set since.
    ///
    /// # Errors
    /// If a part could not be put back. [`super::recover`] tries again.
    pub async fn undo(self) -> Result<(), DnsError> {
        self.stop().await?.release().await
    }

    /// The plan in force.
    pub fn plan(&self) -> &DnsPlan {
        &self.plan
    }

    /// The resolvers that programs would ask without this plan, as far as this can be found out. Empty if all programs ask
    /// systemd-resolved, because systemd-resolved itself then chooses the resolvers.
    pub fn below(&self) -> Vec<SocketAddr> {
        below(&self.plan).unwrap_or_default()
    }

    fn keep(plan: DnsPlan, held: Held) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keep(held, plan.clone(), stopped));
        Self { plan, stop, task }
    }

    async fn stop(self) -> Result<Held, DnsError> {
        let Self { plan, stop, task } = self;
        // Dropping the sender ends the task.
        drop(stop);
        task.await.map_err(|error| DnsError::State { path: plan.state, source: std::io::Error::other(error) })
    }
}

fn below(plan: &DnsPlan) -> Result<Vec<SocketAddr>, DnsError> {
    // Only a stub uses the host's own resolvers, and a plan without a split has no stub.
    if plan.split.is_none() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for method in &plan.methods {
        match method {
            Method::File { path } => found.extend(Record::open(&plan.state, path)?.below(&plan.owner)),
            Method::Resolvconf { entry, .. } => found.extend(entries_beside(entry)),
            Method::Resolved { .. } => {}
        }
    }
    // Warren's own stub must not be asked, because it would then ask itself.
    let own = plan.in_files();
    found.retain(|server| !own.contains(&server.ip()));
    Ok(found)
}

async fn keep(held: Held, plan: DnsPlan, mut stopped: oneshot::Receiver<()>) -> Held {
    // The watch begins before the first check, so that no change between the two is missed.
    let watch = Watch::new(watched());
    let mut patience = Patience::default();
    loop {
        let pause = match held.repair(&plan).await {
            Ok(false) => None,
            Ok(true) => {
                tracing::info!("another program changed the host's resolvers; Warren has set them again");
                Some(patience.after_repair(Instant::now()))
            }
            Err(error) => {
                tracing::warn!("cannot keep the host's resolvers: {error}");
                Some(LONG_PAUSE)
            }
        };
        let next = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => watch.changed().await,
            }
        };
        tokio::select! {
            () = next => {}
            // A stop interrupts only this wait. A repair always runs to its end.
            _ = &mut stopped => return held,
        }
    }
}

/// The paths that change when the host's resolvers change, for all methods.
fn watched() -> Vec<PathBuf> {
    let file = Path::new(RESOLV_CONF);
    let directory = file.parent().unwrap_or(file);
    [file, directory, Path::new("/run/systemd/resolve")].map(Path::to_owned).into()
}

/// Keeps two programs from undoing each other's changes in an endless loop.
#[derive(Debug, Default)]
struct Patience {
    recent: Vec<Instant>,
}

impl Patience {
    /// Records a repair. Returns how long to wait before the next one.
    fn after_repair(&mut self, now: Instant) -> Duration {
        self.recent.retain(|repair| now.duration_since(*repair) < LONG_PAUSE);
        self.recent.push(now);
        if self.recent.len() < MOST_REPAIRS {
            return Duration::ZERO;
        }
        tracing::warn!(
            "another program keeps changing the host's resolvers; stop it, or set servers = [] in [dns]"
        );
        LONG_PAUSE
    }
}

const LONG_PAUSE: Duration = Duration::from_secs(30);
/// Number of repairs within [`LONG_PAUSE`] after which Warren pauses for that time. Network changes cause fewer repairs. Two
/// programs that undo each other's changes cause more.
const MOST_REPAIRS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_repairs_in_a_row_bring_a_long_pause_and_time_forgets_them() {
        let start = Instant::now();
        let mut patience = Patience::default();
        let pauses: Vec<Duration> = (0..10).map(|_| patience.after_repair(start)).collect();

        assert!(pauses[..9].iter().all(Duration::is_zero));
        assert_eq!(pauses[9], LONG_PAUSE);
        assert_eq!(patience.after_repair(start + LONG_PAUSE), Duration::ZERO);
    }
}
