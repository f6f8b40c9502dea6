//! `PeerKey`: the raw Ed25519 public key that a TLS handshake proved.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An Ed25519 public key (RFC 8032), 32 bytes; written as standard base64 with padding, 44 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey(pub [u8; 32]);

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerKey({self})")
    }
}

impl FromStr for PeerKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes =
            STANDARD.decode(text).map_err(|_| KeyError::NotBase64 { characters: text.chars().count() })?;
        let bytes =
            <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| KeyError::Length { bytes: bytes.len() })?;
        Ok(Self(bytes))
    }
}

impl Serialize for PeerKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PeerKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Why a text is no public key. The text itself is not repeated: it may be a private key in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The text is not standard base64 with padding.
    #[error(
        "a public key is 44 characters of base64, as `warren pubkey` prints it; this has {characters} characters \
         and is not base64"
    )]
    NotBase64 {
        /// Length of the refused text in characters.
        characters: usize,
    },
    /// The text is base64 of something that is not 32 bytes long.
    #[error("a public key is 32 bytes in base64, as `warren pubkey` prints it; this is {bytes} bytes")]
    Length {
        /// Decoded length.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_what_it_writes() {
        let key = PeerKey(std::array::from_fn(|byte| u8::try_from(byte).unwrap()));
        assert_eq!(key.to_string(), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        assert_eq!(key.to_string().parse(), Ok(key));
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_size_and_not_its_content() {
        assert_eq!("AAEC".parse::<PeerKey>(), Err(KeyError::Length { bytes: 3 }));
        assert_eq!("".parse::<PeerKey>(), Err(KeyError::Length { bytes: 0 }));
        let unpadded = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        let error = unpadded.parse::<PeerKey>().unwrap_err();
        assert_eq!(error, KeyError::NotBase64 { characters: 43 });
        assert!(!error.to_string().contains(unpadded));
    }
}
