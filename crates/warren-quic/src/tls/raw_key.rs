//! Ed25519 public keys as TLS carries them: SubjectPublicKeyInfo in DER (RFC 7250, RFC 8410).

use crate::key::PublicKey;

/// The DER of a SubjectPublicKeyInfo up to the Ed25519 key itself (RFC 8410 section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

const _: () = assert!(SPKI_PREFIX.len() + PublicKey::LENGTH == 44);

/// Writes a key as a SubjectPublicKeyInfo.
pub(super) fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], &key.0].concat()
}

/// Reads the Ed25519 key from a SubjectPublicKeyInfo in DER, the form in which TLS carries a raw key.
pub fn public_key(spki: &[u8]) -> Option<PublicKey> {
    let key = spki.strip_prefix(&SPKI_PREFIX)?;
    key.try_into().ok().map(PublicKey)
}
