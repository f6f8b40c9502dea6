//! Issued invitations: one `[[invitation]]` table of `clients.toml` each.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::timestamp;
use crate::PublicKey;
use crate::invite::TokenDigest;
use crate::key::optional_stored_key;
use crate::planted::{Bug, is_planted};

/// An invitation as the exit stores it: enough to recognise the token, but not the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// The name that the client will have.
    pub name: String,
    /// The hash of the invitation's token.
    pub token_sha256: TokenDigest,
    /// When the invitation expires.
    #[serde(with = "timestamp")]
    pub expires: SystemTime,
    /// The key that was enrolled with the invitation. This key may ask again, because the reply may have been lost.
    #[serde(default, deserialize_with = "optional_stored_key", skip_serializing_if = "Option::is_none")]
    pub used_by: Option<PublicKey>,
    /// The key of the WireGuard client that this invitation turns into a Warren client. If set, the invitation enrols no other
    /// client. The registry sets this field.
    #[serde(default, deserialize_with = "optional_stored_key", skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<PublicKey>,
}

impl Invitation {
    /// Whether the invitation may enrol the key, or has already enrolled it and may confirm that.
    pub fn admits(&self, key: PublicKey, now: SystemTime) -> bool {
        let is_valid = now < self.expires || is_planted(Bug::ExpiredInvitationTaken);
        is_valid && self.used_by.is_none_or(|used_by| used_by == key)
    }

    /// Whether the invitation is unused and has not expired.
    pub fn is_open(&self, now: SystemTime) -> bool {
        now < self.expires && self.used_by.is_none()
    }
}
