//! Readiness towards whoever started the daemon: systemd, or `warren up`, which listens as systemd does.
//!
//! A daemon has no socket to its starter, which any other program's socket could be put in the place of: its helper says it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior};

/// What a daemon tells its starter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The daemon is ready; with a sentence for people.
    Ready(String),
    /// What the daemon is doing.
    Status(String),
    /// The daemon is ending.
    Stopping,
    /// The daemon lives: what a watchdog waits for.
    Alive,
}

/// The daemon carries traffic.
pub fn ready(status: &str) {
    say(&Notice::Ready(status.into()));
}

/// One sentence on what the daemon is doing, or why it ends.
pub fn status(status: &str) {
    say(&Notice::Status(status.into()));
}

/// The daemon undoes what it did.
pub fn stopping() {
    say(&Notice::Stopping);
}

/// Has everything from now on said by the process at the other end of `channel`, a message each, if anybody listens at all.
pub fn speak_by(channel: OwnedFd) {
    if std::env::var_os(SOCKET).is_some() {
        // A daemon has one helper.
        drop(CHANNEL.set(channel));
    }
}

/// The service manager's watchdog, which ends a daemon that it has not heard from for too long.
#[derive(Debug)]
pub struct Watchdog {
    /// Nothing when nobody watches.
    ticks: Option<Interval>,
}

impl Watchdog {
    /// The watchdog that the environment names, if one watches this process.
    pub fn of_this_process() -> Self {
        Self { ticks: sd_notify::watchdog_enabled().map(Self::ticks) }
    }

    /// Waits until the watchdog is to be told that the daemon lives; for ever when there is none.
    pub async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Tells it. To be called from the daemon's own loop, so that one which hangs is found out.
    pub fn alive(&self) {
        say(&Notice::Alive);
    }

    /// Three times within what the watchdog allows, so that one delay is no end.
    fn ticks(allowed: Duration) -> Interval {
        let mut ticks = tokio::time::interval((allowed / 3).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }
}

impl Notice {
    /// Tells the starter that the environment names, by a socket that is made for it.
    ///
    /// # Errors
    /// When there is nobody to tell.
    pub fn tell(&self) -> io::Result<()> {
        match self {
            Self::Ready(status) => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))])
            }
            Self::Status(status) => sd_notify::notify(&[NotifyState::Status(&one_line(status))]),
            Self::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
            Self::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        }
    }

    fn hand_over(&self, channel: &OwnedFd) -> io::Result<()> {
        send(channel, &serde_json::to_vec(self)?, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// A line break would begin another of sd_notify(3)'s fields.
fn one_line(status: &str) -> String {
    let character = |character: char| if character.is_control() { ' ' } else { character };
    status.chars().take(LONGEST_STATUS).map(character).collect()
}

fn say(notice: &Notice) {
    let said = match CHANNEL.get() {
        // A helper that does not get on with it costs a notice, and holds up nobody. Before the sandbox it can go without.
        Some(channel) => notice.hand_over(channel).or_else(|_| notice.tell()),
        None => notice.tell(),
    };
    if let Err(error) = said {
        tracing::debug!("cannot notify the starter: {error}");
    }
}

/// The environment variable with the starter's socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";
/// Characters of a sentence, of which a service manager shows a line.
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
