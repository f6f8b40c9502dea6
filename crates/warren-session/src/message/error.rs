//! The errors of a control stream.

use thiserror::Error;

use crate::goodbye::Violation;

/// Why a control stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// A message is not a valid Protocol Buffers encoding of its schema.
    #[error("a message does not decode")]
    Malformed,
    /// A message is longer than the limit, or more bytes were pushed than the buffer holds.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
}

impl From<MessageError> for Violation {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::Malformed => Self::Malformed,
            MessageError::TooLong { .. } => Self::TooLong,
        }
    }
}
