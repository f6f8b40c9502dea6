//! Answers to operators: requests on the control socket, scrapes of the metrics, and questions of the page.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use warren_session::clients::{Forward, Invitation, PortRange};

use super::Daemon;
use super::audit::{self, By, Change};
use crate::clients::{Clients, Proposed};
use crate::ending::Ending;
use crate::metrics::Scrape;
use crate::session_settings::session_settings;
use crate::web::{self, ApiCall, ForwardedPorts, NewForward, NewInvitation, Question};
use crate::{invitation, list};
use warren_control::{ClientChange, InvitationView, PendingRequest, Request, RequestRefused};
#[cfg(debug_assertions)]
use warren_daemon::panics;

/// The longest life of an invitation from the page.
const MOST_HOURS: u32 = 8_760;

impl Daemon<'_> {
    /// Answers a request on the control socket.
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        self.clients.look_at_clock();
        let change = Change::of(&asked.request);
        let response = self.carry_out(asked.request).await;
        if let (Some(change), Ok(_)) = (change, &response) {
            change.log(By::Command);
        }
        // Reloads and drains have led to decisions, too.
        self.clients.carry_out_all(&self.worker).await;
        drop(asked.answer.send(response));
    }

    async fn carry_out(&mut self, request: Request) -> Result<Value, RequestRefused> {
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
            Request::ClientAddAll { clients: new } => {
                self.change(|clients| clients.add_all(&new)).await.inspect(|_| audit::log_enrolled(new.len()))
            }
            Request::ClientRemove { name } => self.change(|clients| clients.remove(&name)).await,
            Request::ClientChange { name, change } => self.change_client(&name, &change).await,
            Request::ClientInvite { invitation } => self.invite(invitation).await,
            Request::ClientImport { dry_run } => self.import(dry_run).await,
            Request::ClientList { page } => {
                value(self.clients.list(&page, &self.worker.snapshot().await.unwrap_or_default()))
            }
            Request::ClientShow { name } => {
                let snapshot = self.worker.snapshot().await.unwrap_or_default();
                self.clients.show(&name, &snapshot).map_err(RequestRefused::new).and_then(value)
            }
            Request::InvitationList { page } => value(list::invitations(self.clients.registry(), &page)),
            Request::IsInvited { name } => value(list::is_invited(self.clients.registry(), &name)),
            Request::RemovedList { page } => value(list::removed(self.clients.registry(), &page)),
        }
    }

    /// Changes clients. When this returns, the change is stored and in force, on the host as well.
    async fn change(
        &mut self,
        change: impl FnOnce(&mut Clients) -> Result<Proposed, RequestRefused>,
    ) -> Result<Value, RequestRefused> {
        let proposed = change(&mut self.clients)?;
        let settled = self.clients.settle(proposed, &self.worker).await;
        // In any case: a change that shuts a client out is in force even if it could not be stored.
        self.follow_clients().await?;
        settled.map(|()| Value::Null)
    }

    async fn change_client(&mut self, name: &str, change: &ClientChange) -> Result<Value, RequestRefused> {
        if let ClientChange::AddForward { forward } = change {
            let refused = self.host.refuse_taken(*forward, &self.config, self.clients.registry()).await;
            refused.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        }
        self.change(|clients| clients.change(name, change)).await
    }

    async fn invite(&mut self, invitation: Invitation) -> Result<Value, RequestRefused> {
        let proposed = self.clients.invite(invitation)?;
        self.clients.settle(proposed, &self.worker).await.map(|()| Value::Null)
    }

    async fn import(&mut self, dry_run: bool) -> Result<Value, RequestRefused> {
        let settings = session_settings(&self.config);
        let imported = self.clients.import(dry_run, &settings, &self.worker).await;
        let summary = imported.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        if !dry_run {
            audit::log_import(&summary);
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
            RequestRefused::new(format!(
                "the change is in force, but routes and firewall did not follow: {error:#}; run: warren reload exit"
            ))
        })
    }

    /// Answers a scrape of the metrics, unless nobody waits for it any more.
    pub(super) async fn answer_scrape(&self, scrape: Scrape) {
        if !scrape.is_closed() {
            self.reporting.answer_scrape(scrape, &self.observe().await);
        }
    }

    /// Answers a question of the page for operators.
    pub(super) async fn answer_page(&mut self, question: Question) {
        self.clients.look_at_clock();
        let Question { asked, answer } = question;
        let reply = match asked {
            ApiCall::Overview => Ok(self.reporting.overview(&self.observe().await)),
            ApiCall::Clients(query) => Ok(self.reporting.client_table(&self.observe().await, &query)),
            ApiCall::Day => Ok(self.reporting.day()),
            ApiCall::Invite(invitation) => self.invite_by_page(&invitation).await,
            ApiCall::Remove(named) => {
                let removed = self.change(|clients| clients.remove(&named.name)).await;
                removed
                    .inspect(|_| Change::removed(&named.name).log(By::Page))
                    .map_err(|refusal| refusal.message)
            }
            ApiCall::Forward(forward) => self.forward_by_page(&forward).await,
            ApiCall::Unforward(forward) => self.unforward_by_page(&forward).await,
        };
        drop(answer.send(reply));
    }

    async fn forward_by_page(&mut self, asked: &NewForward) -> Result<Value, String> {
        let ports: PortRange = asked.ports.parse().map_err(|error| format!("{error}"))?;
        let forward = Forward::new(ports, asked.to.unwrap_or(ports.first()));
        let forward = forward.ok_or("the client's ports must be between 1 and 65535")?;
        self.change_by_page(&asked.name, ClientChange::AddForward { forward }).await
    }

    async fn unforward_by_page(&mut self, asked: &ForwardedPorts) -> Result<Value, String> {
        let ports = asked.ports.parse().map_err(|error| format!("{error}"))?;
        self.change_by_page(&asked.name, ClientChange::RemoveForward { ports }).await
    }

    /// Makes a change of a client, and logs it. Returns the client's forwards.
    async fn change_by_page(&mut self, name: &str, change: ClientChange) -> Result<Value, String> {
        self.change_client(name, &change).await.map_err(|refusal| refusal.message)?;
        Change::of_client(name, &change).log(By::Page);
        let client = self.clients.registry().by_name(name);
        Ok(json!({ "forwards": client.map(|client| client.forwards.clone()).unwrap_or_default() }))
    }

    async fn invite_by_page(&mut self, asked: &NewInvitation) -> Result<Value, String> {
        if !(1..=MOST_HOURS).contains(&asked.hours) {
            return Err(format!("an invitation is good for 1 to {MOST_HOURS} hours"));
        }
        let expires_in = Duration::from_secs(3_600) * asked.hours;
        let (invitation, line) =
            invitation::make(&self.config, &asked.name, expires_in).map_err(|error| format!("{error:#}"))?;
        let view = InvitationView::of(&invitation);
        self.invite(invitation).await.map_err(|refusal| refusal.message)?;
        Change::invited(&view).log(By::Page);
        Ok(json!({ "name": view.name, "expires": view.expires, "line": line, "qr": web::qr_code(&line) }))
    }
}

fn value(answer: impl Serialize) -> Result<Value, RequestRefused> {
    serde_json::to_value(answer).map_err(RequestRefused::new)
}
