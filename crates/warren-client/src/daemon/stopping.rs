//! Stops the daemon: ends connections through the tunnel, says goodbye to the exit, and restores the host, in this order.

use std::time::{Duration, Instant};

use warren_quic::driver::SHUTDOWN_TIMEOUT;
use warren_session::client::Stop;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use warren_control::status::State;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::notify;

/// How long a stop waits for the worker to send the last packets of the host's connections.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(200);

/// Even if both waits take their whole time, at least 300 ms of a second are left for restoring the host.
const _: () = assert!(LAST_WORDS.as_millis() + SHUTDOWN_TIMEOUT.as_millis() <= 700);

impl Daemon {
    /// Stops for good. Connections through the tunnel end first, so that their last packets still go through it. Otherwise the
    /// kernel would send these packets again and again from an inner address, over IPv6 even outside the tunnel.
    pub(super) async fn stop(&mut self) {
        self.host.get_ready_to_undo();
        if let Err(error) = warren_host::connections::end(&self.session.leased()) {
            tracing::warn!(
                "connections through the tunnel could not be ended and may go on outside it: {error}; restart the programs that have them"
            );
        }
        // A worker that answers has read those packets. A worker that hangs never answers, hence the bound.
        drop(tokio::time::timeout(LAST_WORDS, self.worker.snapshot()).await);
        self.make_way();
    }

    /// Stops in favour of another daemon that gets the same addresses. Connections through the tunnel survive that.
    pub(super) fn make_way(&mut self) {
        self.health.set_state(State::Stopping);
        self.session.stop(Instant::now());
    }

    pub(super) fn stopped(&self, stop: Stop) -> anyhow::Result<()> {
        match stop {
            Stop::Requested => Ok(()),
            Stop::Goodbye(goodbye) => {
                Err(Failure::new(ExitCode::Refused, self.connections.refusal_of(goodbye)).into())
            }
        }
    }

    /// Says goodbye to the exit and restores the host, whatever the reason for the daemon's end.
    pub(super) async fn end(mut self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        notify::stopping();
        self.end_move().await;
        // The exit is told, so that it does not keep a session for a client that has stopped.
        self.session.machine.stop(Instant::now());
        self.close_unwanted().await;
        // The workers run until the host is restored: queries still go through the tunnel while the resolvers are put back.
        self.host.close_portal().await;
        let mut undone = self.host.undo().await;
        let goodbye = Goodbye::ClientStopped;
        self.worker.stop(goodbye.code(), goodbye.to_string()).await;
        if let Ok(devices_gone) = &mut undone {
            devices_gone.await;
        }
        if let (Err(_), Err(error)) = (&outcome, &undone) {
            // The daemon ends with the first error, so the log has the second one.
            tracing::error!("{error:#}");
        }
        outcome?;
        undone.map(drop)
    }
}
