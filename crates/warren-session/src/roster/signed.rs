//! `SignedRoster`: a roster whose signature has been checked.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;

use super::MAX_ROSTER_LENGTH;
use super::content::Roster;
use super::error::RosterError;
use super::key::FleetKey;
use super::wire;

/// The beginning of the signed bytes of a roster, so that its signature is not valid for anything else.
const DOMAIN: &[u8] = b"warren fleet roster, version 1\0";

/// A roster, with its signature by the key that it names as its signer. [`FollowedFleet`](super::FollowedFleet) decides whether
/// the signer is the fleet's key.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedRoster {
    content: Roster,
    bytes: Vec<u8>,
}

impl SignedRoster {
    /// Signs a roster, which must name the key as its signer.
    pub(super) fn sign(content: &Roster, key: &FleetKey) -> Result<Self, RosterError> {
        let roster = content.encode();
        let signature = key.sign(&signed_text(&roster));
        // The result is decoded again, so that nobody signs a roster that others would refuse.
        Self::decode(&wire::SignedRoster { roster, signature }.encode_to_vec())
    }

    /// Reads a roster and checks its signature. The bytes may be hostile.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RosterError> {
        if bytes.len() > MAX_ROSTER_LENGTH {
            return Err(RosterError::TooLong { length: bytes.len() });
        }
        let wire = wire::SignedRoster::decode(bytes).map_err(|_| RosterError::Malformed)?;
        if wire.encode_to_vec() != bytes {
            return Err(RosterError::NotCanonical);
        }
        let content = Roster::decode(&wire.roster)?;
        let signer = content.signer;
        if !signer.has_signed(&signed_text(&wire.roster), &wire.signature) {
            return Err(RosterError::Signature { signer });
        }
        Ok(Self { content, bytes: bytes.to_vec() })
    }

    /// Reads the text that [`Self::to_line`] writes. The text may be hostile.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn from_text(text: &str) -> Result<Self, RosterError> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| RosterError::Malformed)?;
        Self::decode(&bytes)
    }

    /// The roster as the line of a file: base64.
    pub fn to_line(&self) -> String {
        STANDARD.encode(&self.bytes) + "\n"
    }

    /// Returns the roster's content.
    pub fn content(&self) -> &Roster {
        &self.content
    }

    /// The bytes that [`Self::decode`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SignedRoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignedRoster").field(&self.content).finish()
    }
}

fn signed_text(roster: &[u8]) -> Vec<u8> {
    [DOMAIN, roster].concat()
}
