//! Clients as they cross the control socket: to enrol one, to change one, and what is known of one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use warren_session::PublicKey;
pub use warren_session::clients::{AddressChoice, ClientChange, ClientSettings, RateChoice};
use warren_session::clients::{Client, Invitation, RateLimit, RemovedKey};

/// A client to enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewClient {
    /// Its name, which no other client has.
    pub name: String,
    /// The key by which the exit knows it.
    pub public_key: PublicKey,
    /// Addresses that are always the client's.
    pub ipv4: Option<Ipv4Addr>,
    /// As `ipv4`.
    pub ipv6: Option<Ipv6Addr>,
    /// Networks behind it that it may ask for.
    #[serde(default)]
    pub prefixes: Vec<IpNet>,
    /// The most that it may send, and receive, in a second.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// Whether its key may be one that was taken from a client.
    #[serde(default)]
    pub allow_removed: bool,
}

impl NewClient {
    /// A client without networks behind it and without a limit.
    pub fn new(name: String, public_key: PublicKey, ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> Self {
        let (prefixes, rate_limit) = (Vec::new(), None);
        Self { name, public_key, ipv4, ipv6, prefixes, rate_limit, allow_removed: false }
    }

    /// The removed key that is enrolled again with it.
    pub fn allowed_key(&self) -> Option<PublicKey> {
        self.allow_removed.then_some(self.public_key)
    }

    /// The registry's entry for it.
    pub fn to_client(&self, created: SystemTime) -> Client {
        let mut client = Client::new(self.name.clone(), self.public_key, created);
        client.ipv4 = self.ipv4;
        client.ipv6 = self.ipv6;
        client.prefixes.clone_from(&self.prefixes);
        client.rate_limit = self.rate_limit;
        client
    }
}

/// What is known of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// Its name.
    pub name: String,
    /// The key by which the exit knows it.
    pub public_key: PublicKey,
    /// The one that takes its place when the client connects with it.
    pub next_public_key: Option<PublicKey>,
    /// The addresses that are the client's, chosen or given; none before its first session.
    pub ipv4: Option<Ipv4Addr>,
    /// As `ipv4`.
    pub ipv6: Option<Ipv6Addr>,
    /// The networks behind it that it may ask for.
    pub prefixes: Vec<IpNet>,
    /// What it may send in a second, and receive; such as "50mbit".
    pub rate_limit: Option<RateLimit>,
    /// Whether the exit refuses it.
    pub disabled: bool,
    /// Nothing if the exit does not run.
    #[serde(flatten)]
    pub live: Option<LiveView>,
    /// RFC 3339.
    pub created: String,
    /// RFC 3339; nothing if it never was.
    pub last_seen: Option<String>,
}

/// What only a running exit knows of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveView {
    /// Whether it has a session.
    pub connected: bool,
    /// Where its carrier comes from; nothing while it has no connection.
    pub remote: Option<SocketAddr>,
    /// Bytes of inner packets from and to the client since the exit started.
    pub received_bytes: u64,
    /// Bytes of inner packets to the client since the exit started.
    pub sent_bytes: u64,
    /// Packets of both directions that its rate limit dropped.
    pub rate_limited_packets: u64,
}

impl ClientView {
    /// A registry's entry, and what a running exit knows beyond that.
    pub fn of(client: &Client, live: Option<LiveView>) -> Self {
        let lease = client.lease();
        Self {
            name: client.name.clone(),
            public_key: client.public_key,
            next_public_key: client.next_public_key,
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
}

/// What is known of an invitation that nobody has used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationView {
    /// The client's name to be.
    pub name: String,
    /// RFC 3339.
    pub expires: String,
}

impl InvitationView {
    /// The view of a registry's entry.
    pub fn of(invitation: &Invitation) -> Self {
        Self { name: invitation.name.clone(), expires: timestamp(invitation.expires) }
    }
}

/// A key that was taken from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedView {
    /// The client that had it.
    pub name: String,
    /// The key itself.
    pub public_key: PublicKey,
    /// RFC 3339.
    pub removed: String,
}

impl RemovedView {
    /// The view of a registry's entry.
    pub fn of(removed: &RemovedKey) -> Self {
        Self {
            name: removed.name.clone(),
            public_key: removed.public_key,
            removed: timestamp(removed.removed),
        }
    }
}

/// A time in UTC as RFC 3339 has it.
///
/// Times that RFC 3339 cannot write are those of a broken clock, and shown as its first second.
pub fn timestamp(time: SystemTime) -> String {
    let end_of_rfc3339 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    let time = time.clamp(SystemTime::UNIX_EPOCH, end_of_rfc3339);
    humantime::format_rfc3339_seconds(time).to_string()
}
