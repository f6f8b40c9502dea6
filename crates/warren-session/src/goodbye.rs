//! The reasons that a side gives when it ends a connection or a session. The set of reasons is closed. Each has a code, and a
//! sentence for the user.

mod violation;

use std::fmt;

pub use self::violation::Violation;
use crate::message;

/// The reason that a side gives when it ends a connection or a session.
///
/// The reason is sent twice: as a `Goodbye` message on the control stream and as the QUIC application close code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goodbye {
    /// The exit does not know the client's key. Final.
    NotEnrolled,
    /// The exit's operator removed the client while it was connected. Final.
    Revoked,
    /// Another host opened a newer session with the same key. Final.
    Replaced,
    /// The sides speak different versions of the control protocol. Final.
    Version(Option<Versions>),
    /// The exit's operator disabled the client. Final.
    Disabled,
    /// The invitation is unknown, used, withdrawn or expired. Final.
    InvitationVoid,
    /// Every inner address is a static lease or held by an online client.
    PoolEmpty,
    /// The exit stops or restarts.
    Restarting,
    /// The exit does not know the session to attach to, because it restarted or the session ended.
    UnknownSession,
    /// Too many connections of this key, or of unknown keys, are waiting for their first message.
    Full,
    /// The exit is being taken out of service. Its clients move to other exits.
    Draining,
    /// The exit's store has not confirmed an enrolment, or a client's first addresses, in time. This reason also means that another
    /// change of the client is still being stored.
    NotStored,
    /// The handshake was not finished within [`crate::HANDSHAKE_TIMEOUT`].
    TimedOut,
    /// A newer connection of the same client process took the place of this connection.
    Superseded,
    /// The user stopped the client. The client's session ends.
    ClientStopped,
    /// The other side broke the protocol.
    Protocol(Violation),
}

/// The protocol versions of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The exit's version.
    pub exit: u32,
    /// The client's version.
    pub client: u32,
}

/// Base of the codes of protocol violations. The violation's own number is added to it.
const PROTOCOL_CODES: u32 = 0x100;

impl Goodbye {
    /// Every reason except the violations, each once.
    pub const ALL: [Self; 15] = [
        Self::NotEnrolled,
        Self::Revoked,
        Self::Replaced,
        Self::Version(None),
        Self::Disabled,
        Self::InvitationVoid,
        Self::PoolEmpty,
        Self::Restarting,
        Self::UnknownSession,
        Self::Full,
        Self::TimedOut,
        Self::Superseded,
        Self::Draining,
        Self::NotStored,
        Self::ClientStopped,
    ];

    /// The code in the message and in QUIC's application close. Codes below 0x10 are final.
    pub const fn code(self) -> u32 {
        match self {
            Self::NotEnrolled => 0x01,
            Self::Revoked => 0x02,
            Self::Replaced => 0x03,
            Self::Version(_) => 0x04,
            Self::Disabled => 0x05,
            Self::InvitationVoid => 0x06,
            Self::PoolEmpty => 0x10,
            Self::Restarting => 0x11,
            Self::UnknownSession => 0x12,
            Self::Full => 0x13,
            Self::TimedOut => 0x14,
            Self::Superseded => 0x15,
            Self::Draining => 0x16,
            Self::NotStored => 0x17,
            Self::ClientStopped => 0x20,
            Self::Protocol(violation) => PROTOCOL_CODES + violation.number(),
        }
    }

    /// The reason's stable name in metrics, in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotEnrolled => "not_enrolled",
            Self::Revoked => "revoked",
            Self::Replaced => "replaced",
            Self::Version(_) => "version",
            Self::Disabled => "disabled",
            Self::InvitationVoid => "invitation_void",
            Self::PoolEmpty => "pool_empty",
            Self::Restarting => "restarting",
            Self::UnknownSession => "unknown_session",
            Self::Full => "full",
            Self::TimedOut => "timed_out",
            Self::Superseded => "superseded",
            Self::Draining => "draining",
            Self::NotStored => "not_stored",
            Self::ClientStopped => "client_stopped",
            Self::Protocol(_) => "protocol",
        }
    }

    /// The reason of a code, without the details that only the message carries. `None` if this version does not know the code.
    pub fn from_code(code: u32) -> Option<Self> {
        if let Some(number) = code.checked_sub(PROTOCOL_CODES) {
            return Violation::from_number(number).map(Self::Protocol);
        }
        // The search uses `code`, so that the two directions cannot disagree.
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }

    /// Whether a client stops for good on this reason instead of reconnecting.
    pub const fn is_final(self) -> bool {
        self.code() < 0x10
    }

    pub(crate) fn to_message(self) -> message::Message {
        let versions = if let Self::Version(versions) = self { versions } else { None };
        message::Message::Goodbye(message::Goodbye {
            reason: self.code(),
            exit_version: versions.map_or(0, |versions| versions.exit),
            client_version: versions.map_or(0, |versions| versions.client),
        })
    }

    pub(crate) fn from_message(message: &message::Goodbye) -> Option<Self> {
        let versions = Versions { exit: message.exit_version, client: message.client_version };
        let reason = Self::from_code(message.reason)?;
        // Both versions are 0 if the sender did not name them.
        let named = matches!(reason, Self::Version(_)) && versions.exit != versions.client;
        Some(if named { Self::Version(Some(versions)) } else { reason })
    }
}

