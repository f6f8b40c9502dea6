//! The forms in which clients are sent over the control socket: a client to enrol, and an enrolled client.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
pub use warren_session::clients::{
    AddressChoice, ClientChange, ClientSettings, Forward, PortRange, RateChoice,
};
use warren_session::clients::{Client, Invitation, RateLimit, RemovedKey, WireGuardClient};
use warren_session::{PublicKey, optional_stored_key, stored_key};

/// A client to enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewClient {
    /// The client's name, which must differ from all other clients' names.
    pub name: String,
    /// The client's public key, already checked by the command.
    #[serde(deserialize_with = "stored_key")]
    pub public_key: PublicKey,
    /// Set if the client connects with WireGuard.
    #[serde(default)]
    pub wireguard: Option<WireGuardClient>,
    /// A fixed inner IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// A fixed inner IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Networks behind the client. The client may ask the exit to route them to it.
    #[serde(default)]
    pub prefixes: Vec<IpNet>,
    /// The client's rate limit, for each direction.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// Whether to accept `public_key` even if it is the key of a removed client.
    #[serde(default)]
    pub allow_removed: bool,
}

impl NewClient {
    /// A client without networks behind it and without a rate limit.
    pub fn new(name: String, public_key: PublicKey, ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> Self {
        let (prefixes, rate_limit) = (Vec::new(), None);
        Self { name, public_key, wireguard: None, ipv4, ipv6, prefixes, rate_limit, allow_removed: false }
    }

    /// The client's key, if it is accepted even as the key of a removed client.
    pub fn allowed_key(&self) -> Option<PublicKey> {
        self.allow_removed.then_some(self.public_key)
    }

    /// The registry's entry for this client.
    pub fn to_client(&self, created: SystemTime) -> Client {
        let mut client = Client::new(self.name.clone(), self.public_key, created);
        client.wireguard.clone_from(&self.wireguard);
        client.ipv4 = self.ipv4;
        client.ipv6 = self.ipv6;
        client.prefixes.clone_from(&self.prefixes);
        client.rate_limit = self.rate_limit;
        client
    }
}

/// A client's entry in the registry, and its live state at a running exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// The client's name.
    pub name: String,
    /// The client's public key.
    #[serde(deserialize_with = "stored_key")]
    pub public_key: PublicKey,
    /// Whether the client connects with WireGuard.
    #[serde(default)]
    pub wireguard: bool,
    /// The key that replaces `public_key` once the client connects with it.
    #[serde(default, deserialize_with = "optional_stored_key")]
    pub next_public_key: Option<PublicKey>,
    /// The client's IPv4 address, fixed or assigned. None before its first session.
    pub ipv4: Option<Ipv4Addr>,
    /// The client's IPv6 address, fixed or assigned. None before its first session.
    pub ipv6: Option<Ipv6Addr>,
    /// Networks behind the client. The client may ask for routes to them.
    pub prefixes: Vec<IpNet>,
    /// The client's rate limit in bits per second, for each direction, such as "50mbit".
    pub rate_limit: Option<RateLimit>,
    /// Ports of the exit that lead to the client, such as "tcp/8443 to 443".
    #[serde(default)]
    pub forwards: Vec<Forward>,
    /// Whether the exit refuses the client.
    pub disabled: bool,
    /// While the exit rotates its key and has two: the newer of them, if the client has connected since the exit has it.
    #[serde(default, deserialize_with = "optional_stored_key")]
    pub exit_key: Option<PublicKey>,
    /// The client's live state. Absent if the exit does not run.
    #[serde(flatten)]
    pub live: Option<LiveView>,
    /// When the client was enrolled, in the format of RFC 3339.
    pub created: String,
    /// When the client was last seen, in the format of RFC 3339. `None` if it was never seen.
    pub last_seen: Option<String>,
}

