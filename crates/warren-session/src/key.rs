//! `PublicKey`: the raw Ed25519 public key that names a client or an exit.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use curve25519_dalek::edwards::CompressedEdwardsY;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An Ed25519 public key (RFC 8032) of 32 bytes, written as 44 characters of standard base64 with padding.
///
/// A key parsed from text is a point of large order on the curve.
///
/// ```
/// use warren_session::{PublicKey, PublicKeyError};
///
/// let text = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
/// let key: PublicKey = text.parse()?;
/// assert_eq!(key.to_string(), text);
///
/// // Half of all mistyped keys are not points on the curve.
/// let mistyped = "21qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
/// assert!(mistyped.parse::<PublicKey>().is_err());
/// # Ok::<_, PublicKeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; Self::LENGTH]);

impl PublicKey {
    /// Length in bytes.
    pub const LENGTH: usize = 32;

    /// Whether the key is one of the few points of small order, for which anybody can make signatures without a private key.
    pub fn is_of_small_order(&self) -> bool {
        CompressedEdwardsY(self.0).decompress().is_some_and(|point| point.is_small_order())
    }

    /// Whether the bytes encode a point on edwards25519 as RFC 8032 section 5.1.3 requires. Half of all strings do not.
    fn is_on_curve(&self) -> bool {
        let encoded = CompressedEdwardsY(self.0);
        // The library also accepts y >= p and reduces it. Only the reduced y is the canonical encoding.
        encoded.decompress().is_some_and(|point| point.compress() == encoded)
    }

    /// Reads a key from a message. `None` unless it has 32 bytes and is a point of large order on the curve.
    pub(crate) fn from_wire(bytes: &[u8]) -> Option<Self> {
        let key = Self(bytes.try_into().ok()?);
        (key.is_on_curve() && !key.is_of_small_order()).then_some(key)
    }

    /// Reads any 32 bytes without checking that they are a point. A registry may contain such keys.
    ///
    /// # Errors
    ///
    /// If the text is not 32 bytes in base64.
    pub fn unchecked(text: &str) -> Result<Self, PublicKeyError> {
        let bytes = STANDARD
            .decode(text)
            .map_err(|_| PublicKeyError::NotBase64 { characters: text.chars().count() })?;
        let key = bytes.as_slice().try_into().map_err(|_| PublicKeyError::Length { bytes: bytes.len() })?;
        Ok(Self(key))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let key = Self::unchecked(text)?;
        // Small order is checked first, because a point of small order in another encoding must get this error too.
        if key.is_of_small_order() {
            return Err(PublicKeyError::SmallOrder);
        }
        if key.is_on_curve() { Ok(key) } else { Err(PublicKeyError::NotOnCurve) }
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A key in `clients.toml`, or in a row of a store: any 32 bytes.
///
/// Commands check a key before they write it, and no handshake succeeds with an invalid key. A bad key that was written by hand
/// is therefore harmless, and must not keep the exit from starting.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct StoredKey(#[serde(deserialize_with = "stored_key")] pub(crate) PublicKey);

/// Reads a key of a registry, which may be any 32 bytes, for `#[serde(deserialize_with)]`.
///
/// # Errors
///
/// If it is not 32 bytes in base64.
pub fn stored_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PublicKey, D::Error> {
    PublicKey::unchecked(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Does the same as [`stored_key`], for a key that may be missing.
///
/// # Errors
///
/// As [`stored_key`].
pub fn optional_stored_key<'de, D>(deserializer: D) -> Result<Option<PublicKey>, D::Error>
where
    D: Deserializer<'de>,
{
    Ok(Option::<StoredKey>::deserialize(deserializer)?.map(|stored| stored.0))
}

/// Why a text is not a public key. The error does not repeat the text, which may be a misplaced private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PublicKeyError {
    /// The text is not standard base64 with padding.
    #[error(
        "a public key is 44 characters of base64, as `warren pubkey` prints it; this has {characters} characters \
         and is not base64"
    )]
    NotBase64 {
        /// Length of the refused text in characters.
        characters: usize,
    },
    /// The text is base64, but not of 32 bytes.
    #[error("a public key is 32 bytes in base64, as `warren pubkey` prints it; this is {bytes} bytes")]
    Length {
        /// The decoded length in bytes.
        bytes: usize,
    },
    /// No private key belongs to the public key.
    #[error(
        "this is not a Warren key; copy exactly what `warren pubkey` or the exit prints; it may be a WireGuard key, which \
         only `warren exit client add NAME --wireguard --public-key KEY` takes"
    )]
    NotOnCurve,
    /// Anybody can sign for the key.
    #[error("this key is unsafe, because anybody can sign for it; use the one that `warren pubkey` prints")]
    SmallOrder,
}

