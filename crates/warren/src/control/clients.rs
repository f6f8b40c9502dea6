//! Clients as they cross the control socket: to enrol one, to change one, and what is known of one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use warren_quic::key::PublicKey;
use warren_session::PeerKey;
use warren_session::clients::{Client, Invitation, RateLimit, RemovedKey};

/// A client to enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewClient {
    pub(crate) name: String,
    pub(crate) public_key: PublicKey,
    /// Addresses that are always the client's.
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
    /// Networks behind it that it may ask for.
    #[serde(default)]
    pub(crate) prefixes: Vec<IpNet>,
    #[serde(default)]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Whether its key may be one that was taken from a client.
    #[serde(default)]
    pub(crate) allow_removed: bool,
}

impl NewClient {
    /// A client without networks behind it and without a limit.
    pub(crate) fn new(
        name: String,
        public_key: PublicKey,
        ipv4: Option<Ipv4Addr>,
        ipv6: Option<Ipv6Addr>,
    ) -> Self {
        let (prefixes, rate_limit) = (Vec::new(), None);
        Self { name, public_key, ipv4, ipv6, prefixes, rate_limit, allow_removed: false }
    }

    /// The removed key that is enrolled again with it.
    pub(crate) fn allowed_key(&self) -> Option<PeerKey> {
        self.allow_removed.then_some(PeerKey(self.public_key.0))
    }

    /// The registry's entry for it.
    pub(crate) fn to_client(&self, created: SystemTime) -> Client {
        let mut client = Client::new(self.name.clone(), PeerKey(self.public_key.0), created);
        client.ipv4 = self.ipv4;
        client.ipv6 = self.ipv6;
        client.prefixes.clone_from(&self.prefixes);
        client.rate_limit = self.rate_limit;
        client
    }
}

/// What is changed about a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientChange {
    Rename { to: String },
    Disable,
    Enable,
    Set(ClientSettings),
}

/// What an operator chooses for a client; what is not there stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientSettings {
    pub(crate) ipv4: Option<AddressChoice<Ipv4Addr>>,
    pub(crate) ipv6: Option<AddressChoice<Ipv6Addr>>,
    pub(crate) prefixes: Option<Vec<IpNet>>,
    #[serde(default)]
    pub(crate) rate_limit: Option<RateChoice>,
    /// The key that it has from its next connection with it on.
    #[serde(default)]
    pub(crate) public_key: Option<PublicKey>,
    /// Whether that may be one that was taken from a client.
    #[serde(default)]
    pub(crate) allow_removed: bool,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RateChoice {
    Limited(RateLimit),
    Off,
}

impl RateChoice {
    fn limit(self) -> Option<RateLimit> {
        match self {
            Self::Limited(rate) => Some(rate),
            Self::Off => None,
        }
    }
}

/// An address that is always the client's, or one that the exit gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AddressChoice<Address> {
    Fixed(Address),
    Automatic,
}

impl<Address> AddressChoice<Address> {
    fn fixed(self) -> Option<Address> {
        match self {
            Self::Fixed(address) => Some(address),
            Self::Automatic => None,
        }
    }
}

impl ClientSettings {
    /// The removed key that a client gets again.
    pub(crate) fn allowed_key(&self) -> Option<PeerKey> {
        self.public_key.filter(|_| self.allow_removed).map(|key| PeerKey(key.0))
    }

    /// Makes the changes in a registry's entry.
    pub(crate) fn apply(&self, client: &mut Client) {
        if let Some(choice) = self.ipv4 {
            client.ipv4 = choice.fixed();
        }
        if let Some(choice) = self.ipv6 {
            client.ipv6 = choice.fixed();
        }
        if let Some(prefixes) = &self.prefixes {
            client.prefixes.clone_from(prefixes);
        }
        if let Some(choice) = self.rate_limit {
            client.rate_limit = choice.limit();
        }
        if let Some(key) = self.public_key {
            // The key that it has already takes the other promise back.
            client.next_public_key = Some(PeerKey(key.0)).filter(|next| *next != client.public_key);
        }
    }
}

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

/// A time in UTC as RFC 3339 has it.
///
/// Times that RFC 3339 cannot write are those of a broken clock, and shown as its first second.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let end_of_rfc3339 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    let time = time.clamp(SystemTime::UNIX_EPOCH, end_of_rfc3339);
    humantime::format_rfc3339_seconds(time).to_string()
}
