//! Splits a control stream into messages, with a buffer that a hostile peer cannot grow without bound.

use super::envelope::{Message, PREFIX_LENGTH, decode};
use super::error::MessageError;

/// Longest message in bytes, without its prefix: the largest `u16`.
pub const MAX_MESSAGE_LENGTH: usize = 0xffff;

/// Reads messages from the bytes of one control stream.
///
/// The buffer holds at most twice the longest message. A caller that reads all messages after each piece of at most
/// [`MAX_MESSAGE_LENGTH`] bytes never reaches that bound, whatever the peer sends.
#[derive(Clone, Debug)]
pub struct MessageDecoder {
    buffer: Vec<u8>,
    /// Start of the unread bytes. The bytes before it are dropped by the next push.
    read: usize,
    longest: usize,
    failed: Option<MessageError>,
}

impl Default for MessageDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl MessageDecoder {
    /// A decoder for messages of up to [`MAX_MESSAGE_LENGTH`] bytes.
    pub const fn new() -> Self {
        Self::with_limit(MAX_MESSAGE_LENGTH)
    }

    /// A decoder for messages of up to `longest` bytes.
    pub const fn with_limit(longest: usize) -> Self {
        Self { buffer: Vec::new(), read: 0, longest, failed: None }
    }

    /// Adds the next bytes of the stream. If they exceed the buffer's bound, [`Self::next`] fails.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // Bytes that were read are dropped here and not after each message, because dropping them moves the remaining bytes.
        self.buffer.drain(..self.read);
        self.read = 0;
        if self.buffer.len().saturating_add(bytes.len()) > 2 * (PREFIX_LENGTH + MAX_MESSAGE_LENGTH) {
            self.fail(MessageError::TooLong { limit: self.longest });
            return;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message that this version knows, or `None` until more bytes arrive.
    ///
    /// # Errors
    ///
    /// If the stream cannot be read any further. Every later call fails the same way.
    #[expect(
        clippy::should_implement_trait,
        reason = "a Result of Option reads better with `?` than an iterator's item"
    )]
    pub fn next(&mut self) -> Result<Option<Message>, MessageError> {
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            let unread = self.buffer.get(self.read..).unwrap_or_default();
            let Some((prefix, rest)) = unread.split_first_chunk::<PREFIX_LENGTH>() else { return Ok(None) };
            let length = usize::from(u16::from_be_bytes(*prefix));
            // The length is refused before the message arrives. If the decoder waited for the message, a stranger could fill the
            // buffer.
            if length > self.longest {
                return Err(self.fail(MessageError::TooLong { limit: self.longest }));
            }
            let Some(envelope) = rest.get(..length) else { return Ok(None) };
            let decoded = decode(envelope);
            self.read += PREFIX_LENGTH + length;
            match decoded {
                Ok(Some(message)) => return Ok(Some(message)),
                // A later version has sent this message, so it is skipped.
                Ok(None) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Bytes that the decoder holds.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The number of bytes that are not part of a decoded message yet.
    pub fn unread(&self) -> usize {
        self.buffer.len() - self.read
    }

    fn fail(&mut self, error: MessageError) -> MessageError {
        // A new vector replaces the buffer, because a cleared one would keep its memory and the stream is over.
        self.buffer = Vec::new();
        self.read = 0;
        self.failed = Some(error);
        error
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{Attach, Attached, Enrol, Enrolled, Goodbye, Hello, encode};

    #[test]
    fn messages_come_out_whatever_the_pieces() {
        let messages = samples();
        let stream: Vec<u8> = messages.iter().flat_map(encode).collect();
        for size in 1..stream.len() {
            let mut decoder = MessageDecoder::new();
            let mut decoded = Vec::new();
            for piece in stream.chunks(size) {
                decoder.push(piece);
                while let Some(message) = decoder.next().unwrap() {
                    decoded.push(message);
                }
            }
            assert_eq!(decoded, messages, "in pieces of {size}");
        }
    }

    #[test]
    fn unknown_messages_and_fields_are_ignored() {
        let mut decoder = MessageDecoder::new();
        // Envelope field 99: a message of a later version.
        decoder.push(&[0x00, 0x05, 0x9a, 0x06, 0x02, 0x08, 0x01]);
        // An empty envelope, then Attached with field 1 = 3 and an unknown field 15 = 1.
        decoder.push(&[0x00, 0x00, 0x00, 0x06, 0x22, 0x04, 0x08, 0x03, 0x78, 0x01]);
        assert_eq!(decoder.next(), Ok(Some(Message::Attached(Attached { index: 3 }))));
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn a_message_that_does_not_decode_ends_the_stream_for_good() {
        let mut decoder = MessageDecoder::new();
        decoder.push(&[0x00, 0x02, 0x0a, 0x7f]);
        assert_eq!(decoder.next(), Err(MessageError::Malformed));
        decoder.push(&encode(&samples()[0]));
        assert_eq!((decoder.next(), decoder.buffered()), (Err(MessageError::Malformed), 0));
    }

    #[test]
    fn a_message_above_the_limit_is_refused_before_it_is_there() {
        let mut decoder = MessageDecoder::with_limit(100);
        decoder.push(&[0x00, 101]);
        assert_eq!(decoder.next(), Err(MessageError::TooLong { limit: 100 }));
    }

    #[test]
    fn the_longest_message_is_waited_for_and_not_one_byte_more_than_the_bound_is_held() {
        let mut decoder = MessageDecoder::new();
        decoder.push(&[0xff; 2 * (PREFIX_LENGTH + MAX_MESSAGE_LENGTH)]);
        assert!(decoder.buffered() > 0);
        decoder.push(&[0]);
        assert!(matches!(decoder.next(), Err(MessageError::TooLong { .. })));
        assert_eq!(decoder.buffered(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_neither_panic_nor_pile_up(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 0..60)) {
            let mut decoder = MessageDecoder::new();
            for piece in pieces {
                decoder.push(&piece);
                while let Ok(Some(_)) = decoder.next() {}
                prop_assert!(decoder.buffered() <= 2 * (PREFIX_LENGTH + MAX_MESSAGE_LENGTH));
            }
        }

        #[test]
        fn a_hello_with_any_content_survives(version: u32, features: u64, wanted: u32, name: String, nonce: Vec<u8>) {
            prop_assume!(name.len() + nonce.len() < 60_000);
            let hello = Message::Hello(Hello { version, features, connections_wanted: wanted, name, nonce, ..Hello::default() });
            let mut decoder = MessageDecoder::new();
            decoder.push(&encode(&hello));
            prop_assert_eq!(decoder.next(), Ok(Some(hello)));
        }
    }

    fn samples() -> Vec<Message> {
        vec![
            Message::Hello(Hello {
                version: 1,
                name: "laptop".into(),
                nonce: vec![7; 16],
                ..Hello::default()
            }),
            Message::Attach(Attach { session: u64::MAX, attach_token: vec![9; 16], index: 300 }),
            Message::Attached(Attached { index: 0 }),
            Message::Goodbye(Goodbye { reason: 3, exit_version: 0, client_version: 0 }),
            Message::Enrol(Enrol { token: "t".into(), name: "n".into() }),
            Message::Enrolled(Enrolled { name: "n".into() }),
        ]
    }
}
