//! What a registry keeps of a client that uses WireGuard.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A client that connects with WireGuard. Its public key is then an X25519 key, which no Warren connection can prove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireGuardClient {
    /// The secret that the client shares with the exit in addition to its key pair, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key: Option<PresharedKey>,
}

/// A preshared key of WireGuard: 32 secret bytes, written as 44 characters of base64.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey([u8; Self::LENGTH]);

impl PresharedKey {
    /// Length in bytes.
    pub const LENGTH: usize = 32;

    /// Makes a key of these bytes, which should be random.
    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Reads the text form; `None` if it is not 32 bytes in base64.
    pub fn from_base64(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok()?.try_into().ok().map(Self)
    }

    /// The text form.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

impl Serialize for PresharedKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for PresharedKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_base64(&text).ok_or_else(|| {
            D::Error::custom("a preshared key is 32 bytes in base64, as `wg genpsk` prints it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preshared_key_is_kept_and_not_shown() {
        let client = WireGuardClient { preshared_key: Some(PresharedKey::new([7; 32])) };
        let text = toml::to_string(&client).unwrap();
        assert_eq!(toml::from_str::<WireGuardClient>(&text).unwrap(), client);
        assert!(text.contains("BwcHBwcH") && !format!("{client:?}").contains("BwcH"), "{client:?}");
        let error = toml::from_str::<WireGuardClient>("preshared_key = \"c2hvcnQ=\"").unwrap_err();
        assert!(error.to_string().contains("wg genpsk") && !error.message().contains("c2hv"), "{error}");
        assert_eq!(toml::from_str::<WireGuardClient>("").unwrap(), WireGuardClient::default());
    }
}
