//! Decodes a peer's control stream. The messages must not depend on how the stream is divided into pieces, and a message that is
//! encoded and decoded again must be the same.

use warren_session::message::{Message, MessageDecoder, MessageError, encode};

use crate::input::Input;

/// The first byte of the input is the length of the pieces. The stream follows.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let step = usize::from(input.byte()).max(1);
    let whole = decode(input.0, input.0.len().max(1));
    assert_eq!(whole, decode(input.0, step), "where a stream is cut means nothing");
    for message in &whole.0 {
        let encoded = encode(message);
        let (again, error) = decode(&encoded, encoded.len());
        assert_eq!((again.as_slice(), error), (std::slice::from_ref(message), None));
    }
}

fn decode(stream: &[u8], step: usize) -> (Vec<Message>, Option<MessageError>) {
    let mut decoder = MessageDecoder::new();
    let mut messages = Vec::new();
    // The decoder's limit of buffered bytes holds only for pieces that are not longer than the longest message.
    for piece in stream.chunks(step.min(0xffff)) {
        decoder.push(piece);
        // The limit is twice the length of the longest message with its length prefix of two bytes.
        assert!(decoder.buffered() <= 2 * 0x1_0001, "a peer cannot make it grow");
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next(), Err(error), "what failed stays failed");
                    return (messages, Some(error));
                }
            }
        }
    }
    (messages, None)
}
