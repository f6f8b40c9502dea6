//! Requests from a daemon to its helper, and their answers. Each is a JSON message, preceded by its length in
//! four bytes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use warren_host::dns::SplitDns;
use warren_host::exec_groups::Side;
use warren_host::published::Published;
use warren_host::{DeviceName, NftCall, NftError};
use warren_session::client::{ExitKeys, KeptFleet};

/// A request and a number, which the answer repeats.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NumberedRequest {
    pub(super) number: u64,
    pub(super) request: HelperRequest,
}

/// An answer to the request of the same number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NumberedAnswer {
    pub(super) number: u64,
    pub(super) answer: Result<Answer, HelperError>,
}

/// Everything that a helper does. It cannot be made to do anything else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum HelperRequest {
    /// Run nft on Warren's own tables.
    Nft(NftCall),
    /// Set the host's resolvers and keep them set.
    SetResolvers {
        device: DeviceName,
        servers: Vec<IpAddr>,
        /// The domains to which the resolvers are limited. `None` if they are not limited.
        split: Option<SplitDns>,
        /// Whether to set them even if they are set already.
        anew: bool,
    },
    /// Put the host's resolvers back.
    RestoreResolvers,
    /// List the resolvers that the host's files name, without those on this host.
    ListResolvers,
    /// List the resolvers that programs would ask if Warren had set none.
    ListResolversBelow,
    /// Say which ports the host's NAT publishes.
    ListPublished,
    /// Ask the system's resolver for a name's addresses.
    LookUp { host: String },
    /// Make the cgroups of both sides.
    MakeExecGroups,
    /// Move a user's process into the cgroup of a side.
    TakeIn { process: u32, user: u32, side: Side },
    /// Save what a client's daemon has learnt about its exits' keys, in the profile's own file.
    KeepExitKeys { exits: BTreeMap<String, ExitKeys> },
    /// Save the fleet's state, as a client's daemon knows it, in the profile's own file.
    KeepFleet { fleet: Box<KeptFleet> },
    /// Make the cgroup of a browser that opens a login page.
    MakePortalGroup,
    /// Move a user's process into that cgroup.
    TakeIntoPortal { process: u32, user: u32 },
    /// End the processes of the portal's cgroup, and remove the cgroup.
    EndPortalGroup,
    /// Start a process that soon removes what an exit left for its successor.
    ReleaseHold,
}

/// The result of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The output of nft, or a line for each change.
    Text(String),
    Addresses(Vec<IpAddr>),
    Servers(Vec<SocketAddr>),
    Published(Published),
}

/// Why a request failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum HelperError {
    NftMissing,
    NftRefused(String),
    NftGone,
    /// Any other reason, as a sentence.
    Other(String),
}

impl From<NftError> for HelperError {
    fn from(error: NftError) -> Self {
        match error {
            NftError::Missing => Self::NftMissing,
            NftError::Refused(reason) => Self::NftRefused(reason),
            NftError::Gone => Self::NftGone,
            NftError::Io(error) => Self::Other(error.to_string()),
        }
    }
}

impl From<HelperError> for NftError {
    fn from(failed: HelperError) -> Self {
        match failed {
            HelperError::NftMissing => Self::Missing,
            HelperError::NftRefused(reason) => Self::Refused(reason),
            HelperError::NftGone => Self::Gone,
            HelperError::Other(sentence) => Self::Io(io::Error::other(sentence)),
        }
    }
}

impl std::fmt::Display for HelperError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other(sentence) => f.write_str(sentence),
            Self::NftMissing | Self::NftRefused(_) | Self::NftGone => NftError::from(self.clone()).fmt(f),
        }
    }
}

/// Reads one message. `None` at the end.
///
/// # Errors
/// When it is too long or cannot be parsed.
pub(super) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let length = match from.read_u32().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    // The length is checked before memory is allocated, because an attacker may control the other side.
    let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST);
    let mut text = vec![0; length.ok_or_else(too_long)?];
    from.read_exact(&mut text).await?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Writes one message.
///
/// # Errors
/// When nobody reads it, or it is too long.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    // The length is checked before anything is written, so that the next message can follow.
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= LONGEST);
    to.write_u32(length.ok_or_else(too_long)?).await?;
    to.write_all(&text).await
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of more than 4 MiB")
}

/// Enough for rules for thousands of networks.
const LONGEST: usize = 4 * 1024 * 1024;
