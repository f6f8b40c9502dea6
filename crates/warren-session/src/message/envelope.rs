//! The envelope of a message: encoding with the length prefix, and decoding.

use prost::Message as _;

use super::error::MessageError;
use super::wire::{self, Attach, Attached, Enrol, Enrolled, Goodbye, Hello, Roster, Stay, Update, Welcome};

/// Length of the length prefix in bytes.
pub(super) const PREFIX_LENGTH: usize = 2;

/// One message of the control stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Client to exit on connection 0: opens a session.
    Hello(Hello),
    /// Exit to client: the session is open.
    Welcome(Welcome),
    /// Client to exit: joins a connection to an open session.
    Attach(Attach),
    /// Exit to client: the connection has joined.
    Attached(Attached),
    /// Either direction: the sender leaves, with a reason.
    Goodbye(Goodbye),
    /// Client to exit: asks for its key to be enrolled.
    Enrol(Enrol),
    /// Exit to client: the key is enrolled.
    Enrolled(Enrolled),
    /// Exit to client: changes of values that `Welcome` gave.
    Update(Update),
    /// Exit to client: the newest roster of the exit's fleet.
    Roster(Roster),
    /// Client to exit: the client has not moved to another exit after all.
    Stay(Stay),
}

/// Writes a message with its length prefix.
///
/// # Panics
///
/// If the message is longer than [`MAX_MESSAGE_LENGTH`](super::MAX_MESSAGE_LENGTH). Messages of this crate are far shorter:
/// [`crate::MAX_ROUTES`], [`crate::MAX_PREFIXES`], [`crate::MAX_DNS_SERVERS`], [`crate::roster::MAX_ROSTER_LENGTH`] and the
/// length of names bound them.
pub fn encode(message: &Message) -> Vec<u8> {
    let body = match message.clone() {
        Message::Hello(hello) => wire::Body::Hello(hello),
        Message::Welcome(welcome) => wire::Body::Welcome(welcome),
        Message::Attach(attach) => wire::Body::Attach(attach),
        Message::Attached(attached) => wire::Body::Attached(attached),
        Message::Goodbye(goodbye) => wire::Body::Goodbye(goodbye),
        Message::Enrol(enrol) => wire::Body::Enrol(enrol),
        Message::Enrolled(enrolled) => wire::Body::Enrolled(enrolled),
        Message::Update(update) => wire::Body::Update(update),
        Message::Roster(roster) => wire::Body::Roster(roster),
        Message::Stay(stay) => wire::Body::Stay(stay),
    };
    let envelope = wire::Message { body: Some(body) };
    let length = u16::try_from(envelope.encoded_len()).expect("senders keep messages below the limit");
    let mut bytes = Vec::with_capacity(PREFIX_LENGTH + usize::from(length));
    bytes.extend_from_slice(&length.to_be_bytes());
    envelope.encode(&mut bytes).expect("a Vec grows as needed");
    bytes
}

/// Reads one envelope. `None` is a message that this version does not know.
pub(super) fn decode(envelope: &[u8]) -> Result<Option<Message>, MessageError> {
    let wire::Message { body } = wire::Message::decode(envelope).map_err(|_| MessageError::Malformed)?;
    Ok(body.map(|body| match body {
        wire::Body::Hello(hello) => Message::Hello(hello),
        wire::Body::Welcome(welcome) => Message::Welcome(welcome),
        wire::Body::Attach(attach) => Message::Attach(attach),
        wire::Body::Attached(attached) => Message::Attached(attached),
        wire::Body::Goodbye(goodbye) => Message::Goodbye(goodbye),
        wire::Body::Enrol(enrol) => Message::Enrol(enrol),
        wire::Body::Enrolled(enrolled) => Message::Enrolled(enrolled),
        wire::Body::Update(update) => Message::Update(update),
        wire::Body::Roster(roster) => Message::Roster(roster),
        wire::Body::Stay(stay) => Message::Stay(stay),
    }))
}
