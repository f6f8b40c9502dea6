//! Decodes a fleet roster that an exit has sent.

use aws_lc_rs::signature::Ed25519KeyPair;
use warren_session::roster::{FollowedFleet, RosterChange, SignedRoster, change};

/// The seed of the key that signs the rosters.
const SEED: [u8; 32] = [7; 32];

/// The input is a byte, then a roster. If the byte is below 128, the roster has no signature yet and is signed with the key of
/// `SEED`, because a fuzzer would not find a valid signature. The signature is valid if the roster names this key.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let signed = if *first < 0x80 { sign(rest) } else { rest.to_vec() };
    let Ok(roster) = SignedRoster::decode(&signed) else { return };
    assert_eq!(roster.as_bytes(), signed, "one roster has one encoding");
    let content = roster.content();
    assert!(content.exits.len() <= 64 && content.serial > 0 && signed.len() <= 16 * 1024);
    let text = String::from(FollowedFleet::begin(roster.clone()));
    let mut followed = FollowedFleet::try_from(text).expect("what it writes it reads");
    let (Some(exit), Ok(key)) = (content.exits.first(), key()) else { return };
    let removed = change(&roster, RosterChange::Remove { name: exit.name.clone() }, &key, content.issued_at);
    let Ok(removed) = removed else { return };
    if content.serial < u64::MAX {
        assert!(followed.take(removed.as_bytes()).is_ok(), "the next roster follows");
        assert!(followed.take(&signed).is_err(), "an older one does not");
    }
}

fn key() -> Result<warren_session::roster::FleetKey, warren_session::roster::FleetKeyError> {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(SEED);
    warren_session::roster::FleetKey::from_file_text(&text)
}

/// Returns the encoding of a `SignedRoster` of `docs/warren-roster-v1.proto` with this roster.
fn sign(roster: &[u8]) -> Vec<u8> {
    let pair = Ed25519KeyPair::from_seed_unchecked(&SEED).expect("any 32 bytes are a seed");
    let signature = pair.sign(&[b"warren fleet roster, version 1\0".as_slice(), roster].concat());
    let mut bytes = Vec::new();
    if !roster.is_empty() {
        bytes.push(0x0a);
        let mut length = roster.len();
        while length >= 0x80 {
            bytes.push(u8::try_from(length % 0x80).unwrap_or_default() | 0x80);
            length /= 0x80;
        }
        bytes.push(u8::try_from(length).unwrap_or_default());
        bytes.extend_from_slice(roster);
    }
    bytes.extend_from_slice(&[0x12, 0x40]);
    bytes.extend_from_slice(signature.as_ref());
    bytes
}
