//! Decodes a peer's control stream. It gives the same messages however it is cut, and each message survives encoding.

use warren_session::message::{Message, MessageDecoder, MessageError, encode};

use crate::input::Input;

/// The input is a byte with the length of the pieces, then the stream.
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
    // The decoder promises its bound only for pieces of at most the longest message.
    for piece in stream.chunks(step.min(0xffff)) {
        decoder.push(piece);
        // Twice the longest message with its prefix of two bytes.
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
