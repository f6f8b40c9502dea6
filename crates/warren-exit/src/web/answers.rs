//! What the daemon answers to the page: figures of sessions and drops, never an address of a carrier nor where packets go.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};
use warren_host::Host;
use warren_packet::reason::DropReason;
use warren_quic::strangers::Turned;
use warren_session::clients::Client;
use warren_session::exit::SessionId;

use super::qr;
use super::server::{Asked, NewInvitation, Question, WebServer};
use crate::daemon::Daemon;
use crate::invitation;
use warren_config::WebListen;
use warren_control::status::{Rates, State, Status};
use warren_control::{ClientView, InvitationView};
use warren_tunnel::{Snapshot, Traffic};

/// An invitation's longest life.
const MOST_HOURS: u32 = 8_760;

/// A client as the page shows it.
#[derive(Debug, Serialize)]
struct ClientRow {
    #[serde(flatten)]
    client: ClientView,
    connected: bool,
    traffic: TrafficSums,
    session: Option<SessionRow>,
}

/// Bytes since the exit started.
#[derive(Debug, Serialize)]
struct TrafficSums {
    to_client: u64,
    from_client: u64,
}

#[derive(Debug, Serialize)]
struct SessionRow {
    since_seconds: f64,
    connections: usize,
    rates: Rates,
    /// The shortest of its connections; nothing while it has none.
    rtt_ms: Option<f64>,
}

impl Daemon {
    /// Serves the page elsewhere, or where it was if that cannot be. The token is read again in any case.
    pub(crate) async fn move_web(&mut self, listen: Option<&WebListen>) -> anyhow::Result<()> {
        let before = self.web.take();
        let history = match before {
            Some(server) => Some(server.close().await),
            None => None,
        };
        let is_news = self.config.web.as_ref() != listen;
        let outcome = self.serve_web(listen, is_news).await;
        if outcome.is_err() {
            let old = self.config.web.clone();
            // It was there a moment ago; if it is not now, the error above says enough.
            drop(self.serve_web(old.as_ref(), false).await);
        }
        if let (Some(server), Some(history)) = (&mut self.web, history) {
            server.history = history;
        }
        outcome
    }

    /// Listens where the configuration says, if it says so.
    pub(crate) async fn serve_web(
        &mut self,
        listen: Option<&WebListen>,
        is_news: bool,
    ) -> anyhow::Result<()> {
        self.web = match listen {
            Some(listen) => {
                let state = self.clients.path().parent().context("the clients' file has no directory")?;
                Some(WebServer::bind(listen, self.web_socket.as_ref(), state, is_news).await?)
            }
            None => None,
        };
        Ok(())
    }

    /// Notes what was carried until now.
    pub(crate) fn note_rates(&mut self, now: Instant, snapshot: &Snapshot) {
        if let Some(web) = &mut self.web {
            let mut total = Traffic::default();
            snapshot.clients.values().for_each(|traffic| total.add(traffic));
            web.history.take(now, total);
        }
    }

    pub(crate) async fn answer_web(&mut self, question: Question, host: &mut Host) {
        self.look_at_clock();
        let Question { asked, answer } = question;
        let removes = matches!(asked, Asked::Remove(_));
        let mut reply = match asked {
            Asked::Overview => Ok(self.overview().await),
            Asked::Day => Ok(json!(self.web.as_ref().map(|web| web.history.day.drawn()))),
            Asked::Invite(invitation) => self.invite_by_page(&invitation),
            Asked::Remove(named) => self.remove_client(&named.name).map_err(|refusal| refusal.message),
        };
        // A client that was removed is cut off before the page says so.
        self.carry_out_all().await;
        if removes && let Err(refusal) = self.follow_clients(host).await {
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
        self.invite(invitation).map_err(|refusal| refusal.message)?;
        tracing::info!(client = view.name, "invited from the page for operators");
        Ok(json!({ "name": view.name, "expires": view.expires, "line": line, "qr": qr::code(&line) }))
    }

    async fn overview(&self) -> Value {
        let snapshot = self.worker.snapshot().await.unwrap_or_default();
        let status = self.status_of(snapshot.clone(), Vec::new());
        let now = Instant::now();
        let session_rates = self.meter.sessions(now, &snapshot);
        let row = |client: &Client| {
            let live = self.live.iter().find(|(_, live)| live.key == client.public_key);
            let traffic = snapshot.clients.get(&client.public_key).copied().unwrap_or_default();
            ClientRow {
                client: ClientView::of(client, None),
                connected: live.is_some(),
                traffic: TrafficSums { to_client: traffic.bytes_out, from_client: traffic.bytes_in },
                session: live.map(|(session, live)| SessionRow {
                    since_seconds: live.since.elapsed().as_secs_f64(),
                    connections: live.connections.len(),
                    rates: session_rates.get(session).copied().unwrap_or_default(),
                    rtt_ms: shortest_round_trip(&snapshot, *session),
                }),
            }
        };
        let clients: Vec<ClientRow> = self.sessions.registry().iter().map(row).collect();
        let invitations = self.sessions.registry().open_invitations(SystemTime::now());
        let invitations: Vec<InvitationView> = invitations.into_iter().map(InvitationView::of).collect();
        json!({
            "version": status.version,
            "endpoint": self.config.endpoint.as_ref().map(ToString::to_string),
            "stopping": matches!(status.state, State::Stopping),
            "since_seconds": status.since_seconds,
            "reload_error": self.reload_error,
            "process": status.process,
            "rates": status.rates,
            "clients": clients,
            "invitations": invitations,
            "drops": drops(&status),
            "strangers": strangers(&status),
            "minutes": self.web.as_ref().map(|web| web.history.minutes.drawn()),
        })
    }
}

fn shortest_round_trip(snapshot: &Snapshot, session: SessionId) -> Option<f64> {
    let own = snapshot.connections.iter().filter(|connection| connection.session == Some(session));
    own.filter_map(|connection| Some(connection.quic.as_ref()?.rtt.as_secs_f64() * 1e3)).reduce(f64::min)
}

/// Every reason, those at zero too.
fn drops(status: &Status) -> Vec<Value> {
    let row = |reason: DropReason| {
        let count = status.drops.get(reason.name()).copied().unwrap_or_default();
        json!({ "reason": reason.name(), "what": reason.description(), "count": count })
    };
    DropReason::ALL.into_iter().map(row).collect()
}

fn strangers(status: &Status) -> Vec<Value> {
    let counts = status.exit.as_ref().map(|exit| &exit.strangers);
    let row = |why: Turned| {
        let count = counts.and_then(|counts| counts.get(why.name())).copied().unwrap_or_default();
        json!({ "reason": why.name(), "what": why.description(), "count": count })
    };
    Turned::ALL.into_iter().map(row).collect()
}
