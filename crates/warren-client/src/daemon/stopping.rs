//! The daemon's end: what goes through the tunnel ends with it, the exit is told, and the host is restored.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use warren_quic::driver::SHUTDOWN_TIMEOUT;
use warren_session::client::{ClientAction, ClientState, Stop};
use warren_session::goodbye::Goodbye;

use super::Daemon;
use warren_control::status::State;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::notify;

/// How long a stop waits for the worker to send the last words of connections.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// With nobody answering, what is left of a second is for the host's restoration.
const _: () = assert!(LAST_WORDS.as_millis() + SHUTDOWN_TIMEOUT.as_millis() <= 700);

impl Daemon {
    /// Stops for good: connections through the tunnel end first, while their last words still go through it. Without that they
    /// would be sent again and again with an inner address, over IPv6 also outside.
    pub(super) async fn stop(&mut self) {
        let ipv4 = self.welcome.as_ref().and_then(|welcome| welcome.ipv4);
        let ipv6 = self.welcome.as_ref().and_then(|welcome| welcome.ipv6);
        let addresses = ipv4.map(|(address, _)| IpAddr::V4(address)).into_iter();
        let addresses: Vec<IpAddr> = addresses.chain(ipv6.map(|(address, _)| address.into())).collect();
        if let Err(error) = warren_host::connections::end(&addresses) {
            tracing::warn!(
                "connections through the tunnel could not be ended and may go on outside it: {error}; restart the programs that have them"
            );
        }
        // It has read the last words by the time that it answers; one that hangs never does.
        drop(tokio::time::timeout(LAST_WORDS, self.worker.snapshot()).await);
        self.make_way();
    }

    /// Stops for another daemon that gets the same addresses: connections through the tunnel are left to it.
    pub(super) fn make_way(&mut self) {
        self.set_state(State::Stopping);
        if matches!(self.session.state(), ClientState::Stopped(_)) {
            // One that an exit has refused says nothing more.
            self.session = self.new_session();
        }
        self.session.stop(Instant::now());
    }

    pub(super) fn stopped(&self, stop: Stop) -> anyhow::Result<()> {
        match stop {
            Stop::Requested => Ok(()),
            Stop::Goodbye(goodbye) => Err(Failure::new(ExitCode::Refused, self.refusal_of(goodbye)).into()),
        }
    }

    /// Takes leave of the exit and restores the host, whatever has ended the daemon.
    pub(super) async fn end(mut self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        notify::stopping();
        // The exit is told, so that it keeps no session for a client that is gone.
        self.session.stop(Instant::now());
        while let Some(action) = self.session.poll_action() {
            if !matches!(action, ClientAction::Send { .. } | ClientAction::Close { .. }) {
                continue;
            }
            if let Err(error) = self.carry_out(action).await {
                tracing::debug!("cannot take leave of the exit: {error:#}");
            }
        }
        let undone = self.host.undo().await;
        let goodbye = Goodbye::ClientStopped;
        self.worker.stop(goodbye.code(), goodbye.to_string()).await;
        outcome?;
        undone
    }
}
