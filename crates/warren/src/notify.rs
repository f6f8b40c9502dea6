//! Readiness towards whoever started the daemon: systemd, or `warren up`, which listens as systemd does.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Interval, MissedTickBehavior};

/// The daemon carries traffic.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// One sentence on what the daemon is doing, or why it ends.
pub(crate) fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// The daemon undoes what it did.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// The service manager's watchdog, which ends a daemon that it has not heard from for too long.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Nothing when nobody watches.
    ticks: Option<Interval>,
}

impl Watchdog {
    /// The watchdog that the environment names, if one watches this process.
    pub(crate) fn of_this_process() -> Self {
        Self { ticks: sd_notify::watchdog_enabled().map(Self::ticks) }
    }

    /// Waits until the watchdog is to be told that the daemon lives; for ever when there is none.
    pub(crate) async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Tells it. To be called from the daemon's own loop, so that one which hangs is found out.
    pub(crate) fn alive(&self) {
        send(&[NotifyState::Watchdog]);
    }

    /// Three times within what the watchdog allows, so that one delay is no end.
    fn ticks(allowed: Duration) -> Interval {
        let mut ticks = tokio::time::interval((allowed / 3).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("cannot notify the starter: {error}");
    }
}
