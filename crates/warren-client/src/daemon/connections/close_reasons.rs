//! Turns the end of a connection to an exit into news for the session, with a message for the user.

use warren_quic::driver::CloseReason;
use warren_session::client::ConnectionEnd;
use warren_session::goodbye::Goodbye;

use warren_config::Endpoint;

/// Classifies the end of a connection. Only a Goodbye can be final, and only from an exit that has proven its key. All other
/// reasons can be forged by anybody on the path.
pub(super) fn end_of(endpoint: &Endpoint, reason: CloseReason, had_session: bool) -> ConnectionEnd {
    match reason {
        CloseReason::Peer { code, reason } => match u32::try_from(code).ok().and_then(Goodbye::from_code) {
            Some(goodbye) => ConnectionEnd::Goodbye(goodbye),
            None => {
                let said = if reason.is_empty() { format!("code {code}") } else { reason };
                ConnectionEnd::Lost(format!("the exit closed the connection: {said}; see its log"))
            }
        },
        CloseReason::WrongPeerKey { presented } if had_session => ConnectionEnd::Lost(format!(
            "{endpoint} now shows another key than the profile's: {presented}; if its operator has changed the key, correct \
             public_key in the profile and run `warren down` and `warren up`; the client keeps trying, because somebody on \
             the path may have forged the answer"
        )),
        CloseReason::WrongPeerKey { presented } => ConnectionEnd::Lost(format!(
            "{endpoint} showed another key than the profile's: {presented}; compare it with what \
             `warren status exit` shows there, and correct public_key in the profile if it is the exit's"
        )),
        CloseReason::NoCommonProtocol if had_session => ConnectionEnd::Lost(format!(
            "{endpoint} does not speak Warren's protocol any more; check what runs there; the client keeps trying"
        )),
        CloseReason::NoCommonProtocol => ConnectionEnd::Lost(format!(
            "{endpoint} does not speak Warren's protocol; check the endpoint in the profile"
        )),
        CloseReason::TimedOut => ConnectionEnd::Lost(format!(
            "{endpoint} no longer answers; the client keeps trying; check that the exit runs, and that UDP reaches it"
        )),
        CloseReason::Reset => ConnectionEnd::Lost(format!(
            "{endpoint} no longer knows the connection, probably because the exit was restarted; the client \
             connects again by itself"
        )),
        CloseReason::Local => ConnectionEnd::Lost(
            "the connection was closed on this side; the client connects again by itself".into(),
        ),
        CloseReason::Transport(what) => ConnectionEnd::Lost(format!(
            "the connection to {endpoint} failed: {what}; the client connects again by itself; if the connection keeps \
             failing, update Warren at both ends"
        )),
    }
}

#[cfg(test)]
mod tests {
    use warren_quic::key::PrivateKey;

    use super::*;

    #[test]
    fn every_end_has_advice_and_only_a_goodbye_can_end_the_client() {
        let endpoint: Endpoint = "exit.example.net:443".parse().unwrap();
        let presented = PrivateKey::generate().unwrap().public();
        let reasons = [
            CloseReason::Local,
            CloseReason::Peer { code: 0x7777, reason: String::new() },
            CloseReason::Peer { code: u64::MAX, reason: "words of another version".into() },
            CloseReason::TimedOut,
            CloseReason::Reset,
            CloseReason::WrongPeerKey { presented },
            CloseReason::NoCommonProtocol,
            CloseReason::Transport("the peer broke QUIC's rules".into()),
        ];
        for (reason, had_session) in reasons.iter().flat_map(|reason| [(reason, false), (reason, true)]) {
            let end = end_of(&endpoint, reason.clone(), had_session);
            let ConnectionEnd::Lost(sentence) = &end else { panic!("{reason:?} became {end:?}") };
            let (what, advice) =
                sentence.split_once("; ").unwrap_or_else(|| panic!("no advice in {sentence:?}"));
            assert!(what.len() > 15 && advice.len() > 8, "{sentence}");
        }
        for goodbye in Goodbye::ALL {
            let reason = CloseReason::Peer { code: goodbye.code().into(), reason: String::new() };
            assert!(
                matches!(end_of(&endpoint, reason, true), ConnectionEnd::Goodbye(same) if same == goodbye)
            );
        }
    }
}
