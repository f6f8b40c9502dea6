//! The fleet key: it signs rosters, and is kept away from every exit.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::{PublicKey, PublicKeyError};

/// Length of a signature in bytes.
pub(super) const SIGNATURE_LENGTH: usize = 64;

/// The secret Ed25519 key of a fleet. Its file is like `exit.key`: one line of base64.
///
/// ```
/// use warren_session::roster::FleetKey;
///
/// let key = FleetKey::generate()?;
/// assert_eq!(FleetKey::from_file_text(&key.to_line())?.public(), key.public());
/// assert_eq!(format!("{key:?}"), "FleetKey(..)");
/// # Ok::<_, warren_session::roster::FleetKeyError>(())
/// ```
pub struct FleetKey {
    seed: Zeroizing<[u8; PublicKey::LENGTH]>,
    pair: Ed25519KeyPair,
}

impl FleetKey {
    /// Makes a new key from the operating system's random source.
    ///
    /// # Errors
    ///
    /// When that source cannot be read.
    pub fn generate() -> Result<Self, FleetKeyError> {
        let mut seed = Zeroizing::new([0; PublicKey::LENGTH]);
        SystemRandom::new().fill(seed.as_mut_slice()).map_err(|_| FleetKeyError::Random)?;
        Ok(Self::of_seed(seed))
    }

    /// Reads the text of a key file.
    ///
    /// # Errors
    ///
    /// If the text does not contain exactly one key. The message never repeats the text.
    pub fn from_file_text(text: &str) -> Result<Self, FleetKeyError> {
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| FleetKeyError::Content)?);
        let seed =
            <[u8; PublicKey::LENGTH]>::try_from(bytes.as_slice()).map_err(|_| FleetKeyError::Content)?;
        Ok(Self::of_seed(Zeroizing::new(seed)))
    }

    /// The key as the line of a key file.
    pub fn to_line(&self) -> Zeroizing<String> {
        // The whole capacity is reserved at once, because a string that grows leaves its old buffer behind, unwiped.
        let mut line = Zeroizing::new(String::with_capacity(48));
        STANDARD.encode_string(self.seed.as_slice(), &mut line);
        line.push('\n');
        line
    }

    /// The corresponding public key.
    pub fn public(&self) -> FleetPublicKey {
        let mut public = [0; PublicKey::LENGTH];
        public.copy_from_slice(self.pair.public_key().as_ref());
        FleetPublicKey(PublicKey(public))
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }

    fn of_seed(seed: Zeroizing<[u8; PublicKey::LENGTH]>) -> Self {
        let pair =
            Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).expect("any 32 bytes are an Ed25519 seed");
        Self { seed, pair }
    }
}

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetKey(..)")
    }
}

/// The public key of a fleet, with which clients verify rosters. It is written like the key of an exit, but never used as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FleetPublicKey(PublicKey);

impl FleetPublicKey {
    /// The key's 32 bytes.
    pub fn as_bytes(&self) -> &[u8; PublicKey::LENGTH] {
        &self.0.0
    }

    /// Reads a key from a message. `None` unless it has 32 bytes and is a point of large order on the curve.
    pub(super) fn from_wire(bytes: &[u8]) -> Option<Self> {
        PublicKey::from_wire(bytes).map(Self)
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0.0).verify(message, signature).is_ok()
    }
}

impl FromStr for FleetPublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for FleetPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a fleet key cannot be made or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FleetKeyError {
    /// The operating system has no random bytes.
    #[error("the system's random source cannot be read")]
    Random,
    /// The text is not a key.
    #[error("this is not a fleet key: the file must have one line of 44 characters of base64")]
    Content,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_reads_back_what_it_writes_and_nothing_else() {
        let key = FleetKey::generate().unwrap();
        assert_eq!(key.to_line().len(), 45);
        assert_eq!(FleetKey::from_file_text(&key.to_line()).unwrap().public(), key.public());
        assert_ne!(FleetKey::generate().unwrap().public(), key.public());
        let line = key.to_line();
        for wrong in ["", "AAEC", line.get(1..).unwrap(), &format!("{}{}", *line, *line)] {
            assert_eq!(FleetKey::from_file_text(wrong).unwrap_err(), FleetKeyError::Content);
        }
    }
}
