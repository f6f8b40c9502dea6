//! One line of the clients' store: a transaction, with a checksum that distinguishes a torn line from a whole one.
//!
//! A line is `CHECKSUM JSON`. The checksum is the first 16 hexadecimal digits of the SHA-256 of the JSON. The JSON is
//! an array. Each element is a row to set, or the key of a row to remove.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use warren_session::clients::{Client, Invitation, RemovedKey, RowChange};
use warren_session::invite::TokenDigest;
use warren_session::{PublicKey, stored_key};

/// Hexadecimal digits of a line's checksum. They are 64 bits, so a torn line passes for a whole one once in 2^64 times.
const CHECKSUM: usize = 16;

/// An element of a line. The names of the variants are part of the file's format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Row {
    Client(Client),
    NoClient(Key),
    Invitation(Invitation),
    NoInvitation(TokenDigest),
    Removed(RemovedKey),
    NoRemoved(Key),
}

/// Any 32 bytes, as in the registry, where a key need not be a point on the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Key(#[serde(deserialize_with = "stored_key")] PublicKey);

impl From<&RowChange> for Row {
    fn from(change: &RowChange) -> Self {
        match change {
            RowChange::Client { client: Some(client), .. } => Self::Client(client.clone()),
            RowChange::Client { key, client: None } => Self::NoClient(Key(*key)),
            RowChange::Invitation { invitation: Some(invitation), .. } => {
                Self::Invitation(invitation.clone())
            }
            RowChange::Invitation { token, invitation: None } => Self::NoInvitation(*token),
            RowChange::Removed { removed: Some(removed), .. } => Self::Removed(removed.clone()),
            RowChange::Removed { key, removed: None } => Self::NoRemoved(Key(*key)),
        }
    }
}

impl From<Row> for RowChange {
    fn from(row: Row) -> Self {
        match row {
            Row::Client(client) => Self::Client { key: client.public_key, client: Some(client) },
            Row::NoClient(Key(key)) => Self::Client { key, client: None },
            Row::Invitation(invitation) => {
                Self::Invitation { token: invitation.token_sha256, invitation: Some(invitation) }
            }
            Row::NoInvitation(token) => Self::Invitation { token, invitation: None },
            Row::Removed(removed) => Self::Removed { key: removed.public_key, removed: Some(removed) },
            Row::NoRemoved(Key(key)) => Self::Removed { key, removed: None },
        }
    }
}

/// Appends a transaction's line, with its line break.
pub(super) fn write<'a>(
    text: &mut String,
    changes: impl IntoIterator<Item = &'a RowChange>,
) -> Result<(), serde_json::Error> {
    let rows: Vec<Row> = changes.into_iter().map(Row::from).collect();
    let json = serde_json::to_string(&rows)?;
    text.push_str(&checksum(json.as_bytes()));
    text.push(' ');
    text.push_str(&json);
    text.push('\n');
    Ok(())
}

/// Reads a line without its line break. `None` if it is torn or was edited.
pub(super) fn read(line: &[u8]) -> Option<Vec<RowChange>> {
    let (shown, rest) = line.split_at_checked(CHECKSUM)?;
    let json = rest.strip_prefix(b" ")?;
    if checksum(json).as_bytes() != shown {
        return None;
    }
    let rows: Vec<Row> = serde_json::from_slice(json).ok()?;
    Some(rows.into_iter().map(RowChange::from).collect())
}

pub(super) fn checksum(bytes: &[u8]) -> String {
    let mut text = digest_of(bytes);
    text.truncate(CHECKSUM);
    text
}

/// The SHA-256 of a text in hexadecimal.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing into a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