/// A valid key, different for each number.
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn tests_key(number: u8) -> PublicKey {
    let scalar = curve25519_dalek::Scalar::from(u64::from(number) + 1);
    PublicKey(curve25519_dalek::EdwardsPoint::mul_base(&scalar).compress().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of RFC 8032 section 7.1, test 1.
    const RFC_8032: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    /// The y of the points of order 1, 2, 4 and 8, little-endian: 1, p - 1, 0 and the two of order 8. Also p and p + 1, the
    /// non-canonical encodings of 0 and 1.
    const SMALL_ORDER: [[u8; 32]; 7] = {
        const fn near_p(first: u8) -> [u8; 32] {
            let mut y = [0xff; 32];
            y[0] = first;
            y[31] = 0x7f;
            y
        }
        let mut one = [0; 32];
        one[0] = 1;
        [[0; 32], one, near_p(0xec), near_p(0xed), near_p(0xee), ORDER_8, ORDER_8_NEGATIVE]
    };

    const ORDER_8: [u8; 32] = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ];

    /// p minus the value above.
    const ORDER_8_NEGATIVE: [u8; 32] = [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ];

    /// Parses the text of a key with this y and this sign of x.
    fn parsed(y: [u8; 32]) -> Result<PublicKey, PublicKeyError> {
        PublicKey(y).to_string().parse()
    }

    #[test]
    fn a_key_reads_back_what_it_writes() {
        let key: PublicKey = RFC_8032.parse().unwrap();
        assert_eq!(key.0[..4], [0xd7, 0x5a, 0x98, 0x01]);
        assert_eq!(key.to_string(), RFC_8032);
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_size_and_not_its_content() {
        assert_eq!("AAEC".parse::<PublicKey>(), Err(PublicKeyError::Length { bytes: 3 }));
        assert_eq!("".parse::<PublicKey>(), Err(PublicKeyError::Length { bytes: 0 }));
        let unpadded = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        let error = unpadded.parse::<PublicKey>().unwrap_err();
        assert_eq!(error, PublicKeyError::NotBase64 { characters: 43 });
        assert!(!error.to_string().contains(unpadded));
    }

    #[test]
    fn keys_for_which_anybody_can_sign_are_refused() {
        for mut key in SMALL_ORDER {
            for sign in [0, 0x80] {
                key[31] |= sign;
                assert_eq!(parsed(key), Err(PublicKeyError::SmallOrder), "{key:02x?}");
            }
        }
    }

    #[test]
    fn anybody_signs_for_the_neutral_point() {
        use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
        let neutral = SMALL_ORDER[1];
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&neutral);
        UnparsedPublicKey::new(&ED25519, neutral).verify(b"whatever", &signature).unwrap();
    }

    #[test]
    fn text_that_is_no_point_is_refused() {
        let of_y = |first: u8, rest: u8, last: u8| {
            let mut y = [rest; 32];
            (y[0], y[31]) = (first, last);
            parsed(y)
        };
        assert_eq!(of_y(2, 0, 0), Err(PublicKeyError::NotOnCurve), "y = 2 has no x");
        assert!(of_y(3, 0, 0).is_ok());
        assert!(of_y(3, 0, 0x80).is_ok(), "both signs of x are points");
        assert_eq!(of_y(0xf0, 0xff, 0x7f), Err(PublicKeyError::NotOnCurve), "p + 3 is 3 written otherwise");
    }

    #[test]
    fn half_of_all_texts_are_no_points() {
        let mut random = warren_simulation::Random::new(1);
        let points = (0..200).filter(|_| parsed(random.bytes()).is_ok()).count();
        assert!((60..140).contains(&points), "{points} of 200");
    }

    #[test]
    fn a_stored_key_is_any_32_bytes() {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(deserialize_with = "stored_key")]
            key: PublicKey,
            #[serde(default, deserialize_with = "optional_stored_key")]
            next: Option<PublicKey>,
        }
        let text = PublicKey([2; 32]).to_string();
        assert!(text.parse::<PublicKey>().is_err());
        let entry: Entry = toml::from_str(&format!("key = \"{text}\"")).unwrap();
        assert_eq!((entry.key, entry.next), (PublicKey([2; 32]), None));
        let entry: Entry = toml::from_str(&format!("key = \"{text}\"\nnext = \"{text}\"")).unwrap();
        assert_eq!(entry.next, Some(entry.key));
        assert!(toml::from_str::<Entry>("key = \"AAEC\"").is_err());
    }
}