/// The sentence for the user: what happened, and what to do about it.
impl fmt::Display for Goodbye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These two methods cover all reasons that are not handled below. A test checks that no sentence is empty.
        let sentence = self.final_sentence().or(self.passing_sentence());
        match (self, sentence) {
            (Self::Version(Some(Versions { exit, client })), _) => write!(
                f,
                "the exit speaks protocol version {exit} and the client version {client}: update Warren on the side with the \
                 lower number"
            ),
            (Self::Protocol(violation), _) => write!(
                f,
                "the other side broke the protocol ({violation}): this is a defect, report it with both versions of Warren"
            ),
            (_, sentence) => f.write_str(sentence.unwrap_or_default()),
        }
    }
}

impl Goodbye {
    /// The sentence of a final reason, if the sentence contains no details.
    const fn final_sentence(self) -> Option<&'static str> {
        match self {
            Self::NotEnrolled => Some(
                "the exit does not know this client's key: ask its operator for the line that `warren exit invite NAME` \
                 prints, and run that line here",
            ),
            Self::Revoked => Some(
                "the exit's operator has removed this client: if you still need access, ask for the line that \
                 `warren exit invite NAME` prints, and run that line here",
            ),
            Self::Replaced => Some(
                "another host opened a session with this client's key and took over: give every host a key of its \
                 own, or run `warren up` again to take the session back",
            ),
            Self::Version(None) => Some(
                "exit and client speak different versions of the protocol: update Warren on the older side",
            ),
            Self::Disabled => Some(
                "the exit's operator has disabled this client: ask for `warren exit client enable NAME` there, then \
                 run `warren up` again",
            ),
            Self::InvitationVoid => Some(
                "the exit does not accept this invitation, because it was used, withdrawn or has expired: ask for \
                 a new one with `warren exit invite NAME` there",
            ),
            Self::Version(Some(_))
            | Self::PoolEmpty
            | Self::Restarting
            | Self::UnknownSession
            | Self::Full
            | Self::TimedOut
            | Self::Superseded
            | Self::Draining
            | Self::NotStored
            | Self::ClientStopped
            | Self::Protocol(_) => None,
        }
    }

    /// The sentence of a reason after which the client may try again.
    const fn passing_sentence(self) -> Option<&'static str> {
        match self {
            Self::PoolEmpty => Some(
                "the exit has no inner address left, all are in use: have its operator remove clients or choose \
                 larger networks in exit.toml",
            ),
            Self::Restarting => {
                Some("the exit is restarting: the client reconnects by itself once it is back")
            }
            Self::UnknownSession => {
                Some("the exit does not know this session any more: the client opens a new one by itself")
            }
            Self::Full => {
                Some("too many connections are waiting at the exit: the client tries again by itself")
            }
            Self::TimedOut => Some(
                "the handshake was not finished within 5 s: check that UDP packets pass in both directions",
            ),
            Self::Superseded => {
                Some("a newer connection of the same client took the place of this one: nothing to do")
            }
            Self::Draining => Some(
                "the exit is being taken out of service: the client moves to its next exit, and comes back once this \
                 one serves again",
            ),
            Self::NotStored => Some(
                "the exit could not store the change of this client in time: nothing is lost, try again in a few seconds",
            ),
            Self::ClientStopped => Some("the client was stopped: run `warren up` there to start it again"),
            Self::NotEnrolled
            | Self::Revoked
            | Self::Replaced
            | Self::Version(_)
            | Self::Disabled
            | Self::InvitationVoid
            | Self::Protocol(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Vec<Goodbye> {
        Goodbye::ALL.into_iter().chain(Violation::ALL.into_iter().map(Goodbye::Protocol)).collect()
    }

    #[test]
    fn every_code_belongs_to_one_reason_and_leads_back_to_it() {
        let mut codes = std::collections::BTreeSet::new();
        for reason in everything() {
            assert!(codes.insert(reason.code()), "{reason:?} shares its code");
            assert_eq!(Goodbye::from_code(reason.code()), Some(reason));
        }
        assert_eq!(codes.len(), Goodbye::ALL.len() + Violation::ALL.len());
        for unknown in [0, 0x0f, 0xff, PROTOCOL_CODES, 0x1ff, u32::MAX] {
            assert_eq!(Goodbye::from_code(unknown), None);
        }
    }

    #[test]
    fn only_what_reconnecting_cannot_mend_is_final() {
        use Goodbye::*;
        let finals: Vec<_> = everything().into_iter().filter(|reason| reason.is_final()).collect();
        assert_eq!(finals, [NotEnrolled, Revoked, Replaced, Version(None), Disabled, InvitationVoid]);
    }

    #[test]
    fn a_reason_survives_the_message_with_its_versions() {
        let named = Goodbye::Version(Some(Versions { exit: 2, client: 1 }));
        for reason in everything().into_iter().chain([named]) {
            let message::Message::Goodbye(wire) = reason.to_message() else { panic!("not a goodbye") };
            assert_eq!(Goodbye::from_message(&wire), Some(reason));
        }
    }

    #[test]
    fn the_version_sentence_names_both_versions() {
        let sentence = Goodbye::Version(Some(Versions { exit: 7, client: 3 })).to_string();
        assert!(sentence.contains("exit speaks protocol version 7") && sentence.contains("client version 3"));
    }

    #[test]
    fn every_sentence_says_what_happened_and_what_follows() {
        for reason in everything() {
            let sentence = reason.to_string();
            let (what, advice) =
                sentence.split_once(": ").unwrap_or_else(|| panic!("no advice in {sentence:?}"));
            assert!(what.len() > 15 && advice.len() > 8, "{sentence}");
            assert!(!sentence.ends_with('.') && !sentence.contains("  "), "{sentence}");
        }
    }
}
