//! A page of the table of clients. It never shows where a client's QUIC connection comes from.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use warren_session::clients::Client;
use warren_session::exit::SessionId;

use super::{Observations, Reporting};
use crate::clients::Clients;
use crate::web::{Sort, TableQuery, Which};
use warren_control::status::{RateMeter, Rates};
use warren_control::{ClientView, timestamp};
use warren_tunnel::Snapshot;

/// Number of rows on a page.
const ROWS: usize = 50;

/// A client as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct ClientRow {
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
    /// The shortest round-trip time of the client's connections. `None` while it has no connection.
    rtt_ms: Option<f64>,
}

impl Reporting {
    /// A page of the clients.
    pub(crate) fn client_table(&self, seen: &Observations<'_>, query: &TableQuery) -> Value {
        let Observations { clients, snapshot, .. } = seen;
        let sessions = SessionFigures::of(&self.meter, snapshot);
        let (matching, shown) = rows_of(seen, query, &sessions);
        let rows: Vec<ClientRow> =
            shown.into_iter().map(|client| ClientRow::of(client, clients, snapshot, &sessions)).collect();
        json!({ "rows": rows, "matching": matching, "pages": matching.div_ceil(ROWS).max(1) })
    }
}

/// The rates and round-trip times of all sessions.
pub(super) struct SessionFigures {
    rates: BTreeMap<SessionId, Rates>,
    round_trips: HashMap<SessionId, f64>,
}

impl SessionFigures {
    pub(super) fn of(meter: &RateMeter, snapshot: &Snapshot) -> Self {
        let rates = meter.sessions(Instant::now(), snapshot);
        Self { rates, round_trips: shortest_round_trips(snapshot) }
    }
}

impl ClientRow {
    pub(super) fn of(
        client: &Client,
        clients: &Clients,
        snapshot: &Snapshot,
        sessions: &SessionFigures,
    ) -> Self {
        let session = clients.session_of(client.public_key);
        let traffic = snapshot.clients.get(&client.public_key).copied().unwrap_or_default();
        Self {
            client: ClientView {
                last_seen: clients.last_seen(client).map(timestamp),
                ..ClientView::of(client, None)
            },
            connected: session.is_some(),
            traffic: TrafficSums { to_client: traffic.bytes_out, from_client: traffic.bytes_in },
            session: session.map(|(session, live)| SessionRow {
                since_seconds: live.since.elapsed().as_secs_f64(),
                connections: live.connections.len(),
                rates: sessions.rates.get(&session).copied().unwrap_or_default(),
                rtt_ms: sessions.round_trips.get(&session).copied(),
            }),
        }
    }
}

/// How many clients match, and the matching clients on the requested page, in order.
fn rows_of<'a>(
    seen: &'a Observations<'_>,
    query: &TableQuery,
    sessions: &SessionFigures,
) -> (usize, Vec<&'a Client>) {
    let registry = seen.clients.registry();
    let address = query.search.parse::<IpAddr>().ok();
    // If the search is for an address, names are not searched.
    let part = if address.is_some() { "" } else { query.search.as_str() };
    let matches = |client: &&Client| address.is_none_or(|address| client.lease().contains(address));
    let start = query.page.saturating_mul(ROWS);
    if query.sort == Sort::Name && query.state == Which::All && query.search.is_empty() {
        return (registry.len(), registry.iter().skip(start).take(ROWS).collect());
    }
    let mut found: Vec<(u64, &Client)> = registry
        .page(None, part)
        .filter(matches)
        .filter(|client| is_of(seen, query.state, client))
        .map(|client| (rank(seen, query.sort, client, sessions), client))
        .collect();
    let matching = found.len();
    let end = start.saturating_add(ROWS);
    // The registry is ordered by name. A stable sort keeps that order among clients of equal rank.
    if query.sort != Sort::Name {
        found.sort_by_key(|(rank, _)| *rank);
    }
    (matching, found.into_iter().take(end).skip(start).map(|(_, client)| client).collect())
}

fn is_of(seen: &Observations<'_>, which: Which, client: &Client) -> bool {
    let has_session = || seen.clients.session_of(client.public_key).is_some();
    match which {
        Which::All => true,
        Which::Connected => has_session(),
        Which::Offline => !client.disabled && !has_session(),
        Which::Never => seen.clients.last_seen(client).is_none(),
        Which::Disabled => client.disabled,
        Which::Limited => client.rate_limit.is_some(),
    }
}

/// Returns a client's rank. Lower ranks come first.
fn rank(seen: &Observations<'_>, sort: Sort, client: &Client, sessions: &SessionFigures) -> u64 {
    let session = seen.clients.session_of(client.public_key);
    match sort {
        Sort::Name => 0,
        Sort::Connected => u64::from(session.is_none()),
        Sort::Rate => {
            let rates = session.and_then(|(session, _)| sessions.rates.get(&session));
            let bits = rates.map(|rates| rates.bits_per_second_out + rates.bits_per_second_in);
            // A rate is never negative, so its bits have the same order as its values (IEEE 754).
            u64::MAX - bits.unwrap_or_default().to_bits()
        }
        Sort::Traffic => {
            let traffic = seen.snapshot.clients.get(&client.public_key).copied().unwrap_or_default();
            u64::MAX - traffic.bytes_out.saturating_add(traffic.bytes_in)
        }
        Sort::Seen if session.is_some() => 0,
        Sort::Seen => {
            let seen = client.last_seen.and_then(|seen| seen.duration_since(SystemTime::UNIX_EPOCH).ok());
            seen.map_or(u64::MAX, |seen| u64::MAX - 1 - seen.as_secs())
        }
    }
}

fn shortest_round_trips(snapshot: &Snapshot) -> HashMap<SessionId, f64> {
    let mut shortest: HashMap<SessionId, f64> = HashMap::new();
    for connection in &snapshot.connections {
        if connection.connection.is_of_other_protocol() {
            continue;
        }
        if let (Some(session), Some(quic)) = (connection.session, &connection.quic) {
            let milliseconds = quic.rtt.as_secs_f64() * 1e3;
            let known = shortest.entry(session).or_insert(milliseconds);
            *known = known.min(milliseconds);
        }
    }
    shortest
}
