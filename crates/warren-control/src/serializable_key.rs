//! Private keys on the control socket, which only root and the daemon's own user can open.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use warren_quic::key::PrivateKey;
use zeroize::Zeroizing;

/// A private key that can be serialized for the socket, but is never printed.
#[derive(Clone)]
pub struct SerializableKey(pub PrivateKey);

impl fmt::Debug for SerializableKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SerializableKey(..)")
    }
}

impl Serialize for SerializableKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_base64().as_str())
    }
}

impl<'de> Deserialize<'de> for SerializableKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        // The error's cause is left out, because it could contain a part of the key.
        PrivateKey::from_base64(&text).map(Self).map_err(|_| de::Error::custom("that is not a private key"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_crosses_the_socket_whole_and_shows_nowhere() {
        let key = PrivateKey::generate().unwrap();
        let secret = SerializableKey(key.clone());
        assert_eq!(format!("{secret:?}"), "SerializableKey(..)");
        let line = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<SerializableKey>(&line).unwrap().0.public(), key.public());
        let wrong = serde_json::from_str::<SerializableKey>("\"c2VjcmV0\"").unwrap_err().to_string();
        assert!(!wrong.contains("c2VjcmV0"), "{wrong}");
    }
}
