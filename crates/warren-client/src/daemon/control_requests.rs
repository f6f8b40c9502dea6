//! Answers to what the command line asks on the control socket.

use std::time::Instant;

use super::Daemon;
use warren_control::status::{ClientSessionStatus, ClientStatus, ExitPeer, Observed, State, Status};
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
            Request::Exec { side } => self
                .prepare_exec(side)
                .await
                .and_then(|servers| serde_json::to_value(servers).map_err(RequestRefused::new)),
            Request::Retry => self.retry().await,
            Request::NetworkResolvers => {
                serde_json::to_value(self.host.listed_resolvers().await).map_err(RequestRefused::new)
            }
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                panics::cause(part, &self.worker).await;
                Ok(serde_json::Value::Null)
            }
            Request::ClientAdd { .. }
            | Request::ClientAddAll { .. }
            | Request::ClientList { .. }
            | Request::ClientShow { .. }
            | Request::ClientInvite { .. }
            | Request::InvitationList { .. }
            | Request::IsInvited { .. }
            | Request::RemovedList { .. }
            | Request::ClientImport { .. }
            | Request::ClientRemove { .. }
            | Request::ClientChange { .. }
            | Request::PublicKeys
            | Request::SetKeys { .. }
            | Request::Drain { .. } => Err(RequestRefused::new("this is a client; run it on the exit")),
        };
        // The command may have been interrupted meanwhile.
        drop(asked.answer.send(response.map(Into::into)));
    }

    /// Takes a sample of the traffic, from which rates are calculated. Called once a second.
    pub(super) async fn measure(&mut self) {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let now = Instant::now();
        self.meter.take(now, &snapshot);
        self.spare_memory.look(now, &self.worker).await;
        self.check_next_key(now).await;
        if self.host.portal.is_over(self.health.state() == State::Up) {
            self.host.close_portal().await;
        }
        if self.health.is_slow(self.session.welcome().is_some()) {
            self.start_diagnosis();
            self.health.tell_known_cause(self.connections.exits.count());
        }
    }

    /// What a user who expects the whole host in the tunnel has to know.
    fn host_outside(&self) -> Option<String> {
        let name = &self.start.name;
        self.start.host_outside.then(|| {
            format!(
                "{name} is up for `warren exec {name}` alone, and this host's own traffic stays outside; run `warren down {name}` and \
                 `warren up {name}` to put the host inside"
            )
        })
    }

    /// Why the tunnel does not rest on a trusted network.
    fn never_rests(&self) -> Option<String> {
        let profile = &self.start.profile;
        let is_kept = !profile.on_demand.trusted.is_empty()
            && self.host.lockdown.is_closed()
            && !profile.on_demand.opens_kill_switch;
        is_kept.then(|| {
            "the tunnel stays up on trusted networks too, because the kill switch is closed; set trusted_opens_kill_switch = true in \
             [on_demand] if it is to open there"
                .to_owned()
        })
    }

    /// What is wrong although traffic flows. `opened` is what is wrong with the kill switch.
    fn warnings(&self, opened: Option<String>) -> Vec<String> {
        let warnings = self.host.setup.warnings().into_iter().chain(opened);
        let warnings = warnings.chain(self.unproven()).chain(self.host_outside()).chain(self.never_rests());
        warnings.chain(self.start.fleet.problem()).collect()
    }

    /// The name in the roster of the exit in use.
    fn member_in_use(&self) -> Option<String> {
        let exits = &self.connections.exits;
        exits.member(exits.current()).map(str::to_owned)
    }

    async fn status(&self) -> Result<serde_json::Value, RequestRefused> {
        let mut snapshot = self.worker.snapshot().await.unwrap_or_default();
        // Indices are those of connections in the session in use.
        for each in &mut snapshot.connections {
            each.index = each.index.filter(|_| self.connections.index_beside(each.connection).is_none());
        }
        let exit = self.connections.exit();
        // A kill switch whose table is gone counts as open, even if the journal says that it is closed.
        let opened = self.host.lockdown.trouble().await;
        let client = ClientStatus {
            profile: self.start.name.clone(),
            exit: ExitPeer {
                endpoint: exit.endpoint.to_string(),
                address: self.connections.way().map(|way| way.remote),
                public_key: self.exit_key().map(|key| key.to_string()).unwrap_or_default(),
                next_public_key: self.next_exit_key().map(|key| key.to_string()),
            },
            session: self.session.welcome().filter(|_| !self.health.refusal.is_refused()).map(|welcome| {
                ClientSessionStatus {
                    id: welcome.session,
                    ipv4: welcome.ipv4.map(|(address, prefix)| format!("{address}/{prefix}")),
                    ipv6: welcome
                        .ipv6
                        .filter(|_| self.host.setup.takes_ipv6())
                        .map(|(address, prefix)| format!("{address}/{prefix}")),
                    gateway_ipv4: welcome.gateway_ipv4,
                    gateway_ipv6: welcome.gateway_ipv6.filter(|_| self.host.setup.takes_ipv6()),
                    mtu: welcome.mtu,
                    connections: welcome.connections,
                    prefixes: welcome.prefixes.iter().map(ToString::to_string).collect(),
                }
            }),
            refused: self.health.refusal.status(),
            roster: self.start.fleet.status(self.member_in_use()),
            moving: self.moves.status(Instant::now()),
            error: self.health.host_trouble().map(str::to_owned),
            kill_switch: self.host.lockdown.is_closed() && opened.is_none(),
            host_outside: self.start.host_outside,
            warnings: self.warnings(opened),
            last_error: self.health.last_error.clone(),
            resting: self.on_demand.resting().map(str::to_owned),
            reconnects: self.health.reconnects,
            dropped_queries: self.host.setup.dropped_queries(),
        };
        let (state, since) = self.health.shown_state();
        let observed = Observed {
            state,
            since,
            device: self.host.setup.device(),
            host_changes: [self.host.lockdown.changes(), self.host.exec.changes(), self.host.setup.changes()]
                .concat(),
            reload_error: self.health.reload_error.clone(),
            tuning: &self.tuning,
            snapshot,
            meter: &self.meter,
            sandbox: warren_daemon::sandbox::in_force(),
        };
        let status = Status::client(client, observed);
        serde_json::to_value(status).map_err(RequestRefused::new)
    }
}
