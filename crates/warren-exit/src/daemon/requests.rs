//! Answers to operators: requests on the control socket, and scrapes of the metrics.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use warren_session::clients::Invitation;

use super::Daemon;
use crate::audit::Change;
use crate::clients::{Clients, Proposed};
use crate::ending::Ending;
use crate::list;
use crate::metrics::Scrape;
use crate::session_settings::session_settings;
use warren_control::{ClientChange, Peer, PendingRequest, Request, RequestRefused};
#[cfg(debug_assertions)]
use warren_daemon::panics;

impl Daemon<'_> {
    /// Answers a request on the control socket.
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        self.clients.look_at_clock();
        let PendingRequest { request, peer, answer } = asked;
        let change = Change::of(&request);
        let response = self.carry_out(request, &peer).await;
        if let (Some(change), Ok(_)) = (change, &response) {
            self.audit.note_command(&peer, change);
        }
        // Reloads and drains have led to decisions, too.
        self.clients.carry_out_all(&self.worker).await;
        drop(answer.send(response));
    }

    async fn carry_out(&mut self, request: Request, peer: &Peer) -> Result<Value, RequestRefused> {
        match request {
            Request::Status => self.status().await,
            Request::Stop => {
                self.stopping = Some(Ending::Stop);
                Ok(Value::Null)
            }
            Request::Set { change } => Ok(change.apply(&self.tuning).into()),
            Request::Reload => self.reload().await,
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                panics::cause(part, &self.worker).await;
                Ok(Value::Null)
            }
            Request::PublicKeys => value(self.config.public_keys()),
            Request::SetKeys { keys, end_sessions } => {
                let set = self.set_keys(keys, end_sessions).await;
                set.map(Into::into).map_err(|error| RequestRefused::new(format!("{error:#}")))
            }
            Request::Drain { milliseconds } => {
                tracing::info!("draining: clients are told to move to another exit");
                self.clients.drain();
                self.drained_by = Some(Instant::now() + Duration::from_millis(milliseconds));
                Ok(Value::Null)
            }
            Request::Retry | Request::Exec { .. } | Request::NetworkResolvers => {
                Err(RequestRefused::new("this is an exit; run it on a client"))
            }
            Request::ClientAdd { client } => self.change(|clients| clients.add(&client)).await,
            Request::ClientAddAll { clients: new } => self.change(|clients| clients.add_all(&new)).await,
            Request::ClientRemove { name } => self.change(|clients| clients.remove(&name)).await,
            Request::ClientChange { name, change } => self.change_client(&name, &change).await,
            Request::ClientInvite { invitation } => self.invite(invitation).await,
            Request::ClientImport { dry_run } => self.import(dry_run, peer).await,
            Request::ClientList { page } => {
                let snapshot = self.worker.snapshot().await.unwrap_or_default();
                value(self.clients.list(&page, &snapshot, self.host.waiting()))
            }
            Request::ClientShow { name } => {
                let snapshot = self.worker.snapshot().await.unwrap_or_default();
                self.clients
                    .show(&name, &snapshot, self.host.waiting())
                    .map_err(RequestRefused::new)
                    .and_then(value)
            }
            Request::InvitationList { page } => value(list::invitations(self.clients.registry(), &page)),
            Request::IsInvited { name } => value(list::is_invited(self.clients.registry(), &name)),
            Request::RemovedList { page } => value(list::removed(self.clients.registry(), &page)),
        }
    }

    /// Changes clients. When this returns, the change is stored and in force, on the host as well.
    pub(super) async fn change(
        &mut self,
        change: impl FnOnce(&mut Clients) -> Result<Proposed, RequestRefused>,
    ) -> Result<Value, RequestRefused> {
        let proposed = change(&mut self.clients)?;
        let settled = self.clients.settle(proposed, &self.worker).await;
        // In any case: a change that shuts a client out is in force even if it could not be stored.
        self.follow_clients().await?;
        settled.map(|()| Value::Null)
    }

    pub(super) async fn change_client(
        &mut self,
        name: &str,
        change: &ClientChange,
    ) -> Result<Value, RequestRefused> {
        if let ClientChange::AddForward { forward } = change {
            let refused = self.host.refuse_taken(*forward, &self.config, self.clients.registry()).await;
            refused.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        }
        self.change(|clients| clients.change(name, change)).await
    }

    pub(super) async fn invite(&mut self, invitation: Invitation) -> Result<Value, RequestRefused> {
        let proposed = self.clients.invite(invitation)?;
        self.clients.settle(proposed, &self.worker).await.map(|()| Value::Null)
    }

    async fn import(&mut self, dry_run: bool, peer: &Peer) -> Result<Value, RequestRefused> {
        let settings = session_settings(&self.config);
        let imported = self.clients.import(dry_run, &settings, &self.worker).await;
        let summary = imported.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        // It is in force, even if the host cannot follow.
        if !dry_run {
            self.audit.note_command(peer, Change::imported(&summary));
        }
        self.follow_clients().await?;
        value(summary)
    }

    async fn status(&self) -> Result<Value, RequestRefused> {
        let device = format!("TUN device {}", self.reporting.device_name());
        let host_changes = [vec![device], self.host.changes()].concat();
        let status = self.reporting.status(&self.observe().await, host_changes);
        value(status)
    }

    /// Makes the host follow a change of clients that is in force.
    async fn follow_clients(&mut self) -> Result<(), RequestRefused> {
        let followed = self.follow_host().await;
        followed.map_err(|error| {
            let sentence = format!(
                "the change is in force, but routes and firewall did not follow: {error:#}; run: warren reload exit"
            );
            // The audit log has no line of a change whose answer is a refusal.
            tracing::error!("{sentence}");
            RequestRefused::new(sentence)
        })
    }

    /// Answers a scrape of the metrics, unless nobody waits for it any more.
    pub(super) async fn answer_scrape(&self, scrape: Scrape) {
        if !scrape.is_closed() {
            self.reporting.answer_scrape(scrape, &self.observe().await);
        }
    }
}

fn value(answer: impl Serialize) -> Result<Value, RequestRefused> {
    serde_json::to_value(answer).map_err(RequestRefused::new)
}
