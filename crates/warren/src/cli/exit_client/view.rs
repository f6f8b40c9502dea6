//! How `list` and `show` print clients, invitations and removed keys.

use std::time::SystemTime;

use crate::cli::status::units::{self, ago, moment, until};
use warren_control::{ClientView, ImportSummary, InvitationView, LiveView, RemovedView};
use warren_daemon::output;

/// One line for each known fact.
pub(super) fn text(client: &ClientView, now: SystemTime) -> String {
    let prefixes = client.prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let forwards = client.forwards.iter().map(ToString::to_string).collect::<Vec<_>>();
    let rate = client.rate_limit.map(|rate| format!("{rate} each way"));
    let mut lines = vec![
        ("name", client.name.clone()),
        ("public key", client.public_key.to_string()),
        ("next key", or_dash(client.next_public_key.map(|key| key.to_string()))),
        ("state", state(client).to_owned()),
        ("protocol", if client.wireguard { "WireGuard" } else { "Warren" }.to_owned()),
        ("addresses", addresses(client)),
        ("prefixes", or_dash(Some(prefixes.join(" ")))),
        ("rate limit", or_dash(rate)),
        ("forwards", or_dash(Some(forwards.join(", ")))),
        ("created", exactly(&client.created, now)),
        ("last seen", client.last_seen.as_deref().map_or("never".to_owned(), |seen| exactly(seen, now))),
    ];
    if let Some(live) = &client.live {
        lines.push(("from", or_dash(live.remote.map(|remote| remote.to_string()))));
        lines.push(("received", units::bytes(live.received_bytes)));
        lines.push(("sent", units::bytes(live.sent_bytes)));
        lines.push(("limited", format!("{} packets dropped", live.rate_limited_packets)));
    }
    lines.into_iter().map(|(label, value)| format!("{:<12}{value}\n", format!("{label}:"))).collect()
}

fn state(client: &ClientView) -> &'static str {
    match (client.disabled, client.live.as_ref().map(|live| live.connected)) {
        (true, _) => "disabled",
        (false, Some(true)) => "connected",
        (false, Some(false)) => "offline",
        (false, None) => "enrolled",
    }
}

fn addresses(client: &ClientView) -> String {
    let addresses = [client.ipv4.map(|ipv4| ipv4.to_string()), client.ipv6.map(|ipv6| ipv6.to_string())];
    or_dash(Some(addresses.into_iter().flatten().collect::<Vec<_>>().join(" ")))
}

/// A time, and how long ago that was.
fn exactly(rfc3339: &str, now: SystemTime) -> String {
    format!("{} ({})", moment(rfc3339), ago(rfc3339, now))
}

/// The removed keys as a table.
pub(super) fn removed(keys: &[RemovedView], now: SystemTime) -> String {
    if keys.is_empty() {
        return "No client was removed.\n".to_owned();
    }
    let row = |key: &RemovedView| vec![key.name.clone(), ago(&key.removed, now), key.public_key.to_string()];
    output::table(&["NAME", "REMOVED", "PUBLIC KEY"], &keys.iter().map(row).collect::<Vec<_>>())
}

/// The open invitations, one a line.
pub(super) fn invited(invitations: &[InvitationView], now: SystemTime) -> String {
    let line = |invitation: &InvitationView| {
        let InvitationView { name, expires } = invitation;
        format!("{name} is invited until {}, for another {}\n", moment(expires), until(expires, now))
    };
    invitations.iter().map(line).collect()
}

/// What an import changes, or would change.
pub(super) fn import(summary: &ImportSummary) -> String {
    let parts = [
        ("added", &summary.added),
        ("removed", &summary.removed),
        ("changed", &summary.changed),
        ("invitations withdrawn", &summary.withdrawn),
    ];
    let mut text = String::new();
    for (what, named) in parts.into_iter().filter(|(_, named)| named.count > 0) {
        let more = named.count.saturating_sub(named.names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text.push_str(&format!("{} {what}: {}{more}\n", named.count, named.names.join(", ")));
    }
    text + &format!("{} unchanged\n", summary.unchanged)
}

/// The clients as a table. Without any client, how to `add` one.
pub(super) fn table(clients: &[ClientView], add: &str, now: SystemTime) -> String {
    if clients.is_empty() {
        return format!("No client is enrolled; add one with: {add} NAME\n");
    }
    let row = |client: &ClientView| {
        let traffic = |of: fn(&LiveView) -> u64| or_dash(client.live.as_ref().map(of).map(units::bytes));
        vec![
            client.name.clone(),
            state(client).to_owned(),
            addresses(client),
            or_dash(client.rate_limit.map(|limit| limit.to_string())),
            traffic(|live| live.received_bytes),
            traffic(|live| live.sent_bytes),
            client.last_seen.as_deref().map_or("never".to_owned(), |seen| ago(seen, now)),
        ]
    };
    let rows = clients.iter().map(row).collect::<Vec<_>>();
    output::table(&["NAME", "STATE", "ADDRESSES", "LIMIT", "RECEIVED", "SENT", "LAST SEEN"], &rows)
}

fn or_dash(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}
