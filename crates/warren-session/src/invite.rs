//! Invitations: an operator gives one to a machine, which uses it once to enrol a key of its own.
//!
//! The text consists of `warren1:` and the unpadded base64url of two parts: an `Invite` of `docs/warren-v1.proto`, and the first
//! four bytes of its SHA-256. The checksum detects a truncated or mistyped text before the exit is asked.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use prost::Message as _;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::PublicKey;
use crate::message::wire;

/// The start of every invitation.
const PREFIX: &str = "warren1:";

/// Length in bytes of the checksum after the body.
const CHECKSUM_LENGTH: usize = 4;

/// Longest invitation in characters. A host name has at most 253, a client name 63.
const MAX_LENGTH: usize = 1_024;

/// An invitation as the invited machine reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// The exit's endpoint, `HOST:PORT`. Not checked here.
    pub endpoint: String,
    /// The exit's key, which the client pins.
    pub exit_key: PublicKey,
    /// The client's future name at the exit. Not checked here.
    pub name: String,
    /// The token that proves the invitation.
    pub token: InviteToken,
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = wire::Invite {
            endpoint: self.endpoint.clone(),
            exit_key: self.exit_key.0.to_vec(),
            name: self.name.clone(),
            token: self.token.0.to_vec(),
        };
        let mut bytes = body.encode_to_vec();
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Self, InviteError> {
        // Pasted text often ends with a line break.
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(InviteError::Foreign)?;
        // The length is checked before decoding, so that a large pasted file costs no memory.
        if encoded.len() > MAX_LENGTH {
            return Err(InviteError::Damaged);
        }
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| InviteError::Damaged)?;
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_LENGTH>().ok_or(InviteError::Damaged)?;
        // The checksum is verified before the fields are parsed, because a mistyped text must count as damaged even if its fields
        // happen to decode.
        if checksum(body) != *sum {
            return Err(InviteError::Damaged);
        }
        let body = wire::Invite::decode(body).map_err(|_| InviteError::Damaged)?;
        Ok(Self {
            endpoint: body.endpoint,
            exit_key: PublicKey(body.exit_key.try_into().map_err(|_| InviteError::Damaged)?),
            name: body.name,
            token: InviteToken(body.token.try_into().map_err(|_| InviteError::Damaged)?),
        })
    }
}

/// Why a text is not an invitation. The error does not repeat the text, which is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InviteError {
    /// The text does not begin with `warren1:`.
    #[error(
        "this is not an invitation, which begins with \"warren1:\"; paste the whole output of `warren exit invite`"
    )]
    Foreign,
    /// The text was truncated or changed.
    #[error("the invitation is damaged or incomplete; paste the whole output of `warren exit invite`")]
    Damaged,
}

/// 16 random bytes that are valid for one enrolment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InviteToken([u8; Self::LENGTH]);

impl InviteToken {
    /// Length in bytes.
    pub const LENGTH: usize = 16;

    /// Wraps 16 random bytes.
    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Reads a token in the form that `Enrol` carries. `None` if it is invalid.
    pub fn from_wire(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    /// The token in the form that `Enrol` carries: 22 characters of base64url.
    pub fn to_wire(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// The hash that the exit stores. The time that a look-up by hash takes reveals nothing about the token.
    pub fn digest(&self) -> TokenDigest {
        let hash = digest(&SHA256, &self.0);
        TokenDigest(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// Hides the bytes: tokens do not belong in logs.
impl fmt::Debug for InviteToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InviteToken(..)")
    }
}

/// The SHA-256 of a token, written as standard base64 with padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The lowest digest in sort order.
    pub(crate) const LOWEST: Self = Self([0; 32]);

    /// The first 8 bytes in hexadecimal. This text identifies an invitation and is valid in file names.
    pub fn label(&self) -> String {
        self.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Serialize for TokenDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for TokenDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A text that is not base64 becomes an empty digest, which has the wrong length.
        let bytes = STANDARD.decode(String::deserialize(deserializer)?).unwrap_or_default();
        let digest = bytes.try_into();
        digest
            .map(Self)
            .map_err(|_| D::Error::custom("the hash of an invitation's token is 32 bytes in base64"))
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    *digest(&SHA256, body).as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invite() -> Invite {
        Invite {
            endpoint: "exit.example.net:443".to_owned(),
            exit_key: PublicKey([7; 32]),
            name: "laptop".to_owned(),
            token: InviteToken::new([9; 16]),
        }
    }

    #[test]
    fn the_document_has_an_invitation() {
        let invite = Invite {
            endpoint: "exit.example.net:443".into(),
            exit_key: PublicKey([0x11; 32]),
            name: "laptop".into(),
            token: InviteToken::new([0xaa; 16]),
        };
        let document = include_str!("../../../docs/wire-protocol.md");
        assert!(document.contains(&format!(" -> {invite}\n")), "docs/wire-protocol.md lacks {invite}");
        // The same token in the form that Enrol carries, as in the message that the document shows.
        assert_eq!(invite.token.to_wire(), "qqqqqqqqqqqqqqqqqqqqqg");
    }

    #[test]
    fn cut_or_changed_text_is_refused_and_not_repeated() {
        let text = invite().to_string();
        for length in PREFIX.len()..text.len() {
            assert_eq!(text[..length].parse::<Invite>(), Err(InviteError::Damaged), "{length}");
        }
        for position in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            assert!(String::from_utf8(changed).unwrap().parse::<Invite>().is_err(), "{position}");
        }
        assert_eq!("warren2:AAAA".parse::<Invite>(), Err(InviteError::Foreign));
        assert_eq!(format!("{PREFIX}{}", "A".repeat(5_000)).parse::<Invite>(), Err(InviteError::Damaged));
    }

    #[test]
    fn token_is_kept_as_its_sha_256() {
        let token = InviteToken::new([0; 16]);
        // SHA-256 of sixteen zero bytes.
        assert_eq!(STANDARD.encode(token.digest().0), "N0cI//dxndWXnsh11WzSKG9tPPfsMXo7JWMqqyjsN7s=");
        assert_eq!(InviteToken::from_wire(&token.to_wire()), Some(token));
        assert_eq!(format!("{token:?}"), "InviteToken(..)");
    }

    proptest! {
        #[test]
        fn invite_reads_back_what_it_writes(
            endpoint in "[a-z0-9.:-]{1,80}", exit_key: [u8; 32], name in "[a-z0-9._-]{1,63}", token: [u8; 16]
        ) {
            let invite = Invite { endpoint, exit_key: PublicKey(exit_key), name, token: InviteToken::new(token) };
            prop_assert_eq!(format!(" {invite}\n").parse(), Ok(invite));
        }

        #[test]
        fn any_text_is_an_invite_or_an_error(text in "(warren1:)?[A-Za-z0-9_-]{0,120}|\\PC{0,80}") {
            let _ = text.parse::<Invite>();
        }
    }
}
