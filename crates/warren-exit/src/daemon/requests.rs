//! Answers to operators: requests on the control socket, and scrapes of the metrics.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Daemon, Propose, Then};
use crate::audit::Change;
use crate::ending::Ending;
use crate::list;
use crate::metrics::Scrape;
use crate::session_settings::session_settings;
use warren_control::{Answer, Peer, PendingRequest, Request, RequestRefused};
#[cfg(debug_assertions)]
use warren_daemon::panics;

/// A request, sorted by the kind of its answer.
enum Asked {
    /// A change of clients. It is answered after it is stored. The host is adapted to it, unless it is an invitation.
    Change {
        propose: Propose,
        follows_host: bool,
    },
    Other(Box<Request>),
}

impl Daemon<'_> {
    /// Answers a request on the control socket. A change that waits for the fleet's store is answered later.
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        self.clients.look_at_clock();
        let PendingRequest { request, peer, answer } = asked;
        let (change, by) = (Change::of(&request), peer.clone());
        let then = move |daemon: &mut Daemon<'_>, response: Result<Answer, RequestRefused>| {
            if let (Some(change), Ok(_)) = (change, &response) {
                daemon.audit.note_command(&by, change);
            }
            drop(answer.send(response));
        };
        match self.sort(request).await {
            Ok(Asked::Change { propose, follows_host }) => {
                let then: Then = Box::new(move |daemon, response| then(daemon, response.map(Into::into)));
                self.change(propose, follows_host, then).await;
            }
            Ok(Asked::Other(request)) => {
                let response = self.carry_out(*request, &peer).await;
                // The sessions also have new actions after a reload or a drain.
                self.clients.carry_out_all(&self.worker).await;
                then(self, response);
            }
            Err(refusal) => then(self, Err(refusal)),
        }
    }

    /// Separates changes of clients from other requests.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other request is carried out")]
    async fn sort(&self, request: Request) -> Result<Asked, RequestRefused> {
        let change = |propose: Propose| Ok(Asked::Change { propose, follows_host: true });
        match request {
            Request::ClientAdd { client } => change(Box::new(move |clients| clients.add(&client))),
            Request::ClientAddAll { clients: new } => change(Box::new(move |clients| clients.add_all(&new))),
            Request::ClientRemove { name } => change(Box::new(move |clients| clients.remove(&name))),
            Request::ClientChange { name, change: asked } => {
                let refused = self.host.refuse_forward(&asked, &self.config, self.clients.registry()).await;
                refused.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
                change(Box::new(move |clients| clients.change(&name, &asked)))
            }
            Request::ClientInvite { invitation } => {
                let propose: Propose = Box::new(move |clients| clients.invite(invitation));
                Ok(Asked::Change { propose, follows_host: false })
            }
            request => Ok(Asked::Other(Box::new(request))),
        }
    }

    async fn carry_out(&mut self, request: Request, peer: &Peer) -> Result<Answer, RequestRefused> {
        match request {
            Request::Status => self.status().await,
            Request::Stop => {
                self.stopping = Some(Ending::Stop);
                Ok(Value::Null.into())
            }
            Request::Set { change } => Answer::of(change.apply(&self.tuning)),
            Request::Reload => self.reload().await.map(Into::into),
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                panics::cause(part, &self.worker).await;
                Ok(Value::Null.into())
            }
            Request::PublicKeys => Answer::of(self.config.public_keys()),
            Request::SetKeys { keys, end_sessions } => {
                let set = self.set_keys(keys, end_sessions).await;
                set.map_err(|error| RequestRefused::new(format!("{error:#}"))).and_then(Answer::of)
            }
            Request::Drain { milliseconds } => {
                tracing::info!("draining: clients are told to move to another exit");
                self.clients.drain();
                self.drained_by = Some(Instant::now() + Duration::from_millis(milliseconds));
                Ok(Value::Null.into())
            }
            Request::ClientImport { dry_run } => self.import(dry_run, peer).await,
            Request::ClientList { page } => {
                let snapshot = self.worker.snapshot().await.unwrap_or_default();
                Answer::of(self.clients.list(&page, &snapshot, self.host.waiting()))
            }
            Request::ClientShow { name } => {
                let snapshot = self.worker.snapshot().await.unwrap_or_default();
                self.clients
                    .show(&name, &snapshot, self.host.waiting())
                    .map_err(RequestRefused::new)
                    .and_then(Answer::of)
            }
            Request::InvitationList { page } => Answer::of(list::invitations(self.clients.registry(), &page)),
            Request::IsInvited { name } => Answer::of(list::is_invited(self.clients.registry(), &name)),
            Request::RemovedList { page } => Answer::of(list::removed(self.clients.registry(), &page)),
            // `sort` has already taken the changes of clients out.
            Request::Retry
            | Request::Exec { .. }
            | Request::NetworkResolvers
            | Request::ClientAdd { .. }
            | Request::ClientAddAll { .. }
            | Request::ClientRemove { .. }
            | Request::ClientChange { .. }
            | Request::ClientInvite { .. } => Err(RequestRefused::new("this is an exit; run it on a client")),
        }
    }

    async fn import(&mut self, dry_run: bool, peer: &Peer) -> Result<Answer, RequestRefused> {
        let settings = session_settings(&self.config);
        let imported = self.clients.import(dry_run, &settings, &self.worker).await;
        let summary = imported.map_err(|error| RequestRefused::new(format!("{error:#}")))?;
        // The import is in force, even if the host cannot follow it.
        if !dry_run {
            self.audit.note_command(peer, Change::imported(&summary));
        }
        self.follow_clients().await?;
        Answer::of(summary)
    }

    async fn status(&self) -> Result<Answer, RequestRefused> {
        let device = format!("TUN device {}", self.reporting.device_name());
        let host_changes = [vec![device], self.host.changes()].concat();
        Answer::of(self.reporting.status(&self.observe().await, host_changes))
    }

    /// Answers a scrape of the metrics, unless the scraper has gone.
    pub(super) async fn answer_scrape(&self, scrape: Scrape) {
        if !scrape.is_closed() {
            self.reporting.answer_scrape(scrape, &self.observe().await);
        }
    }
}
