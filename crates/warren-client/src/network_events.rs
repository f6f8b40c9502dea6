//! Notices that this host's network has changed, or that the host has slept. After either event, the client must ask whether the
//! exit still answers.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::time::{Interval, MissedTickBehavior};
use warren_host::network_watch::NetworkWatch;

/// How often the clock is read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// If a reading is delayed for longer, the host has slept or this process was stopped. On a busy machine, delays are shorter.
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// An event after which the client must ask whether the exit still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkEvent {
    /// This host's links, addresses or routes have changed.
    Changed,
    /// The host has woken up, or this process runs again after it was stopped.
    Resumed,
}

/// Watches netlink and the boot clock.
pub(crate) struct NetworkEvents {
    network: Option<NetworkWatch>,
    readings: Interval,
    /// The time since boot at the last reading.
    read: Duration,
}

impl NetworkEvents {
    /// Starts to watch. To be called within a tokio runtime.
    pub(crate) fn watch() -> Self {
        let network = NetworkWatch::start().inspect_err(|error| {
            tracing::warn!(
                "cannot watch this host's network, so changes are noticed late: {error}; check the limits on \
                 descriptors"
            )
        });
        let mut readings = tokio::time::interval(READ_EVERY);
        // After a sleep one reading is enough, so missed readings are not repeated.
        readings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { network: network.ok(), readings, read: time_since_boot() }
    }

    /// Waits for the next event. Cancelling the wait loses nothing.
    pub(crate) async fn next(&mut self) -> NetworkEvent {
        let Self { network, readings, read } = self;
        let changed = async {
            match network {
                Some(network) => network.changed().await,
                None => std::future::pending().await,
            }
        };
        let passed = async {
            loop {
                readings.tick().await;
                let now = time_since_boot();
                if has_jumped(std::mem::replace(read, now), now) {
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

/// Whether the time between two readings is so long that the host must have slept or this process must have been stopped.
fn has_jumped(before: Duration, now: Duration) -> bool {
    now.saturating_sub(before) > READ_EVERY + LONGEST_DELAY
}

/// The time since boot, sleep included. `Instant` leaves sleep out.
fn time_since_boot() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_delay_that_a_busy_machine_does_not_explain_is_a_jump() {
        let at = Duration::from_secs_f64;
        assert!(!has_jumped(at(100.0), at(101.0)));
        assert!(!has_jumped(at(100.0), at(102.9)), "a busy machine");
        assert!(has_jumped(at(100.0), at(103.1)));
        assert!(!has_jumped(at(100.0), at(99.0)));
    }
}
