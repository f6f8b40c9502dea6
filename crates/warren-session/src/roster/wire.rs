//! The structs of `docs/warren-roster-v1.proto`, field by field in the same order.

/// A roster with its signature.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SignedRoster {
    /// An encoded `Roster`. The signature is over these bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) roster: Vec<u8>,
    /// Ed25519, 64 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) signature: Vec<u8>,
}

/// The exits of a fleet.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Roster {
    /// The fleet's name.
    #[prost(string, tag = "1")]
    pub(crate) fleet: String,
    /// At least 1, and higher than in each earlier roster of the fleet.
    #[prost(uint64, tag = "2")]
    pub(crate) serial: u64,
    /// When the roster was signed, in seconds since 1970, for people to read.
    #[prost(uint64, tag = "3")]
    pub(crate) issued_at: u64,
    /// The fleet key that signs, 32 bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) signer: Vec<u8>,
    /// The exits, in the order of their names.
    #[prost(message, repeated, tag = "5")]
    pub(crate) exits: Vec<Exit>,
    /// How the fleet key has changed, the earliest change first.
    #[prost(message, repeated, tag = "6")]
    pub(crate) handovers: Vec<Handover>,
}

/// An exit.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Exit {
    /// The exit's name in the fleet.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The exit's Ed25519 keys, 32 bytes each.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) public_keys: Vec<Vec<u8>>,
    /// `HOST:PORT` each.
    #[prost(string, repeated, tag = "3")]
    pub(crate) endpoints: Vec<String>,
    /// Where the exit is, for people to read. May be empty.
    #[prost(string, tag = "4")]
    pub(crate) region: String,
    /// The exit's share of clients compared with the other exits' weights, at least 1.
    #[prost(uint32, tag = "5")]
    pub(crate) weight: u32,
    /// 0: the exit accepts clients. 1: the exit is being drained.
    #[prost(uint32, tag = "6")]
    pub(crate) state: u32,
}

/// A fleet key that names its successor.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Handover {
    /// The earlier key, 32 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) from: Vec<u8>,
    /// The later key, 32 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) to: Vec<u8>,
    /// The earlier key's signature, 64 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) signature: Vec<u8>,
}
