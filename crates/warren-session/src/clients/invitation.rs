//! Invitations that are out: one `[[invitation]]` table of `clients.toml` each.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::timestamp;
use crate::PublicKey;
use crate::invite::TokenDigest;
use crate::key::optional_stored_key;
use crate::planted::{Bug, is_planted};

/// An invitation as the exit keeps it: enough to know its token again, and not the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// The name that the client will have.
    pub name: String,
    /// The hash of its token.
    pub token_sha256: TokenDigest,
    /// From when on it is void.
    #[serde(with = "timestamp")]
    pub expires: SystemTime,
    /// The key that was enrolled with it, which may ask again: its answer may have been lost.
    #[serde(default, deserialize_with = "optional_stored_key", skip_serializing_if = "Option::is_none")]
    pub used_by: Option<PublicKey>,
}

impl Invitation {
    /// Whether a key may be enrolled with it, or be told again that it was.
    pub fn admits(&self, key: PublicKey, now: SystemTime) -> bool {
        let is_valid = now < self.expires || is_planted(Bug::ExpiredInvitationTaken);
        is_valid && self.used_by.is_none_or(|used_by| used_by == key)
    }

    /// Whether nobody has used it yet and still may.
    pub fn is_open(&self, now: SystemTime) -> bool {
        now < self.expires && self.used_by.is_none()
    }
}
