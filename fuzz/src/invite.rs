//! An invitation that somebody pasted.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use warren_session::invite::{Invite, InviteToken};

/// The input is a byte, then a text. If the byte is below 128, the text is first encoded and given its checksum, which
/// no fuzzer would guess.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let text = if *first < 0x80 {
        // An invitation ends with the first four bytes of its SHA-256.
        let sum = digest(&SHA256, rest);
        let sum = sum.as_ref().get(..4).unwrap_or_default();
        format!("warren1:{}", URL_SAFE_NO_PAD.encode([rest, sum].concat()))
    } else {
        String::from_utf8_lossy(rest).into_owned()
    };
    if let Ok(invite) = text.parse::<Invite>() {
        let again: Invite = invite.to_string().parse().expect("what it writes it reads");
        assert_eq!(again, invite);
        assert_eq!(InviteToken::from_wire(&invite.token.to_wire()), Some(invite.token));
    }
}
