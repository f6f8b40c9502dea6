//! Readiness towards whoever started the daemon: systemd, or `warren up`, which listens as systemd does.

use sd_notify::NotifyState;

/// The daemon carries traffic.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// One sentence on what the daemon is doing.
pub(crate) fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// The daemon undoes what it did.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("cannot notify the starter: {error}");
    }
}
