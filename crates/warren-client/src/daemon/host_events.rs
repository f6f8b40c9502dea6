//! Reacts to what happens on the host: something is wrong there, the lease clashes with an address there, or a Welcome cannot be
//! applied.

use std::time::Instant;

use super::Daemon;
use warren_control::status::State;
use warren_tunnel::SharedCommand;

impl Daemon {
    /// Repairs the host after a change. Repairs that fail now are tried again at the next check.
    pub(super) async fn look_after_host(&mut self) {
        let mut trouble = self.host.repair(&self.worker, self.health.refusal.is_refused()).await;
        // A host that has joined another network may find its lease in use there.
        if let Err(error) = self.give_up_taken_lease().await {
            trouble.push(format!("{error:#}"));
        }
        if trouble.is_empty() && self.session.is_over() && self.host.is_retry_due() {
            // Only the next Welcome shows whether the host can be set up now.
            self.begin_session(Instant::now());
        }
        trouble.extend(self.host.unapplied().map(str::to_owned));
        self.note_host_trouble((!trouble.is_empty()).then(|| trouble.join("; ")));
    }

    /// Notes what is wrong on the host. The host is checked again until nothing is wrong.
    pub(super) fn note_host_trouble(&mut self, trouble: Option<String>) {
        if self.health.note_host_trouble(trouble) {
            self.host.look_again();
        }
    }

    /// Goes on without a session, because the host cannot be set up as a Welcome asks. The daemon must not end, since that would
    /// let traffic leave outside the tunnel at a moment that the exit has chosen. So it gives the session up, keeps the tunnel's
    /// traffic blocked, and asks for another session later.
    pub(super) async fn goes_without(&mut self, error: &anyhow::Error) {
        let sentence = format!("{error:#}");
        if let Err(error) = self.give_session_up(&sentence).await {
            tracing::debug!("cannot close the host yet, and tries again at the next check: {error:#}");
        }
        self.host.not_applied(sentence.clone());
        self.note_host_trouble(Some(sentence));
    }

    /// Gives the session up if the lease's address by now belongs to another host, which this host has to reach outside the
    /// tunnel. Asks for another session at once. As long as the exit gives that address, the daemon refuses the session.
    ///
    /// # Errors
    /// Why the lease is still on this host.
    pub(super) async fn give_up_taken_lease(&mut self) -> anyhow::Result<()> {
        let is_stopping = self.health.state() == State::Stopping;
        let Some(welcome) = self.session.welcome().filter(|_| !is_stopping) else { return Ok(()) };
        let Some(clash) = self.host.clash(welcome, &self.connections).await? else { return Ok(()) };
        let sentence = format!(
            "the session with {} is given up: {clash}; have the exit's operator give another address, or use another network",
            self.connections.endpoint()
        );
        tracing::error!("{sentence}");
        let given_back = self.give_session_up(&sentence).await;
        if !self.health.refusal.is_refused() {
            self.begin_session(Instant::now());
        }
        given_back
    }

    /// Says goodbye to the exit, and ends the session with its connections and searches. The host stays as it is.
    pub(super) async fn end_session(&mut self) {
        self.end_move().await;
        self.session.machine.stop(Instant::now());
        self.close_unwanted().await;
        self.connections.abort_race(&self.worker).await;
        self.connections.forget_silence();
        self.forget_proof();
        if let Some(session) = self.session.take_welcome() {
            self.worker.send_all(SharedCommand::EndSession { session }).await;
        }
    }

    /// Says goodbye to the exit, and takes the lease off the host. The routes into the tunnel stay, so its traffic stays blocked.
    ///
    /// # Errors
    /// Why the lease is still on this host.
    async fn give_session_up(&mut self, why: &str) -> anyhow::Result<()> {
        self.end_session().await;
        self.health.session_given_up(why);
        self.host.setup.give_lease_back().await
    }
}