/// The part of a client's state that only a running exit knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveView {
    /// Whether the client has a session.
    pub connected: bool,
    /// Whether the client's version accepts changes during a session. `None` without a session, or if the exit has an older
    /// version.
    #[serde(default)]
    pub takes_updates: Option<bool>,
    /// The address from which its packets come. `None` while it has no connection.
    pub remote: Option<SocketAddr>,
    /// Bytes of inner packets from the client since the exit started.
    pub received_bytes: u64,
    /// Bytes of inner packets to the client since the exit started.
    pub sent_bytes: u64,
    /// Packets in both directions that the client's rate limit dropped.
    pub rate_limited_packets: u64,
    /// The client's forwards that are not in force, because the exit's host itself uses their ports.
    #[serde(default)]
    pub forwards_not_in_force: Vec<ForwardNotInForce>,
}

/// A forward that is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardNotInForce {
    /// The exit's ports of this forward.
    pub ports: PortRange,
    /// The port that is in use, and what uses it.
    pub reason: String,
}

impl ClientView {
    /// Combines a registry's entry with a running exit's state of the client.
    pub fn of(client: &Client, live: Option<LiveView>) -> Self {
        let lease = client.lease();
        Self {
            name: client.name.clone(),
            public_key: client.public_key,
            wireguard: client.wireguard.is_some(),
            next_public_key: client.next_public_key,
            ipv4: lease.ipv4,
            ipv6: lease.ipv6,
            prefixes: client.prefixes.clone(),
            rate_limit: client.rate_limit,
            forwards: client.forwards.clone(),
            disabled: client.disabled,
            exit_key: client.exit_key,
            live,
            created: timestamp(client.created),
            last_seen: client.last_seen.map(timestamp),
        }
    }
}

/// An unused invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationView {
    /// The name that the client will have.
    pub name: String,
    /// When the invitation expires, in the format of RFC 3339.
    pub expires: String,
}

impl InvitationView {
    /// Makes the view of a registry's entry.
    pub fn of(invitation: &Invitation) -> Self {
        Self { name: invitation.name.clone(), expires: timestamp(invitation.expires) }
    }
}

/// The key of a removed client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedView {
    /// The name of the client that had the key.
    pub name: String,
    /// The key.
    #[serde(deserialize_with = "stored_key")]
    pub public_key: PublicKey,
    /// When the client was removed, in the format of RFC 3339.
    pub removed: String,
}

impl RemovedView {
    /// Makes the view of a registry's entry.
    pub fn of(removed: &RemovedKey) -> Self {
        Self {
            name: removed.name.clone(),
            public_key: removed.public_key,
            removed: timestamp(removed.removed),
        }
    }
}

/// The changes that an import of `clients.toml` makes, or would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSummary {
    /// Clients that are new.
    pub added: Named,
    /// Clients that are removed for good.
    pub removed: Named,
    /// Clients with other settings.
    pub changed: Named,
    /// Invitations that are withdrawn.
    pub withdrawn: Named,
    /// Clients that stay as they are.
    pub unchanged: usize,
}

/// How many clients or invitations there are of a kind, and the names of the first ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// How many there are.
    pub count: usize,
    /// The first [`Named::SHOWN`] names.
    pub names: Vec<String>,
}

impl Named {
    /// The most names that are shown.
    pub const SHOWN: usize = 20;

    /// Counts one more, and stores its name if it is among the first ones.
    pub fn add(&mut self, name: &str) {
        self.count += 1;
        if self.names.len() < Self::SHOWN {
            self.names.push(name.to_owned());
        }
    }
}

/// A time in UTC in the format of RFC 3339.
///
/// A time that RFC 3339 cannot express, for example from a broken clock, is shown as the nearest one that it can express.
pub fn timestamp(time: SystemTime) -> String {
    // 9999-12-31T23:59:59Z. `humantime` formats neither a later time nor one before 1970.
    let end_of_rfc3339 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    let time = time.clamp(SystemTime::UNIX_EPOCH, end_of_rfc3339);
    humantime::format_rfc3339_seconds(time).to_string()
}
