//! News that call for a sign of life from the exit: another network, and time that passed unseen.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::time::{Interval, MissedTickBehavior};
use warren_host::network_watch::NetworkWatch;

/// How often the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time beyond that between two looks which a busy machine does not explain: it slept, or the process was stopped.
const UNSEEN: Duration = Duration::from_secs(2);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkEvent {
    /// This host's links, addresses or routes have changed.
    Changed,
    /// The machine slept, or this process was stopped.
    Resumed,
}

/// The sources of [`NetworkEvent`]s.
pub(crate) struct NetworkEvents {
    network: Option<NetworkWatch>,
    looks: Interval,
    seen: Duration,
}

impl NetworkEvents {
    /// Starts to watch; to be called within a tokio runtime.
    pub(crate) fn watch() -> Self {
        let network = NetworkWatch::start().inspect_err(|error| {
            tracing::warn!("cannot watch this host's network, so a changed one is noticed late: {error}; check the limits on descriptors")
        });
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { network: network.ok(), looks, seen: time_since_boot() }
    }

    /// Waits for the next alert. Nothing is lost when the wait is given up.
    pub(crate) async fn next(&mut self) -> NetworkEvent {
        let Self { network, looks, seen } = self;
        let changed = async {
            match network {
                Some(network) => network.changed().await,
                None => std::future::pending().await,
            }
        };
        let passed = async {
            loop {
                looks.tick().await;
                let now = time_since_boot();
                if has_jumped(std::mem::replace(seen, now), now) {
                    return;
                }
            }
        };
        tokio::select! {
            () = changed => NetworkEvent::Changed,
            () = passed => NetworkEvent::Resumed,
        }
    }
}

/// Whether more time has passed between two looks than the daemon knows of.
fn has_jumped(before: Duration, now: Duration) -> bool {
    now.saturating_sub(before) > LOOK_EVERY + UNSEEN
}

/// Time since boot, sleep included, which `Instant` leaves out.
fn time_since_boot() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_nothing_explains_is_a_jump() {
        let at = Duration::from_secs_f64;
        assert!(!has_jumped(at(100.0), at(101.0)));
        assert!(!has_jumped(at(100.0), at(102.9)), "a busy machine");
        assert!(has_jumped(at(100.0), at(103.1)));
        assert!(!has_jumped(at(100.0), at(99.0)));
    }
}
