//! Whether traffic flows, which is when the tunnel is up.

use tokio::task::JoinError;

use super::Daemon;
use crate::probe::Probe;
use warren_control::status::State;
use warren_daemon::notify;

impl Daemon {
    pub(super) fn start_probe(&mut self) {
        let probe = self.welcome.as_ref().and_then(Probe::of);
        let (Some(probe), Some(device)) = (probe, self.host.device()) else { return self.up() };
        notify::status(&format!("{} does not answer through the tunnel; see the exit's log", probe.gateway));
        self.probe = Some(tokio::spawn(probe.answered(device.name)));
    }

    /// The probe was answered, or could not be sent, which says nothing about the tunnel.
    pub(super) fn take_probe(&mut self, probed: Result<std::io::Result<()>, JoinError>) {
        self.probe = None;
        if let Ok(Err(error)) = probed {
            tracing::debug!("cannot probe the tunnel: {error}");
        }
        self.up();
    }

    pub(super) fn up(&mut self) {
        tracing::info!("connected to {}", self.exits.exit(self.exits.current()).endpoint);
        self.set_state(State::Up);
        self.is_first_try = false;
        self.refused = None;
        self.last_error = None;
        self.cause = None;
        self.grievances.forget();
        notify::ready("connected");
    }
}
