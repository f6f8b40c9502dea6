//! WireGuard's keys: X25519 keys of 32 bytes, written as 44 characters of base64.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519;
use thiserror::Error;
use warren_session::PublicKey;
use zeroize::Zeroizing;

/// A private key.
#[derive(Clone)]
pub struct PrivateKey(x25519::StaticSecret);

impl PrivateKey {
    /// Makes a key of these bytes, which should be random.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(x25519::StaticSecret::from(bytes))
    }

    /// Reads the text form. The error does not repeat the text.
    ///
    /// # Errors
    /// If the text is not 32 bytes in base64.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| KeyError::NotAKey)?);
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| KeyError::NotAKey)?;
        Ok(Self::new(*bytes))
    }

    /// The text form.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.as_bytes()))
    }

    /// Returns the public key that belongs to this key.
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.0).to_bytes())
    }

    pub(crate) fn secret(&self) -> &x25519::StaticSecret {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// Reads a peer's public key.
///
/// # Errors
/// If the text is not 32 bytes in base64, or if anybody can use the key without its private key.
pub fn parse_public_key(text: &str) -> Result<PublicKey, KeyError> {
    let bytes = STANDARD.decode(text).map_err(|_| KeyError::NotAKey)?;
    let key = PublicKey(bytes.try_into().map_err(|_| KeyError::NotAKey)?);
    if is_safe(key) { Ok(key) } else { Err(KeyError::SmallOrder) }
}

/// Whether only the owner of the private key can complete a handshake. With the few points of small order, every shared secret is
/// zero.
pub(crate) fn is_safe(key: PublicKey) -> bool {
    // The secret does not matter, because every secret is a multiple of 8.
    let secret = x25519::StaticSecret::from([1; 32]);
    secret.diffie_hellman(&x25519::PublicKey::from(key.0)).was_contributory()
}

/// Why a text is not a key. The error does not repeat the text, which may be a misplaced private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The text has another form.
    #[error("is not a WireGuard key, which has 44 characters of base64")]
    NotAKey,
    /// Anybody can compute the secret that is shared with the key's owner.
    #[error("is an unsafe key, because anybody can use it; make another with: wg genkey")]
    SmallOrder,
}
