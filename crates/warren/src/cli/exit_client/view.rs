//! A client as `list` and `show` present it, and as it crosses the control socket.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use warren_quic::key::PublicKey;
use warren_session::clients::{Client, Invitation, RateLimit, RemovedKey};

use crate::cli::output;
use crate::cli::status::units;

/// What is known of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientView {
    pub(crate) name: String,
    pub(crate) public_key: PublicKey,
    /// The one that takes its place when the client connects with it.
    pub(crate) next_public_key: Option<PublicKey>,
    /// The addresses that are the client's, chosen or given; none before its first session.
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
    pub(crate) prefixes: Vec<IpNet>,
    /// What it may send in a second, and receive; such as "50mbit".
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) disabled: bool,
    /// Nothing if the exit does not run.
    #[serde(flatten)]
    pub(crate) live: Option<LiveView>,
    /// RFC 3339.
    pub(crate) created: String,
    /// RFC 3339; nothing if it never was.
    pub(crate) last_seen: Option<String>,
}

/// What only a running exit knows of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveView {
    pub(crate) connected: bool,
    /// Where its carrier comes from; nothing while it has no connection.
    pub(crate) remote: Option<SocketAddr>,
    /// Bytes of inner packets from and to the client since the exit started.
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// Packets of both directions that its rate limit dropped.
    pub(crate) rate_limited_packets: u64,
}

impl ClientView {
    /// A registry's entry, and what a running exit knows beyond that.
    pub(crate) fn of(client: &Client, live: Option<LiveView>) -> Self {
        let lease = client.lease();
        Self {
            name: client.name.clone(),
            public_key: PublicKey(client.public_key.0),
            next_public_key: client.next_public_key.map(|key| PublicKey(key.0)),
            ipv4: lease.ipv4,
            ipv6: lease.ipv6,
            prefixes: client.prefixes.clone(),
            rate_limit: client.rate_limit,
            disabled: client.disabled,
            live,
            created: timestamp(client.created),
            last_seen: client.last_seen.map(timestamp),
        }
    }

    /// One line for each thing known.
    pub(super) fn to_text(&self) -> String {
        let prefixes = self.prefixes.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rate = self.rate_limit.map(|rate| format!("{rate} each way"));
        let mut lines = vec![
            ("name", self.name.clone()),
            ("public key", self.public_key.to_string()),
            ("next key", or_dash(self.next_public_key.map(|key| key.to_string()).unwrap_or_default())),
            ("state", self.state().to_owned()),
            ("addresses", self.addresses()),
            ("prefixes", or_dash(prefixes.join(" "))),
            ("rate limit", or_dash(rate.unwrap_or_default())),
            ("created", self.created.clone()),
            ("last seen", self.last_seen()),
        ];
        if let Some(live) = &self.live {
            lines.push(("from", or_dash(live.remote.map(|remote| remote.to_string()).unwrap_or_default())));
            lines.push(("received", units::bytes(live.received_bytes)));
            lines.push(("sent", units::bytes(live.sent_bytes)));
            lines.push(("limited", format!("{} packets dropped", live.rate_limited_packets)));
        }
        lines.into_iter().map(|(label, value)| format!("{:<12}{value}\n", format!("{label}:"))).collect()
    }

    fn state(&self) -> &'static str {
        match (self.disabled, self.live.as_ref().map(|live| live.connected)) {
            (true, _) => "disabled",
            (false, Some(true)) => "connected",
            (false, Some(false)) => "offline",
            (false, None) => "enrolled",
        }
    }

    fn addresses(&self) -> String {
        let addresses = [self.ipv4.map(|ipv4| ipv4.to_string()), self.ipv6.map(|ipv6| ipv6.to_string())];
        or_dash(addresses.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }

    fn last_seen(&self) -> String {
        self.last_seen.clone().unwrap_or_else(|| "never".to_owned())
    }
}

/// What is known of an invitation that nobody has used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InvitationView {
    pub(crate) name: String,
    /// RFC 3339.
    pub(crate) expires: String,
}

impl InvitationView {
    pub(crate) fn of(invitation: &Invitation) -> Self {
        Self { name: invitation.name.clone(), expires: timestamp(invitation.expires) }
    }
}

/// A key that was taken from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovedView {
    /// The client that had it.
    pub(crate) name: String,
    pub(crate) public_key: PublicKey,
    /// RFC 3339.
    pub(crate) removed: String,
}

impl RemovedView {
    pub(crate) fn of(removed: &RemovedKey) -> Self {
        Self {
            name: removed.name.clone(),
            public_key: PublicKey(removed.public_key.0),
            removed: timestamp(removed.removed),
        }
    }
}

/// The removed keys as a table.
pub(super) fn removed(keys: &[RemovedView]) -> String {
    if keys.is_empty() {
        return "No key was taken from a client.\n".to_owned();
    }
    let row = |key: &RemovedView| vec![key.name.clone(), key.removed.clone(), key.public_key.to_string()];
    output::table(&["NAME", "REMOVED", "PUBLIC KEY"], &keys.iter().map(row).collect::<Vec<_>>())
}

/// The clients as a table, and the open invitations below it; without any, how to `add` one.
pub(super) fn list(clients: &[ClientView], invitations: &[InvitationView], add: &str) -> String {
    let invited = invitations
        .iter()
        .map(|invitation| format!("{} is invited until {}\n", invitation.name, invitation.expires));
    table(clients, add) + &invited.collect::<String>()
}

fn table(clients: &[ClientView], add: &str) -> String {
    if clients.is_empty() {
        return format!("No client is enrolled; add one with: {add} NAME\n");
    }
    let row = |client: &ClientView| {
        let state = client.state().to_owned();
        vec![
            client.name.clone(),
            state,
            client.addresses(),
            client.last_seen(),
            client.public_key.to_string(),
        ]
    };
    let rows = clients.iter().map(row).collect::<Vec<_>>();
    output::table(&["NAME", "STATE", "ADDRESSES", "LAST SEEN", "PUBLIC KEY"], &rows)
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// A time in UTC as RFC 3339 has it.
///
/// Times that RFC 3339 cannot write are those of a broken clock, and shown as its first second.
pub(super) fn timestamp(time: SystemTime) -> String {
    let end_of_rfc3339 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    let time = time.clamp(SystemTime::UNIX_EPOCH, end_of_rfc3339);
    humantime::format_rfc3339_seconds(time).to_string()
}
