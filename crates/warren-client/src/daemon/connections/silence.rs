//! Handles connections on which the exit no longer answers, and ends connections that are no longer wanted.

use std::time::Instant;

use warren_quic::driver::ConnectionId;
use warren_session::client::VigilAction;
use warren_session::goodbye::Goodbye;

use super::{Connections, Purpose, Which};
use crate::exits;
use warren_tunnel::{ConnectionCommand, SharedCommand, WorkerHandle};

impl Connections {
    /// Closes one of a session's connections, or stops trying to open it.
    pub(in crate::daemon) async fn close(
        &mut self,
        worker: &WorkerHandle,
        which: Which,
        index: u32,
        reason: Goodbye,
    ) {
        let Some(number) = self.of(which).map(|session| session.number) else { return };
        // An order that was sent to the worker cannot be cancelled. When the worker answers, `opened` closes the connection.
        self.ordered.cancel(index, number);
        // Until the race has a winner, there is no connection 0 to close. The race is aborted instead.
        if which == Which::InUse && index == 0 && self.races_for(Purpose::Attempt) {
            self.abort_race(worker).await;
        }
        if let Some(connection) = self.connection_of(which, index) {
            // The session may use the index again from now on, so it must not be told of this connection's end.
            if let Some(session) = self.of_mut(which) {
                session.indices.remove(&connection);
            }
            let (code, reason) = (reason.code(), reason.to_string());
            worker.send(ConnectionCommand::Close { connection, code, reason }).await;
        }
    }

    /// Records that the exit has stopped answering on a connection, or answers again. Returns true if all of the session's
    /// connections were silent and the exit answers again on one of them.
    pub(in crate::daemon) async fn take_answers(
        &mut self,
        worker: &WorkerHandle,
        connection: ConnectionId,
        answers: bool,
    ) -> bool {
        let Some((which, index)) = self.place_of(connection) else { return false };
        if let (Which::Beside, Some(beside)) = (which, &mut self.beside) {
            // The second session's silence is only recorded. It matters once the client uses that session.
            beside.silence.answers(Instant::now(), index, answers);
            return false;
        }
        tracing::debug!(index, answers, "a connection's path changed");
        if !answers && !self.own.silence.has_silent() {
            // An idle connection does not notice that its path is dead, so each connection now sends a packet that the exit must
            // acknowledge.
            worker.send_all(SharedCommand::Rouse).await;
        }
        let was_silent = self.own.silence.is_silent();
        self.own.silence.answers(Instant::now(), index, answers);
        let is_back = was_silent && !self.own.silence.is_silent();
        // The address in use works again, so the race for another one ends.
        if is_back && self.races_for(Purpose::Scout) {
            self.abort_race(worker).await;
        }
        is_back
    }

    /// When [`Self::handle_silence`] has something to do.
    pub(in crate::daemon) fn silence_due(&self) -> Option<Instant> {
        self.own.silence.timeout()
    }

    /// Moves silent connections to other local ports. Returns true if all connections are silent, so that the caller must look
    /// for another way.
    pub(in crate::daemon) async fn handle_silence(&mut self, worker: &WorkerHandle) -> bool {
        let mut scouts = false;
        for action in self.own.silence.handle_timeout(Instant::now()) {
            match action {
                VigilAction::Rebind { index } => self.rebind(worker, index).await,
                // If a race is under way, it continues, because starting another race would abort it.
                VigilAction::Scout => scouts = !self.races_for(Purpose::Scout),
            }
        }
        scouts
    }

    async fn rebind(&self, worker: &WorkerHandle, index: u32) {
        let (Some(connection), Some(remote)) = (self.own.with_index(index), self.own.remotes.get(&index))
        else {
            return;
        };
        match exits::bind(*remote) {
            Ok(socket) => {
                // A new port makes NATs and firewalls on the path treat the connection as a new flow.
                tracing::debug!(index, "another local port for a connection that is not answered");
                worker.send(ConnectionCommand::Rebind { connection, socket }).await;
            }
            Err(error) => tracing::debug!("cannot open a UDP socket: {error}"),
        }
    }
}
