//! Notifications (sd_notify(3)) to the process that started the daemon: systemd, or `warren up`, which receives them like
//! systemd.
//!
//! A sandboxed daemon may not open a socket to its starter, so its helper sends the notifications.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior};

/// A daemon's message to its starter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// The daemon is ready. The text is for people.
    Ready(String),
    /// A sentence that says what the daemon is doing.
    Status(String),
    /// The daemon is ending.
    Stopping,
    /// The daemon is alive. The service manager's watchdog expects this notification regularly.
    Alive,
}

/// Announces that the daemon carries traffic.
pub fn ready(status: &str) {
    say(&Notice::Ready(status.into()));
}

/// Announces what the daemon is doing, or why it ends, in one sentence.
pub fn status(status: &str) {
    say(&Notice::Status(status.into()));
}

/// Announces that the daemon is undoing its changes.
pub fn stopping() {
    say(&Notice::Stopping);
}

/// Sends all further notifications through `channel` to the helper, if a starter listens for notifications.
pub(crate) fn send_through(channel: OwnedFd) {
    // If no program listens for notifications, none need to be sent to the helper.
    if std::env::var_os(SOCKET).is_some() {
        // Setting cannot fail, because a daemon has only one helper and sets the channel once.
        drop(CHANNEL.set(channel));
    }
}

/// The service manager's watchdog, which ends a daemon that sends no sign of life for too long.
#[derive(Debug)]
pub struct Watchdog {
    /// `None` when no watchdog runs.
    ticks: Option<Interval>,
}

impl Watchdog {
    /// Returns the watchdog that watches this process according to the environment, or one that does nothing.
    pub fn of_this_process() -> Self {
        Self { ticks: sd_notify::watchdog_enabled().map(Self::ticks) }
    }

    /// Waits until the watchdog's next notification is due. Waits for ever without a watchdog.
    pub async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Tells the watchdog that the daemon is alive. Call this from the daemon's own loop, so that a hanging loop is
    /// noticed.
    pub fn alive(&self) {
        say(&Notice::Alive);
    }

    /// Returns a timer that is three times as frequent as the watchdog requires, so that one delay does no harm.
    fn ticks(allowed: Duration) -> Interval {
        let mut ticks = tokio::time::interval((allowed / 3).max(Duration::from_millis(1)));
        // After a time in which the process did not run, one notification is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }
}

impl Notice {
    /// Sends the notice to the starter that the environment names, over a new socket.
    ///
    /// # Errors
    /// When the starter cannot be reached.
    pub(crate) fn tell(&self) -> io::Result<()> {
        match self {
            Self::Ready(status) => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))])
            }
            Self::Status(status) => sd_notify::notify(&[NotifyState::Status(&one_line(status))]),
            Self::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
            Self::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        }
    }

    fn send_over(&self, channel: &OwnedFd) -> io::Result<()> {
        send(channel, &serde_json::to_vec(self)?, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Replaces control characters by spaces, because a line break would begin another field of sd_notify(3).
fn one_line(status: &str) -> String {
    let character = |character: char| if character.is_control() { ' ' } else { character };
    status.chars().take(LONGEST_STATUS).map(character).collect()
}

fn say(notice: &Notice) {
    let said = match CHANNEL.get() {
        // Sending does not block, so if the helper is stuck, the direct way is tried. It works only before the sandbox is
        // entered. Otherwise the notification is lost.
        Some(channel) => notice.send_over(channel).or_else(|_| notice.tell()),
        None => notice.tell(),
    };
    if let Err(error) = said {
        tracing::debug!("cannot notify the starter: {error}");
    }
}

/// The environment variable that names the starter's socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";
/// Maximum length of a sentence in characters. A service manager shows one line of it.
const LONGEST_STATUS: usize = 2_000;
static CHANNEL: OnceLock<OwnedFd> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("cannot reach it\nMAINPID=1"), "cannot reach it MAINPID=1");
        assert_eq!(one_line(&"a".repeat(9_000)).len(), LONGEST_STATUS);
    }
}
