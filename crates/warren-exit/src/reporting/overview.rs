//! What the page shows: figures of sessions and drops. It never shows where a client's QUIC connection comes from, or where packets go.

use std::time::{Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use warren_packet::reason::DropReason;
use warren_quic::strangers::Turned;
use warren_session::clients::Client;
use warren_session::exit::SessionId;

use super::{Observations, Reporting};
use warren_control::status::{Rates, State, Status};
use warren_control::{ClientView, InvitationView};
use warren_tunnel::Snapshot;

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
    /// The shortest round-trip time of its connections; nothing while it has no connection.
    rtt_ms: Option<f64>,
}

impl Reporting {
    /// The rates of the last day.
    pub(crate) fn day(&self) -> Value {
        json!(self.web.as_ref().map(|web| web.history.day.series()))
    }

    /// Everything that the page shows at once.
    pub(crate) fn overview(&self, seen: &Observations<'_>) -> Value {
        let Observations { config, clients, snapshot, .. } = seen;
        let status = self.status(seen, Vec::new());
        let session_rates = self.meter.sessions(Instant::now(), snapshot);
        let row = |client: &Client| {
            let session = clients.session_of(client);
            let traffic = snapshot.clients.get(&client.public_key).copied().unwrap_or_default();
            ClientRow {
                client: ClientView::of(client, None),
                connected: session.is_some(),
                traffic: TrafficSums { to_client: traffic.bytes_out, from_client: traffic.bytes_in },
                session: session.map(|(session, live)| SessionRow {
                    since_seconds: live.since.elapsed().as_secs_f64(),
                    connections: live.connections.len(),
                    rates: session_rates.get(&session).copied().unwrap_or_default(),
                    rtt_ms: shortest_round_trip(snapshot, session),
                }),
            }
        };
        let rows: Vec<ClientRow> = clients.registry().iter().map(row).collect();
        let invitations = clients.registry().open_invitations(SystemTime::now());
        let invitations: Vec<InvitationView> = invitations.into_iter().map(InvitationView::of).collect();
        json!({
            "version": status.version,
            "endpoint": config.endpoint.as_ref().map(ToString::to_string),
            "stopping": matches!(status.state, State::Stopping),
            "since_seconds": status.since_seconds,
            "reload_error": seen.reloads.error,
            "process": status.process,
            "rates": status.rates,
            "clients": rows,
            "invitations": invitations,
            "repair": repair(&status),
            "drops": drops(&status),
            "strangers": strangers(&status),
            "minutes": self.web.as_ref().map(|web| web.history.minutes.series()),
        })
    }
}

fn shortest_round_trip(snapshot: &Snapshot, session: SessionId) -> Option<f64> {
    let own = snapshot.connections.iter().filter(|connection| connection.session == Some(session));
    own.filter_map(|connection| Some(connection.quic.as_ref()?.rtt.as_secs_f64() * 1e3)).reduce(f64::min)
}

/// What the paths of all connections lose, and what becomes of it, since the exit started. What waits or is kept is counted now.
fn repair(status: &Status) -> Value {
    let total = |name: &str| status.totals.get(name).copied().unwrap_or_default();
    json!({
        "lost": total("quic_lost_packets").saturating_sub(total("quic_spurious_losses")),
        "spurious": total("quic_spurious_losses"),
        "repaired": total("repaired_datagrams"),
        "given_up": total("given_up_datagrams"),
        "late": total("late_datagrams"),
        "repeated": status.drops.get(DropReason::Repeated.name()).copied().unwrap_or_default(),
        "waiting": total("waiting_datagrams"),
        "kept_bytes": total("quic_kept_bytes"),
    })
}

/// Every reason for drops, with those that never occurred.
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
