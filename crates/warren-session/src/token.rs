//! `AttachToken`, which a connection presents to join a session that another connection opened.

use std::fmt;
use std::hint::black_box;

/// 16 random bytes that the exit sends in `Welcome`. Comparison takes constant time.
#[derive(Clone, Copy, Eq)]
pub struct AttachToken([u8; Self::LENGTH]);

impl AttachToken {
    /// Length in bytes.
    pub const LENGTH: usize = 16;

    /// Wraps 16 random bytes.
    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Reads a token from the wire. `None` if the length is wrong.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes as they go on the wire.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl PartialEq for AttachToken {
    fn eq(&self, other: &Self) -> bool {
        // `black_box` stops the compiler from returning at the first byte that differs.
        let difference =
            self.0.iter().zip(&other.0).fold(0, |found, (left, right)| black_box(found | (left ^ right)));
        difference == 0
    }
}

/// Hides the bytes: tokens do not belong in logs.
impl fmt::Debug for AttachToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttachToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_only_if_every_byte_is() {
        let token = AttachToken::new([7; 16]);
        assert_eq!(token, AttachToken::new([7; 16]));
        for position in 0..AttachToken::LENGTH {
            let mut bytes = [7; 16];
            bytes[position] ^= 0x80;
            assert_ne!(token, AttachToken::new(bytes), "byte {position} differs");
        }
    }

    #[test]
    fn only_sixteen_bytes_make_a_token() {
        assert!(AttachToken::from_wire(&[0; 15]).is_none());
        assert!(AttachToken::from_wire(&[0; 17]).is_none());
        assert_eq!(AttachToken::from_wire(&[0; 16]), Some(AttachToken::new([0; 16])));
    }

    #[test]
    fn debug_output_hides_the_bytes() {
        assert_eq!(format!("{:?}", AttachToken::new([0x5a; 16])), "AttachToken(..)");
    }
}
