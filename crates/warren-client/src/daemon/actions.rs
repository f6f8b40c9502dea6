//! What the session's state machine asks for, carried out by the worker and the host.

use std::time::Instant;

use warren_session::client::{ClientAction, SessionGrant, Stop};
use warren_session::exit::SessionId;
use warren_session::goodbye::Goodbye;

use super::Daemon;
use super::connecting::Purpose;
use warren_control::status::State;
use warren_tunnel::{Command, Forwarding, SessionRoute};

impl Daemon {
    /// Carries out what the session asks for; returns why the daemon is to stop, if it is.
    pub(super) async fn carry_out(&mut self, action: ClientAction) -> anyhow::Result<Option<Stop>> {
        match action {
            ClientAction::Connect { index } => self.connect(index).await?,
            ClientAction::Send { index, bytes } => self.send(index, bytes).await,
            ClientAction::Close { index, reason } => self.close(index, reason).await,
            ClientAction::Welcome(welcome) => self.welcome(*welcome).await?,
            ClientAction::Attach { index } => self.attach(index).await,
            ClientAction::Detach { index } => self.detach(index).await,
            ClientAction::Down { reason, goodbye } => {
                if let Some(probe) = self.probe.take() {
                    probe.abort();
                }
                if matches!(goodbye, Some(Goodbye::Restarting | Goodbye::Draining)) {
                    self.exits.avoid_current(Instant::now());
                }
                if goodbye == Some(Goodbye::PoolEmpty) {
                    self.take_empty_pool();
                }
                if self.state == State::Up {
                    self.reconnects += 1;
                    tracing::info!("connection to the exit lost: {reason}");
                    self.set_state(State::Reconnecting);
                } else {
                    self.complain(&reason);
                }
                self.unreachable(reason, goodbye);
            }
            ClientAction::Stopped { reason } if self.goes_on_elsewhere(&reason) => {}
            ClientAction::Stopped { reason } => {
                return Ok(if self.stays_closed(&reason).await { None } else { Some(reason) });
            }
        }
        Ok(None)
    }

    pub(super) async fn send(&self, index: u32, bytes: Vec<u8>) {
        if let Some(connection) = self.connection(index) {
            self.worker.send(Command::SendControl { connection, data: bytes }).await;
        }
    }

    pub(super) async fn close(&mut self, index: u32, reason: Goodbye) {
        self.cancel_opening(index);
        if index == 0 && self.race.as_ref().is_some_and(|racing| racing.purpose == Purpose::Attempt) {
            self.abort_race().await;
        }
        if let Some(connection) = self.connection(index) {
            // From here on the index may be used anew; this connection's end is nobody's news.
            self.connections.remove(&connection);
            let (code, reason) = (reason.code(), reason.to_string());
            self.worker.send(Command::Close { connection, code, reason }).await;
        }
    }

    pub(super) async fn detach(&mut self, index: u32) {
        self.vigil.detached(Instant::now(), index);
        if let Some(connection) = self.connection(index) {
            self.worker.send(Command::Detach { connection }).await;
        }
    }

    async fn welcome(&mut self, welcome: SessionGrant) -> anyhow::Result<()> {
        let old = self.welcome.take();
        if let Some(old) = &old {
            self.worker.send(Command::EndSession { session: SessionId(old.session) }).await;
        }
        self.say_what_is_not_granted(&welcome);
        let stood = self.host.stands();
        let queues = match self.host.apply(&welcome).await {
            Ok(queues) => queues,
            Err(error) if !stood || self.is_waited_for() => return Err(error),
            Err(error) => {
                self.goes_without(&error).await;
                return Ok(());
            }
        };
        self.is_applied().await;
        // A look at what was just made would keep whoever waits for the first echo waiting too.
        self.watch.put_off();
        let route = SessionRoute {
            ipv4: welcome.ipv4.map(|(address, _)| address),
            ipv6: welcome.ipv6.map(|(address, _)| address),
            prefixes: welcome.prefixes.clone(),
            connections: welcome.connections,
            limit: None,
        };
        let session = SessionId(welcome.session);
        self.worker.send(Command::OpenSession { session, client: None, route }).await;
        if let Some(queues) = queues {
            self.worker.open_device(queues, &Forwarding::Client).await;
        }
        self.welcome = Some(welcome);
        Ok(())
    }

    /// The exit's operator decides which networks behind this host are routed here.
    fn say_what_is_not_granted(&self, welcome: &SessionGrant) {
        for prefix in
            self.start.profile.routes.prefixes.iter().filter(|prefix| !welcome.prefixes.contains(prefix))
        {
            tracing::warn!(
                "the exit does not route {prefix} here; its operator allows it with: warren exit client set NAME --prefix {prefix}"
            );
        }
    }

    async fn attach(&mut self, index: u32) {
        let (Some(connection), Some(welcome)) = (self.connection(index), &self.welcome) else { return };
        let session = SessionId(welcome.session);
        self.worker.send(Command::Attach { session, connection, index }).await;
        self.vigil.attached(index);
        if self.state != State::Up && self.probe.is_none() {
            self.start_probe();
        }
    }
}
