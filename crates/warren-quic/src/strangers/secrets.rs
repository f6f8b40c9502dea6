//! The secrets that an exit derives from its reset key: the key for the tags of its connection IDs and the key of its Retry
//! tokens. The reset key survives restarts, so that a new process can distinguish the old one's connection IDs from a
//! stranger's.

use aws_lc_rs::{constant_time, hmac};

use super::retry_tokens::RetryTokens;

/// Length in bytes of an exit's connection IDs: the worker's byte, four random bytes, the process's mark
/// ([`ProcessKey`](super::ProcessKey)), and a keyed tag.
pub(crate) const OWN_ID_LENGTH: usize = 12;

/// Offsets of the two-byte mark and the five-byte tag.
pub(super) const MARK: usize = 5;
const TAG: usize = 7;

/// Labels are longer than any connection ID. The reset key also signs bare connection IDs, and the two must not collide.
const ID_LABEL: &[u8] = b"warren/1 tags of connection IDs";
const RETRY_LABEL: &[u8] = b"warren/1 key of Retry tokens";

/// The secrets of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct ExitSecrets {
    pub(crate) ids: IdKey,
    pub(crate) retry_tokens: RetryTokens,
}

impl ExitSecrets {
    pub(crate) fn new(reset_key: &[u8]) -> Self {
        let retry_tokens = RetryTokens(derive(reset_key, RETRY_LABEL));
        Self { ids: IdKey::new(reset_key), retry_tokens }
    }
}

fn derive(reset_key: &[u8], label: &[u8]) -> hmac::Key {
    let master = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, label).as_ref())
}

/// Signs connection IDs, which makes forged ones detectable.
#[derive(Clone, Debug)]
pub(crate) struct IdKey(hmac::Key);

impl IdKey {
    pub(crate) fn new(reset_key: &[u8]) -> Self {
        Self(derive(reset_key, ID_LABEL))
    }

    /// Writes the tag at the end of an ID.
    pub(crate) fn sign(&self, id: &mut [u8; OWN_ID_LENGTH]) {
        let (rest, tag) = id.split_at_mut(TAG);
        for (to, from) in tag.iter_mut().zip(hmac::sign(&self.0, rest).as_ref()) {
            *to = *from;
        }
    }

    /// Whether an ID has a valid tag. A random one does with probability 2^-40.
    pub(crate) fn has_signed(&self, id: &[u8]) -> bool {
        let Ok(id) = <&[u8; OWN_ID_LENGTH]>::try_from(id) else { return false };
        let mut signed = *id;
        self.sign(&mut signed);
        // Compares in constant time, so that nobody can find a tag byte by byte.
        constant_time::verify_slices_are_equal(id, &signed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_by_whoever_has_the_reset_key() {
        let (key, after_restart) = (IdKey::new(&[7; 64]), IdKey::new(&[7; 64]));
        let mut id = [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0];
        key.sign(&mut id);
        assert!(after_restart.has_signed(&id));
        assert!(!IdKey::new(&[8; 64]).has_signed(&id));
        for index in 0..id.len() {
            let mut other = id;
            other[index] ^= 1;
            assert!(!key.has_signed(&other), "byte {index}");
        }
        assert!(!key.has_signed(&id[..11]));
    }

    #[test]
    fn a_guess_is_right_once_in_two_to_the_forty() {
        let (mut one, mut other) = ([0; OWN_ID_LENGTH], [0xff; OWN_ID_LENGTH]);
        let key = IdKey::new(&[7; 64]);
        key.sign(&mut one);
        key.sign(&mut other);
        // Signing wrote the tag, which is the part that a forger must guess.
        let tag = (0..OWN_ID_LENGTH).filter(|index| one[*index] != 0 || other[*index] != 0xff);
        assert!(8 * tag.count() >= 40);
    }
}
