//! Answers to operators: requests on the control socket, scrapes of the metrics, and questions of the page.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Daemon;
use crate::ending::Ending;
use crate::invitation;
use crate::metrics::Scrape;
use crate::web::{self, ApiCall, NewInvitation, Question};
use warren_control::{InvitationView, PendingRequest, Request, RequestRefused};
#[cfg(debug_assertions)]
use warren_daemon::panics;

/// The longest life of an invitation from the page.
const MOST_HOURS: u32 = 8_760;

impl Daemon<'_> {
    /// Answers a request on the control socket.
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        self.clients.look_at_clock();
        let changes_clients = asked.request.changes_clients();
        let mut response = self.carry_out(asked.request).await;
        // A client that was removed is cut off before the answer says so.
        self.clients.carry_out_all(&self.worker).await;
        if changes_clients && let Err(refusal) = self.follow_clients().await {
            response = Err(refusal);
        }
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
            Request::PublicKeys => {
                serde_json::to_value(self.config.public_keys()).map_err(RequestRefused::new)
            }
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
            Request::Retry => Err(RequestRefused::new("this is an exit; run it on a client")),
            Request::ClientAdd { client } => self.clients.add(&client),
            Request::ClientAddAll { clients } => self.clients.add_all(&clients),
            Request::ClientList => self.clients.list(&self.worker.snapshot().await.unwrap_or_default()),
            Request::ClientInvite { invitation } => self.clients.invite(invitation),
            Request::InvitationList => self.clients.list_invitations(),
            Request::RemovedList => self.clients.list_removed(),
            Request::ClientRemove { name } => self.clients.remove(&name),
            Request::ClientChange { name, change } => self.clients.change(&name, &change),
        }
    }

    async fn status(&self) -> Result<Value, RequestRefused> {
        let device = format!("TUN device {}", self.reporting.device_name());
        let host_changes = [vec![device], self.host.changes()].concat();
        let status = self.reporting.status(&self.observe().await, host_changes);
        serde_json::to_value(status).map_err(RequestRefused::new)
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
        let removes = matches!(asked, ApiCall::Remove(_));
        let mut reply = match asked {
            ApiCall::Overview => Ok(self.reporting.overview(&self.observe().await)),
            ApiCall::Day => Ok(self.reporting.day()),
            ApiCall::Invite(invitation) => self.invite_by_page(&invitation),
            ApiCall::Remove(named) => self.clients.remove(&named.name).map_err(|refusal| refusal.message),
        };
        // A client that was removed is cut off before the page says so.
        self.clients.carry_out_all(&self.worker).await;
        if removes && let Err(refusal) = self.follow_clients().await {
            reply = Err(refusal.message);
        }
        drop(answer.send(reply));
    }

    fn invite_by_page(&mut self, asked: &NewInvitation) -> Result<Value, String> {
        if !(1..=MOST_HOURS).contains(&asked.hours) {
            return Err(format!("an invitation is good for 1 to {MOST_HOURS} hours"));
        }
        let expires_in = Duration::from_secs(3_600) * asked.hours;
        let (invitation, line) =
            invitation::make(&self.config, &asked.name, expires_in).map_err(|error| format!("{error:#}"))?;
        let view = InvitationView::of(&invitation);
        self.clients.invite(invitation).map_err(|refusal| refusal.message)?;
        tracing::info!(client = view.name, "invited from the page for operators");
        Ok(json!({ "name": view.name, "expires": view.expires, "line": line, "qr": web::qr_code(&line) }))
    }
}
