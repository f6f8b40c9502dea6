//! The structs of `docs/warren-v1.proto`, field by field in the same order. A test compares the two.

/// Envelope of every message.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Message {
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub(super) body: Option<Body>,
}

/// The message in an envelope.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Body {
    #[prost(message, tag = "1")]
    Hello(Hello),
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    #[prost(message, tag = "3")]
    Attach(Attach),
    #[prost(message, tag = "4")]
    Attached(Attached),
    #[prost(message, tag = "5")]
    Goodbye(Goodbye),
    #[prost(message, tag = "6")]
    Enrol(Enrol),
    #[prost(message, tag = "7")]
    Enrolled(Enrolled),
    #[prost(message, tag = "8")]
    Update(Update),
    #[prost(message, tag = "9")]
    Roster(Roster),
    #[prost(message, tag = "10")]
    Stay(Stay),
}

/// An address with a prefix length: an interface address or a network.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Network {
    /// 4 bytes for IPv4, 16 for IPv6, network order.
    #[prost(bytes = "vec", tag = "1")]
    pub address: Vec<u8>,
    /// 0 to 32, or 0 to 128.
    #[prost(uint32, tag = "2")]
    pub prefix_length: u32,
}

/// Opens a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// Protocol version of the client.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Bit set of optional features that the client has.
    #[prost(uint64, tag = "2")]
    pub features: u64,
    /// Number of connections that the client wants in the session.
    #[prost(uint32, tag = "3")]
    pub connections_wanted: u32,
    /// The client's own host name, shown to the exit's operator. May be empty.
    #[prost(string, tag = "4")]
    pub name: String,
    /// 16 random bytes, chosen once per client process. They distinguish a client that lost its session from another host with its
    /// key.
    #[prost(bytes = "vec", tag = "5")]
    pub nonce: Vec<u8>,
    /// Networks behind the client that it asks the exit to route to it.
    #[prost(message, repeated, tag = "6")]
    pub prefixes: Vec<Network>,
    /// Whether the client can go to another exit when this one is drained. Absent if the client does not say.
    #[prost(bool, optional, tag = "7")]
    pub has_other_exit: Option<bool>,
    /// The fleet that the client follows. Absent if it follows none.
    #[prost(message, optional, tag = "8")]
    pub fleet: Option<Fleet>,
    /// The session's number among the sessions of its client process. Of two sessions at two exits of a fleet, the one with the
    /// higher number counts.
    #[prost(uint64, tag = "9")]
    pub claim: u64,
}

/// A fleet, and the serial of its newest known roster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fleet {
    /// The fleet's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The roster's serial.
    #[prost(uint64, tag = "2")]
    pub serial: u64,
}

/// The session is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The session's number at this exit.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// 16 random bytes that an `Attach` must repeat.
    #[prost(bytes = "vec", tag = "2")]
    pub attach_token: Vec<u8>,
    /// The client's inner IPv4 address with the prefix length of the exit's network.
    #[prost(message, optional, tag = "3")]
    pub ipv4: Option<Network>,
    /// The client's inner IPv6 address with the prefix length of the exit's network.
    #[prost(message, optional, tag = "4")]
    pub ipv6: Option<Network>,
    /// Inner MTU in bytes.
    #[prost(uint32, tag = "5")]
    pub mtu: u32,
    /// DNS servers, 4 or 16 bytes each.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub dns: Vec<Vec<u8>>,
    /// Networks that the exit carries traffic to.
    #[prost(message, repeated, tag = "7")]
    pub routes: Vec<Network>,
    /// Number of connections that the session may have, at least 1.
    #[prost(uint32, tag = "8")]
    pub connections: u32,
    /// Interval of keep-alives, in milliseconds.
    #[prost(uint32, tag = "9")]
    pub keep_alive_milliseconds: u32,
    /// Bit set of the features that both sides have.
    #[prost(uint64, tag = "10")]
    pub features: u64,
    /// The exit's inner IPv4 address, 4 bytes; empty without IPv4.
    #[prost(bytes = "vec", tag = "11")]
    pub gateway_ipv4: Vec<u8>,
    /// The exit's inner IPv6 address, 16 bytes; empty without IPv6.
    #[prost(bytes = "vec", tag = "12")]
    pub gateway_ipv6: Vec<u8>,
    /// The requested prefixes that the exit routes to this client.
    #[prost(message, repeated, tag = "13")]
    pub prefixes: Vec<Network>,
    /// The exit's public keys, the newest first. Empty if the exit does not say.
    #[prost(bytes = "vec", repeated, tag = "14")]
    pub exit_keys: Vec<Vec<u8>>,
}

/// Changes values that the `Welcome` of an open session gave.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Update {
    /// Larger than in every earlier `Update` of the session.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Replaces the list of `Welcome`.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub dns: Vec<Vec<u8>>,
    /// Replaces the list of `Welcome`.
    #[prost(message, repeated, tag = "3")]
    pub routes: Vec<Network>,
    /// Replaces the list of `Welcome`.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub exit_keys: Vec<Vec<u8>>,
}

/// The newest roster of the exit's fleet, and how busy its exits are.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Roster {
    /// A `SignedRoster` of `docs/warren-roster-v1.proto`. Empty if the client has the roster already.
    #[prost(bytes = "vec", tag = "1")]
    pub signed: Vec<u8>,
    /// The load of each exit, as the sender reports it. The fleet's key has not signed this.
    #[prost(message, repeated, tag = "2")]
    pub loads: Vec<ExitLoad>,
}

/// How busy an exit is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExitLoad {
    /// The exit's name in the roster.
    #[prost(string, tag = "1")]
    pub exit: String,
    /// The exit's load in thousandths of its capacity.
    #[prost(uint32, tag = "2")]
    pub permille: u32,
}

/// Joins a connection to an open session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attach {
    /// The session, from `Welcome`.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The token, from `Welcome`.
    #[prost(bytes = "vec", tag = "2")]
    pub attach_token: Vec<u8>,
    /// The connection's number in the session, below `Welcome.connections`.
    #[prost(uint32, tag = "3")]
    pub index: u32,
}

/// The client keeps this session, although it has since opened another session at another exit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Stay {
    /// The session's new number, counted as in `Hello`.
    #[prost(uint64, tag = "1")]
    pub claim: u64,
}

/// The connection has joined its session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attached {
    /// The index that `Attach` gave.
    #[prost(uint32, tag = "1")]
    pub index: u32,
}

/// The sender leaves.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Goodbye {
    /// A value of `GoodbyeReason`.
    #[prost(uint32, tag = "1")]
    pub reason: u32,
    /// With reason VERSION: the exit's version.
    #[prost(uint32, tag = "2")]
    pub exit_version: u32,
    /// With reason VERSION: the client's version.
    #[prost(uint32, tag = "3")]
    pub client_version: u32,
}

/// Asks the exit to enrol the key that this connection proved.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Enrol {
    /// The invitation's token, 22 characters of base64url.
    #[prost(string, tag = "1")]
    pub token: String,
    /// The client's own host name, shown to the exit's operator. May be empty.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// The key is enrolled.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Enrolled {
    /// The name that the client has at the exit.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The body of an invitation, never sent on a connection.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Invite {
    /// The exit's endpoint, `HOST:PORT`.
    #[prost(string, tag = "1")]
    pub endpoint: String,
    /// The exit's Ed25519 key, 32 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub exit_key: Vec<u8>,
    /// The name that the client will have.
    #[prost(string, tag = "3")]
    pub name: String,
    /// 16 random bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub token: Vec<u8>,
}
