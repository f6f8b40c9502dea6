//! Parses the text of an invitation.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use warren_session::invite::{Invite, InviteToken};

/// The input is a byte, then the text of an invitation. If the byte is below 128, the rest is instead the content of an
/// invitation, which is encoded with a correct checksum, because a fuzzer would not find one.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let text = if *first < 0x80 {
        // The checksum of an invitation is the first four bytes of its SHA-256.
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
