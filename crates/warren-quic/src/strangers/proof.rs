//! The proof that a client knows an exit's public key: a keyed hash of its first packet's destination connection ID, sent in the
//! token field of its Initials.

use aws_lc_rs::{constant_time, hmac};

use crate::key::PublicKey;

/// Length in bytes of the destination connection ID that a client draws for its first packet. An exit's own IDs are shorter,
/// so the length distinguishes the two.
pub(super) const FIRST_ID_LENGTH: usize = 20;

/// Length in bytes of a proof.
pub(super) const PROOF_LENGTH: usize = 16;

/// Maximum number of proofs in one token. A client that pins several keys of an exit sends a proof for each.
const MAX_PROOFS: usize = 8;

/// The label that is hashed before the ID.
const LABEL: &[u8] = b"warren/1 initial proof";

pub(super) type Proof = [u8; PROOF_LENGTH];

/// Hashes under an exit's public key.
#[derive(Debug)]
pub(super) struct ProofKey(hmac::Key);

impl ProofKey {
    pub(super) fn new(exit: &PublicKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &exit.0))
    }

    /// Returns the valid proof for this connection ID.
    pub(super) fn proof(&self, id: &[u8; FIRST_ID_LENGTH]) -> Proof {
        let mut message = [0; LABEL.len() + FIRST_ID_LENGTH];
        let (label, rest) = message.split_at_mut(LABEL.len());
        label.copy_from_slice(LABEL);
        rest.copy_from_slice(id);
        let mut proof = [0; PROOF_LENGTH];
        for (to, from) in proof.iter_mut().zip(hmac::sign(&self.0, &message).as_ref()) {
            *to = *from;
        }
        proof
    }
}

/// Makes the token of a client's Initials: a proof for each of the keys, in the given order.
pub(crate) fn token(keys: &[PublicKey], id: &[u8; FIRST_ID_LENGTH]) -> Vec<u8> {
    // An exit does not read proofs from a longer token.
    keys.iter().take(MAX_PROOFS).flat_map(|key| ProofKey::new(key).proof(id)).collect()
}

/// The proofs in a token. Empty if it is another kind of token.
pub(super) fn proofs(token: &[u8]) -> &[Proof] {
    match token.as_chunks() {
        (proofs, []) if proofs.len() <= MAX_PROOFS => proofs,
        _ => &[],
    }
}

/// Whether a token contains a proof.
pub(super) fn has(token: &[u8], proof: &Proof) -> bool {
    // Compares in constant time, so that nobody can find a proof byte by byte.
    proofs(token).iter().any(|shown| constant_time::verify_slices_are_equal(shown, proof).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;

    const ID: [u8; FIRST_ID_LENGTH] = [5; FIRST_ID_LENGTH];

    #[test]
    fn a_token_proves_each_of_its_keys_and_no_other() {
        let keys: Vec<PublicKey> = (0..3).map(|_| PrivateKey::generate().unwrap().public()).collect();
        let token = token(&keys[..2], &ID);
        let shows = |key: &PublicKey, id| has(&token, &ProofKey::new(key).proof(id));
        assert!(shows(&keys[0], &ID) && shows(&keys[1], &ID));
        assert!(!shows(&keys[2], &ID));
        assert!(!shows(&keys[0], &[6; FIRST_ID_LENGTH]));
    }

    #[test]
    fn proofs_are_those_that_the_document_shows() {
        let key = PublicKey([0x11; 32]);
        let id = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let shown: String = token(&[key], &id).iter().map(|byte| format!("{byte:02x}")).collect();
        let document = include_str!("../../../../docs/silent-mode.md");
        assert!(document.contains(&format!("`{shown}`")), "docs/silent-mode.md lacks {shown}");
    }

    #[test]
    fn what_is_no_row_of_proofs_has_none() {
        let proof = [0; PROOF_LENGTH];
        for length in [0, 1, 15, 17, 9 * PROOF_LENGTH] {
            assert!(!has(&vec![0; length], &proof), "{length}");
        }
        assert!(has(&[0; 8 * PROOF_LENGTH], &proof));
    }
}
