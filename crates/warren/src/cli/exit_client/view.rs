//! How `list` and `show` print clients, invitations and removed keys.

use std::time::SystemTime;

use anyhow::bail;

use super::forward;
use super::store::{ClientStore, all};
use crate::cli::status::units::{self, ago, moment, until};
use warren_control::{ClientView, ImportSummary, InvitationView, LiveView, PageQuery, RemovedView};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Formats a client with one line for each known fact.
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

/// Formats a time, and how long ago it was.
fn exactly(rfc3339: &str, now: SystemTime) -> String {
    format!("{} ({})", moment(rfc3339), ago(rfc3339, now))
}

/// Formats the removed keys as a table.
pub(super) fn removed(keys: &[RemovedView], now: SystemTime) -> String {
    if keys.is_empty() {
        return "No client was removed.\n".to_owned();
    }
    let row = |key: &RemovedView| vec![key.name.clone(), ago(&key.removed, now), key.public_key.to_string()];
    output::table(&["NAME", "REMOVED", "PUBLIC KEY"], &keys.iter().map(row).collect::<Vec<_>>())
}

/// Says what was removed, and how to enrol the client again.
pub(super) fn removal(name: &str, client: Option<&ClientView>, directories: &Directories) -> String {
    let add = directories.command("exit client add");
    let invite = directories.command("exit invite");
    let mut text = match client {
        Some(client) if client.wireguard => {
            format!(
                "Removed {name}: its configuration no longer works. Enrol it again with: {add} {name} --wireguard\n"
            )
        }
        Some(_) | None => format!(
            "Removed {name}: its profile or invitation no longer works. Invite it again with: {invite} {name}\n"
        ),
    };
    let forwards = client.map(|client| client.forwards.as_slice()).unwrap_or_default();
    if forwards.is_empty() {
        return text;
    }
    text += "Its forwards are removed too. Add them again when the client is enrolled:\n";
    for forward in forwards.iter().take(FORWARDS_SHOWN) {
        text += &format!("  {}\n", forward::command(name, *forward));
    }
    if let Some(more @ 1..) = forwards.len().checked_sub(FORWARDS_SHOWN) {
        text += &format!("  and {more} more\n");
    }
    text
}

/// Maximum number of forwards of a removed client that are listed.
const FORWARDS_SHOWN: usize = 16;

/// Explains why there is no client of this name, if the reason is known. Otherwise returns the error as it is.
pub(super) fn gone(
    name: &str,
    store: &mut dyn ClientStore,
    error: anyhow::Error,
) -> anyhow::Result<ClientView> {
    let query = PageQuery { name: Some(name.to_owned()), ..PageQuery::default() };
    let Ok(removed) = all(&query, |page| store.removed(page)) else { return Err(error) };
    let latest =
        removed.rows.iter().filter(|removed| removed.name == name).map(|removed| &removed.removed).max();
    let Some(latest) = latest else { return Err(error) };
    // The row in the list of removed keys may also be left from a client whose key and name have both been changed.
    bail!(
        "client {name:?} was removed, or renamed after its key was replaced ({}): `warren exit client list --removed` has its old key",
        moment(latest)
    )
}

/// Formats the open invitations, one per line.
pub(super) fn invited(invitations: &[InvitationView], now: SystemTime) -> String {
    let line = |invitation: &InvitationView| {
        let InvitationView { name, expires } = invitation;
        format!("{name} is invited until {}, for another {}\n", moment(expires), until(expires, now))
    };
    invitations.iter().map(line).collect()
}

/// Describes what an import changes, or would change.
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

/// Formats the clients as a table. If there are no clients, says how to `add` one.
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
