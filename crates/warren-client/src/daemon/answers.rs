//! Answers on the control socket.

use std::time::Instant;

use super::Daemon;
use warren_control::status::{ClientSessionStatus, ClientStatus, ExitPeer, Observed, Status};
use warren_control::{PendingRequest, Request, RequestRefused};
#[cfg(debug_assertions)]
use warren_daemon::panics;

impl Daemon {
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        let response = match asked.request {
            Request::Status => self.status().await,
            Request::Stop => {
                self.stop().await;
                Ok(serde_json::Value::Null)
            }
            Request::Set { change } => Ok(change.apply(&self.tuning).into()),
            Request::Reload => self.reload().await,
            Request::Retry => self.retry().await,
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                panics::cause(part, &self.worker).await;
                Ok(serde_json::Value::Null)
            }
            Request::ClientAdd { .. }
            | Request::ClientAddAll { .. }
            | Request::ClientList
            | Request::ClientInvite { .. }
            | Request::InvitationList
            | Request::RemovedList
            | Request::ClientRemove { .. }
            | Request::ClientChange { .. }
            | Request::PublicKeys
            | Request::SetKeys { .. }
            | Request::Drain { .. } => Err(RequestRefused::new("this is a client; run it on the exit")),
        };
        // Whoever asked may have gone away.
        drop(asked.answer.send(response));
    }

    /// Remembers what the connections have carried until now.
    pub(super) async fn measure(&mut self) {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let now = Instant::now();
        self.meter.take(now, &snapshot);
        self.spare_memory.look(now, &self.worker).await;
        self.wonder();
    }

    async fn status(&self) -> Result<serde_json::Value, RequestRefused> {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let exit = self.exits.exit(self.exits.current());
        let opened = self.lockdown.trouble().await;
        let client = ClientStatus {
            profile: self.start.name.clone(),
            exit: ExitPeer {
                endpoint: exit.endpoint.to_string(),
                address: self.way.map(|way| way.remote),
                public_key: exit.public_keys.first().map(ToString::to_string).unwrap_or_default(),
            },
            session: self.welcome.as_ref().filter(|_| self.refused.is_none()).map(|welcome| {
                ClientSessionStatus {
                    id: welcome.session,
                    ipv4: welcome.ipv4.map(|(address, prefix)| format!("{address}/{prefix}")),
                    ipv6: welcome
                        .ipv6
                        .filter(|_| self.host.takes_ipv6())
                        .map(|(address, prefix)| format!("{address}/{prefix}")),
                    mtu: welcome.mtu,
                    connections: welcome.connections,
                    prefixes: welcome.prefixes.iter().map(ToString::to_string).collect(),
                }
            }),
            refused: self.refused_status(),
            error: self.host_trouble.as_ref().map(|trouble| trouble.sentence.clone()),
            kill_switch: self.lockdown.is_closed() && opened.is_none(),
            warnings: self.host.warnings().into_iter().chain(opened).collect(),
            last_error: self.last_error.clone(),
            reconnects: self.reconnects,
        };
        let (state, since) = self.shown_state();
        let observed = Observed {
            state,
            since,
            device: self.host.device(),
            host_changes: [self.lockdown.changes(), self.host.changes()].concat(),
            reload_error: self.reload_error.clone(),
            tuning: &self.tuning,
            snapshot,
            meter: &self.meter,
            sandbox: warren_daemon::sandbox::in_force(),
        };
        let status = Status::client(client, observed);
        serde_json::to_value(status).map_err(RequestRefused::new)
    }
}
